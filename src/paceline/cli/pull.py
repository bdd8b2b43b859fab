"""`paceline pull`: fetch a model into the cache, so that a later start needs no network."""

from __future__ import annotations

import argparse

from paceline.weights.source import KNOWN_MODELS, cache_folder, pull, resolve


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    known = ", ".join(sorted(KNOWN_MODELS))
    parser = subparsers.add_parser(
        "pull",
        help="fetch a model into the cache",
        description=f"Fetch a model, so that a later start needs no network. Known models ({known}) are checked against "
        f"a pinned digest and kept in {cache_folder()} (PACELINE_CACHE); others come from the Hugging Face hub into its "
        "own cache. Prints where the model lies.",
    )
    parser.add_argument("name", help=f"{known}, or organisation/name on the Hugging Face hub")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub repository")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    print(pull(args.name) if args.name in KNOWN_MODELS else resolve(args.name, revision=args.revision).path)
    return 0
