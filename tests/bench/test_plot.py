"""The picture of a benchmark: what is drawn is what the figures say."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from paceline.bench.plot import COLORS, LEFT, WIDTH, timeline_svg

SVG = "{http://www.w3.org/2000/svg}"


def figures(*rows: tuple[float, float, list[float], str]) -> dict[str, Any]:
    names = ("start_times", "ttfts", "itls", "errors")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in names}


def bars(svg: str) -> list[tuple[str, float, float, float]]:
    """(kind, row, from, to), the last two as parts of the run; without the legend."""
    kinds = {color: kind for kind, color in COLORS.items()}
    found = []
    for rect in ElementTree.fromstring(svg).iter(f"{SVG}rect"):
        x, y, width, fill = (rect.attrib[name] for name in ("x", "y", "width", "fill"))
        if rect.attrib["height"] != "14":
            scale = WIDTH - 2 * LEFT
            found.append((kinds[fill], float(y), (float(x) - LEFT) / scale, (float(x) - LEFT + float(width)) / scale))
    return found


def test_a_request_waits_streams_and_stalls() -> None:
    svg = timeline_svg(figures((2.0, 1.0, [0.5, 0.5, 4.0, 0.5, 0.5], ""), (0.0, 1.0, [1.0], "")), "two < three")
    drawn = bars(svg)
    first, second = [bar for bar in drawn if bar[1] == drawn[0][1]], [bar for bar in drawn if bar[1] != drawn[0][1]]
    near = pytest.approx
    assert [(kind, start, end) for kind, _, start, end in first] == [
        ("waiting", near(0.0, abs=1e-3), near(1 / 9, abs=1e-3)),
        ("streaming", near(1 / 9, abs=1e-3), near(2 / 9, abs=1e-3)),
    ]
    assert [(kind, start, end) for kind, _, start, end in second] == [
        ("waiting", near(2 / 9, abs=1e-3), near(3 / 9, abs=1e-3)),
        ("streaming", near(3 / 9, abs=1e-3), near(1.0, abs=1e-3)),
        ("gap", near(4 / 9, abs=1e-3), near(8 / 9, abs=1e-3)),
    ]
    assert "two &lt; three" in svg


def test_a_failed_request_is_one_bar_of_its_own_colour() -> None:
    drawn = bars(timeline_svg(figures((0.0, 0.5, [0.5], "engine died"), (0.0, 0.0, [], "refused")), ""))
    assert [kind for kind, *_ in drawn] == ["failed", "failed"]


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_any_number_of_requests_makes_a_picture(count: int) -> None:
    root = ElementTree.fromstring(timeline_svg(figures(*[(float(i), 0.0, [], "") for i in range(count)]), "many"))
    assert float(root.attrib["viewBox"].split()[3]) < 1300
    assert root.attrib["aria-label"].startswith(f"{count} request")
