"""`paceline complete`: continue a text on a running server."""

from __future__ import annotations

import argparse

from paceline.cli.talk import Talk, add_arguments, lines


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("complete", help="continue a text on a running server", description=__doc__)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    talk = Talk(args)
    texts = [args.quick] if args.quick is not None else lines("> ")
    for text in texts:
        talk.print_answer("/v1/completions", prompt=text)
    return 0
