// What colours and hatching mean, and the lanes in words.

import { element, find } from "/pages/dom.js";
import { fillOf, sharpen } from "/pages/paint.js";
import { BATCHES, CAUSES, KINDS, causeWords } from "/pages/palette.js";
import { plural, shortId, summary, tokensOf } from "/pages/words.js";

const LATEST = 20; // batches in the text

/** Draw the legend; again after a change of theme. */
export function showLegend(colours) {
  find("#kinds").replaceChildren(
    ...Object.entries(KINDS).map(([kind, words]) => entry(kind, words, (context, width, height) => {
      context.fillStyle = fillOf(context, kind, BATCHES[0]);
      context.fillRect(0, 0, width, height);
    })),
    entry("a colour per batch", "neighbouring batches have different colours", (context, width, height) => {
      BATCHES.slice(0, 3).forEach((colour, place) => {
        context.fillStyle = colour;
        context.fillRect((place * width) / 3, 0, width / 3 - 1, height);
      });
    }),
    entry("transfer", "activations on their way to the next stage", (context, width, height) => {
      context.fillStyle = BATCHES[0];
      context.fillRect(0, height / 2 - 2, width, 4);
    }),
  );
  find("#causes").replaceChildren(
    ...Object.entries(CAUSES).map(([cause, [colour, words]]) => entry(causeWords(cause), `idle: ${words}`, (context, width, height) => {
      context.fillStyle = cause === "unattributed" ? colours.text : colour;
      context.fillRect(0, cause === "no_work" ? height - 4 : 0, width, cause === "no_work" ? 4 : height);
    }, "thin")),
  );
}

function entry(caption, title, paint, kind = "") {
  const canvas = element("canvas", { class: kind, "aria-hidden": "true" });
  const [width, height] = kind === "thin" ? [26, 10] : [26, 14];
  paint(sharpen(canvas, width, height), width, height);
  return element("li", { title }, canvas, caption);
}

/** The lanes in words: how each stage spent the last seconds, and the latest batches. */
export function showText(record, seconds) {
  const lines = summary(record, Math.max(record.now - seconds, record.oldest), record.now);
  find("#summary").replaceChildren(...lines.map((text) => element("li", { text })));
  const latest = [...record.batches.values()].slice(-LATEST).reverse();
  find("#latest").replaceChildren(
    ...latest.map(({ batch, slices, spans }) => {
      const kind = spans.find(Boolean)?.kind ?? "in flight";
      const ids = slices.map(([id]) => shortId(id));
      const shown = ids.length > 4 ? `${ids.slice(0, 4).join(", ")} and ${ids.length - 4} more` : ids.join(", ");
      const times = spans.filter(Boolean).map((span) => `${span.stage}: ${((span.end - span.start) * 1000).toFixed(1)} ms`);
      return element(
        "tr",
        {},
        element("td", { text: batch }),
        element("td", { text: kind }),
        element("td", { text: shown, title: plural(ids.length, "request") }),
        element("td", { class: "number", text: tokensOf(slices) }),
        element("td", { text: times.join(" · ") }),
      );
    }),
  );
}
