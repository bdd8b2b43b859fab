// The lanes: one per stage, a bar per batch, a strip per idle time, a thin bar per transfer between two stages.

import { fillOf, sharpen, themeColours } from "/pages/paint.js";
import { batchColour, causeColour, causeWords } from "/pages/palette.js";
import { belongs, between } from "/pages/record.js";
import { duration } from "/pages/words.js";

const LABEL = 24; // heights, in CSS pixels
const BAR = 40;
const STRIP = 13;
const LINK = 18;
const AXIS = 22;
const LEAST_NUMBER = 14; // width of a bar that may have its number
const REACH = 4; // how far from a narrow bar the pointer may be

export class Lanes {
  /** Draws `record` as `view` says on `canvas`. `selected` is a batch's number, `followed` a request's id, or null. */
  constructor(canvas, record, view) {
    Object.assign(this, { canvas, record, view, selected: null, followed: null });
    this.newTheme();
  }

  newTheme() {
    this.colours = themeColours();
  }

  get height() {
    return this.record.spans.length * (LABEL + BAR + LINK) - LINK + AXIS + 4;
  }

  get width() {
    return this.canvas.clientWidth;
  }

  x(time) {
    return ((time - this.view.start) / this.view.span) * this.width;
  }

  time(x) {
    return this.view.start + (x / this.width) * this.view.span;
  }

  top(stage) {
    return stage * (LABEL + BAR + LINK) + LABEL;
  }

  draw() {
    const { record, view } = this;
    if (this.canvas.style.height !== `${this.height}px`) this.canvas.style.height = `${this.height}px`;
    const context = sharpen(this.canvas, this.width, this.height);
    const lit = this.#lit();
    this.#drawAxis(context);
    for (let stage = 0; stage < record.spans.length; stage += 1) {
      this.#drawLabel(context, stage);
      for (const idle of this.#visible(record.idle[stage])) this.#drawIdle(context, idle);
      for (const span of this.#visible(record.spans[stage])) this.#drawSpan(context, span, lit);
    }
    context.globalAlpha = 1;
    if (lit !== null) this.#drawPath(context, lit);
  }

  /** The items on show; of those that are narrower than a pixel, one for each. */
  *#visible(list) {
    let painted = -1;
    for (const item of between(list, this.view.start, this.view.end)) {
      const pixel = Math.floor(this.x(item.end));
      if (pixel !== painted || item.batch === this.selected) yield item;
      painted = pixel;
    }
  }

  /** Numbers of the batches with the followed request; sought again only when there is news. */
  #lit() {
    const { followed, record } = this;
    if (followed === null) return null;
    if (this.litFor?.id !== followed || this.litFor.now !== record.now) {
      this.litFor = { id: followed, now: record.now, batches: new Set(record.batchesOf(followed).map(({ batch }) => batch)) };
    }
    return this.litFor.batches;
  }

  #drawAxis(context) {
    const { colours, view } = this;
    context.font = `11px ${colours.font}`;
    context.textBaseline = "middle";
    for (let stage = 0; stage < this.record.spans.length; stage += 1) {
      context.fillStyle = colours.sunken;
      context.fillRect(0, this.top(stage), this.width, BAR);
    }
    const step = stepFor((view.span / this.width) * 110);
    const digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
    const bottom = this.height - AXIS;
    const wall = this.record.wallOffset;
    for (let at = Math.ceil((view.start + wall) / step) * step; at - wall <= view.end; at += step) {
      const x = Math.round(this.x(at - wall)) + 0.5;
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, LABEL);
      context.lineTo(x, bottom);
      context.stroke();
      context.fillStyle = colours.muted;
      const text = wallTime(at, digits);
      if (x > 4 && x + context.measureText(text).width + 4 < this.width) context.fillText(text, x + 3, bottom + AXIS / 2);
    }
  }

  #drawLabel(context, stage) {
    const { colours, record, view } = this;
    context.globalAlpha = 1;
    const middle = this.top(stage) - LABEL / 2 + 1;
    const layers = record.info.layers?.[stage];
    context.font = `600 12.5px ${colours.font}`;
    context.fillStyle = colours.text;
    context.fillText(`Stage ${stage}`, 2, middle);
    const shift = context.measureText(`Stage ${stage}`).width + 10;
    context.font = `12px ${colours.font}`;
    context.fillStyle = colours.muted;
    const busy = record.use(stage, view.start, Math.min(view.end, record.now)).busy;
    const parts = [layers === undefined ? null : `${layers} layers`, `busy ${Math.round(100 * busy)} % of this view`];
    const age = record.tiles?.last_step_age_s?.[stage] ?? null;
    if (age !== null && this.width > 500) parts.push(`last step ${duration(age)} ago`);
    context.fillText(parts.filter(Boolean).join(" · "), shift, middle);
  }

  #drawIdle(context, idle) {
    const x = this.x(idle.start);
    const width = Math.max(this.x(idle.end) - x, 0.5);
    const bottom = this.top(idle.stage) + BAR;
    const high = idle.cause === "no_work" ? 4 : STRIP;
    context.globalAlpha = this.followed === null ? 1 : 0.45;
    context.fillStyle = idle.cause === "unattributed" ? this.colours.text : causeColour(idle.cause);
    context.fillRect(x, bottom - high, width, high);
    if (high < STRIP || width < 34) return;
    context.font = `600 10px ${this.colours.font}`;
    const words = causeWords(idle.cause);
    if (context.measureText(words).width + 8 > width) return;
    context.fillStyle = idle.cause === "unattributed" ? this.colours.page : inkOn(causeColour(idle.cause));
    context.fillText(words, Math.max(x, 0) + 4, bottom - STRIP / 2 + 0.5);
  }

  #drawSpan(context, span, lit) {
    const x = this.x(span.start);
    const width = Math.max(this.x(span.end) - x, 1);
    const top = this.top(span.stage);
    const colour = batchColour(span.batch);
    const gap = width > 4 ? 0.75 : 0; // neighbours do not run into each other
    context.globalAlpha = lit === null || lit.has(span.batch) ? 1 : 0.22;
    context.fillStyle = fillOf(context, span.kind, colour);
    context.beginPath();
    if (gap) context.roundRect(x + gap / 2, top, width - gap, BAR, Math.min(4, width / 3));
    else context.rect(x, top, width, BAR);
    context.fill();
    const link = this.record.batches.get(span.batch)?.links[span.stage];
    if (link) this.#drawLink(context, link, colour);
    if (span.batch === this.selected) {
      context.strokeStyle = this.colours.text;
      context.lineWidth = 2;
      context.stroke();
    }
    this.#drawNumber(context, span, x, width, top, colour);
  }

  #drawNumber(context, span, x, width, top, colour) {
    if (width < LEAST_NUMBER) return;
    const left = Math.max(x, 0);
    const room = Math.min(x + width, this.width) - left - 8;
    context.font = `600 12px ${this.colours.font}`;
    const text = String(span.batch);
    const wide = context.measureText(text).width;
    if (wide > room) return;
    if (span.kind !== "decode") {
      context.fillStyle = colour; // a quiet place for the number among the hatching
      context.beginPath();
      context.roundRect(left + 2, top + 4, wide + 6, 17, 3);
      context.fill();
    }
    context.fillStyle = inkOn(colour);
    context.fillText(text, left + 5, top + 13);
  }

  #drawLink(context, link, colour) {
    if (link.stage + 1 >= this.record.spans.length) return;
    const y = this.top(link.stage) + BAR + LINK / 2 - 2;
    const x = this.x(link.sent);
    context.fillStyle = colour;
    context.fillRect(x, y - 5, 1.5, 5);
    context.fillRect(x, y, Math.max(this.x(link.received) - x, 1.5), 4);
  }

  #drawPath(context, lit) {
    context.strokeStyle = this.colours.text;
    context.lineWidth = 1.25;
    context.lineJoin = "bevel";
    context.beginPath();
    let begun = false;
    const { start, end, span: shown } = this.view;
    for (const number of lit) {
      for (const span of this.record.batches.get(number)?.spans ?? []) {
        if (!span || span.end < start - shown || span.start > end + shown) continue; // a line may lead to the next one
        const y = this.top(span.stage) + BAR * 0.7;
        for (const x of [this.x(span.start), this.x(span.end)]) {
          if (begun) context.lineTo(x, y);
          else context.moveTo(x, y);
          begun = true;
        }
      }
    }
    context.stroke();
  }

  /** What is at a place of the canvas: {span}, {idle} or null. */
  at(x, y) {
    const stage = this.record.spans.findIndex((_, place) => y >= this.top(place) - 2 && y <= this.top(place) + BAR + 2);
    if (stage < 0) return null;
    const time = this.time(x);
    const reach = (REACH / this.width) * this.view.span;
    const far = (item) => Math.max(item.start - time, time - item.end, 0);
    const nearest = (list) => between(list, time - reach, time + reach).sort((a, b) => far(a) - far(b))[0];
    const span = nearest(this.record.spans[stage]);
    if (span && (far(span) === 0 || !between(this.record.idle[stage], time, time).length)) return { span };
    const idle = nearest(this.record.idle[stage]);
    return idle ? { idle } : null;
  }

  /** Requests of a batch, the followed one first. */
  slicesOf(batch) {
    const slices = this.record.batches.get(batch)?.slices ?? [];
    if (this.followed === null) return slices;
    return [...slices].sort(([a], [b]) => belongs(b, this.followed) - belongs(a, this.followed));
  }
}

const STEPS = [1, 2, 5];

/** The next round number of seconds that is at least `least`. */
function stepFor(least) {
  let unit = 10 ** Math.floor(Math.log10(least));
  for (;;) {
    for (const step of STEPS) if (step * unit >= least) return step * unit;
    unit *= 10;
  }
}

function wallTime(seconds, digits) {
  const date = new Date(seconds * 1000 + 1e-3);
  const part = (date.getTime() / 1000) % 60;
  const hours = String(date.getHours()).padStart(2, "0");
  const minutes = String(date.getMinutes()).padStart(2, "0");
  return `${hours}:${minutes}:${part.toFixed(digits).padStart(digits ? digits + 3 : 2, "0")}`;
}

/** Black or white, whichever is read more easily on a colour. */
export function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000000" : "#ffffff";
}
