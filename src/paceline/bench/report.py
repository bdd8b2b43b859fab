"""A benchmark's figures as a table that a person reads at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LATENCIES = {"ttft": "to first token", "tpot": "per output token", "itl": "between tokens", "e2el": "to last token"}


def as_text(result: Mapping[str, Any]) -> str:
    """Of an offline run: the table; every figure is also in the JSON."""
    pipeline = result["pipeline"]
    at_once = "all at once" if result["max_concurrency"] is None else f"{result['max_concurrency']} at a time"
    lines = [
        f"{result['model_id']}, {result['dtype']}, {pipeline['stages']} stage(s) of "
        f"{', '.join(map(str, pipeline['layer_split']))} layers",
        f"{result['num_prompts']} prompts of {result['input_len']} tokens, {result['output_len']} output tokens each, "
        f"{at_once}; seed {result['seed']}, prefix cache {result['prefix_cache']}",
        "",
        *_throughputs(result),
        *_latencies(result, _LATENCIES, ["p99"]),
    ]
    lines += ["", f"{'stage':<28}{'busy':>10}{'CPU':>10}"]
    for stage, (busy, cpu) in enumerate(zip(pipeline["busy_fraction"], pipeline["cpu_fraction"], strict=True)):
        lines.append(f"{stage:<28}{busy:>10.1%}{cpu:>10.1%}")
    lines.append(
        f"{pipeline['batches']} batches of {pipeline['mean_batch_tokens']:.1f} tokens on average, "
        f"{pipeline['preemptions']} preemptions, {pipeline['prefix_cache_hit_tokens']} prompt tokens from the cache"
    )
    lines += [f"error: {error}" for error in result.get("errors", [])]
    return "\n".join(lines)


def serve_text(result: Mapping[str, Any], latencies: Sequence[str], percentiles: Sequence[float]) -> str:
    """Of a run against a server: the table, for some of the latencies."""
    rate = _rate(result["request_rate"])
    if "ramp_up_strategy" in result:
        rate = f"{result['ramp_up_start_rps']:g} to {result['ramp_up_end_rps']:g} requests/s ({result['ramp_up_strategy']})"
    if result["request_rate"] != "inf" and result["burstiness"] != 1:
        rate += f" (burstiness {result['burstiness']:g})"
    limit = "" if result["max_concurrency"] is None else f", at most {result['max_concurrency']} at a time"
    lines = [
        f"{result['model_id']} at {result['base_url']}",
        f"{result['num_prompts']} prompts ({result['dataset_name']}), {rate}{limit}; seed {result['seed']}, "
        f"prefix cache {result['prefix_cache']}",
        "",
        *_throughputs(result),
    ]
    if "request_goodput" in result:
        lines.append(_row("good requests per second", f"{result['request_goodput']:.2f}"))
    lines += _latencies(result, latencies, [f"p{p:g}" for p in percentiles])
    lines += _pipeline(result["pipeline"])
    if result["num_prompts_cut"]:
        lines.append(f"{result['num_prompts_cut']} prompts were cut to the model's length")
    if result["prefix_cache"] == "warm":
        lines.append(
            f"warning: {result['cached_tokens']} prompt tokens were found in the prefix cache. Do not compare this run "
            "with one on a cold cache: give another --seed, or restart the server."
        )
    errors = sorted({error for error in result.get("errors", []) if error})
    return "\n".join([*lines, *(f"error: {error}" for error in errors[:5])])


def simulated_text(result: Mapping[str, Any]) -> str:
    """Of a simulated run: the table; every figure is also in the JSON."""
    pipeline = result["pipeline"]
    loop_back = ", loop-back" if result["loop_back"] else ""
    lines = [
        f"{result['cost']}: {pipeline['stages']} stage(s), pacing {result['pacing']}{loop_back}",
        f"{result['num_prompts']} prompts ({result['load']}), {_rate(result['request_rate'])}; seed {result['seed']}",
        "",
        *_throughputs(result),
        *_latencies(result, _LATENCIES, ["p90", "p99"]),
        *_pipeline(pipeline | {"kv_peak": None}),
        f"{pipeline['batches']} batches of {pipeline['mean_batch_tokens']:.1f} tokens on average, "
        f"{pipeline['preemptions']} preemptions",
    ]
    return "\n".join(lines)


def _rate(rate: float | str) -> str:
    return "all at once" if rate == "inf" else f"{rate:g} requests/s"


def _pipeline(facts: Mapping[str, Any]) -> list[str]:
    if not facts["stages"]:
        return []
    busy = ", ".join(f"{part:.1%}" for part in facts["stage_busy"])
    bubble = "" if facts["bubble_fraction"] is None else f": bubble {facts['bubble_fraction']:.1%}"
    imbalance = "" if facts["imbalance"] is None else f", imbalance {facts['imbalance']:.2f}"
    peak = "" if facts["kv_peak"] is None else f", KV cache at most {facts['kv_peak']:.1%} full"
    idle = [
        f"{cause} {seconds:.1f} s" for cause, seconds in (facts["stage_idle_seconds"] or {}).items() if seconds >= 0.05
    ]
    lines = ["", f"stages busy {busy}{bubble}{imbalance}{peak}"]
    return lines + [f"idle, over all stages: {', '.join(idle)}"] * bool(idle)


def _throughputs(result: Mapping[str, Any]) -> list[str]:
    return [
        _row("completed / failed", f"{result['completed']} / {result['failed']}"),
        _row("duration", f"{result['duration']:.2f} s"),
        _row("output tokens per second", f"{result['output_throughput']:.1f}"),
        _row("total tokens per second", f"{result['total_token_throughput']:.1f}"),
        _row("requests per second", f"{result['request_throughput']:.2f}"),
    ]


def _latencies(
    result: Mapping[str, Any], names: Sequence[str] | Mapping[str, str], percentiles: list[str]
) -> list[str]:
    kinds = ["mean", "median", *percentiles]
    lines = ["", f"{'milliseconds':<28}" + "".join(f"{kind:>10}" for kind in kinds)]
    for name in names:
        values = "".join(f"{result[f'{kind}_{name}_ms']:>10.1f}" for kind in kinds)
        lines.append(f"{_LATENCIES[name]:<28}{values}")
    return lines


def _row(title: str, value: str) -> str:
    return f"{title:<28}{value:>10}"
