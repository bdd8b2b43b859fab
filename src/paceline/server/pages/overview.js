// The last minute at a glance: how busy each stage was, and which part of it the lanes show.

import { sharpen } from "/pages/paint.js";
import { KEPT_SECONDS, between } from "/pages/record.js";

const ROW = 9; // CSS pixels
const COLUMN = 3;

export class Overview {
  constructor(canvas, lanes) {
    this.canvas = canvas;
    this.lanes = lanes;
    this.drawn = 0;
  }

  /** Draw again if there is something new; `force` after a change of size, theme or view. */
  draw(force = false) {
    const { record, view, colours } = this.lanes;
    if (!force && this.drawn === record.now) return;
    this.drawn = record.now;
    const height = record.spans.length * (ROW + 2) + 6;
    if (this.canvas.style.height !== `${height}px`) this.canvas.style.height = `${height}px`;
    const width = this.canvas.clientWidth;
    const context = sharpen(this.canvas, width, height);
    const perColumn = (KEPT_SECONDS * COLUMN) / width;
    record.spans.forEach((spans, stage) => {
      const y = 3 + stage * (ROW + 2);
      context.globalAlpha = 1;
      context.fillStyle = colours.sunken;
      context.fillRect(0, y, width, ROW);
      context.fillStyle = colours.accent;
      const busy = new Float64Array(Math.ceil(width / COLUMN) + 1);
      for (const span of between(spans, record.oldest, record.now)) spread(busy, span, record.oldest, perColumn);
      busy.forEach((part, place) => {
        if (part < 0.01) return;
        context.globalAlpha = 0.15 + 0.85 * Math.min(1, part);
        context.fillRect(place * COLUMN, y, COLUMN - 0.5, ROW);
      });
    });
    context.globalAlpha = 1;
    const x = ((view.start - record.oldest) / KEPT_SECONDS) * width;
    const wide = Math.max((view.span / KEPT_SECONDS) * width, 3);
    context.strokeStyle = colours.text;
    context.lineWidth = 1.5;
    context.strokeRect(Math.max(x, 1), 1, Math.min(wide, width - Math.max(x, 1) - 1), height - 2);
  }

  /** The moment at a place of the canvas. */
  time(x) {
    return this.lanes.record.oldest + (x / this.canvas.clientWidth) * KEPT_SECONDS;
  }
}

function spread(busy, span, oldest, perColumn) {
  const first = Math.max(0, (span.start - oldest) / perColumn);
  const last = Math.min(busy.length - 1e-9, (span.end - oldest) / perColumn);
  for (let column = Math.floor(first); column < last; column += 1) {
    busy[column] += Math.min(last, column + 1) - Math.max(first, column);
  }
}
