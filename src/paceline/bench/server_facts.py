"""What a server tells of itself: its model, its tokenizer, and its counters before, during and after a run."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from paceline.errors import BenchError

# Every printable character alone and every pair of letters: a few hundred tokens of any vocabulary.
SAMPLE_TEXT = " ".join([*string.printable, *(a + b for a in string.ascii_letters for b in string.ascii_lowercase)])


BUSY, IDLE = "paceline:stage_busy_seconds_total", "paceline:stage_idle_seconds_total"
NOTHING_TO_DO = ("no_work", "startup")  # causes of idle time in which a stage missed nothing


@dataclass(frozen=True)
class Model:
    """The model that is measured."""

    name: str
    longest: int | None  # tokens of prompt and output together, if the server says so


async def find_model(session: aiohttp.ClientSession, base_url: str, name: str | None) -> Model:
    """The model called `name`, or the first that the server serves.

    Raises:
        BenchError: no server, or it does not have the model.
    """
    try:
        async with session.get(base_url + "/v1/models") as reply:
            data = await reply.json(content_type=None) if reply.status == 200 else {}
            if reply.status != 200 and name is None:
                raise BenchError(f"{base_url}/v1/models answers {reply.status}; check --base-url and the API key")
    except aiohttp.ClientError as error:
        raise BenchError(f"no server at {base_url} ({error}); start one, or give its --base-url") from None
    except ValueError:
        data = {}
    cards = [card for card in _list(data, "data") if isinstance(card, dict) and isinstance(card.get("id"), str)]
    names = [card["id"] for card in cards]
    if name is None and not names:
        raise BenchError(f"{base_url} does not say which models it serves; give --model")
    if name is not None and names and name not in names:
        raise BenchError(f"{base_url} does not serve {name}; it serves {', '.join(names)}")
    card = cards[names.index(name) if name in names else 0] if cards else {}
    longest = card.get("max_model_len")
    return Model(name or names[0], longest if isinstance(longest, int) and longest > 1 else None)


async def server_tokens(session: aiohttp.ClientSession, base_url: str, model: str, text: str) -> list[int] | None:
    """Token ids of a text by the server's own tokenizer; None if it does not offer it.

    vLLM and Paceline read `prompt`, llama.cpp reads `content`.
    """
    for body in ({"model": model, "prompt": text, "add_special_tokens": False}, {"content": text}):
        try:
            async with session.post(base_url + "/tokenize", json=body) as reply:
                if reply.status != 200:
                    continue
                tokens = _list(await reply.json(content_type=None), "tokens")
        except (aiohttp.ClientError, ValueError):
            return None
        if tokens and all(isinstance(token, int) for token in tokens):
            return tokens
    return None


def _list(data: Any, key: str) -> list[Any]:
    found = data.get(key) if isinstance(data, dict) else None
    return found if isinstance(found, list) else []


@dataclass
class Counters:
    """One reading of a server's metrics; a name that it does not have is missing."""

    values: dict[str, float] = field(default_factory=dict)  # summed over all labels
    by_stage: dict[str, list[float]] = field(default_factory=dict)  # names with a label `stage`, in its order
    idle: dict[str, float] = field(default_factory=dict)  # seconds by cause, over all stages

    def grown(self, before: Counters, name: str) -> float | None:
        """How much a counter has grown since `before`; None if the server does not have it."""
        return self.values[name] - before.values.get(name, 0.0) if name in self.values else None


async def read_counters(session: aiohttp.ClientSession, base_url: str) -> Counters:
    """The server's metrics now; nothing if it has none or they cannot be read."""
    try:
        return _parse(await _metrics_text(session, base_url))
    except ValueError:
        return Counters()


async def read_gauge(session: aiohttp.ClientSession, base_url: str, name: str) -> float:
    """One gauge now, 0 if it is not there. Parsing everything would hold up the streams that are being timed."""
    lines = (await _metrics_text(session, base_url)).splitlines()
    values = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(name)]
    return max(map(float, values), default=0.0)


async def _metrics_text(session: aiohttp.ClientSession, base_url: str) -> str:
    try:
        async with session.get(base_url + "/metrics") as reply:
            return await reply.text() if reply.status == 200 else ""
    except aiohttp.ClientError:
        return ""


def _parse(text: str) -> Counters:
    counters = Counters()
    stages: dict[str, dict[int, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.type == "histogram":
            continue
        for sample in family.samples:
            counters.values[sample.name] = counters.values.get(sample.name, 0.0) + sample.value
            if sample.name == IDLE:
                cause = sample.labels.get("cause", "")
                counters.idle[cause] = counters.idle.get(cause, 0.0) + sample.value
            if sample.labels.get("stage", "").isdecimal():
                stage, found = int(sample.labels["stage"]), stages.setdefault(sample.name, {})
                found[stage] = found.get(stage, 0.0) + sample.value
    counters.by_stage = {name: [found[stage] for stage in sorted(found)] for name, found in stages.items()}
    return counters


def pipeline_facts(before: Counters, after: Counters, kv_peak: float | None, duration: float) -> dict[str, Any]:
    """What the pipeline did in `duration` seconds; a figure that the server does not give is None."""
    earlier: Sequence[float] = before.by_stage.get(BUSY, [])
    busy = [
        now - (earlier[stage] if stage < len(earlier) else 0.0)
        for stage, now in enumerate(after.by_stage.get(BUSY, []))
    ]
    idle = {cause: seconds - before.idle.get(cause, 0.0) for cause, seconds in after.idle.items()}
    lost = sum(seconds for cause, seconds in idle.items() if cause not in NOTHING_TO_DO)
    worked = sum(busy)
    return {
        "stages": len(busy) or None,
        "stage_busy": [seconds / duration for seconds in busy],
        "stage_idle_seconds": idle or None,
        "bubble_fraction": lost / (lost + worked) if idle and lost + worked > 0 else None,
        "imbalance": max(busy) * len(busy) / worked if worked > 0 else None,
        "kv_peak": kv_peak,
        "batches": after.grown(before, "paceline:batches_total"),
        "preemptions": after.grown(before, "vllm:num_preemptions_total"),
    }
