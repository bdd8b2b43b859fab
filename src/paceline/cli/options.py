"""Options on the command line: flags from the option table, and values from flag > environment > YAML > default."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, TypeVar

import yaml

from paceline.errors import ConfigError
from paceline.option_table import Option, options

C = TypeVar("C")

# Flags of other servers that people try here, and what to do instead.
HINTS = {
    "--tensor-parallel-size": "Paceline splits a model by layers: use --pipeline-parallel-size.",
    "-tp": "Paceline splits a model by layers: use --pipeline-parallel-size.",
    "--data-parallel-size": "Start several servers behind a load balancer instead.",
    "--trust-remote-code": "Paceline never runs code from a model's repository.",
    "--gpu-memory-utilization": "Use --memory-utilization.",
    "--num-gpu-blocks-override": "Use --num-blocks.",
    "--enforce-eager": "There are no captured graphs to switch off: leave it out.",
    "--distributed-executor-backend": "Use --pipeline processes or --pipeline inline.",
    "--async-scheduling": "Not available yet.",
    "--speculative-config": "Speculative decoding is not available.",
    "--enable-lora": "LoRA adapters are not available.",
    "--quantization": "Weights are used as the file holds them; give a quantised GGUF.",
}


def add_options(parser: argparse.ArgumentParser, *configs: Any, skip: tuple[str, ...] = ()) -> None:
    """Add a flag for each option, grouped; the first config's options come first."""
    groups: dict[str, Any] = {}
    for row in (row for config in configs for row in options(config).values()):
        if row.name in skip:
            continue
        if row.group not in groups:
            groups[row.group] = parser.add_argument_group(row.group)
        _add_flag(groups[row.group], row)


def _add_flag(group: Any, row: Option) -> None:
    names = [row.short, row.flag] if row.short else [row.flag]
    text = row.help.replace("%", "%%")
    if row.kind is bool:
        text += f" [{'on' if row.default else 'off'}]"
        group.add_argument(*names, action=argparse.BooleanOptionalAction, default=None, help=text)
        return
    if row.choices:
        text += f" One of {', '.join(row.choices)}."
    if row.default is not None and row.default != () and not row.secret:
        text += f" [{row.default}]"
    group.add_argument(
        *names,
        default=None,
        help=text,
        metavar=row.kind.__name__.upper(),
        action="append" if row.many else "store",
    )


class Layers:
    """The values of all options and where each came from.

    Raises:
        ConfigError: a source holds a value that cannot be used, or a key that is no option.
    """

    def __init__(self, args: argparse.Namespace, *configs: Any) -> None:
        self.origins: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._rows = {name: row for config in configs for name, row in options(config).items()}
        file = _yaml(getattr(args, "config", None))
        for key in file:
            if key.replace("-", "_") not in self._rows:
                raise ConfigError("config", args.config, f"has the unknown key {key!r}", "See paceline serve --help.")
        file = {key.replace("-", "_"): value for key, value in file.items()}
        for name, row in self._rows.items():
            self._take(row, getattr(args, name, None), file)

    def _take(self, row: Option, flag: Any, file: dict[str, Any]) -> None:
        if flag is not None:
            self._set(row, _parsed(row, flag), "flag")
        elif row.env in os.environ:
            self._set(row, row.parse(os.environ[row.env]), f"environment ({row.env})")
        elif row.name in file:
            value = file[row.name]
            self._set(row, _parsed(row, value) if isinstance(value, str | list) else value, "YAML")
        else:
            self._set(row, row.default, "default")

    def _set(self, row: Option, value: Any, origin: str) -> None:
        row.check(value)
        self._values[row.name] = value
        self.origins[row.name] = origin

    def make(self, config: type[C]) -> C:
        """One config from its options."""
        return config(**{name: self._values[name] for name in options(config)})

    def describe(self) -> str:
        """Each option's value and origin, one per line; secrets are not shown."""
        lines = []
        for name, row in self._rows.items():
            value = "(secret)" if row.secret and self._values[name] else self._values[name]
            shown = ",".join(value) if isinstance(value, tuple) else value
            lines.append(f"{name} = {shown}  ({self.origins[name]})")
        return "\n".join(lines)


def _parsed(row: Option, value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return tuple(part for item in value for part in row.parse(str(item)))
    return row.parse(value)


def _yaml(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        values = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError("config", path, f"cannot be read ({error})", "Give a readable YAML file.") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError("config", path, "is not a mapping of options to values", "Write lines like `port: 8000`.")
    return values


def hint_for(argv: list[str]) -> str | None:
    """What to do instead of a flag that other servers have."""
    for word in argv:
        name = word.partition("=")[0]
        if name in HINTS:
            return f"{name}: {HINTS[name]}"
    return None
