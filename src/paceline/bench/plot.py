"""A picture of a benchmark: one bar per request, waiting and streaming told apart, and the gaps that a reader notices."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median
from typing import Any

WIDTH, LEFT, TOP, BOTTOM = 1000, 12, 30, 44
ROW, MOST_HEIGHT = 8.0, 1200.0
STALL = 4.0  # a gap is shown where it is so many times the run's median
# Told apart by lightness as well as by hue; readable on white and on black.
COLORS = {"waiting": "#b0b7c0", "streaming": "#3182bd", "gap": "#08306b", "failed": "#d95f02"}
STYLE = "text{font:12px system-ui,sans-serif;fill:#333}@media(prefers-color-scheme:dark){text{fill:#ddd}}"


def timeline_svg(figures: dict[str, Any], title: str) -> str:
    """An SVG over the run, requests from top to bottom as they were sent.

    Args:
        figures: of a run, with `start_times`, `ttfts`, `itls` (seconds) and `errors`, one entry per request.
    """
    columns = (figures["start_times"], figures["ttfts"], figures["itls"], figures["errors"])
    rows: list[tuple[float, float, list[float], str]] = sorted(zip(*columns, strict=True))
    end = max((start + ttft + sum(gaps) for start, ttft, gaps, _ in rows), default=0.0) or 1.0
    height = min(ROW, MOST_HEIGHT / max(len(rows), 1))
    scale = (WIDTH - 2 * LEFT) / end
    usual = median([*chain.from_iterable(figures["itls"])] or [0.0])
    bars = [
        f'<rect x="{LEFT + start * scale:.2f}" y="{TOP + i * height:.2f}" width="{max(seconds * scale, 0.4):.2f}" '
        f'height="{0.85 * height:.2f}" fill="{COLORS[kind]}"/>'
        for i, row in enumerate(rows)
        for kind, start, seconds in _bars(*row, usual)
    ]
    bottom = TOP + len(rows) * height
    total = bottom + BOTTOM
    number = "1 request" if len(rows) == 1 else f"{len(rows)} requests"
    label = f"{number} over {end:.3g} s: when each was sent, waited for its first token, and streamed"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total:.0f}" width="{WIDTH}" role="img" '
            f'aria-label="{html.escape(label)}">',
            f"<style>{STYLE}</style>",
            f'<text x="{LEFT}" y="18">{html.escape(title)}</text>',
            *bars,
            *_axis(end, scale, bottom),
            *_legend(bottom + 22, usual),
            "</svg>\n",
        ]
    )


def _bars(
    start: float, ttft: float, gaps: Sequence[float], error: str, usual: float
) -> Iterator[tuple[str, float, float]]:
    """(kind, from, seconds) of one request."""
    if error:
        yield "failed", start, ttft + sum(gaps)
        return
    yield "waiting", start, ttft
    at = start + ttft
    yield "streaming", at, sum(gaps)
    for gap in gaps:
        if gap > STALL * usual:
            yield "gap", at, gap
        at += gap


def _axis(end: float, scale: float, y: float) -> Iterator[str]:
    for i in range(5):
        anchor = "start" if i == 0 else "end" if i == 4 else "middle"
        yield f'<text x="{LEFT + i * end / 4 * scale:.1f}" y="{y + 14:.1f}" text-anchor="{anchor}">{i * end / 4:.3g} s</text>'


def _legend(y: float, usual: float) -> Iterator[str]:
    labels = {
        "waiting": "until the first token",
        "streaming": "streaming",
        "gap": f"gap above {1e3 * STALL * usual:.0f} ms ({STALL:g} × the median)",
        "failed": "failed",
    }
    if not usual:  # nothing was streamed, so there is no gap either
        del labels["gap"]
    x = LEFT
    for kind, label in labels.items():
        yield f'<rect x="{x}" y="{y:.1f}" width="14" height="14" fill="{COLORS[kind]}"/>'
        yield f'<text x="{x + 19}" y="{y + 12:.1f}">{label}</text>'
        x += 40 + 7 * len(label)
