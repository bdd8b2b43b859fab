"""``paceline serve``: the HTTP server."""

from __future__ import annotations

import argparse
import logging
from typing import Any

from paceline.cli.foreign import add_foreign_flags
from paceline.cli.options import add_options, resolve
from paceline.config import EngineConfig, ServerConfig

_DESCRIPTION = """\
Serve a model over an OpenAI-compatible HTTP API, its layers split over a pipeline of processes.

  paceline serve                                   the default model, on http://127.0.0.1:8000/v1
  paceline serve model.gguf --pipeline-parallel-size 2
  paceline serve --help=memory                     only the options that mention memory

Every option can also be an environment variable (--max-num-seqs: PACELINE_MAX_NUM_SEQS) or a line of a YAML
file (--config); a flag beats the environment, which beats the file. Numbers may be written 4k (4000) or 4K (4096).
"""


def add_parser(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="paceline serve [MODEL] [options]",
        add_help=False,
    )
    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="The same as --model.")
    add_options(parser, EngineConfig, ServerConfig)
    add_foreign_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop; 0 after a clean end.

    Raises:
        ConfigError: an option cannot be used as given.
    """
    settings = resolve(args, EngineConfig, ServerConfig)
    if args.model_argument is not None:
        settings.set("model", args.model_argument, "flag")
    engine_config, config = settings.make(EngineConfig), settings.make(ServerConfig)
    if args.print_config:
        print(settings.describe())
        return 0
    log_to_stderr()
    from paceline.server.serve import run as serve  # slow to import, and not needed for --help

    return serve(engine_config, config)


class _OneLine(logging.Formatter):
    """Control characters are escaped, so that nothing a client sent can forge a line of the log."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
            for letter in record.message
        )
        return super().formatMessage(record)


def log_to_stderr() -> None:
    """What the server says while it runs."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
