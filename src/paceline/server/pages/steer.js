// Pointer and keyboard over the lanes and the overview.

import { element, find } from "/pages/dom.js";
import { between } from "/pages/record.js";
import { idleLines, spanLines } from "/pages/words.js";

const WHEEL = 1.0015; // zoom per pixel of a wheel's turn
const STEP = 1.6; // zoom per key
const DRAG = 4; // pixels that make a drag of a click

/**
 * Let a reader steer: `lanes` and `overview` are drawn again by `redraw`, `pick(batch)` opens a batch, `clear()`
 * closes it, `toggle()` pauses or goes on. Returns zoom(factor) for buttons.
 */
export function steer(lanes, overview, { redraw, pick, clear, toggle }) {
  const { canvas, view, record } = lanes;
  const tooltip = find("#tooltip");
  let drag = null;
  let lane = 0;

  const zoom = (factor, at) => {
    view.zoom(factor, at);
    redraw();
  };

  function linesAt(found) {
    if (found?.span) return spanLines(record, found.span, lanes.slicesOf(found.span.batch));
    return found?.idle ? idleLines(found.idle) : null;
  }

  function point(x, y) {
    const lines = linesAt(lanes.at(x, y));
    tooltip.hidden = lines === null;
    if (lines === null) return;
    tooltip.replaceChildren(...lines.map((text) => element("p", { text })));
    const left = Math.min(Math.max(x + 14, 0), lanes.width - tooltip.offsetWidth);
    tooltip.style.left = `${Math.max(left, 0)}px`;
    tooltip.style.top = `${y + 18}px`;
  }

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    drag = { x: event.offsetX, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && (drag.moved || Math.abs(event.offsetX - drag.x) > DRAG)) {
      drag.moved = true;
      tooltip.hidden = true;
      canvas.classList.add("dragged");
      view.pan(((drag.x - event.offsetX) / lanes.width) * view.span);
      drag.x = event.offsetX;
      redraw();
    } else if (!drag) {
      point(event.offsetX, event.offsetY);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      const found = lanes.at(event.offsetX, event.offsetY);
      if (found?.span) pick(found.span);
      else clear();
      point(event.offsetX, event.offsetY);
    }
    drag = null;
    canvas.classList.remove("dragged");
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => (tooltip.hidden = true));
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        view.pan((((event.deltaX || event.deltaY) / lanes.width) * view.span));
        redraw();
      } else {
        zoom(WHEEL ** event.deltaY, view.live ? undefined : lanes.time(event.offsetX));
      }
      point(event.offsetX, event.offsetY);
    },
    { passive: false },
  );

  const slide = (event) => {
    view.show(overview.time(event.offsetX));
    view.pan(overview.time(event.offsetX) - (view.end - view.span / 2));
    redraw();
  };
  overview.canvas.addEventListener("pointerdown", (event) => {
    overview.canvas.setPointerCapture(event.pointerId);
    slide(event);
  });
  overview.canvas.addEventListener("pointermove", (event) => event.buttons && slide(event));

  /** The bar `by` places after the selected one in its lane; the last one on show where none is selected. */
  function step(by) {
    const spans = record.spans[lane] ?? [];
    if (spans.length === 0) return;
    const place = spans.findIndex((span) => span.batch === lanes.selected);
    const seen = between(spans, view.start, view.end).at(-1) ?? spans.at(-1);
    choose(place < 0 ? seen : spans[Math.min(Math.max(place + by, 0), spans.length - 1)]);
  }

  function choose(span) {
    view.show((span.start + span.end) / 2);
    lanes.selected = span.batch;
    redraw();
    const lines = spanLines(record, span, lanes.slicesOf(span.batch));
    find("#readout").textContent = lines.join(". ");
    tooltip.replaceChildren(...lines.map((text) => element("p", { text })));
    tooltip.hidden = false;
    tooltip.style.left = `${Math.max(0, Math.min(lanes.x(span.start), lanes.width - tooltip.offsetWidth))}px`;
    tooltip.style.top = `${lanes.top(span.stage) + 46}px`;
  }

  function changeLane(by) {
    lane = Math.min(Math.max(lane + by, 0), Math.max(record.spans.length - 1, 0));
    const same = record.spans[lane]?.find((span) => span.batch === lanes.selected);
    if (same) choose(same);
    else step(0);
  }

  const keys = {
    ArrowLeft: (event) => (event.shiftKey ? move(-0.25) : step(-1)),
    ArrowRight: (event) => (event.shiftKey ? move(0.25) : step(1)),
    ArrowUp: () => changeLane(-1),
    ArrowDown: () => changeLane(1),
    "+": () => zoom(1 / STEP),
    "=": () => zoom(1 / STEP),
    "-": () => zoom(STEP),
    " ": toggle,
    Home: () => move(-1e6),
    End: () => move(1e6),
    Enter: () => {
      const span = record.spans[lane]?.find(({ batch }) => batch === lanes.selected);
      if (span) pick(span);
    },
    Escape: () => {
      tooltip.hidden = true;
      clear();
    },
  };
  function move(part) {
    view.pan(part * view.span);
    redraw();
  }
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key](event);
  });
  return zoom;
}
