"""`paceline simulate`: serve a load on a pipeline that only takes time. Needs no model and no torch."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from paceline.cli.values import number
from paceline.config import EngineConfig
from paceline.errors import ConfigError
from paceline.option_table import options, parse_int
from paceline.pipeline.profile_store import read_profile
from paceline.scheduling.cost_model import CostModel
from paceline.scheduling.pacing import POLICIES
from paceline.simulate.loads import LATEST_ARRIVAL, LOADS, SimulatedRequest, draw_load, read_load
from paceline.simulate.presets import PRESETS, RATES
from paceline.simulate.record import Record, is_record, read_record
from paceline.trace.file import older

MAX_JITTER = 10.0

DESCRIPTION = """\
The real engine core, scheduler and pacing policies on a virtual clock: what each stage takes comes from a cost model, so
minutes of serving take seconds, and the same seed gives the same figures.

  paceline simulate --cost gpu-70b-4 --load mixed
  paceline simulate --cost cpu-2 --load short --rate 1.5 --pacing greedy --json
  paceline simulate --cost profile.json --stages 3 --load requests.jsonl
  paceline simulate --cost served.trace --pacing throttle

--cost is one of {presets}, a file that `paceline profile` wrote, or one that `paceline serve --trace-file` wrote: then
times are drawn as they were while serving, the requests are those that came then, and the options are those of the server,
as far as none are given.
A load's file is such a record, too, or has one JSON object per line:
{{"arrival": 0.5, "prompt_tokens": 200, "output_tokens": 100}}.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "simulate",
        help="predict a load's latencies without a model",
        description=DESCRIPTION.format(presets=", ".join(PRESETS)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cost", metavar="FILE|PRESET", default="cpu-2", help="what batches take (default: cpu-2)")
    parser.add_argument("--stages", metavar="N", help="number of stages (default: those of --cost)")
    parser.add_argument("--pacing", choices=list(POLICIES), help="how much goes into a batch (default: paced)")
    parser.add_argument("--load", metavar="short|mixed|long|FILE", help="requests (default: short)")
    parser.add_argument("--rate", metavar="R", help="requests per second, or inf (default: near the preset's capacity)")
    parser.add_argument("--num-prompts", metavar="N", help="requests to draw (default: 300)")
    parser.add_argument("--seed", metavar="N", default="0", help="of arrivals, lengths and spread (default: 0)")
    parser.add_argument("--max-num-batched-tokens", metavar="N", help="(default: 2048)")
    parser.add_argument("--max-num-seqs", metavar="N", help="(default: 256)")
    parser.add_argument("--num-blocks", metavar="N", help="KV cache blocks (default: more than are needed)")
    parser.add_argument("--block-size", metavar="N", help="tokens per block (default: 16)")
    parser.add_argument("--target-tpot-ms", metavar="X", help="as of paceline serve")
    parser.add_argument(
        "--loop-back",
        action=argparse.BooleanOptionalAction,
        help="the last stage hands tokens to the first one itself (default: no)",
    )
    parser.add_argument("--jitter", metavar="X", help="relative spread of stage times (default: 0)")
    parser.add_argument(
        "--trace-file", metavar="FILE", type=Path, help="write the record, for paceline explain --trace"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Simulate and report.

    Raises:
        ConfigError: an option cannot be used as given.
        ProfileError, TraceFileError: the file of --cost cannot be used.
    """
    # Slower to import than the rest, and not needed for --help.
    from paceline.bench.report import simulated_text
    from paceline.bench.simulated import simulated_figures
    from paceline.simulate.run import PLENTY_OF_BLOCKS, SimulationOptions, simulate
    from paceline.simulate.served import ServedTiming
    from paceline.trace.file import TraceFile

    cost, record = _cost(args)
    seed = _whole("seed", args.seed)
    load = args.load or (args.cost if record else "short")
    rate, requests = _load(load, args, seed)
    target = number("target_tpot_ms", args.target_tpot_ms, 0) if args.target_tpot_ms is not None else None
    chosen = SimulationOptions(
        pacing=args.pacing or (record.facts.pacing if record else "paced"),
        loop_back=args.loop_back if args.loop_back is not None else bool(record and record.loops_back),
        max_num_seqs=_limit(args, "max_num_seqs", record, 256),
        max_num_batched_tokens=_limit(args, "max_num_batched_tokens", record, 2048),
        block_size=_limit(args, "block_size", record, 16),
        num_blocks=_limit(args, "num_blocks", record, PLENTY_OF_BLOCKS),
        target_tpot=None if target is None else target / 1e3,
        jitter=number("jitter", args.jitter or "0", 0, MAX_JITTER),
        seed=seed,
    )
    timing = None if record is None else ServedTiming(record.served, seed)
    file = None if args.trace_file is None else TraceFile(_unread(args.trace_file, args), sys.maxsize)
    try:
        simulation = simulate(cost, requests, chosen, timing=timing, trace_file=file)
    finally:
        if file is not None:
            file.close()
    if simulation.stats.num_batches == 0:
        problem = f"holds {chosen.num_blocks * chosen.block_size} tokens, and no request of the load fits"
        raise ConfigError("num_blocks", chosen.num_blocks, problem, "Give more blocks.")
    about = {"cost": args.cost, "load": load, "request_rate": rate if math.isfinite(rate) else "inf"}
    result = about | simulated_figures(simulation, requests, chosen)
    print(json.dumps(result, indent=2, allow_nan=False) if args.json else simulated_text(result))
    return 1 if result["failed"] else 0


def _unread(path: Path, args: argparse.Namespace) -> Path:
    """The file to write; neither it nor its older part may be one that was read."""
    given = [Path(name) for name in (args.cost, args.load) if name]
    read = {file.resolve() for name in given for file in (name, older(name))}
    if read & {path.resolve(), older(path).resolve()}:
        raise ConfigError("trace_file", str(path), "is what the simulation is made from", "Name another file.")
    return path


def _cost(args: argparse.Namespace) -> tuple[CostModel, Record | None]:
    """A preset's or a profile's prices for so many stages, or those of a record, and the record."""
    name: str = args.cost
    stages = None if args.stages is None else _whole("pipeline_parallel_size", args.stages)
    if name in PRESETS:
        preset = PRESETS[name]
        if stages is None or stages == len(preset.stages):
            return preset, None
        # The same layers on more or fewer stages.
        stage = preset.stages[0].scaled(len(preset.stages) / stages)
        return CostModel((stage,) * stages, preset.link), None
    path = Path(name)
    if not path.is_file():
        raise ConfigError("cost", name, "is neither a preset nor a file", f"Choose one of {', '.join(PRESETS)}.")
    if is_record(path):
        record = read_record(path)
        if stages not in (None, record.facts.stages):
            problem = f"is not what {name} was recorded with: it tells of {record.facts.stages} stages only"
            raise ConfigError("stages", stages, problem, "Leave it out, or give a profile.")
        if args.jitter is not None:
            raise ConfigError("jitter", args.jitter, f"is not for {name}, which has its own spread", "Leave it out.")
        return record.served.cost, record
    profile = read_profile(path)
    if stages is None or stages == len(profile.stages):
        return CostModel(tuple(profile.stages), profile.cost.link), None
    from paceline.models.layer_split import balanced

    return profile.cost.pipeline(balanced(profile.cost, sum(profile.layer_split), stages)), None


def _limit(args: argparse.Namespace, name: str, record: Record | None, default: int) -> int:
    """What was given, or what the record's server had, or the default."""
    if (given := getattr(args, name)) is not None:
        return _whole(name, given)
    return (getattr(record.facts, name) or default) if record else default


def _load(load: str, args: argparse.Namespace, seed: int) -> tuple[float, list[SimulatedRequest]]:
    """Requests per second, and the requests."""
    if load not in LOADS:
        path = Path(load)
        for name in ("rate", "num_prompts"):
            if (given := getattr(args, name)) is not None:
                problem = f"is for requests that are drawn, and {load} says which ones come when"
                raise ConfigError(name, given, problem, "Leave it out, or give another --load.")
        requests = read_record(path).load if is_record(path) else read_load(path)
        last = requests[-1].arrival
        return (len(requests) / last if last > 0.0 else math.inf), requests
    if args.rate is None:
        if (args.cost, load) not in RATES:
            raise ConfigError(
                "rate", "", "is missing, and only a preset has one of its own", "Give requests per second, or inf."
            )
        rate = RATES[args.cost, load]
    else:
        rate = number("rate", args.rate, 0, math.inf)
    num_prompts = _whole("num_prompts", args.num_prompts or "300")
    if rate * LATEST_ARRIVAL < 10 * num_prompts:
        raise ConfigError("rate", args.rate, "lets the requests arrive in many years only", "Give more, or inf.")
    return rate, draw_load(load, num_prompts, rate if math.isfinite(rate) else None, seed)


def _whole(name: str, text: str) -> int:
    """A whole number, within the bounds of the engine's option of that name."""
    low, row = 0 if name == "seed" else 1, options(EngineConfig).get(name)
    try:
        value = parse_int(text)
    except ValueError:
        raise ConfigError(name, text, "is not a whole number", "Give a whole number.") from None
    if row is not None:
        row.check(value)
    if value < low:
        raise ConfigError(name, text, "is too small", f"Give at least {low}.")
    return value
