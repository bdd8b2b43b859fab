// The table of live requests. Rows are kept from frame to frame, so that a button stays where the reader's finger is.

import { ApiError, call } from "/pages/api.js";
import { element, find } from "/pages/dom.js";
import { belongs } from "/pages/record.js";
import { duration, shortId } from "/pages/words.js";

export class Requests {
  /** `follow(id)` is called when a request is clicked, `tell(text)` with what the reader should know. */
  constructor(follow, tell) {
    this.rows = new Map();
    this.follow = follow;
    this.tell = tell;
  }

  /** Show these requests, with the followed one marked. */
  show(requests, followed) {
    const body = find("#requests tbody");
    const live = new Set(requests.map((request) => request.id));
    for (const [id, row] of this.rows) {
      if (live.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    for (const request of requests) {
      if (!this.rows.has(request.id)) {
        this.rows.set(request.id, this.#row(request));
        body.append(this.rows.get(request.id));
      }
      const row = this.rows.get(request.id);
      const marked = followed !== null && belongs(request.id, followed);
      if ((row.getAttribute("aria-selected") === "true") !== marked) row.setAttribute("aria-selected", marked);
      const texts = [request.status, request.where, request.prompt_tokens, request.cached_tokens, request.output_tokens, duration(request.age_s)];
      texts.forEach((text, place) => {
        const cell = row.cells[place + 1];
        if (cell.textContent !== String(text)) cell.textContent = text;
      });
    }
    find("#no-requests").hidden = requests.length > 0;
    find("#requests").hidden = requests.length === 0;
  }

  #row({ id, label }) {
    const abort = element("button", { type: "button", class: "quiet", "aria-label": `Abort ${shortId(id)}`, text: "Abort", onclick: () => this.#abort(id, abort) });
    return element(
      "tr",
      {},
      element(
        "td",
        {},
        element("button", { type: "button", class: "link", title: `Follow ${id}`, text: shortId(id), onclick: () => this.follow(id) }),
        label ? element("span", { class: "label", text: label }) : null,
      ),
      element("td"),
      element("td"),
      ...Array.from({ length: 4 }, () => element("td", { class: "number" })),
      element("td", {}, abort),
    );
  }

  async #abort(id, button) {
    button.disabled = true;
    try {
      await call(`/v1/requests/${encodeURIComponent(id)}/abort`, { method: "POST", role: "admin" });
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return; // it has just ended
      this.tell(`${shortId(id)} was not aborted: ${error.message}`);
      button.disabled = false;
    }
  }
}
