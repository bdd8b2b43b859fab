// Light, dark, or as the system says; the choice is kept in this browser.

import { find, icon, keep, kept } from "/pages/dom.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };
const ICON = { auto: "auto", light: "sun", dark: "moon" };

function show(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = find("#theme");
  if (button === null) return;
  const label = `Colours: ${theme === "auto" ? "as the system" : theme}`;
  button.replaceChildren(icon(ICON[theme]));
  button.setAttribute("aria-label", label);
  button.title = label;
}

let theme = kept("theme", "auto");
if (!(theme in NEXT)) theme = "auto";
show(theme);
find("#theme")?.addEventListener("click", () => {
  theme = NEXT[theme];
  keep("theme", theme === "auto" ? null : theme);
  show(theme);
  document.dispatchEvent(new Event("themechange"));
});
