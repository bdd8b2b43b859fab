"""All products of SmolLM2 with weights streaming from memory: packed formats against torch's ways.

python benchmarks/linear.py [--threads 1] [--rows 1,8,64] [--formats Q4_1,Q8_0]

For each kind of weights and number of rows: milliseconds for the 120 matrices of 30 layers and for the head, GFLOP/s, the
weights' GB/s, and the share of the machine's limit: the larger of arithmetic (a large float32 product by oneDNN, on
as many threads) and reading. Best of several runs, alternating over the kinds, so that a neighbour on the machine
disturbs all alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from paceline.kernels import PackedMatrix, TorchLinear
from paceline.kernels.packed import FORMATS

LAYERS = 30
SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
HEAD = (49152, 576)
REPEATS = 7

Product = Callable[[Tensor], object]


@dataclass
class Kind:
    """One way to keep weights: its products for the layers and the head, and what both read."""

    name: str
    layers: list[tuple[int, Product]]  # input width and product
    head: Product
    layer_bytes: int
    head_bytes: int


def packed_kind(name: str) -> Kind:
    """K-quants need 256 columns, which SmolLM2's matrices do not have: they are left out."""
    layers: list[tuple[int, Product]] = []
    nbytes = 0
    for _ in range(LAYERS):
        for shape in SHAPES:
            matrix = packed_matrix(name, shape)
            layers.append((shape[1], packed_product(matrix)))
            nbytes += matrix.nbytes
    head = packed_matrix(name, HEAD)
    return Kind(f"packed {name}", layers, packed_product(head), nbytes, head.nbytes)


def packed_matrix(name: str, shape: tuple[int, int]) -> PackedMatrix:
    values = torch.randn(shape)
    if name == "F32":
        return PackedMatrix.from_floats(values)
    raw = gguf.quantize(values.numpy(), GGMLQuantizationType[name]).view(np.uint8).reshape(shape[0], -1)
    return PackedMatrix(name, torch.from_numpy(raw), shape[1])


def packed_product(matrix: PackedMatrix) -> Product:
    return lambda x: matrix.product(x, None, torch.empty((len(x), matrix.out_features)))


def torch_kind(name: str, make: Callable[[Tensor], Product], element_bytes: int) -> Kind:
    layers = [(shape[1], make(torch.randn(shape))) for _ in range(LAYERS) for shape in SHAPES]
    elements = LAYERS * sum(rows * columns for rows, columns in SHAPES)
    return Kind(name, layers, make(torch.randn(HEAD)), element_bytes * elements, element_bytes * HEAD[0] * HEAD[1])


def plain(weight: Tensor) -> Product:
    return lambda x: functional.linear(x, weight)


def prepacked(weight: Tensor) -> Product:
    return TorchLinear(weight)


def dynamic_int8(weight: Tensor) -> Product:
    """fbgemm: 8-bit weights, activations rounded to 8 bits with one scale for all rows."""
    scale = float(weight.abs().max()) / 127
    rounded = torch.quantize_per_tensor(weight, scale, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(rounded, None)
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, True)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def best_of(call: Callable[[], object]) -> float:
    return min(seconds(call) for _ in range(REPEATS))


def machine_limits() -> tuple[float, float]:
    """GFLOP/s of a large product and GB/s of reading, on the threads that torch uses now."""
    x, product = torch.randn(1536, 1536), TorchLinear(torch.randn(1536, 1536))
    long = torch.randn(64 << 20)
    return 2 * 1536**3 / best_of(lambda: product(x)) / 1e9, long.nbytes / best_of(long.sum) / 1e9


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,8,16,64,256")
    parser.add_argument("--formats", default="Q4_0,Q4_1,Q5_1,Q8_0,F16,F32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.backends.quantized.engine = "x86"
    names = arguments.formats.split(",")
    unknown = [name for name in names if name not in FORMATS or name.endswith("_K")]
    if unknown:
        parser.error(
            f"--formats {','.join(unknown)}: choose from {', '.join(f for f in FORMATS if not f.endswith('_K'))}"
        )
    makers: list[Callable[[], Kind]] = [lambda name=name: packed_kind(name) for name in names]
    makers.append(lambda: torch_kind("F.linear float32", plain, 4))
    makers.append(lambda: torch_kind("oneDNN prepacked float32", prepacked, 4))
    makers.append(lambda: torch_kind("fbgemm int8", dynamic_int8, 1))
    kinds = [make() for make in tqdm(makers, desc="making weights", leave=False)]
    arithmetic, reading = machine_limits()
    print(f"{arguments.threads} thread(s): float32 limit {arithmetic:.0f} GFLOP/s, reading {reading:.1f} GB/s")
    print("rows  weights                     layers ms   head ms   GFLOP/s    GB/s   of the limit")
    for rows in [int(count) for count in arguments.rows.split(",")]:
        inputs = {columns: torch.randn(rows, columns) for columns in (576, 1536)}
        layers, heads = [float("inf")] * len(kinds), [float("inf")] * len(kinds)
        for _ in tqdm(range(REPEATS), desc=f"{rows} rows", leave=False):
            for i, kind in enumerate(kinds):
                layers[i] = min(layers[i], seconds(lambda: run_layers(kind, inputs)))  # noqa: B023 (called at once)
                heads[i] = min(heads[i], seconds(lambda: kind.head(inputs[576])))  # noqa: B023
        flops = 2 * rows * (LAYERS * sum(a * b for a, b in SHAPES) + HEAD[0] * HEAD[1])
        for kind, layer, head in zip(kinds, layers, heads, strict=True):
            whole, nbytes = layer + head, kind.layer_bytes + kind.head_bytes
            least = max(flops / arithmetic / 1e9, nbytes / reading / 1e9)
            print(
                f"{rows:4}  {kind.name:26}  {layer * 1e3:9.2f} {head * 1e3:9.2f} {flops / whole / 1e9:9.1f} "
                f"{nbytes / whole / 1e9:7.1f} {least / whole:10.0%}",
                flush=True,
            )


def run_layers(kind: Kind, inputs: dict[int, Tensor]) -> None:
    for columns, product in kind.layers:
        product(inputs[columns])


if __name__ == "__main__":
    main()
