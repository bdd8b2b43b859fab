"""A bounded log of lines, addressed by byte: readers remember how far they have come and ask for what follows.

Lines are kept in pages, contiguous and encoded, so the memory they take is what the limit says, and handing some of them
over is a copy. The oldest page goes when the limit is reached; a reader that was behind goes on at the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from paceline.trace.events import Event

PAGE_BYTES = 512 * 1024


class Chunk(NamedTuple):
    """Whole lines from byte `begin` up to `end` of the log; `total` is how far it goes."""

    begin: int
    end: int
    total: int
    lines: bytes


class PagedLog:
    """Appends events, forgets the oldest pages, and reads from any byte that is left.

    Args:
        max_bytes: most bytes kept; the page being written may exceed it by one page.
        page_start: makes the first event of each page.
        on_page: told before a page is closed, while all of it can be read.
    """

    def __init__(
        self,
        max_bytes: int,
        page_start: Callable[[], Event],
        page_bytes: int = PAGE_BYTES,
        on_page: Callable[[], None] = lambda: None,
    ) -> None:
        self._max_bytes = max_bytes
        self._page_bytes = min(page_bytes, max_bytes)
        self._page_start = page_start
        self._on_page = on_page
        self._sealed: deque[bytes] = deque()
        self._begins: deque[int] = deque()
        self._sealed_bytes = 0
        self._page = bytearray()
        self._page_begin = 0
        self._encode_into = msgspec.json.Encoder().encode_into

    @property
    def total(self) -> int:
        """Bytes ever written."""
        return self._page_begin + len(self._page)

    @property
    def begin(self) -> int:
        """The first byte that is left."""
        return self._begins[0] if self._begins else self._page_begin

    def append(self, event: Event) -> None:
        page = self._page
        if len(page) >= self._page_bytes or not page:
            page = self._turn_page()
        self._encode_into(event, page, -1)
        page += b"\n"

    def _turn_page(self) -> bytearray:
        if self._page:
            self._on_page()
            self._sealed.append(bytes(self._page))
            self._begins.append(self._page_begin)
            self._sealed_bytes += len(self._page)
            self._page_begin += len(self._page)
            while self._sealed_bytes > self._max_bytes - self._page_bytes and self._sealed:
                self._sealed_bytes -= len(self._sealed.popleft())
                self._begins.popleft()
        self._page = bytearray()
        self._encode_into(self._page_start(), self._page, -1)
        self._page += b"\n"
        return self._page

    def read(self, begin: int, max_bytes: int) -> Chunk:
        """Whole lines from `begin`, or from the oldest page if that is gone; at least one line if there is any.

        `begin` is 0 or the `end` of an earlier chunk of this log; anything else starts at the oldest page, too.
        """
        if not self.begin <= begin <= self.total:
            begin = self.begin
        if begin >= self._page_begin:
            page, page_begin = self._page, self._page_begin
        else:
            index = bisect_right(self._begins, begin) - 1
            page, page_begin = self._sealed[index], self._begins[index]  # type: ignore[assignment]
        start = begin - page_begin
        stop = len(page)
        if stop - start > max_bytes:
            newline = page.rfind(b"\n", start, start + max_bytes)
            stop = newline + 1 if newline >= 0 else page.find(b"\n", start) + 1
        return Chunk(begin, page_begin + stop, self.total, bytes(page[start:stop]))
