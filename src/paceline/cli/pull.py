"""`paceline pull`: fetch a known model into the cache."""

from __future__ import annotations

import argparse

from paceline.weights.source import KNOWN_MODELS, cache_folder, pull


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "pull",
        help="fetch a known model into the cache",
        description=f"{__doc__} It is checked against a pinned digest and kept in {cache_folder()} (PACELINE_CACHE).",
    )
    parser.add_argument("name", choices=sorted(KNOWN_MODELS), help="which model")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    print(pull(args.name))
    return 0
