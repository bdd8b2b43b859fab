// Markdown to DOM nodes. marked splits the text into tokens; nodes are made one by one, so no answer can bring HTML,
// scripts, pictures or addresses of other kinds than http, https and mailto onto the page.

import { copyButton, element } from "/pages/dom.js";
import { lexer } from "/pages/marked.esm.js";

const SAFE_ADDRESS = /^(https?:|mailto:)/i;

/** Nodes that show `text`. */
export function nodesOf(text) {
  return blocks(lexer(text, { gfm: true, breaks: true }));
}

const blocks = (tokens) => tokens.map(block).filter((node) => node !== null);

function block(token) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return element(`h${Math.min(token.depth + 2, 6)}`, {}, ...inlines(token.tokens));
    case "paragraph":
      return element("p", {}, ...inlines(token.tokens));
    case "hr":
      return element("hr");
    case "blockquote":
      return element("blockquote", {}, ...blocks(token.tokens));
    case "list":
      return element(token.ordered ? "ol" : "ul", { start: token.ordered ? token.start : null }, ...token.items.map(item));
    case "table":
      return table(token);
    case "code":
      return code(token);
    default: // raw HTML is shown as what it is: text
      return token.tokens ? element("span", {}, ...inlines(token.tokens)) : document.createTextNode(token.raw);
  }
}

function item(token) {
  const box = token.task ? element("input", { type: "checkbox", disabled: true, checked: Boolean(token.checked) }) : null;
  return element("li", {}, box, ...blocks(token.tokens));
}

function table(token) {
  const row = (cells, name) =>
    element("tr", {}, ...cells.map((cell) => element(name, { class: cell.align ? `align-${cell.align}` : null }, ...inlines(cell.tokens))));
  return element(
    "div",
    { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" },
    element("table", {}, element("thead", {}, row(token.header, "th")), element("tbody", {}, ...token.rows.map((cells) => row(cells, "td")))),
  );
}

function code(token) {
  return element(
    "figure",
    { class: "code" },
    element("figcaption", {}, element("span", { class: "muted", text: token.lang?.split(/\s/)[0] || "text" }), copyButton("Copy", () => token.text)),
    element("pre", { tabindex: "0" }, element("code", { text: token.text })),
  );
}

const inlines = (tokens) => (tokens ?? []).map(inline);

function inline(token) {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return element(token.type, {}, ...inlines(token.tokens));
    case "codespan":
      return element("code", { text: token.text });
    case "br":
      return element("br");
    case "link":
      if (!SAFE_ADDRESS.test(token.href)) return document.createTextNode(token.raw);
      return element("a", { href: token.href, rel: "noopener noreferrer nofollow", target: "_blank" }, ...inlines(token.tokens));
    case "text":
    case "escape":
      return token.tokens ? element("span", {}, ...inlines(token.tokens)) : document.createTextNode(token.text);
    default: // pictures would be fetched from elsewhere
      return document.createTextNode(token.raw);
  }
}
