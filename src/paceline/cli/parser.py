"""An argument parser whose errors are one line and point the way."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """``argparse`` without abbreviations; a wrong flag gets a suggestion instead of the whole usage text."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def flags(self) -> set[str]:
        """Every long flag of this parser and of its commands."""
        found = {flag for flag in self._option_string_actions if flag.startswith("--")}
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    found |= parser.flags()
        return found

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line and end with code 2."""
        words = message.replace(",", " ").split()
        hints = [hint for word in words if word.startswith("--") for hint in suggestions(word, self.flags())]
        hint = f" Did you mean {' or '.join(hints)}?" if hints else ""
        self.exit(2, f"{self.prog}: {message}.{hint} See {self.prog} --help.\n")


def suggestions(word: str, known: Iterable[str]) -> list[str]:
    """Up to two known words that look like `word`."""
    return difflib.get_close_matches(word.partition("=")[0], sorted(known), n=2, cutoff=0.6)
