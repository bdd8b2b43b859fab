// The drawer with model and sampling values. An empty field is not sent: the server's own default counts.

import { element, find, keep, kept } from "/pages/dom.js";

// name, label, step, least, most, OpenAI's default where the model has none
const NUMBERS = [
  ["temperature", "Temperature", 0.05, 0, 2, 1],
  ["top_p", "Top p", 0.05, 0, 1, 1],
  ["top_k", "Top k", 1, -1, 100000, "off"],
  ["min_p", "Min p", 0.01, 0, 1, 0],
  ["max_tokens", "Most tokens", 1, 1, 1048576, "as fits"],
  ["seed", "Seed", 1, 0, 9007199254740991, "random"],
];

const form = () => find("#settings-form");

/** Build the fields, fill them with what was kept, and keep whatever changes. */
export function setUp(changed) {
  find("#numbers").replaceChildren(
    ...NUMBERS.map(([name, label, step, min, max, fallback]) =>
      element(
        "div",
        {},
        element("label", { for: name, text: label }),
        element("input", { type: "number", id: name, name, step, min, max, placeholder: fallback }),
      ),
    ),
  );
  const values = kept("settings", {});
  for (const field of form().elements) {
    if (field.name && field.name !== "model" && typeof values[field.name] === "string") field.value = values[field.name];
  }
  const save = () => {
    keep("settings", Object.fromEntries(new FormData(form())));
    changed();
  };
  form().addEventListener("input", save);
  form().addEventListener("reset", () => setTimeout(save)); // fields are empty only after the event
  find("#open-settings").addEventListener("click", () => find("#settings").showModal());
  find("#settings").addEventListener("click", (event) => {
    if (event.target === find("#settings")) find("#settings").close(); // the backdrop
  });
}

/** Offer the models that the server named, and show their own sampling values in grey. */
export function offer(models) {
  const select = find("#model");
  select.replaceChildren(...models.map((model) => element("option", { value: model.id, text: model.id })));
  const before = kept("settings", {}).model;
  if (models.some((model) => model.id === before)) select.value = before;
  const show = () => {
    const card = models.find((model) => model.id === select.value);
    for (const [name, , , , , fallback] of NUMBERS) {
      find(`#${name}`).placeholder = card?.default_sampling_params?.[name] ?? fallback;
    }
  };
  select.addEventListener("change", show);
  show();
}

/** Name of the chosen model; empty before the server named any. */
export const chosenModel = () => find("#model").value;

/** The body of a chat request, still without what was said. Throws with the field's name when a value cannot be sent. */
export function requestBody() {
  const system = find("#system").value.trim();
  const body = { model: chosenModel(), messages: system ? [{ role: "system", content: system }] : [] };
  for (const [name, label] of NUMBERS) {
    const field = find(`#${name}`);
    if (!field.checkValidity()) throw new Error(`${label}: ${field.validationMessage}`);
    if (field.value !== "") body[name] = Number(field.value);
  }
  const stop = find("#stop").value.split("\n").filter((line) => line !== "");
  if (stop.length) body.stop = stop;
  return body;
}
