"""A benchmark's figures as a table that a person reads at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_text(result: Mapping[str, Any]) -> str:
    """The table; every figure is also in the JSON."""
    pipeline = result["pipeline"]
    at_once = "all at once" if result["max_concurrency"] is None else f"{result['max_concurrency']} at a time"
    lines = [
        f"{result['model_id']}, {result['dtype']}, {pipeline['stages']} stage(s) of "
        f"{', '.join(map(str, pipeline['layer_split']))} layers",
        f"{result['num_prompts']} prompts of {result['input_len']} tokens, {result['output_len']} output tokens each, "
        f"{at_once}; seed {result['seed']}, prefix cache {result['prefix_cache']}",
        "",
        _row("completed / failed", f"{result['completed']} / {result['failed']}"),
        _row("duration", f"{result['duration']:.2f} s"),
        _row("output tokens per second", f"{result['output_throughput']:.1f}"),
        _row("total tokens per second", f"{result['total_token_throughput']:.1f}"),
        _row("requests per second", f"{result['request_throughput']:.2f}"),
        "",
        f"{'milliseconds':<28}{'mean':>10}{'median':>10}{'p99':>10}",
    ]
    for name, title in (
        ("ttft", "to first token"),
        ("tpot", "per output token"),
        ("itl", "between tokens"),
        ("e2el", "to last token"),
    ):
        values = "".join(f"{result[f'{kind}_{name}_ms']:>10.1f}" for kind in ("mean", "median", "p99"))
        lines.append(f"{title:<28}{values}")
    lines += ["", f"{'stage':<28}{'busy':>10}{'CPU':>10}"]
    for stage, (busy, cpu) in enumerate(zip(pipeline["busy_fraction"], pipeline["cpu_fraction"], strict=True)):
        lines.append(f"{stage:<28}{busy:>10.1%}{cpu:>10.1%}")
    lines.append(
        f"{pipeline['batches']} batches of {pipeline['mean_batch_tokens']:.1f} tokens on average, "
        f"{pipeline['preemptions']} preemptions, {pipeline['prefix_cache_hit_tokens']} prompt tokens from the cache"
    )
    lines += [f"error: {error}" for error in result.get("errors", [])]
    return "\n".join(lines)


def _row(title: str, value: str) -> str:
    return f"{title:<28}{value:>10}"
