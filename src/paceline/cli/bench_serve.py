"""``paceline bench serve``: load on a running server, ours or any other that speaks OpenAI's API."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.values import count, json_object, limits, listed, number, pairs, writable
from paceline.errors import BenchError, ConfigError

if TYPE_CHECKING:
    from paceline.bench.arrivals import RampUp
    from paceline.bench.datasets import Lengths
    from paceline.bench.served import ServedLoad

_DESCRIPTION = """\
Send requests to a running server and measure its streams. The names of flags and figures are those of vllm bench serve.

  paceline bench serve --num-prompts 64 --max-concurrency 16 --random-input-len 128
  paceline bench serve --request-rate 4 --burstiness 0.5 --num-prompts 300      4 requests/s on average, in bursts
  paceline bench serve --dataset-name lognormal --input-median 128 --input-sigma 0.8 --output-median 96
  paceline bench serve --dataset-name sharegpt --dataset-path ShareGPT_V3.json --backend openai-chat

TTFT: from sending a request to its first streamed output. ITL: between two streamed outputs. TPOT: from the first
output to the last ÷ (tokens - 1). Where one output carries several tokens, ITL is not TPOT. Running the same --seed
twice on one server finds the prompts in its prefix cache; a warning says so.
"""
MAX_REASONS = 3  # told where all requests failed
LATENCIES = ("ttft", "tpot", "itl", "e2el")


def add_parser(kinds: Any) -> None:
    """Add the command."""
    parser = kinds.add_parser(
        "serve",
        help="load on a running server",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="paceline bench serve [options]",
    )
    server = parser.add_argument_group("Server")
    server.add_argument("--base-url", "--url", metavar="URL", help="Its address. (default: http://HOST:PORT)")
    server.add_argument("--host", default="127.0.0.1", help="(default: %(default)s)")
    server.add_argument("--port", metavar="N", default="8000", help="(default: %(default)s)")
    server.add_argument("--endpoint", metavar="PATH", help="Not given: /v1/completions, or /v1/chat/completions.")
    server.add_argument(
        "--backend",
        choices=("paceline", "vllm", "openai", "openai-chat"),
        default="paceline",
        help="paceline, vllm: completions, one event for every token; openai: without what OpenAI does not know; "
        "openai-chat: prompts are texts in a chat. (default: %(default)s)",
    )
    server.add_argument("--model", metavar="NAME", help="Not given: the first that the server names.")
    server.add_argument("--tokenizer", metavar="PATH", help="Not given: the server's own /tokenize is asked.")
    server.add_argument(
        "--api-key", metavar="KEY", default=os.environ.get("PACELINE_API_KEY"), help="or PACELINE_API_KEY"
    )
    _add_load(parser.add_argument_group("Load"))
    _add_data(parser.add_argument_group("Prompts"))
    _add_output(parser.add_argument_group("Output"))


def _add_load(load: argparse._ArgumentGroup) -> None:
    load.add_argument("--num-prompts", metavar="N", default="1000", help="Requests to send. (default: %(default)s)")
    load.add_argument("--request-rate", metavar="X", default="inf", help="Per second; inf: all at once. (default: inf)")
    load.add_argument(
        "--burstiness",
        metavar="X",
        default="1",
        help="Shape of the gamma-distributed gaps: 1 is Poisson, less is burstier, more is steadier. (default: 1)",
    )
    load.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="A rate that changes as it goes.")
    load.add_argument("--ramp-up-start-rps", metavar="X", help="Rate at the first request.")
    load.add_argument("--ramp-up-end-rps", metavar="X", help="Rate at the last request.")
    load.add_argument("--max-concurrency", metavar="N", help="At most so many at a time. Not given: no limit.")
    load.add_argument(
        "--num-warmups", metavar="N", default="2", help="Requests before measuring. (default: %(default)s)"
    )
    load.add_argument("--seed", metavar="N", default="0", help="Of prompts, lengths and gaps. (default: %(default)s)")
    load.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="Go on until the wanted length. Not given: yes, but not for sharegpt.",
    )
    load.add_argument("--temperature", metavar="X", default="0", help="(default: %(default)s, greedy)")
    load.add_argument("--extra-body", metavar="JSON", help="Further fields of every request.")


def _add_data(data: argparse._ArgumentGroup) -> None:
    data.add_argument("--dataset-name", choices=("random", "lognormal", "sharegpt"), default="random")
    data.add_argument("--random-input-len", metavar="N", default="1024", help="Tokens per prompt. (default: 1024)")
    data.add_argument("--random-output-len", metavar="N", default="128", help="Tokens to generate. (default: 128)")
    data.add_argument(
        "--random-range-ratio", metavar="X", default="0", help="Lengths vary by this part of themselves. (default: 0)"
    )
    data.add_argument("--input-median", metavar="N", default="128", help="lognormal: median prompt. (default: 128)")
    data.add_argument("--input-sigma", metavar="X", default="0.8", help="σ of its logarithm. (default: 0.8)")
    data.add_argument("--output-median", metavar="N", default="96", help="lognormal: median output. (default: 96)")
    data.add_argument("--output-sigma", metavar="X", default="0.6", help="σ of its logarithm. (default: 0.6)")
    data.add_argument("--dataset-path", metavar="FILE", help="sharegpt: a file in the format of ShareGPT_V3.")
    data.add_argument("--sharegpt-output-len", metavar="N", help="Not given: as long as the recorded answer.")


def _add_output(output: argparse._ArgumentGroup) -> None:
    output.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="NAME:MS",
        help="Count requests with such latencies as good: ttft:500 tpot:50 e2el:5000.",
    )
    output.add_argument(
        "--percentile-metrics", metavar="NAMES", default=",".join(LATENCIES), help="To print. (default: %(default)s)"
    )
    output.add_argument("--metric-percentiles", metavar="N,N", default="99", help="(default: %(default)s)")
    output.add_argument("--json", action="store_true", help="Print the result as JSON instead of a table.")
    output.add_argument("--output-json", metavar="FILE", help="Also write the result as JSON to this file.")
    output.add_argument("--save-result", action="store_true", help="The same, to --result-dir/--result-filename.")
    output.add_argument("--save-detailed", action="store_true", help="With times, texts and errors of every request.")
    output.add_argument(
        "--plot-timeline",
        metavar="FILE.svg",
        help="Draw every request's life; the JSON gets what --save-detailed adds.",
    )
    output.add_argument("--append-result", action="store_true", help="Add a line to the file instead of replacing it.")
    output.add_argument("--result-dir", metavar="DIR", default=".", help="(default: the current folder)")
    output.add_argument("--result-filename", metavar="NAME", help="Not given: made of backend, rate, model and date.")
    output.add_argument("--metadata", nargs="*", default=[], metavar="KEY=VALUE", help="Added to the JSON.")
    output.add_argument("--quiet", "--disable-tqdm", action="store_true", help="No progress bar.")


def run(args: argparse.Namespace) -> int:
    """Measure and report; 1 if a request failed.

    Raises:
        ConfigError: a flag cannot be used as given.
        PacelineError: the server cannot be measured, or answered nothing.
    """
    load = _load(args)
    shown = listed("percentile_metrics", args.percentile_metrics, LATENCIES)
    target = writable(args.output_json)
    plot = writable(args.plot_timeline, "plot_timeline")
    saved = _saved_to(args, load)
    from paceline.bench.plot import timeline_svg
    from paceline.bench.report import serve_text
    from paceline.bench.served import measure_server

    result = asyncio.run(measure_server(load, show_progress=not args.quiet))
    text = json.dumps(result, indent=2, allow_nan=False)
    if target is not None:
        target.write_text(text + "\n", encoding="utf-8")
    if plot is not None:
        title = (
            f"{result['model_id']}: {result['completed']} requests, {result['output_throughput']:.1f} output tokens/s"
        )
        plot.write_text(timeline_svg(result, title), encoding="utf-8")
    if saved is not None:
        with saved.open("a" if args.append_result else "w", encoding="utf-8") as file:
            file.write(json.dumps(result, allow_nan=False) + "\n")
    if not result["completed"] and not args.json:
        raise BenchError(f"all {result['failed']} requests failed: {_reasons(result['errors'])}")
    print(text if args.json else serve_text(result, shown, load.percentiles))
    return 1 if result["failed"] else 0


def _reasons(errors: list[str]) -> str:
    """The first few, most frequent first."""
    found = [error for error, _ in Counter(errors).most_common()]
    more = f"; and {len(found) - MAX_REASONS} other reasons" if len(found) > MAX_REASONS else ""
    return "; ".join(found[:MAX_REASONS]) + more


def _load(args: argparse.Namespace) -> ServedLoad:
    from paceline.bench.served import ServedLoad  # slow to import, and not needed for --help

    if args.dataset_name == "sharegpt" and args.dataset_path is None:
        raise ConfigError("dataset_path", "", "is missing", "Give the file for --dataset-name sharegpt.")
    base = args.base_url or f"http://{args.host}:{count('port', args.port)}"
    inputs, outputs = _lengths(args)
    return ServedLoad(
        base_url=base.rstrip("/").removesuffix("/v1"),
        backend=args.backend,
        endpoint=args.endpoint,
        model=args.model,
        api_key=args.api_key,
        tokenizer=_path(args.tokenizer),
        dataset=args.dataset_name,
        dataset_path=_path(args.dataset_path),
        num_prompts=count("num_prompts", args.num_prompts),
        input_len=inputs,
        output_len=outputs,
        sharegpt_output_len=_optional("sharegpt_output_len", args.sharegpt_output_len),
        seed=count("seed", args.seed, low=0),
        request_rate=number("request_rate", args.request_rate, 0, math.inf, above=True),
        burstiness=number("burstiness", args.burstiness, 0, 1e6, above=True),
        ramp_up=_ramp_up(args),
        max_concurrency=_optional("max_concurrency", args.max_concurrency),
        num_warmups=count("num_warmups", args.num_warmups, low=0),
        ignore_eos=args.ignore_eos,
        temperature=number("temperature", args.temperature, 0, 100),
        extra_body=json_object("extra_body", args.extra_body or "{}"),
        goodput=limits("goodput", args.goodput, ("ttft", "tpot", "e2el")),
        percentiles=tuple(number("metric_percentiles", p, 0, 100) for p in args.metric_percentiles.split(",")),
        detailed=args.save_detailed or args.plot_timeline is not None,
        metadata=pairs("metadata", args.metadata),
    )


def _ramp_up(args: argparse.Namespace) -> RampUp | None:
    from paceline.bench.arrivals import RampUp

    ends = {"ramp_up_start_rps": args.ramp_up_start_rps, "ramp_up_end_rps": args.ramp_up_end_rps}
    if args.ramp_up_strategy is None:
        if any(ends.values()):
            raise ConfigError("ramp_up_strategy", "", "is missing", "Give linear or exponential.")
        return None
    if args.request_rate != "inf":
        raise ConfigError("request_rate", args.request_rate, "is given together with a ramp", "Give only one of them.")
    for name, text in ends.items():
        if text is None:
            raise ConfigError(name, "", "is missing", "Give requests per second.")
    start, end = (number(name, text, 0, 1e6, above=True) for name, text in ends.items())
    return RampUp(args.ramp_up_strategy, start, end)


def _lengths(args: argparse.Namespace) -> tuple[Lengths, Lengths]:
    from paceline.bench.datasets import Lengths

    if args.dataset_name == "lognormal":
        return (
            Lengths(count("input_median", args.input_median), number("input_sigma", args.input_sigma, 0, 10)),
            Lengths(count("output_median", args.output_median), number("output_sigma", args.output_sigma, 0, 10)),
        )
    spread = number("random_range_ratio", args.random_range_ratio, 0, 1)
    return (
        Lengths(count("random_input_len", args.random_input_len), spread=spread),
        Lengths(count("random_output_len", args.random_output_len), spread=spread),
    )


def _optional(name: str, text: str | None) -> int | None:
    return None if text is None else count(name, text)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _saved_to(args: argparse.Namespace, load: ServedLoad) -> Path | None:
    if not (args.save_result or args.save_detailed or args.append_result):
        return None
    rate = f"{load.request_rate:g}qps" if math.isfinite(load.request_rate) else "infqps"
    limit = "" if load.max_concurrency is None else f"-concurrency{load.max_concurrency}"
    model = (load.model or "model").replace("/", "_")
    name = args.result_filename or f"{load.backend}-{rate}{limit}-{model}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    folder = Path(args.result_dir)
    if not folder.is_dir():
        raise ConfigError("result_dir", args.result_dir, "is no folder", "Make it first.")
    return writable(str(folder / name), "result_filename")
