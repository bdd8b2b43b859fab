"""`paceline serve`: serve a model to OpenAI clients."""

from __future__ import annotations

import argparse
import logging
import sys

from paceline.cli.options import Layers, add_options, hint_for
from paceline.config import EngineConfig, ServerConfig

EXAMPLES = """\
Examples:
  paceline serve --pipeline-parallel-size 2        the default model, split over two processes
  paceline serve ./model.gguf -pp 2 --port 9000    a file of your own
  paceline serve --config server.yaml              options from a file; flags win over it
  paceline serve --help=cache                      only the options with `cache` in them

Every option is also an environment variable: PACELINE_MAX_NUM_SEQS=64. Whole numbers take 1k = 1000 and 1K = 1024.
"""


class _Help(argparse.Action):
    """`--help` shows everything, `--help=WORD` the options whose name or help has the word."""

    def __call__(self, parser: argparse.ArgumentParser, _namespace: object, word: object, _flag: object = None) -> None:
        if not isinstance(word, str) or word == "all":
            parser.print_help()
        else:
            for action in parser._actions:
                text = f"{' '.join(action.option_strings)}  {action.help or ''}"
                if action.option_strings and word.lower() in text.lower():
                    print(text.replace("%%", "%"))
        parser.exit()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        hint = hint_for(sys.argv[1:])
        self.exit(2, f"paceline serve: {hint or message}\n")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    subparsers._parser_class = _Parser  # so that errors of this command carry hints
    parser = subparsers.add_parser(
        "serve",
        help="serve a model to OpenAI clients",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("-h", "--help", nargs="?", action=_Help, metavar="WORD", help="show this, or search it")
    parser.add_argument("model_positional", nargs="?", metavar="MODEL", help="same as --model")
    parser.add_argument("--config", metavar="FILE", help="YAML file with options by their names")
    parser.add_argument("--print-config", action="store_true", help="show each option's value and origin, and end")
    add_options(parser, EngineConfig, ServerConfig)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.model_positional is not None:
        args.model = args.model_positional
    layers = Layers(args, EngineConfig, ServerConfig)
    engine, server = layers.make(EngineConfig), layers.make(ServerConfig)
    if args.print_config:
        print(layers.describe())
        return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from paceline.server.serve import run as serve

    return serve(engine, server)
