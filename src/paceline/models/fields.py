"""Typed reading of a configuration that somebody else wrote. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

from paceline.errors import ModelError


class Fields:
    """A mapping whose values are checked as they are taken; every complaint names the file and the field.

    A value of None counts as absent. A default makes a field optional.

    Raises:
        ModelError: from every reader, for an absent field without a default and for a value of another type.
    """

    def __init__(self, values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
        self.origin = origin
        self._values = values
        self._prefix = prefix

    def _take(self, name: str, default: object) -> Any:
        value = self._values.get(self._prefix + name)
        if value is None:
            if default is None:
                raise ModelError(f"{self.origin}: field {self._prefix + name} is missing")
            return default
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> ModelError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ModelError(f"{self.origin}: field {self._prefix + name} is {shown}; it must be {wanted}")

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number. A list (GGUF allows one entry per layer) counts when all its entries are the same."""
        value = self._take(name, default)
        if isinstance(value, list):
            if not value or any(entry != value[0] for entry in value):
                raise self._wrong(name, value, "the same whole number for every layer")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(name, value, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        if (isinstance(value, int) and abs(value) > 1 << 60) or not math.isfinite(value):
            raise self._wrong(name, value, "a finite number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def string(self, name: str, default: str | None = None) -> str:
        """A text."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a text")
        return value

    def strings(self, name: str) -> list[str]:
        """A list of texts; absent: empty."""
        value = self._take(name, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise self._wrong(name, value, "a list of texts")
        return value

    def inner(self, name: str) -> Fields | None:
        """The fields of a mapping inside this one, None when absent."""
        value = self._take(name, {})
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "a mapping")
        return Fields(value, self.origin, "") if value else None

    def length_of(self, full_name: str) -> int | None:
        """How many entries a list has that lies outside the prefix; None when there is none."""
        value = self._values.get(full_name)
        return len(value) if isinstance(value, Sized) and not isinstance(value, str) else None
