"""The ``paceline`` command. Each command's module is imported only when it is the one asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from paceline import __version__
from paceline.cli.parser import Parser
from paceline.errors import ConfigError, PacelineError

# name -> (module, help)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("paceline.cli.serve", "serve a model over HTTP"),
    "chat": ("paceline.cli.chat", "talk to a running server"),
    "complete": ("paceline.cli.complete", "let a running server continue a text"),
    "top": ("paceline.cli.top", "watch the pipeline of a running server in the terminal"),
    "explain": ("paceline.cli.explain", "tell what happened to a request, or what was in a batch"),
    "trace": ("paceline.cli.trace", "save what the pipeline did as a file for Perfetto"),
    "schedule": ("paceline.cli.schedule", "show what the scheduler does with a scripted scenario"),
    "simulate": ("paceline.cli.simulate", "predict a load's latencies without a model"),
    "profile": ("paceline.cli.profile", "measure what batches take on this machine"),
    "bench": ("paceline.cli.bench", "measure speed"),
    "pull": ("paceline.cli.pull", "fetch a known model into the cache"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 wrong usage or configuration."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    parser = Parser(prog="paceline", description="A pipeline-parallel server for large language models.")
    parser.add_argument("--version", action="version", version=f"paceline {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    try:
        for name, (module, text) in COMMANDS.items():
            if name == chosen:
                import_module(module).add_parser(subparsers)
            else:
                subparsers.add_parser(name, help=text)
        args = parser.parse_args(arguments)
        if args.command is None:
            parser.print_help()
            return 2
        return _run(args)
    except ConfigError as error:
        return _fail(error, 2)
    except PacelineError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _run(args: argparse.Namespace) -> int:
    code: int = import_module(COMMANDS[args.command][0]).run(args)
    return code


def _fail(error: PacelineError, code: int) -> int:
    print(f"paceline: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
