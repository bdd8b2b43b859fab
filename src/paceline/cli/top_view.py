"""The picture of `paceline top`: figures, a lane per stage, and the live requests. No terminal is needed to make it.

A lane has two rows. The upper one is coloured by batch, two moments a character. The lower one has a letter for each
character: what kind of batch it was, or why the stage was idle; so colours are never the only sign.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.cli.monitor_stream import LiveRequest, Record, Tiles

# The page's own colours (pages/palette.js).
BATCHES = ("#0072b2", "#e69f00", "#009e73", "#56b4e9", "#cc79a7", "#d55e00")
KINDS = {"prefill": "p", "decode": "d", "mixed": "m"}
CAUSES = {
    "starved": "S",
    "tokens_in_flight": "T",
    "pace": "P",
    "core": "C",
    "link": "L",
    "blocks": "B",
    "startup": "U",
    "no_work": "·",
    "unattributed": "?",
}
_BETWEEN = "   "
_BEHIND = 0.25  # seconds: what is newer is not told yet
_ROWS_OF_A_LANE = 3
_ROOM_FOR_LABELS = 100  # columns
_WIDE = 140  # columns, for whole ids
_ROOMY = 30  # lines of a window that has some to spare


def picture(record: Record, width: int, height: int, seconds: float, state: str) -> RenderableType:
    """Everything that fits into `width` times `height` characters; lanes show the last `seconds`."""
    tiles = record.tiles
    if tiles is None:
        return Text(state)
    hello = record.hello
    title = Text(f"{hello.model} · {_stages(len(record.spans))} · pacing {hello.pacing}", style="bold")
    head = [*_flow([title, Text(state)], width), *_figures(tiles, record.dropped, width)]
    foot = _legend(width)
    lanes = _lanes(record, tiles, width, seconds, max(height - len(head) - len(foot) - 2, _ROWS_OF_A_LANE))
    blank = [Text()] if height >= _ROOMY else []
    room = height - len(head) - len(lanes) - len(foot) - 3 * len(blank)
    return Group(*head, *blank, *lanes, *blank, *_requests(record.requests, width, room), *blank, *foot)


def _stages(count: int) -> str:
    return "1 stage" if count == 1 else f"{count} stages"


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


# ---------------------------------------------------------------- figures


def _figures(tiles: Tiles, dropped: int, width: int) -> list[Text]:
    ages = [age for age in tiles.last_step_age_s if age is not None]
    facts = [
        ("bubble", "–" if tiles.bubble is None else f"{tiles.bubble:.0%}"),
        ("imbalance", "–" if tiles.imbalance is None else f"{tiles.imbalance:.2f}×"),
        ("in", f"{tiles.tokens_in_per_s:.0f} tokens/s"),
        ("out", f"{tiles.tokens_out_per_s:.0f} tokens/s"),
        ("running", str(tiles.running)),
        ("waiting", str(tiles.waiting)),
        ("free blocks", f"{tiles.free_blocks}/{tiles.num_blocks}"),
        ("preemptions", str(tiles.preemptions)),
        ("oldest step", duration(max(ages)) if ages else "–"),
    ]
    if dropped:
        facts.append(("lost frames", str(dropped)))
    return _flow([Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in facts], width)


def _flow(parts: list[Text], width: int) -> list[Text]:
    """Parts beside each other, in as many lines as they need."""
    lines = [Text()]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(_BETWEEN) + len(part) > width:
            lines.append(Text())
        lines[-1].append(_BETWEEN if lines[-1] else "").append_text(part)
    return [_cut(line, width) for line in lines]


def duration(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    if seconds < 1:
        return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.0f} min"


# ---------------------------------------------------------------- lanes


def _lanes(record: Record, tiles: Tiles, width: int, seconds: float, rows: int) -> list[Text]:
    end = record.now - _BEHIND
    shown = min(len(record.spans), rows // _ROWS_OF_A_LANE)
    lines = []
    for stage in range(shown):
        halves = _halves(record, stage, end - seconds, end, 2 * width)
        busy = sum(batch is not None for batch, _ in halves) / len(halves)
        age = tiles.last_step_age_s[stage] if stage < len(tiles.last_step_age_s) else None
        parts = [f"{record.hello.layers[stage]} layers", f"busy {busy:.0%} of {seconds:g} s"]
        if age is not None:
            parts.append(f"last step {duration(age)} ago")
        label = Text(f"Stage {stage} ", "bold").append(" · ".join(parts), "not bold dim")
        lines += [_cut(label, width), _bars(halves), Text("".join(_letters(halves)), "dim", no_wrap=True)]
    if shown < len(record.spans):
        lines[-1] = _cut(Text(f"and {len(record.spans) - shown} more stages: a taller window shows them", "dim"), width)
    return lines


Half = tuple[int | None, str]  # batch and letter; no batch where the stage was idle, a blank where nothing is known


def _halves(record: Record, stage: int, start: float, end: float, count: int) -> list[Half]:
    """What took most of each of `count` equal parts of the time."""
    part = (end - start) / count
    most = [0.0] * count
    halves: list[Half] = [(None, " ")] * count
    spans = [(s, e, (batch, KINDS.get(kind, "?"))) for _, batch, s, e, kind in record.spans[stage]]
    idles = [(s, e, (None, CAUSES.get(cause, "?"))) for _, s, e, cause in record.idle[stage]]
    items: list[tuple[float, float, Half]] = [*spans, *idles]
    for first, last, half in items:
        if last <= start or first >= end:
            continue
        at, stop = (max(first, start) - start) / part, (min(last, end) - start) / part
        for place in range(int(at), min(int(stop) + 1, count)):
            covered = min(stop, place + 1) - max(at, place)
            if covered > most[place]:
                most[place], halves[place] = covered, half
    return halves


def _bars(halves: list[Half]) -> Text:
    """Two halves a character: the left one is drawn, the right one is its background."""
    text = Text(no_wrap=True)
    for (left, _), (right, _) in zip(halves[::2], halves[1::2], strict=True):
        if left is None and right is None:
            text.append(" ")
        elif right is None:
            text.append("▌", _colour(left))
        elif left is None:
            text.append("▐", _colour(right))
        else:
            text.append("▌", f"{_colour(left)} on {_colour(right)}")
    return text


def _colour(batch: int | None) -> str:
    assert batch is not None
    return BATCHES[batch % len(BATCHES)]


def _letters(halves: list[Half]) -> Iterator[str]:
    for (_, left), (_, right) in zip(halves[::2], halves[1::2], strict=True):
        yield left if left != " " else right


def _legend(width: int) -> list[Text]:
    signs = [*KINDS.items(), *((f"idle: {cause.replace('_', ' ')}", letter) for cause, letter in CAUSES.items())]
    keys = [("quit", "q"), ("pause", "space"), ("zoom", "+ −")]
    return _flow([Text.assemble((sign, "bold"), (f" {words}", "dim")) for words, sign in [*signs, *keys]], width)


# ---------------------------------------------------------------- requests


def _requests(requests: list[LiveRequest], width: int, room: int) -> list[RenderableType]:
    if room < 1:
        return []
    if not requests:
        return [Text("no request at the moment", "dim")]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", width=width)
    table.add_column("request", no_wrap=True, overflow="ellipsis")
    table.add_column("status", no_wrap=True, overflow="ellipsis")
    table.add_column("where", no_wrap=True, ratio=1, overflow="ellipsis")
    for column in ("prompt", "cached", "output", "age"):
        table.add_column(column, justify="right", no_wrap=True)
    shown = requests if len(requests) < room else requests[: max(room - 2, 0)]
    for request in shown:
        numbers = (request.prompt_tokens, request.cached_tokens, request.output_tokens)
        name = Text(request.id if width >= _WIDE else short_id(request.id))
        if request.label and width >= _ROOM_FOR_LABELS:
            name.append(f" {request.label}", "dim")
        table.add_row(name, Text(request.status), Text(request.where), *map(str, numbers), duration(request.age_s))
    more = [Text(f"and {len(requests) - len(shown)} more", "dim")] if len(shown) < len(requests) else []
    return [table, *more]


def short_id(request_id: str) -> str:
    """An id that can be told from others at a glance."""
    kind, dash, rest = request_id.partition("-")
    number, _, choice = rest.partition("-")
    if len(number) < 16:
        return request_id
    return f"{kind}{dash}{number[:8]}…{'-' if choice else ''}{choice}"
