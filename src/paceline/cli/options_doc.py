"""``python -m paceline.cli.options_doc`` prints ``docs/options.md``, made from the option table."""

from __future__ import annotations

from paceline.cli.options import default_text, table_of
from paceline.config import EngineConfig, ServerConfig
from paceline.option_table import Option

_HEAD = """\
# Options of `paceline serve`

Made from the option table in `src/paceline/config.py` by `python -m paceline.cli.options_doc`; a test compares them.

Each option is a flag (`--max-num-seqs 64`), an environment variable (`PACELINE_MAX_NUM_SEQS=64`) and a key in the
YAML file given with `--config` (`max-num-seqs: 64`). A flag beats the environment, which beats the file, which beats
the default; `paceline serve --print-config` shows every value and where it came from. Whole numbers may be written
`4k` (4000) or `4K` (4096), and so on with m, g, t. `none` stands for "not given". Several values are separated by
commas, or the flag is repeated. `paceline serve --help=WORD` shows only the options that mention the word.
"""


def options_markdown() -> str:
    """The whole page."""
    table = table_of(EngineConfig, ServerConfig)
    groups: dict[str, list[Option]] = {}
    for row in table.values():
        groups.setdefault(row.group, []).append(row)
    parts = [_HEAD]
    for group, rows in groups.items():
        lines = [f"## {group}", "", "| option | values | meaning |", "|---|---|---|", *map(_line, rows)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(row: Option) -> str:
    names = f"`{row.flag}`" + (f", `{row.short}`" if row.short else "")
    if row.kind is bool:
        names += f", `--no-{row.flag[2:]}`"
    return f"| {names} | {_values(row)} | {row.help} {default_text(row)}".rstrip() + " |"


def _values(row: Option) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    if row.kind is bool:
        return "yes or no"
    if row.kind is str:
        return "texts" if row.many else "text"
    kind = "whole number" if row.kind is int else "number"
    bounds = row.range_text.removeprefix("a value ")
    return f"{kind} {bounds}".strip()


if __name__ == "__main__":
    print(options_markdown(), end="")
