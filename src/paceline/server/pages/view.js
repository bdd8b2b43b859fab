// Which part of the last minute is on show, and whether it follows the present.

import { KEPT_SECONDS } from "/pages/record.js";

const LEAST = 0.02; // seconds across the lanes
const BEHIND = 0.35; // the present is shown a little late: frames come five times a second

export class View {
  constructor(record, span) {
    this.record = record;
    this.span = span;
    this.live = true;
    this.end = 0;
  }

  get start() {
    return this.end - this.span;
  }

  /** Move along with the core's clock; `clock` is this page's, in seconds. */
  follow(clock) {
    if (!this.live) return;
    const present = Math.min(this.record.coreTime(clock), this.record.now + 1) - BEHIND;
    this.end = Math.max(this.end, present); // never back: that would flicker
  }

  pause() {
    this.live = false;
  }

  toLive() {
    this.live = true;
    this.end = 0;
  }

  /** Show `factor` times as much time; the moment `at` keeps its place. */
  zoom(factor, at = this.live ? this.end : this.end - this.span / 2) {
    const span = Math.min(KEPT_SECONDS, Math.max(LEAST, this.span * factor));
    const end = at + ((this.end - at) * span) / this.span;
    this.span = span;
    if (!this.live) this.end = this.#bounded(end);
  }

  /** Move by seconds; moving to the present or beyond follows it again. */
  pan(seconds) {
    this.live = false;
    const end = this.end + seconds;
    if (seconds > 0 && end >= this.record.now - BEHIND) this.toLive();
    else this.end = this.#bounded(end);
  }

  /** Show the time from `start` to `end`, and a little around it. */
  fit(start, end) {
    this.live = false;
    this.span = Math.min(KEPT_SECONDS, Math.max(LEAST, 1.1 * (end - start)));
    this.end = this.#bounded((start + end + this.span) / 2);
  }

  /** Put the moment `at` on show, in the middle if it is not there yet. */
  show(at) {
    this.live = false;
    if (at < this.start || at > this.end) this.end = this.#bounded(at + this.span / 2);
  }

  #bounded(end) {
    const first = Math.min(this.record.oldest + this.span, this.record.now);
    return Math.min(Math.max(end, first), this.record.now);
  }
}
