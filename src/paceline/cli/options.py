"""From flags, environment and YAML to configs: flag > environment > YAML > default.

Any command that needs a config uses::

    add_options(parser, EngineConfig)              # when the parser is made
    settings = resolve(args, EngineConfig)         # when the command runs
    config = settings.make(EngineConfig)
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from paceline.cli.parser import suggestions
from paceline.errors import ConfigError
from paceline.option_table import Option, options

C = TypeVar("C")


def table_of(*classes: type) -> dict[str, Option]:
    """The options of several config classes together."""
    return {name: row for cls in classes for name, row in options(cls).items()}


def add_options(parser: argparse.ArgumentParser, *classes: type) -> None:
    """Add a flag for every option, in groups, and ``--config``, ``--print-config``, ``--help[=WORD]``."""
    general = parser.add_argument_group("General")
    general.add_argument("--help", "-h", nargs="?", const="", metavar="WORD", action=_Help, default=argparse.SUPPRESS)
    general.add_argument("--config", metavar="FILE", help="YAML file with options: names as the flags, without dashes.")
    general.add_argument("--print-config", action="store_true", help="Print every option's value and origin, and end.")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for row in table_of(*classes).values():
        if row.group not in groups:
            groups[row.group] = parser.add_argument_group(row.group)
        _add_flag(groups[row.group], row)


def _add_flag(group: argparse._ArgumentGroup, row: Option) -> None:
    names = [row.flag, *([row.short] if row.short else [])]
    text = f"{row.help} {default_text(row)}".strip().replace("%", "%%")
    if row.kind is bool:
        group.add_argument(
            *names, dest=row.name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
        return
    shown = "{" + ",".join(row.choices) + "}" if row.choices else {int: "N", float: "X", str: "TEXT"}[row.kind]
    if row.many:
        text = f"{text} (Several: repeat the flag, or separate by commas.)"
    group.add_argument(
        *names,
        dest=row.name,
        metavar=shown,
        default=argparse.SUPPRESS,
        help=text,
        # Not one flag with several values: it would swallow MODEL after it.
        action="append" if row.many else "store",
    )


def default_text(row: Option) -> str:
    """How help and docs show the default; nothing where the help says what None means."""
    if row.default in (None, (), ""):
        return ""
    value = ("yes" if row.default else "no") if row.kind is bool else row.default
    return f"(default: {value})"


class _Help(argparse.Action):
    """``--help`` shows everything; ``--help=WORD`` only the options whose name, group or text has the word."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        word = (values or "").lower().replace("_", "-")
        for group in parser._action_groups:
            if word and word not in (group.title or "").lower():
                group._group_actions = [item for item in group._group_actions if _mentions(item, word)]
        if word and not any(group._group_actions for group in parser._action_groups):
            sys.stdout.write(f"No option mentions {word!r}; see {parser.prog} --help.\n")
        elif word:
            parser.usage = f"{parser.prog} [MODEL] [options]"
            parser.print_help()
        else:
            parser.print_help()
        parser.exit()


def _mentions(action: argparse.Action, word: str) -> bool:
    shown = action.help is not argparse.SUPPRESS
    return shown and (word in " ".join(action.option_strings) or word in (action.help or "").lower())


@dataclass
class Settings:
    """Values that somebody gave, and where each came from; the rest are defaults."""

    table: dict[str, Option]
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, value: Any, origin: str) -> None:
        """Overwrite what lower-ranking sources said."""
        self.values[name], self.origins[name] = value, origin

    def make(self, cls: type[C]) -> C:
        """The config.

        Raises:
            ConfigError: names option, value, origin and fix.
        """
        mine = options(cls)
        try:
            return cls(**{name: value for name, value in self.values.items() if name in mine})
        except ConfigError as error:
            origin = self.origins.get(error.option, "")
            if origin and origin != "flag":
                error.args = (f"{error} (It came from {origin}.)",)
            raise

    def describe(self) -> str:
        """One line per option: name, effective value, origin."""
        lines = []
        for name, row in self.table.items():
            value = self.values.get(name, row.default)
            shown = "***" if row.secret and value else value
            shown = ",".join(shown) if isinstance(shown, tuple) else shown
            lines.append(f"{name:<28} {_plain(shown):<28} {self.origins.get(name, 'default')}")
        return "\n".join(lines)


def _plain(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def resolve(args: argparse.Namespace, *classes: type, environ: Mapping[str, str] = os.environ) -> Settings:
    """Layer the sources.

    Raises:
        ConfigError: a value cannot be read, or the YAML file has unknown keys.
    """
    settings = Settings(table_of(*classes))
    if args.config:
        for name, value in _read_yaml(args.config, settings.table).items():
            settings.set(name, value, args.config)
    for name, row in settings.table.items():
        if row.env in environ:
            settings.set(name, row.parse(environ[row.env]), f"environment variable {row.env}")
    for name, row in settings.table.items():
        if name in vars(args):
            settings.set(name, _from_flag(row, getattr(args, name)), "flag")
    return settings


def _from_flag(row: Option, given: Any) -> Any:
    if row.many:
        return tuple(part for text in given for part in row.parse(text))
    return given if isinstance(given, bool) else row.parse(given)


def _read_yaml(path: str, table: Mapping[str, Option]) -> dict[str, Any]:
    import yaml  # only needed with --config

    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config", path, "cannot be read", f"{type(error).__name__}: check the file.") from None
    except yaml.YAMLError as error:
        raise ConfigError("config", path, "is no YAML", " ".join(str(error).split())) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError("config", path, "is no mapping", "Write one `name: value` per line.")
    values = {}
    for key, value in data.items():
        name = str(key).replace("-", "_")
        if name not in table:
            near = suggestions(name, table)
            fix = f"Did you mean {near[0]}?" if near else "See paceline serve --help for the names."
            raise ConfigError("config", path, f"has the unknown key {str(key)!r}", fix)
        values[name] = _from_yaml(table[name], value)
    return values


def _from_yaml(row: Option, value: Any) -> Any:
    """YAML has types of its own; texts are read as a flag's would be."""
    if row.many:
        return tuple(str(item) for item in value) if isinstance(value, list) else row.parse(str(value))
    if row.kind is str and isinstance(value, list):
        return ",".join(str(item) for item in value)
    if row.kind is str and value is not None and not isinstance(value, bool):
        return row.parse(str(value))
    return row.parse(value) if isinstance(value, str) else value
