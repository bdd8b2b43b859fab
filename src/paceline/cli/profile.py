"""``paceline profile``: measure what batches take on this machine, and keep it for the next start."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from paceline.cli.options import add_options, resolve
from paceline.cli.values import number
from paceline.config import EngineConfig
from paceline.errors import ConfigError

_DESCRIPTION = """\
Measures batches of decodes, of prompts and of both on the stages that the options describe, for about a minute, and
saves the cost model. `paceline serve` with the same model, machine, types and threads then splits layers by it and paces
by it from the first batch on; `paceline simulate --cost FILE` predicts with it.

  paceline profile --pipeline-parallel-size 2
  paceline profile MODEL --pipeline-parallel-size 3 --output costs.json
"""

LONGEST_SECONDS = 3600.0


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "profile",
        help="measure what batches take on this machine",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="paceline profile [MODEL] [options]",
        add_help=False,
    )
    parser.add_argument("model_argument", metavar="MODEL", nargs="?", help="The same as --model.")
    own = parser.add_argument_group("Profile")
    own.add_argument("--seconds", metavar="X", default="60", help="How long to measure. (default: 60)")
    own.add_argument("--output", metavar="FILE", help="Where to write it. Not given: where the engine looks for it.")
    own.add_argument("--quiet", action="store_true", help="No progress bars.")
    add_options(parser, EngineConfig)


def run(args: argparse.Namespace) -> int:
    """Measure, write and report.

    Raises:
        ConfigError: an option cannot be used as given.
        PacelineError: the stages cannot start, or one failed.
    """
    settings = resolve(args, EngineConfig)
    if args.model_argument is not None:
        settings.set("model", args.model_argument, "flag")
    config = settings.make(EngineConfig)
    seconds = number("seconds", args.seconds, 1, LONGEST_SECONDS)
    if args.print_config:
        print(settings.describe())
        return 0
    # Slow to import, and not needed for --help.
    from tqdm import tqdm

    from paceline.engine.loading_bar import LoadingBar
    from paceline.engine.profile import measure_profile
    from paceline.pipeline.profile_store import profile_path, save_profile
    from paceline.weights.source import resolve as find

    files = find(config.model, revision=config.revision, download_dir=config.download_dir, offline=config.offline)
    with (
        LoadingBar(config.pipeline_parallel_size, not args.quiet) as loading,
        tqdm(total=100, desc="Measuring", unit="%", disable=args.quiet, leave=False, file=sys.stderr) as bar,
    ):

        def progress(done: float) -> None:
            bar.n = round(100 * done)
            bar.refresh()

        profile = measure_profile(config, files.path, seconds, loading, progress)
    path = profile_path(profile.conditions) if args.output is None else Path(args.output)
    try:
        save_profile(profile, path)
    except OSError as error:
        raise ConfigError("output", str(path), f"cannot be written ({error.strerror})", "Choose another.") from None
    print(profile_text(profile, config.expected_prompt_share))
    print(f"written to {path}")
    return 0


def profile_text(profile: Any, prompt_share: float) -> str:
    """Errors on batches that the fit has not seen, and how even the stages are."""
    from paceline.models.layer_split import balanced, imbalance
    from paceline.models.model_cost import expected_work

    errors = ", ".join(f"{kind} {100 * error:.1f} %" for kind, error in profile.errors.items())
    lines = [
        f"{profile.num_steps} batches on {len(profile.stages)} stage(s) of {', '.join(map(str, profile.layer_split))} layers",
        f"median error of predictions: {errors}",
        "",
        f"{'slowest stage ÷ mean':<28}{'decode':>10}{'prefill':>10}{'expected':>10}",
    ]
    works = [expected_work(share) for share in (0.0, 1.0, prompt_share)]
    layers = sum(profile.layer_split)
    for stages in (2, 3):
        if stages > layers:
            continue
        even = [layers // stages + (i < layers % stages) for i in range(stages)]
        for title, split in (("by cost", balanced(profile.cost, layers, stages, prompt_share)), ("even", even)):
            model = profile.cost.pipeline(split)
            values = "".join(f"{imbalance([stage.time(work) for stage in model.stages]):>10.2f}" for work in works)
            lines.append(f"{title + ': ' + ', '.join(map(str, split)):<28}{values}")
    return "\n".join(lines)
