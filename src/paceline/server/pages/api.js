// Calls to the server that the page came from, with the reader's key if the server wants one.

import { element } from "/pages/dom.js";

const slot = (role) => `paceline.key.${role}`;

/** The key kept for a role ("user" or "admin"): for this tab, or for this browser if its owner ticked the box. */
export function keyOf(role) {
  try {
    return sessionStorage.getItem(slot(role)) ?? localStorage.getItem(slot(role)) ?? "";
  } catch {
    return "";
  }
}

function keepKey(role, key, remember) {
  try {
    sessionStorage.setItem(slot(role), key);
    if (remember) localStorage.setItem(slot(role), key);
    else localStorage.removeItem(slot(role));
  } catch {
    // Storage is switched off: the key is asked for again next time.
  }
}

/** What a server says went wrong. `status` is the HTTP status, `code` the error's own name. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function errorOf(reply) {
  try {
    const { error } = await reply.json();
    return new ApiError(reply.status, error.code, error.message);
  } catch {
    return new ApiError(reply.status, "", `The server answered ${reply.status}.`);
  }
}

/**
 * fetch() with the key of `role`; where the key is missing or wrong, the reader is asked for it. `body` is sent as JSON.
 * Throws ApiError for every answer that is not 2xx.
 */
export async function call(path, { role = "user", method = "GET", body, headers = {}, signal } = {}) {
  for (;;) {
    const key = keyOf(role) || keyOf(role === "admin" ? "user" : "admin"); // an admin may do what a user may
    const sent = { ...headers };
    if (key) sent.Authorization = `Bearer ${key}`;
    if (body !== undefined) sent["Content-Type"] = "application/json";
    const reply = await fetch(path, {
      method,
      headers: sent,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit",
      redirect: "error",
    });
    if (reply.ok) return reply;
    const error = await errorOf(reply);
    const wanted = reply.status === 401 || (role === "admin" && reply.status === 403 && key);
    if (!wanted || !(await askForKey(role, key ? error.message : ""))) throw error;
  }
}

let asking = null; // one dialog, however many calls wait for its key

/** Ask for a key; `wrong` is what the server said of the last one. False if the reader does not want to give one. */
function askForKey(role, wrong) {
  asking ??= new Promise((settle) => {
    const key = element("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", required: true });
    const remember = element("input", { type: "checkbox", id: "remember-key" });
    const what = role === "admin" ? "admin key (--admin-api-key)" : "API key";
    const dialog = element(
      "dialog",
      { class: "card", "aria-labelledby": "key-title" },
      element(
        "form",
        { method: "dialog", class: "stack" },
        element("h2", { id: "key-title", text: `This page wants an ${what}` }),
        element("p", { class: "muted", text: wrong || "It stays in this browser and is sent only to this server." }),
        element("label", { for: "key", text: "Key" }),
        key,
        element("label", { class: "check" }, remember, "Remember it in this browser"),
        element(
          "div",
          { class: "row end" },
          element("button", { type: "button", class: "quiet", text: "Cancel", onclick: () => dialog.close("cancel") }),
          element("button", { value: "ok", class: "primary", text: "Use this key" }),
        ),
      ),
    );
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "ok" && key.value.trim() !== "";
      if (given) keepKey(role, key.value.trim(), remember.checked);
      dialog.remove();
      asking = null;
      settle(given);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}
