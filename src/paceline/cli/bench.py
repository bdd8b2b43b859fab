"""``paceline bench``: measure speed."""

from __future__ import annotations

import argparse
import json
from typing import Any

from paceline.cli import bench_serve
from paceline.cli.options import add_options, resolve
from paceline.cli.values import count, writable
from paceline.config import EngineConfig

_DESCRIPTION = """\
Offline throughput: random prompts of exact length through the whole engine, without HTTP.

  paceline bench throughput                        64 prompts of 128 tokens, 128 output tokens each
  paceline bench throughput --pipeline-parallel-size 2 --max-concurrency 16 --output-json result.json

--seed also seeds the prompts. Repeating a run on the same engine would find its prompts in the prefix cache; every
run here starts a new engine, and says whether its cache was cold.
"""


def add_parser(subparsers: Any) -> None:
    """Add the command and its own commands."""
    bench = subparsers.add_parser("bench", help="measure speed")
    kinds = bench.add_subparsers(dest="bench_kind", metavar="KIND", title="kinds", required=True)
    parser = kinds.add_parser(
        "throughput",
        help="offline throughput, without HTTP",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="paceline bench throughput [MODEL] [options]",
        add_help=False,
    )
    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="The same as --model.")
    load = parser.add_argument_group("Load")
    load.add_argument("--num-prompts", metavar="N", default="64", help="Prompts to run. (default: 64)")
    load.add_argument("--input-len", metavar="N", default="128", help="Tokens per prompt. (default: 128)")
    load.add_argument("--output-len", metavar="N", default="128", help="Output tokens per prompt. (default: 128)")
    load.add_argument("--max-concurrency", metavar="N", help="At most so many at a time. Not given: all at once.")
    load.add_argument("--warm-up", metavar="N", default="4", help="Prompts to run before measuring. (default: 4)")
    output = parser.add_argument_group("Output")
    output.add_argument("--json", action="store_true", help="Print the result as JSON instead of a table.")
    output.add_argument("--output-json", metavar="FILE", help="Also write the result as JSON to this file.")
    output.add_argument("--quiet", action="store_true", help="No progress bars.")
    add_options(parser, EngineConfig)
    bench_serve.add_parser(kinds)


def run(args: argparse.Namespace) -> int:
    """Measure and report; 1 if a request failed.

    Raises:
        ConfigError: an option cannot be used as given.
        PacelineError: what is to be measured cannot start, cannot be reached, or died.
    """
    return bench_serve.run(args) if args.bench_kind == "serve" else _throughput(args)


def _throughput(args: argparse.Namespace) -> int:
    """Measure an engine of our own.

    Raises:
        ConfigError: an option cannot be used as given.
        PacelineError: the engine cannot start, or died.
    """
    settings = resolve(args, EngineConfig)
    if args.model_argument is not None:
        settings.set("model", args.model_argument, "flag")
    config = settings.make(EngineConfig)
    load_options = _load_options(args)
    target = writable(args.output_json)
    if args.print_config:
        print(settings.describe())
        return 0
    # Slow to import, and not needed for --help.
    from paceline.bench.report import as_text
    from paceline.bench.throughput import Load, measure
    from paceline.engine.loading_bar import LoadingBar
    from paceline.engine.offline import OfflineEngine

    with LoadingBar(config.pipeline_parallel_size, not args.quiet) as bar:
        engine = OfflineEngine(config, bar)
    try:
        result = measure(engine, Load(**load_options, seed=config.seed), show_progress=not args.quiet)
    finally:
        engine.close()
    text = json.dumps(result, indent=2, allow_nan=False)
    if target is not None:
        target.write_text(text + "\n", encoding="utf-8")
    print(text if args.json else as_text(result))
    return 1 if result["failed"] else 0


def _load_options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a `Load` that are flags of this command."""
    return {
        "num_prompts": count("num_prompts", args.num_prompts),
        "input_len": count("input_len", args.input_len),
        "output_len": count("output_len", args.output_len),
        "max_concurrency": None if args.max_concurrency is None else count("max_concurrency", args.max_concurrency),
        "warm_up": count("warm_up", args.warm_up, low=0),
    }
