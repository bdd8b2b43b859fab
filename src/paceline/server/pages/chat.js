// The chat: a conversation that is kept in this browser, and one answer at a time.

import { ApiError, call, keyOf } from "/pages/api.js";
import { figures, stream } from "/pages/answer.js";
import { asCurl } from "/pages/curl.js";
import { copyButton, element, find, icon, keep, kept } from "/pages/dom.js";
import { nodesOf } from "/pages/markdown.js";
import { chosenModel, offer, requestBody, setUp } from "/pages/settings.js";

const SUGGESTIONS = [
  "What is a pipeline? Answer in two sentences.",
  "Write a Python function that checks whether a number is prime.",
  "List three facts about the sea as a table.",
];
const RETRY_MS = 1000;

// {role, content, answer, body}: an answer's figures, and the request that made it, without the turns before it
let turns = kept("conversation", []);
let running = null; // AbortController of the answer that is being written

const send = find("#send");
const question = find("#question");
const log = find("#conversation");

// ---------------------------------------------------------------- showing

function turnNode(turn) {
  const content = element("div", { class: "content" });
  if (turn.role === "user") content.textContent = turn.content;
  else content.append(...nodesOf(turn.content));
  const who = element("h2", { class: "off-screen", text: turn.role === "user" ? "You" : "Answer" });
  const node = element("article", { class: `turn ${turn.role}` }, who, content);
  if (turn.answer) node.append(...endOf(turn));
  return node;
}

function endOf(turn) {
  const { answer } = turn;
  const nodes = [];
  if (answer.error) nodes.push(element("p", { class: "error", role: "alert", text: answer.error }));
  const shown = figures(answer);
  if (shown.length) nodes.push(element("p", { class: "figures muted", text: shown.join(" · ") }));
  const buttons = element("div", { class: "row actions" });
  if (turn.content) buttons.append(copyButton("Copy", () => turn.content));
  const url = new URL("/v1/chat/completions", location.href).href;
  buttons.append(copyButton("Copy as curl", () => asCurl(url, bodyOf(turn), keyOf("user") !== "")));
  if (turn === turns.at(-1)) {
    buttons.append(element("button", { type: "button", class: "quiet", onclick: again }, icon("retry"), "Again"));
  }
  if (answer.id) {
    buttons.append(element("a", { class: "button quiet", href: `/monitor#request=${answer.id}` }, icon("lanes"), "In the pipeline"));
  }
  nodes.push(buttons);
  return nodes;
}

function showAll() {
  log.replaceChildren(...turns.map(turnNode));
  find("#welcome").hidden = turns.length > 0;
  find("#new-chat").disabled = turns.length === 0;
  scrollTo(0, document.body.scrollHeight);
}

function showRunning(is) {
  log.setAttribute("aria-busy", is);
  send.replaceChildren(icon(is ? "stop" : "send"));
  send.setAttribute("aria-label", is ? "Stop" : "Send");
  send.title = is ? "Stop (Esc)" : "Send (Enter)";
}

/** Calls `draw` at most once per picture of the screen; `draw.now()` at once. */
function perPicture(draw) {
  let asked = 0;
  const later = () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      draw();
    });
  };
  later.now = () => {
    cancelAnimationFrame(asked);
    draw();
  };
  return later;
}

// ---------------------------------------------------------------- asking

/** The request that makes, or made, this answer. */
function bodyOf(turn) {
  const before = turns.slice(0, turns.indexOf(turn)).filter(({ content }) => content);
  return { ...turn.body, messages: [...turn.body.messages, ...before.map(({ role, content }) => ({ role, content }))] };
}

async function ask(text) {
  turns.push({ role: "user", content: text });
  showAll();
  await answer();
}

async function again() {
  if (running) return;
  turns.pop();
  showAll();
  await answer();
}

async function answer() {
  let body;
  try {
    body = requestBody();
  } catch (error) {
    notice(`${error.message} The settings are at the top right.`);
    return;
  }
  notice("");
  const turn = { role: "assistant", content: "", body };
  turns.push(turn);
  showAll();
  const content = log.lastElementChild.querySelector(".content");
  content.append(element("span", { class: "waiting", role: "status", "aria-label": "Waiting for the first token" }));
  const draw = perPicture(() => {
    const atEnd = innerHeight + scrollY > document.body.scrollHeight - 80;
    if (turn.content) content.replaceChildren(...nodesOf(turn.content));
    if (atEnd) scrollTo(0, document.body.scrollHeight);
  });
  running = new AbortController();
  showRunning(true);
  turn.answer = await stream(bodyOf(turn), running.signal, (grown) => {
    turn.content = grown.text;
    draw();
  });
  running = null;
  draw.now();
  showRunning(false);
  showAll();
  keep("conversation", turns);
}

function stop() {
  running?.abort();
}

// ---------------------------------------------------------------- starting

function notice(text) {
  find("#notice").textContent = text;
  find("#notice").hidden = text === "";
}

async function findModels() {
  try {
    const reply = await call("/v1/models");
    offer((await reply.json()).data);
    showModel();
    notice("");
  } catch (error) {
    const status = error instanceof ApiError ? error.status : 0;
    notice(status ? error.message : "The server does not answer.");
    if (status === 0 || status === 503) setTimeout(findModels, RETRY_MS);
  }
}

function showModel() {
  find("#model-name").textContent = chosenModel();
}

function fit() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight + 2}px`;
}

find("#ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = question.value.trim();
  if (running) {
    stop();
  } else if (text) {
    question.value = "";
    fit();
    ask(text);
  }
});
question.addEventListener("input", fit);
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) find("#ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
  if (event.altKey && event.code === "KeyN") find("#new-chat").click();
  if (event.altKey && event.code === "KeyS") find("#open-settings").click();
});
find("#new-chat").addEventListener("click", () => {
  stop();
  turns = [];
  keep("conversation", null);
  showAll();
  question.focus();
});
addEventListener("pagehide", () => keep("conversation", turns.length ? turns : null));
find("#suggestions").append(
  ...SUGGESTIONS.map((text) => element("li", {}, element("button", { type: "button", text, onclick: () => !running && ask(text) }))),
);

setUp(showModel);
showAll();
showRunning(false);
question.focus();
findModels();
