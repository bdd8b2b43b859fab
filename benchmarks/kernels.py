"""Microseconds of each native kernel against the torch reference, and against what the machine could do at best.

python benchmarks/kernels.py [--threads 1]   (`PACELINE_KERNELS` forces the instruction set)

The limit is the larger of bytes over the copy bandwidth and arithmetic over the rate of a large float32 product, both
measured first. Shapes are SmolLM2's: 576 wide, 9 query heads over 3, 64 dimensions per head. Each call takes the next
of several caches, so that keys and values stream from memory as they do in a model of many layers.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.kernels import path, reference
from paceline.kernels.native import NativeKernels

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 576, 1536, 9, 3, 64, 16
CACHES = 30  # one per layer


@dataclass(frozen=True)
class Case:
    """What is measured: its name, the two calls, and the work that no implementation can avoid."""

    name: str
    native: Callable[[], object]
    reference: Callable[[], object]
    bytes: float
    operations: float


def microseconds(call: Callable[[], object], seconds: float = 0.2) -> float:
    """The median time of a call; at least 5 calls, then until `seconds` have passed."""
    call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def machine_limits() -> tuple[float, float]:
    """Bytes per second of reading beyond the cache, and operations per second of a large float32 product."""
    big = torch.ones(2**27)
    bandwidth = big.nbytes / microseconds(big.sum, 0.5) * 1e6
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return bandwidth, 2 * 1024**3 / microseconds(lambda: a @ b, 0.5) * 1e6


def row_cases(native: NativeKernels, rows: int) -> list[Case]:
    x, weight = torch.randn(rows, HIDDEN), torch.ones(HIDDEN)
    residual, out = torch.randn(rows, HIDDEN), torch.empty(rows, HIDDEN)
    gate_up, half = torch.randn(rows, 2 * INTERMEDIATE), torch.empty(rows, INTERMEDIATE)
    qkv = torch.randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    q, k, v = (part.view(rows, -1, HEAD_DIM) for part in qkv.split([576, 192, 192], dim=1))
    cos, sin = torch.ones(2048, HEAD_DIM // 2), torch.zeros(2048, HEAD_DIM // 2)
    positions, slots = torch.arange(rows, dtype=torch.int32), torch.arange(rows)
    caches = [torch.zeros(rows // BLOCK + 1, KV_HEADS, *inner) for inner in ((HEAD_DIM, BLOCK), (BLOCK, HEAD_DIM))]

    def case(name: str, tensors: int, *arguments: object) -> Case:
        calls = (getattr(kernels, name) for kernels in (native, reference))
        ours, theirs = (lambda call=call: call(*arguments) for call in calls)
        return Case(f"{name}, {rows} rows", ours, theirs, 4.0 * tensors, 0)

    return [
        case("rms_norm", 2 * x.numel(), x, weight, 1e-5, out),
        case("add_rms_norm", 4 * x.numel(), x, residual, weight, 1e-5, out),
        case("silu_mul", gate_up.numel() + half.numel(), gate_up, half),
        case("rotate_and_store", 2 * qkv.numel(), q, k, v, cos, sin, positions, slots, *caches),
    ]


def attention_case(native: NativeKernels, sequences: int, rows: int, context: int, dtype: torch.dtype) -> Case:
    """`sequences` sequences of `context` positions, the last `rows` of which are in the batch."""
    blocks = -(-context // BLOCK)
    shape = (sequences * blocks, KV_HEADS, BLOCK, HEAD_DIM)
    caches = [(torch.randn(shape).mT.contiguous().to(dtype), torch.randn(shape).to(dtype)) for _ in range(CACHES)]
    q = torch.randn(sequences * rows, HEADS, HEAD_DIM)
    tables = torch.randperm(sequences * blocks, dtype=torch.int32).view(sequences, blocks)
    starts = torch.arange(0, sequences * rows + 1, rows, dtype=torch.int32)
    lengths = torch.full((sequences,), context, dtype=torch.int32)
    out = torch.empty_like(q)

    def calls(attend: Callable[..., Tensor]) -> Callable[[], object]:
        turns = itertools.cycle(caches)
        return lambda: attend(q, *next(turns), tables, starts, lengths, HEAD_DIM**-0.5, out)

    seen = sequences * sum(range(context - rows + 1, context + 1))  # (row, key) pairs
    return Case(
        f"attention, {sequences} x {rows} rows, context {context}, {str(dtype)[6:]}",
        calls(native.paged_attention),
        calls(reference.paged_attention),
        2.0 * sequences * context * KV_HEADS * HEAD_DIM * caches[0][0].element_size(),
        4.0 * seen * HEADS * HEAD_DIM,
    )


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    native = NativeKernels()
    bandwidth, rate = machine_limits()
    print(
        f"path {path()}, {torch.get_num_threads()} threads; limits: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} GFLOP/s"
    )
    cases = [case for rows in (1, 8, 64, 512) for case in row_cases(native, rows)]
    shapes = [(1, 1, 256), (8, 1, 256), (16, 1, 256), (8, 1, 2000), (1, 128, 128), (1, 512, 512), (1, 256, 2000)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        cases += [attention_case(native, *shape, dtype) for shape in shapes]
    print(f"{'':48} native  reference   ratio   limit  (µs; the limit ignores the cost of a call)")
    for case in cases:
        ours, theirs = microseconds(case.native), microseconds(case.reference)
        limit = max(case.bytes / bandwidth, case.operations / rate) * 1e6
        print(f"{case.name:48} {ours:7.1f} {theirs:9.1f} {theirs / ours:7.1f} {limit:7.1f}", flush=True)


if __name__ == "__main__":
    main()
