"""Products of SmolLM2's layers with weights streaming from memory: `F.linear` against oneDNN's prepacked weights.

python benchmarks/linear.py [--threads 1]

Prints the milliseconds of all four products of 30 layers, and of the head, for several numbers of rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional

from paceline.kernels import TorchLinear

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
REPEATS = 7


def milliseconds(call: Callable[[], None]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    weights = [torch.randn(shape) for _ in range(30) for shape in SHAPES]
    head = [torch.randn(49152, 576)]
    print("rows | layers: F.linear  prepacked  ratio | head: F.linear  prepacked  ratio   (ms)")
    for rows in (1, 2, 4, 8, 16, 32, 64, 256):
        cells = []
        for matrices in (weights, head):
            packed = [TorchLinear(weight) for weight in matrices]
            inputs = {columns: torch.randn(rows, columns) for columns in (576, 1536)}

            def plain(matrices: list[torch.Tensor] = matrices, inputs: dict[int, torch.Tensor] = inputs) -> None:
                for weight in matrices:
                    functional.linear(inputs[weight.shape[1]], weight)

            def prepacked(packed: list[TorchLinear] = packed, inputs: dict[int, torch.Tensor] = inputs) -> None:
                for product in packed:
                    product(inputs[product.in_features])

            a, b = milliseconds(plain), milliseconds(prepacked)
            cells.append(f"{a:16.1f} {b:10.1f} {a / b:6.2f}")
        print(f"{rows:4} | {cells[0]} | {cells[1]}", flush=True)


if __name__ == "__main__":
    main()
