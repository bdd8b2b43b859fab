"""How commands read the values of flags that are no options of the engine; every error names flag, value and fix."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.option_table import parse_int

LARGEST = sys.float_info.max


def count(name: str, text: str, low: int = 1) -> int:
    """A whole number of at least `low`."""
    try:
        value = parse_int(text)
    except ValueError:
        raise ConfigError(name, text, "is not a whole number", "Give a whole number such as 64 or 1k.") from None
    if value < low:
        raise ConfigError(name, text, "is too small", f"Give at least {low}.")
    return value


def number(name: str, text: str, low: float, high: float = LARGEST, *, above: bool = False) -> float:
    """A number from `low` to `high`; with `above`, `low` itself is too small. Infinity only where `high` is."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ConfigError(name, text, "is not a number", "Give a number.")
    if not low <= value <= high or (above and value == low):
        where = f"above {low:g}" if above else f"at least {low:g}"
        most = f", at most {high:g}" if high < LARGEST else ", and a finite number" if math.isinf(value) else ""
        raise ConfigError(name, text, "is out of range", f"Give {where}{most}.")
    return value


def limits(name: str, words: Sequence[str], known: Sequence[str]) -> dict[str, float]:
    """``ttft:500 tpot:50`` as milliseconds by name."""
    found = {}
    for word in words:
        key, colon, value = word.partition(":")
        if not colon or key not in known:
            raise ConfigError(name, word, "is no NAME:MILLISECONDS", f"Names are {', '.join(known)}; write ttft:500.")
        found[key] = number(name, value, 0, above=True)
    return found


def listed(name: str, text: str, known: Sequence[str]) -> list[str]:
    """Names separated by commas, each one known."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or not set(names) <= set(known):
        raise ConfigError(name, text, "is no list of known names", f"Use some of {','.join(known)}.")
    return names


def pairs(name: str, words: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE words as a dictionary."""
    split = [word.partition("=") for word in words]
    for word, (key, equals, _) in zip(words, split, strict=True):
        if not key or not equals:
            raise ConfigError(name, word, "is no KEY=VALUE", "Write such as machine=laptop.")
    return {key: value for key, _, value in split}


def json_object(name: str, text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(name, text, "is no JSON object", "Write such as '{\"top_p\": 0.9}'.")
    return value


def writable(path: str | None, name: str = "output_json") -> Path | None:
    """Where the result goes; found unusable before minutes of measuring rather than after."""
    if path is None:
        return None
    target = Path(path)
    if target.is_dir():
        raise ConfigError(name, path, "is a folder", "Name a file in it.")
    is_new = not target.exists()
    try:
        target.touch()
        if is_new:
            target.unlink()  # a run that fails leaves none behind
    except OSError as error:
        raise ConfigError(name, path, f"cannot be written ({error.strerror})", "Choose another.") from None
    return target
