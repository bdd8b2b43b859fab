// Figures over the lanes, each with its last minute as a line.

import { element } from "/pages/dom.js";
import { KEPT_SECONDS } from "/pages/record.js";
import { duration } from "/pages/words.js";

const WIDTH = 100; // of a line's own coordinates
const HEIGHT = 20;

const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
const rate = (value) => value.toFixed(value < 9.95 ? 1 : 0);
const count = (value) => value.toLocaleString("en");

// key, caption, how to show it, what it means
const TILES = [
  ["bubble", "Bubble", percent, "Part of the stages' time, in the last 10 s, that they idled although there was work"],
  ["imbalance", "Imbalance", (value) => `${value.toFixed(2)} ×`, "Busiest stage ÷ mean of all, in the last 10 s"],
  ["tokens_in_per_s", "Tokens in", rate, "Prompt tokens computed per second", "/s"],
  ["tokens_out_per_s", "Tokens out", rate, "Tokens sampled per second", "/s"],
  ["running", "Running", count, "Requests with a seat in the batches"],
  ["waiting", "Waiting", count, "Requests that wait for a seat or for blocks"],
  ["free_blocks", "Free blocks", count, "KV cache blocks that are free on each stage"],
  ["preemptions", "Preemptions", count, "Requests that lost their blocks to others, since the start"],
];

const SVG = "http://www.w3.org/2000/svg";

export class Tiles {
  constructor(list) {
    this.values = new Map();
    for (const [key, caption, , meaning, unit] of TILES) list.append(this.#tile(key, caption, meaning, unit));
    list.append(this.#tile("last_step_age_s", "Last step", "Age of the last step, of the stage that rested longest", ""));
  }

  #tile(key, caption, meaning, unit) {
    const value = element("span", { class: "value", text: "–" });
    const extra = element("span", { class: "unit muted", text: unit ?? "" });
    const line = document.createElementNS(SVG, "polyline");
    const picture = document.createElementNS(SVG, "svg");
    picture.setAttribute("viewBox", `0 -1 ${WIDTH} ${HEIGHT + 2}`);
    picture.setAttribute("preserveAspectRatio", "none");
    picture.setAttribute("aria-hidden", "true");
    picture.append(line);
    const title = element("dt", { text: caption });
    this.values.set(key, { title, value, extra, line });
    return element(
      "div",
      { class: "tile", title: meaning },
      title,
      element("dd", {}, value, extra),
      picture,
    );
  }

  /** Show the record's newest figures. */
  show(record) {
    const { tiles } = record;
    if (tiles === null) return;
    for (const [key, , words] of TILES) {
      const { value, line } = this.values.get(key);
      value.textContent = tiles[key] === null || tiles[key] === undefined ? "–" : words(tiles[key]);
      line.setAttribute("points", points(record, key));
    }
    this.values.get("free_blocks").extra.textContent = ` of ${count(tiles.num_blocks)}`;
    const ages = tiles.last_step_age_s.map((age) => age ?? 0);
    const oldest = ages.indexOf(Math.max(...ages));
    const { title, value } = this.values.get("last_step_age_s");
    title.textContent = `Last step, stage ${oldest}`;
    value.textContent = duration(tiles.last_step_age_s[oldest]);
  }
}

/** The history of a figure as the points of a line, from zero to its largest value. */
function points(record, key) {
  const known = record.history.filter((point) => typeof point[key] === "number" && point.now >= record.oldest);
  const top = Math.max(...known.map((point) => point[key]), Number.MIN_VALUE);
  return known
    .map((point) => {
      const x = ((point.now - record.oldest) / KEPT_SECONDS) * WIDTH;
      return `${x.toFixed(1)},${(HEIGHT * (1 - point[key] / top)).toFixed(1)}`;
    })
    .join(" ");
}
