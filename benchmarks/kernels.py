"""The native kernels against the torch reference and against what the machine can do.

python benchmarks/kernels.py [--threads 1] [--heads 9] [--kv-heads 3] [--head-dim 64] [--quick]

Each line is one call at the sizes of one layer (SmolLM2-135M unless told otherwise): microseconds, the memory that must
move and the arithmetic that must be done per second, and the time of the torch reference. Every call takes the cache of
another layer, so that keys and values stream from memory as they do in a model. The time is the 10th percentile of the
calls: what else runs on the machine then counts little. PACELINE_KERNELS forces an instruction set.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from paceline import kernels
from paceline.kernels import reference

BLOCK_SIZE = 16
NUM_LAYERS = 30  # as many caches as a model has layers


@dataclass
class Case:
    name: str
    run: Callable[[int], object]  # takes the layer's number
    plain: Callable[[int], object]
    num_bytes: float
    flops: float


def microseconds(call: Callable[[int], object], seconds: float) -> float:
    call(0)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        for layer in range(NUM_LAYERS):
            start = time.perf_counter()
            call(layer)
            times.append(time.perf_counter() - start)
    return statistics.quantiles(times, n=10)[0] * 1e6


def row_cases(rows: int, hidden: int, intermediate: int) -> Iterator[Case]:
    x, residual, weight = torch.randn(rows, hidden), torch.zeros(rows, hidden), torch.randn(hidden)
    gate_up, out, narrow = torch.randn(rows, 2 * intermediate), torch.empty_like(x), torch.empty(rows, intermediate)
    yield Case(
        f"add_rms_norm {rows}×{hidden}",
        lambda _: kernels.add_rms_norm(x, residual, weight, 1e-5, out),
        lambda _: reference.add_rms_norm(x, residual, weight, 1e-5, out),
        4 * x.nbytes,
        5 * x.numel(),
    )
    yield Case(
        f"silu_mul {rows}×{intermediate}",
        lambda _: kernels.silu_mul(gate_up, narrow),
        lambda _: reference.silu_mul(gate_up, narrow),
        gate_up.nbytes + narrow.nbytes,
        20 * narrow.numel(),
    )


def rotate_case(rows: int, heads: int, kv_heads: int, head_dim: int) -> Case:
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * head_dim)
    split = qkv.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    q, k, v = (part.view(rows, -1, head_dim) for part in split)
    angles = torch.randn(rows, head_dim // 2)
    cos, sin = angles.cos(), angles.sin()  # a rotation leaves lengths alone, however often it is repeated
    caches = torch.zeros(2, rows // BLOCK_SIZE + 1, kv_heads, BLOCK_SIZE, head_dim)
    arguments = (q, k, v, cos, sin, torch.arange(rows, dtype=torch.int32), torch.arange(rows), caches[0], caches[1])
    return Case(
        f"rotate_and_store {rows} rows",
        lambda _: kernels.rotate_and_store(*arguments),
        lambda _: reference.rotate_and_store(*arguments),
        2 * q.nbytes + 3 * k.nbytes + 2 * v.nbytes,
        3 * (q.numel() + k.numel()),
    )


def attention_case(
    lengths: list[tuple[int, int]], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, name: str
) -> Case:
    """`lengths`: each sequence's context and how many of its last positions are rows."""
    blocks_each = [-(-context // BLOCK_SIZE) for context, _ in lengths]
    num_blocks = sum(blocks_each)
    order, tables = torch.randperm(num_blocks, dtype=torch.int32), torch.zeros(len(lengths), max(blocks_each)).int()
    for s, count in enumerate(blocks_each):
        tables[s, :count] = order[sum(blocks_each[:s]) :][:count]
    caches = torch.randn(NUM_LAYERS, 2, num_blocks, kv_heads, BLOCK_SIZE, head_dim).to(dtype)
    rows = torch.tensor([count for _, count in lengths])
    q = torch.randn(int(rows.sum()), heads, head_dim)
    starts = torch.cat((torch.zeros(1, dtype=torch.long), rows.cumsum(0))).int()
    contexts, out = torch.tensor([context for context, _ in lengths]).int(), torch.empty_like(q)

    def call(module: object, layer: int) -> object:
        k, v = caches[layer]
        return module.paged_attention(q, k, v, tables, starts, contexts, 0.125, out)  # type: ignore[attr-defined]

    pairs = sum(count * (context - (count - 1) / 2) for context, count in lengths)
    return Case(
        f"attention {name}, {str(dtype).removeprefix('torch.')} cache",
        lambda layer: call(kernels, layer),
        lambda layer: call(reference, layer),
        caches[0].nbytes + 2 * q.nbytes,
        4 * pairs * heads * head_dim,
    )


def machine_limits() -> str:
    """Sustained read bandwidth of a sum over 1 GB, and a large float32 product."""
    big, a = torch.ones(256 * 1024 * 1024), torch.randn(1024, 1024)
    read = big.nbytes / microseconds(lambda _: big.sum(), 0) / 1e3
    product = 2 * 1024**3 / microseconds(lambda _: a @ a, 0) / 1e3
    return f"{read:.1f} GB/s read beyond the caches, {product:.0f} GFLOP/s in a large product"


def all_cases(heads: int, kv_heads: int, head_dim: int) -> Iterator[Case]:
    for rows in (1, 16, 256):
        yield from row_cases(rows, heads * head_dim, 8 * heads * head_dim // 3)
        yield rotate_case(rows, heads, kv_heads, head_dim)
    shape = (heads, kv_heads, head_dim)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield attention_case([(256, 1)], *shape, dtype, "1 decode at 256")
        yield attention_case([(256, 1)] * 16, *shape, dtype, "16 decodes at 256")
        yield attention_case([(4096, 1)], *shape, dtype, "1 decode at 4096")
        yield attention_case([(1024, 256)], *shape, dtype, "chunk of 256 ending at 1024")
        yield attention_case([(512, 256)] + [(256, 1)] * 15, *shape, dtype, "chunk of 256 and 15 decodes")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("threads", 1), ("heads", 9), ("kv-heads", 3), ("head-dim", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and without the reference")
    parser.add_argument("--only", default="", help="lines that contain this text")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{kernels.path()}, {args.threads} thread(s); {machine_limits()}")
    print(f"{'':60} {'µs':>9} {'GB/s':>7} {'GFLOP/s':>8} {'torch µs':>9} {'ratio':>6}")
    for case in all_cases(args.heads, args.kv_heads, args.head_dim):
        if args.only not in case.name:
            continue
        mine = microseconds(case.run, 0 if args.quick else 0.3)
        line = f"{case.name:60} {mine:9.1f} {case.num_bytes / mine / 1e3:7.1f} {case.flops / mine / 1e3:8.1f}"
        if not args.quick:
            plain = microseconds(case.plain, 0)
            line += f" {plain:9.0f} {plain / mine:6.1f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
