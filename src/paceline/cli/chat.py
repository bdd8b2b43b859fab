"""`paceline chat`: talk to a running server; the conversation lasts until the end of input (Ctrl-D)."""

from __future__ import annotations

import argparse

from paceline.cli.talk import Talk, add_arguments, lines


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("chat", help="talk to a running server", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="how the model should behave")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    talk = Talk(args)
    messages = [{"role": "system", "content": args.system}] if args.system else []
    texts = [args.quick] if args.quick is not None else lines("you> ")
    for text in texts:
        messages.append({"role": "user", "content": text})
        answer = talk.print_answer("/v1/chat/completions", messages=messages)
        messages.append({"role": "assistant", "content": answer})
    return 0
