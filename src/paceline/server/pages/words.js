// The lanes in words: for tooltips, for the batch card, and for readers who do not see the picture.

import { CAUSES, causeWords } from "/pages/palette.js";

const LISTED = 5;

/** A length of time, in the unit that suits it. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** An id that can be told from others at a glance; whole in titles. */
export function shortId(id) {
  const found = /^(\w+-[0-9a-f]{6})[0-9a-f]{10,}(.*)$/.exec(id);
  return found ? `${found[1]}…${found[2]}` : id;
}

/** One slice: which tokens of which request. */
export function sliceWords([id, first, count, kind]) {
  return `${shortId(id)}: ${kind}, ${plural(count, "token")} from position ${first}`;
}

export const tokensOf = (slices) => slices.reduce((sum, [, , count]) => sum + count, 0);

/** The lines of a tooltip. */
export function spanLines(record, span, slices) {
  const lines = [
    `Batch ${span.batch}, ${span.kind}`,
    `stage ${span.stage}, ${duration(span.end - span.start)}; ${plural(slices.length, "request")}, ${plural(tokensOf(slices), "token")}`,
  ];
  lines.push(...slices.slice(0, LISTED).map(sliceWords));
  if (slices.length > LISTED) lines.push(`and ${slices.length - LISTED} more`);
  return lines;
}

export function idleLines(idle) {
  const words = (CAUSES[idle.cause] ?? CAUSES.unattributed)[1];
  return [`Stage ${idle.stage} idle: ${causeWords(idle.cause)}`, `${duration(idle.end - idle.start)}; ${words}`];
}

/** What each stage did in the time from `start` to `end`, one sentence per stage. */
export function summary(record, start, end) {
  return record.spans.map((spans, stage) => {
    const { busy, causes } = record.use(stage, start, end);
    const worst = Object.entries(causes)
      .filter(([, seconds]) => seconds > 0)
      .sort(([, a], [, b]) => b - a)
      .slice(0, 3)
      .map(([cause, seconds]) => `${causeWords(cause)} ${duration(seconds)}`);
    const idle = worst.length ? `; idle by cause: ${worst.join(", ")}` : "";
    return `Stage ${stage} was busy ${Math.round(100 * busy)} % of the last ${duration(end - start)}${idle}.`;
  });
}
