// What the server told of its pipeline, for the last minute: batches, what each stage did with them, and idle times.
// Times are seconds on the engine core's clock.

export const KEPT_SECONDS = 60;
const POINTS = 300; // of the tiles' history
const MOST_SLICES = 200_000; // in all batches; a bar that is older has lost its requests

/** Whether a slice belongs to a request: ids of single prompts end in their number. */
export const belongs = (sliceId, id) => sliceId === id || sliceId.startsWith(`${id}-`);

export class Record {
  constructor() {
    this.hello(null);
  }

  /** Begin anew; the stream's first frames bring what was before. */
  hello(info) {
    this.info = info;
    this.now = info?.now ?? 0;
    this.offset = null; // core's clock minus this page's, in seconds
    this.wallOffset = Date.now() / 1000 - this.now;
    this.batches = new Map(); // number -> {batch, made, slices, spans: by stage, links: by stage that sent}
    this.numSlices = 0;
    this.spans = Array.from({ length: info?.stages ?? 0 }, () => []); // by stage, in order of their start
    this.idle = Array.from({ length: info?.stages ?? 0 }, () => []);
    this.tiles = null;
    this.requests = [];
    this.dropped = 0;
    this.history = []; // {now, …tiles}, of frames
  }

  /** Take in one frame; `arrived` is this page's clock in seconds. */
  frame(frame, arrived) {
    this.now = Math.max(this.now, frame.now);
    // The least delayed frame tells best what time it is there.
    this.offset = this.offset === null ? frame.now - arrived : Math.max(this.offset, frame.now - arrived);
    for (const { batch, made, slices } of frame.batches ?? []) {
      Object.assign(this.#batch(batch), { made, slices });
      this.numSlices += slices.length;
    }
    for (const [stage, batch, start, end, kind] of frame.spans ?? []) {
      const span = { stage, batch, start, end, kind };
      if (!this.spans[stage]) continue;
      this.#batch(batch).spans[stage] = span;
      insert(this.spans[stage], span);
    }
    for (const [stage, batch, sent, received] of frame.links ?? []) {
      this.#batch(batch).links[stage] = { stage, batch, sent, received };
    }
    for (const [stage, start, end, cause] of frame.idle ?? []) {
      if (this.spans[stage]) this.#addIdle({ stage, start, end, cause });
    }
    if (frame.tiles) {
      this.tiles = frame.tiles;
      this.history.push({ now: frame.now, ...frame.tiles });
      if (this.history.length > POINTS) this.history.shift();
    }
    this.requests = frame.requests ?? this.requests;
    this.dropped = frame.dropped ?? this.dropped;
    this.#forget();
  }

  /** The core's time at this page's time `clock` (seconds). */
  coreTime(clock) {
    return this.offset === null ? this.now : clock + this.offset;
  }

  /** Begin of what is kept. */
  get oldest() {
    return this.now - KEPT_SECONDS;
  }

  /** Batches in which a request had tokens, in order. */
  batchesOf(id) {
    return [...this.batches.values()].filter((batch) => batch.slices.some(([slice]) => belongs(slice, id)));
  }

  /** Whether a request is among the live ones. */
  isLive(id) {
    return this.requests.some((request) => belongs(request.id, id));
  }

  /** Whether the frames about the time before the stream are all here. */
  get isComplete() {
    return this.info !== null && this.tiles !== null && this.now >= this.info.now;
  }

  /** Part of the time from `start` to `end` in which a stage was busy, and idle seconds by cause. */
  use(stage, start, end) {
    const within = (item) => Math.max(0, Math.min(item.end, end) - Math.max(item.start, start));
    const causes = {};
    let busy = 0;
    for (const span of between(this.spans[stage], start, end)) busy += within(span);
    for (const idle of between(this.idle[stage], start, end)) causes[idle.cause] = (causes[idle.cause] ?? 0) + within(idle);
    return { busy: end > start ? busy / (end - start) : 0, causes };
  }

  #batch(batch) {
    let known = this.batches.get(batch);
    if (!known) {
      known = { batch, made: null, slices: [], spans: [], links: [] };
      this.batches.set(batch, known);
    }
    return known;
  }

  #addIdle(idle) {
    const list = this.idle[idle.stage];
    const last = list.at(-1);
    const goesOn = last && last.cause === idle.cause && idle.start <= last.end + 1e-6 && idle.start >= last.start;
    if (goesOn) last.end = Math.max(last.end, idle.end);
    else insert(list, idle);
  }

  #forget() {
    const oldest = this.oldest - 1;
    for (const list of [...this.spans, ...this.idle]) {
      let old = 0;
      while (old < list.length && list[old].end < oldest) old += 1;
      if (old) list.splice(0, old);
    }
    for (const [number, batch] of this.batches) {
      const last = Math.max(batch.made ?? 0, ...batch.spans.filter(Boolean).map((span) => span.end));
      if (last >= oldest && this.numSlices <= MOST_SLICES) break; // numbers rise with time
      this.batches.delete(number);
      this.numSlices -= batch.slices.length;
    }
  }
}

function insert(list, item) {
  let place = list.length;
  while (place > 0 && list[place - 1].start > item.start) place -= 1;
  list.splice(place, 0, item);
}

/** The items of an ordered list that touch the time from `start` to `end`. */
export function between(list, start, end) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].end < start) low = middle + 1;
    else high = middle;
  }
  let stop = low;
  while (stop < list.length && list[stop].start <= end) stop += 1;
  return list.slice(low, stop);
}
