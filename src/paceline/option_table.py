"""The option table: what one option is, how its text is read, and how its value is checked."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import ConfigError

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_YES = frozenset({"1", "true", "yes", "on", "enabled"})
_NO = frozenset({"0", "false", "no", "off", "disabled"})
_NOTHING = frozenset({"", "none", "null", "auto"})


@dataclass(frozen=True)
class Option:
    """One row of the option table."""

    name: str
    kind: type  # bool, int, float or str
    many: bool  # a tuple of `kind`
    optional: bool  # None is a value ("decide for me")
    default: Any
    group: str
    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...] | None
    short: str | None
    secret: bool  # never printed

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return "PACELINE_" + self.name.upper()

    def parse(self, text: str) -> Any:
        """The value that a flag or environment variable means. Integers accept 1k = 1000 and 1K = 1024.

        Raises:
            ConfigError: the text is no such value.
        """
        if self.many:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if self.optional and text.strip().lower() in _NOTHING:
            return None
        if self.kind is bool:
            if text.strip().lower() not in _YES | _NO:
                raise ConfigError(self.name, text, "is neither yes nor no", "Use true or false.")
            return text.strip().lower() in _YES
        if self.kind is str:
            return text
        try:
            return parse_int(text) if self.kind is int else float(text)
        except ValueError:
            kind = "a whole number" if self.kind is int else "a number"
            example = " (1k = 1000, 1K = 1024)" if self.kind is int else ""
            raise ConfigError(self.name, text, f"is not {kind}", f"Give {kind}{example}.") from None

    def check(self, value: Any) -> None:
        """Check type, choices and bounds.

        Raises:
            ConfigError: names option, value and fix.
        """
        if value is None and self.optional:
            return
        if self.many:
            if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
                raise ConfigError(self.name, value, "is not a list of texts", "Give one or more values.")
            return
        accepted = (int, float) if self.kind is float else self.kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.kind is not bool):
            what = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[self.kind]
            raise ConfigError(self.name, value, f"is not {what}", f"Give {what}.")
        if self.choices is not None and value not in self.choices:
            raise ConfigError(self.name, value, "is not a choice", f"Use one of {', '.join(self.choices)}.")
        if not isinstance(value, (int, float)):
            return
        if not math.isfinite(value):
            raise ConfigError(self.name, value, "is not finite", "Give an ordinary number.")
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ConfigError(self.name, value, "is out of range", f"Give {self.range_text}.")

    @property
    def range_text(self) -> str:
        if self.low is not None and self.high is not None:
            return f"a value from {self.low} to {self.high}"
        if self.low is not None:
            return f"a value of at least {self.low}"
        return f"a value of at most {self.high}" if self.high is not None else ""


def parse_int(text: str) -> int:
    """``4096``, ``4k`` = 4000, ``4K`` = 4096, ``25.6k`` = 25600, ``2G`` = 2 × 2**30.

    Raises:
        ValueError: not a whole number.
    """
    text = text.strip().replace("_", "")
    unit = _DECIMAL.get(text[-1:]) or _BINARY.get(text[-1:])
    if unit is None:
        return int(text)
    value = float(text[:-1]) * unit
    if not math.isfinite(value) or value != int(value):
        raise ValueError(text)
    return int(value)


def option(
    default: Any,
    group: str,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    short: str | None = None,
    secret: bool = False,
) -> Any:
    metadata = {"group": group, "help": help, "low": low, "high": high}
    return field(default=default, metadata=metadata | {"choices": choices, "short": short, "secret": secret})


def options(cls: Any) -> dict[str, Option]:
    """The option table of a config class, by name, in the order of declaration."""
    hints = typing.get_type_hints(cls)
    table = {}
    for item in dataclasses.fields(cls):
        kind, many, optional = hints[item.name], False, False
        if isinstance(kind, types.UnionType):
            optional, kind = True, next(part for part in typing.get_args(kind) if part is not types.NoneType)
        if typing.get_origin(kind) is tuple:
            many, kind = True, typing.get_args(kind)[0]
        table[item.name] = Option(item.name, kind, many, optional, item.default, **item.metadata)
    return table


def check_all(config: Any) -> None:
    for name, row in options(type(config)).items():
        row.check(getattr(config, name))
