// The panel beside the table: one batch, or the story of one request as `paceline explain` tells it.

import { call } from "/pages/api.js";
import { element, find } from "/pages/dom.js";
import { duration, plural, shortId, sliceWords, tokensOf } from "/pages/words.js";

const AGAIN_MS = 1000; // how often the story of a live request is read again

export class Detail {
  /** `follow(id)` is called for a request that is clicked, `close()` when the reader is done. */
  constructor(record, follow, close) {
    Object.assign(this, { record, follow, close });
    this.shown = null; // what is on show: a token that a later answer compares
    this.nothing = [...find("#detail-body").childNodes];
  }

  clear() {
    this.shown = null;
    find("#detail-title").textContent = "Details";
    find("#detail-body").replaceChildren(...this.nothing);
  }

  #show(title, ...nodes) {
    find("#detail-title").textContent = title;
    find("#detail-body").replaceChildren(...nodes, element("p", {}, element("button", { type: "button", text: "Close", onclick: this.close })));
  }

  /** What was in a batch, when each stage worked on it, and why other requests were not in it. */
  async batch(number) {
    const mine = (this.shown = { number });
    const { slices, spans } = this.record.batches.get(number) ?? { slices: [], spans: [] };
    const times = spans.filter(Boolean).map((span) => element("li", { text: `stage ${span.stage}: ${duration(span.end - span.start)}, ${span.kind}` }));
    const others = element("div");
    this.#show(
      `Batch ${number}`,
      element("p", { text: `${plural(slices.length, "request")}, ${plural(tokensOf(slices), "token")}` }),
      element("ul", {}, ...times),
      element("h3", { text: "In it" }),
      element("ul", {}, ...slices.map((slice) => element("li", {}, this.#button(slice[0]), sliceWords(slice).slice(shortId(slice[0]).length)))),
      others,
    );
    const told = await answerOf(`/batches/${number}`);
    if (this.shown !== mine) return;
    const reasons = Object.entries(told.why_not ?? {});
    if (told.failure || reasons.length === 0) {
      others.append(element("p", { class: "muted", text: told.failure ?? "Every live request was in it." }));
      return;
    }
    const lines = reasons.map(([id, reason]) => {
      const carrier = told.in_flight_in?.[id];
      const words = String(reason).replaceAll("_", " ").toLowerCase() + (carrier === undefined ? "" : ` in batch ${carrier}`);
      return element("li", {}, this.#button(id), ` ${told.status?.[id] ?? ""}: ${words}`);
    });
    others.append(element("h3", { text: "Not in it" }), element("ul", {}, ...lines));
  }

  /** The life of a request; read again while it goes on. */
  async request(id) {
    const mine = (this.shown = { id });
    const story = element("pre", { class: "story", tabindex: "0", text: "…" });
    this.#show(shortId(id), element("p", { class: "muted", text: `${id}. Its batches are lit, and a line follows it through the lanes.` }), story);
    for (;;) {
      const live = !this.record.isComplete || this.record.isLive(id);
      const told = await answerOf(`/v1/requests/${encodeURIComponent(id)}/timeline`);
      if (this.shown !== mine) return;
      const text = told.failure ?? told.text;
      if (story.textContent !== text) story.textContent = text;
      if (!live || told.failure) return;
      await new Promise((settle) => setTimeout(settle, AGAIN_MS));
      if (this.shown !== mine) return;
    }
  }

  #button(id) {
    return element("button", { type: "button", class: "link", title: `Follow ${id}`, text: shortId(id), onclick: () => this.follow(id) });
  }
}

/** The server's answer; `failure` says why there is none. */
async function answerOf(path) {
  try {
    return await (await call(path, { role: "admin" })).json();
  } catch (error) {
    return { failure: error.message };
  }
}
