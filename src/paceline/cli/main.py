"""The `paceline` command."""

from __future__ import annotations

import argparse
import importlib
import sys

import paceline
from paceline.errors import PacelineError

# Each command's module is imported only when it may be needed, so that `paceline --help` answers at once.
COMMANDS = {
    "serve": "serve a model to OpenAI clients",
    "complete": "continue a text on a running server",
    "chat": "talk to a running server",
    "schedule": "show what the scheduler does with a scripted scenario (no model needed)",
    "pull": "fetch a known model into the cache",
    "bench": "measure throughput, offline",
}


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser, with the options of `command` only (all others are listed with their help)."""
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Pipeline-parallel inference for large language models.",
        epilog="`paceline COMMAND --help` explains a command. A first try: paceline serve --pipeline-parallel-size 2",
    )
    parser.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        if name == command:
            importlib.import_module(f"paceline.cli.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=text, add_help=False)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    command = next((word for word in argv if word in COMMANDS), None)
    args = build_parser(command).parse_args(argv)
    try:
        return int(args.run(args))
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
