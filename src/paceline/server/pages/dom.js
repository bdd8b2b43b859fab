// Small helpers over the DOM. Texts always become text nodes: nothing here can make HTML of a string.

/** The one element that matches. */
export const find = (selector, root = document) => root.querySelector(selector);

/**
 * A new element. Attributes named `on…` are listeners, `class` and `text` are what they say, true and false set or
 * leave out an attribute; children are nodes or texts, null ones are left out.
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "text") made.textContent = value;
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** One of the line drawings in icons.svg, for a button that has a label of its own. */
export function icon(name) {
  const picture = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  picture.setAttribute("class", "icon");
  picture.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `/pages/icons.svg#${name}`);
  picture.append(use);
  return picture;
}

/** Put `text` on the clipboard; also where browsers hide the clipboard because the page came over plain HTTP. */
export async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = element("textarea", { class: "off-screen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies what `text()` returns, and says so for a moment. */
export function copyButton(label, text) {
  const caption = element("span", { text: label });
  const button = element("button", { type: "button", class: "quiet" }, icon("copy"), caption);
  button.addEventListener("click", async () => {
    await copy(text());
    caption.textContent = "Copied";
    setTimeout(() => (caption.textContent = label), 1500);
  });
  return button;
}

/** A value kept by this browser for this site; `fallback` where there is none or it cannot be kept. */
export function kept(name, fallback = null) {
  try {
    return JSON.parse(localStorage.getItem(`paceline.${name}`)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Keep a value in this browser, or forget it (null). */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(`paceline.${name}`);
    else localStorage.setItem(`paceline.${name}`, JSON.stringify(value));
  } catch {
    // Storage is full or switched off: the page works, but forgets when it is closed.
  }
}
