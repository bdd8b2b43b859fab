// The monitor: reads the server's stream and shows what it tells.

import { ApiError, call } from "/pages/api.js";
import { SAMPLES, sendSamples } from "/pages/demo.js";
import { Detail } from "/pages/detail.js";
import { element, find, icon } from "/pages/dom.js";
import { events } from "/pages/events.js";
import { Lanes } from "/pages/lanes.js";
import { showLegend, showText } from "/pages/legend.js";
import { Overview } from "/pages/overview.js";
import { KEPT_SECONDS, Record } from "/pages/record.js";
import { Requests } from "/pages/requests.js";
import { steer } from "/pages/steer.js";
import { Tiles } from "/pages/tiles.js";
import { View } from "/pages/view.js";
import { duration } from "/pages/words.js";

const AGAIN_MS = 1000; // after the stream broke off
// The reader's machine may be the one that computes: so long between two pictures, and so many times what one takes.
const PICTURE_MS = 45;
const REST = 4;
const TEXT_SECONDS = 10;

const clock = () => performance.now() / 1000;
const record = new Record();
const view = new View(record, innerWidth < 640 ? 1.2 : 4);
const lanes = new Lanes(find("#lanes"), record, view);
const overview = new Overview(find("#overview"), lanes);
const tiles = new Tiles(find("#tiles"));
const requests = new Requests(follow, notice);
const detail = new Detail(record, follow, clear);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// ---------------------------------------------------------------- drawing

let drawnAt = 0;
let restMs = PICTURE_MS;
let asked = false;

/** Draw soon, and go on drawing while the view follows the present. */
function redraw() {
  if (asked || document.hidden) return;
  asked = true;
  requestAnimationFrame(picture);
}

function picture(time) {
  asked = false;
  if (view.live && !calm.matches) redraw();
  if (view.live && time - drawnAt < restMs) return;
  drawnAt = time;
  const began = performance.now();
  view.follow(clock());
  lanes.draw();
  overview.draw(!view.live);
  const text = duration(view.span);
  if (find("#span").textContent !== text) find("#span").textContent = text;
  showState();
  restMs = Math.max(PICTURE_MS, REST * (performance.now() - began));
}

function showState() {
  const state = connection === "open" ? (view.live ? "live" : "paused") : connection;
  const badge = find("#state");
  if (badge.textContent === state) return;
  badge.textContent = state;
  badge.dataset.live = state === "live";
  find("#pause").replaceChildren(icon(view.live ? "pause" : "play"));
  find("#pause").setAttribute("aria-label", view.live ? "Pause" : "Go on");
}

// ---------------------------------------------------------------- the stream

let connection = "connecting";
let stream = null;

async function listen() {
  while (!document.hidden) {
    stream = new AbortController();
    let again = true;
    try {
      const reply = await call("/monitor/stream", { role: "admin", signal: stream.signal });
      notice("");
      for await (const { event, data } of events(reply)) take(event, JSON.parse(data));
    } catch (error) {
      if (error instanceof ApiError) {
        again = error.status === 503; // else asking again does not help
        notice(again ? error.message : `${error.message} Reload the page to try again.`);
      }
    }
    connection = document.hidden ? "paused" : "not connected";
    showState();
    if (!again) break;
    await new Promise((settle) => setTimeout(settle, AGAIN_MS));
  }
  stream = null;
}

function take(event, data) {
  connection = "open";
  if (event === "hello") {
    record.hello(data);
    view.toLive();
    showLegend(lanes.colours);
    const stages = data.stages === 1 ? "1 stage" : `${data.stages} stages`;
    find("#facts").textContent = `${data.model} · ${stages} · pacing ${data.pacing}`;
  } else if (event === "frame") {
    record.frame(data, clock());
    tiles.show(record);
    requests.show(record.requests, lanes.followed);
    find("#empty").hidden = record.spans.some((spans) => spans.length > 0);
    if (find("#as-text").open) showText(record, TEXT_SECONDS);
    if (sought !== null && record.isComplete) seek();
  }
  redraw();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream?.abort(); // the server works for readers only
  else if (stream === null) listen();
});

// ---------------------------------------------------------------- what a reader does

function notice(text) {
  find("#notice").textContent = text;
  find("#notice").hidden = text === "";
}

function pick({ batch, start, end }) {
  lanes.selected = batch;
  lanes.followed = null;
  view.show((start + end) / 2);
  detail.batch(batch);
  redraw();
}

function follow(id) {
  lanes.followed = id;
  lanes.selected = null;
  history.replaceState(null, "", `#request=${id}`);
  detail.request(id);
  requests.show(record.requests, id);
  redraw();
}

let sought = null; // id of a request that a link led to, until it is on show

/** Put the lanes where a request that has ended was computed. */
function seek() {
  const spans = record.batchesOf(sought).flatMap((batch) => batch.spans.filter(Boolean));
  if (spans.length && !record.isLive(sought)) {
    view.fit(Math.min(...spans.map((span) => span.start)), Math.max(...spans.map((span) => span.end)));
  }
  sought = null;
  redraw();
}

function clear() {
  lanes.followed = lanes.selected = null;
  history.replaceState(null, "", location.pathname);
  detail.clear();
  requests.show(record.requests, null);
  redraw();
}

function toggle() {
  if (view.live) view.pause();
  else view.toLive();
  redraw();
}

const zoom = steer(lanes, overview, { redraw, pick, clear, toggle });
find("#pause").addEventListener("click", toggle);
find("#zoom-in").addEventListener("click", () => zoom(1 / 1.6));
find("#zoom-out").addEventListener("click", () => zoom(1.6));
find("#to-live").addEventListener("click", () => {
  view.toLive();
  redraw();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !find("dialog[open]")) clear();
});
find("#as-text").addEventListener("toggle", () => showText(record, TEXT_SECONDS));
addEventListener("resize", redraw);
for (const [target, name] of [[document, "themechange"], [matchMedia("(prefers-color-scheme: dark)"), "change"]]) {
  target.addEventListener(name, () => {
    lanes.newTheme();
    showLegend(lanes.colours);
    redraw();
  });
}

find("#save").addEventListener("click", async () => {
  try {
    const reply = await call(`/trace?seconds=${KEPT_SECONDS}`, { role: "admin" });
    const address = URL.createObjectURL(await reply.blob());
    element("a", { href: address, download: "paceline-trace.json" }).click();
    setTimeout(() => URL.revokeObjectURL(address));
  } catch (error) {
    notice(error.message);
  }
});

let samples = null; // AbortController of the sample requests that run
find("#demo").addEventListener("click", async () => {
  if (samples) {
    samples.abort();
    return;
  }
  samples = new AbortController();
  view.toLive();
  find("#demo").textContent = "Stop the samples";
  try {
    await sendSamples(samples.signal);
  } catch (error) {
    if (!samples.signal.aborted) notice(`The sample requests failed: ${error.message}`);
    samples.abort();
  }
  samples = null;
  find("#demo").textContent = `Send ${SAMPLES} sample requests`;
});

showState();
listen();
const wanted = /^#request=([\w-]+)$/.exec(location.hash);
if (wanted) {
  sought = wanted[1];
  follow(sought);
}
