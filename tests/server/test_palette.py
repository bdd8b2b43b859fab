"""The lanes' colours are told apart by people with each kind of colour blindness."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from math import dist

import pytest

from tests.server.test_pages import text_of

# How a colour looks with full colour blindness, on linear RGB: Machado, Oliveira and Fernandes (2009), severity 1.
SIGHT = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
BATCHES = re.findall(r'"(#\w{6})"', text_of("palette.js").partition("BATCHES =")[2].partition("]")[0])
CAUSES = dict(re.findall(r'^  (\w+): \["(#\w{6})"', text_of("palette.js"), re.MULTILINE))
# Not told by colour: a thin line, and the colour of the page's text.
FILLED = {cause: colour for cause, colour in CAUSES.items() if cause not in ("no_work", "unattributed")}


def linear(colour: str) -> list[float]:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def seen(colour: str, sight: str) -> tuple[float, float, float]:
    """Oklab coordinates (Ottosson) of a colour as this sight sees it; the least noticeable distance is about 0.02."""
    rgb = linear(colour)
    r, g, b = (min(max(sum(a * c for a, c in zip(row, rgb, strict=True)), 0.0), 1.0) for row in SIGHT[sight])
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    middle = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def apart(one: str, other: str, sight: str) -> float:
    return dist(seen(one, sight), seen(other, sight))


def test_there_is_a_colour_for_each_cause_and_enough_for_batches() -> None:
    assert len(BATCHES) == 6
    assert len(CAUSES) == 9
    assert len(FILLED) == 7


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_are_told_apart(sight: str) -> None:
    assert min(apart(a, b, sight) for a, b in combinations(FILLED.values(), 2)) > 0.12
    assert min(apart(a, b, sight) for a, b in combinations(BATCHES, 2)) > 0.07
    assert min(apart(a, b, sight) for a, b in pairwise([*BATCHES, BATCHES[0]])) > 0.09
