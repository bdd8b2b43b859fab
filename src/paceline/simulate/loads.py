"""Requests to simulate: three typical loads drawn by seed, or a file of one's own."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec

from paceline.errors import ConfigError

LOADS = ("short", "mixed", "long")
SHORTEST_PROMPT = 8
SHORTEST_OUTPUT = 4
MAX_LOAD_BYTES = 64 << 20
LATEST_ARRIVAL = 1e9  # seconds, thirty years: later ones leave no digits for what happens between


class SimulatedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a request arrives, in seconds from the start, and its lengths in tokens."""

    arrival: float
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        if not 0.0 <= self.arrival <= LATEST_ARRIVAL or self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"arrival must be from 0 to {LATEST_ARRIVAL:g}, prompt_tokens and output_tokens at least 1"
            )


def draw_load(kind: str, num_prompts: int, rate: float | None, seed: int) -> list[SimulatedRequest]:
    """Requests with Poisson arrivals and log-normal lengths.

    Args:
        kind: ``short`` (median prompt 200 tokens, output 150), ``mixed`` (one prompt in five around 12,000 tokens, the
            others around 200), or ``long`` (around 8,000).
        rate: requests per second; None: all at once.
    """
    draw = random.Random(seed)
    now = 0.0
    requests = []
    for _ in range(num_prompts):
        if rate is not None:
            now += draw.expovariate(rate)
        if kind == "short":
            prompt, output = _log_normal(draw, 200, 0.8), _log_normal(draw, 150, 0.6)
        elif kind == "mixed":
            short = draw.random() < 0.8
            prompt = _log_normal(draw, 200, 0.6) if short else _log_normal(draw, 12000, 0.4)
            output = _log_normal(draw, 120, 0.6)
        else:
            prompt, output = _log_normal(draw, 8000, 0.6), _log_normal(draw, 100, 0.5)
        requests.append(SimulatedRequest(now, max(SHORTEST_PROMPT, int(prompt)), max(SHORTEST_OUTPUT, int(output))))
    return requests


def _log_normal(draw: random.Random, median: float, sigma: float) -> float:
    return draw.lognormvariate(math.log(median), sigma)


def read_load(path: Path) -> list[SimulatedRequest]:
    """Requests from a file with one JSON object per line: `arrival`, `prompt_tokens`, `output_tokens`.

    Raises:
        ConfigError: it cannot be read, or a line is not such an object; the text says which.
    """
    decoder = msgspec.json.Decoder(SimulatedRequest)
    requests = []
    try:
        if path.stat().st_size > MAX_LOAD_BYTES:
            raise ConfigError("load", str(path), f"is larger than {MAX_LOAD_BYTES >> 20} MiB", "Split the file.")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        fix = f"Choose one of {', '.join(LOADS)}, or a file of JSON lines."
        raise ConfigError("load", str(path), f"cannot be read ({error.strerror})", fix) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                requests.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                fix = 'Write {"arrival": 0.5, "prompt_tokens": 200, "output_tokens": 100}.'
                raise ConfigError("load", str(path), f"line {number}: {error}", fix) from None
    if not requests:
        raise ConfigError("load", str(path), "holds no requests", "Write one JSON object per line.")
    return sorted(requests, key=lambda request: request.arrival)
