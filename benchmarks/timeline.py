"""A picture of what stages did: one lane per stage, a bar per batch, idle time left blank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.bench.plot import STYLE

WIDTH, LEFT, LANE, GAP, TITLE = 960, 70, 22, 4, 22
# Told apart by lightness as well as by hue.
COLORS = {"decode": "#9ecae1", "mixed": "#4292c6", "prefill": "#08306b"}


class Span(NamedTuple):
    """One batch on one stage, in seconds."""

    stage: int
    start: float
    end: float
    kind: str  # prefill, decode or mixed


def write_timelines(path: Path, lanes: Mapping[str, Sequence[Span]], begin: float, seconds: float) -> None:
    """Write an SVG with one group of lanes per title, all over the same stretch of time."""
    parts, top = [], 4
    for title, spans in lanes.items():
        shown = [span for span in spans if span.end > begin and span.start < begin + seconds]
        stages = 1 + max((span.stage for span in spans), default=0)
        busy = sum(min(s.end, begin + seconds) - max(s.start, begin) for s in shown) / (seconds * stages)
        parts.append(f'<text x="{LEFT}" y="{top + 14}">{title}: stages busy {busy:.0%}</text>')
        top += TITLE
        for stage in range(stages):
            parts.append(f'<text x="4" y="{top + 15}">stage {stage}</text>')
            parts += [_bar(span, top, begin, seconds) for span in shown if span.stage == stage]
            top += LANE + GAP
        top += GAP
    parts += _legend(top, seconds)
    top += TITLE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}">'
    path.write_text("\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n", encoding="utf-8")


def _bar(span: Span, top: int, begin: float, seconds: float) -> str:
    scale = (WIDTH - LEFT - 4) / seconds
    x = LEFT + max(span.start - begin, 0.0) * scale
    end = LEFT + min(span.end - begin, seconds) * scale
    width = max(end - x - 0.5, 0.3)
    return f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{LANE}" fill="{COLORS[span.kind]}"/>'


def _legend(top: int, seconds: float) -> list[str]:
    parts, x = [], LEFT
    for kind, color in COLORS.items():
        parts.append(f'<rect x="{x}" y="{top + 2}" width="14" height="14" fill="{color}"/>')
        parts.append(f'<text x="{x + 19}" y="{top + 14}">{kind}</text>')
        x += 100
    parts.append(f'<text x="{WIDTH - 4}" y="{top + 14}" text-anchor="end">{seconds:g} s</text>')
    return parts
