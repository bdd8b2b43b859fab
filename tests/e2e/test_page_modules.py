"""Modules of the pages by themselves, in the browser that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.browser import browser, visit
from tests.server.fake_monitor import FakeMonitor
from tests.server.running import Running

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    running = Running(FakeMonitor(empty=True))  # type: ignore[arg-type]
    try:
        with visit(browser, running.url, "/monitor") as page:
            yield page
    finally:
        running.stop()


def said(page: Page, code: str, argument: Any = None) -> Any:
    return page.evaluate(code, argument)


def test_events_are_read_however_they_are_cut(page: Page) -> None:
    code = """async ([text, size]) => {
      const { events } = await import("/pages/events.js");
      const bytes = new TextEncoder().encode(text);
      let place = 0;
      const body = new ReadableStream({ pull(controller) {
        if (place >= bytes.length) return controller.close();
        controller.enqueue(bytes.slice(place, place + size));
        place += size;
      }});
      const found = [];
      for await (const { event, data } of events({ body })) found.push([event, data]);
      return found;
    }"""
    text = ': hello\n\nevent: frame\ndata: {"a":\ndata:"ü"}\n\ndata: [DONE]\r\n\r\ndata: cut off'
    for size in (1, 2, 3, 7, 1000):
        assert said(page, code, [text, size]) == [["frame", '{"a":\n"ü"}'], ["message", "[DONE]"]]


def test_a_view_stays_within_the_minute(page: Page) -> None:
    code = """async () => {
      const { View } = await import("/pages/view.js");
      const { Record } = await import("/pages/record.js");
      const record = new Record();
      record.hello({ stages: 1, now: 100 });
      record.frame({ now: 100 }, 0);
      const view = new View(record, 2);
      const seen = [];
      const note = () => seen.push([view.live, Math.round(100 * view.start) / 100, Math.round(100 * view.end) / 100]);
      view.follow(0); note();
      view.pan(-1); note();
      view.pan(-1000); note();
      view.zoom(2, view.start); note();
      view.zoom(1e6); note();
      view.fit(70, 80); note();
      view.show(50); note();
      view.pan(1000); view.follow(0); note();
      return seen;
    }"""
    assert said(page, code) == [
        [True, 97.65, 99.65],
        [False, 96.65, 98.65],
        [False, 40, 42],  # not before what is kept
        [False, 40, 44],
        [False, 40, 100],
        [False, 69.5, 80.5],
        [False, 44.5, 55.5],
        [True, 88.65, 99.65],
    ]


def test_idle_times_that_go_on_are_one(page: Page) -> None:
    code = """async () => {
      const { Record } = await import("/pages/record.js");
      const record = new Record();
      record.hello({ stages: 1, now: 0 });
      record.frame({ now: 1, idle: [[0, 0.5, 1, "starved"]] }, 0);
      record.frame({ now: 2, idle: [[0, 0.5, 1.5, "starved"], [0, 1.5, 2, "core"], [7, 0, 1, "core"]] }, 0);
      return record.idle[0].map(({ start, end, cause }) => [start, end, cause]);
    }"""
    assert said(page, code) == [[0.5, 1.5, "starved"], [1.5, 2, "core"]]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (0.0000123, "12 µs"), (0.0042, "4.2 ms"), (0.25, "250 ms"), (12.34, "12.3 s"), (125, "2 min 5 s")],
)
def test_lengths_of_time(page: Page, seconds: float | None, shown: str) -> None:
    assert said(page, "(s) => import('/pages/words.js').then(({ duration }) => duration(s))", seconds) == shown
