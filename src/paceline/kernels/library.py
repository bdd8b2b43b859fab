"""Finds the native library, checks that it belongs to this code, and describes its arguments."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from paceline.errors import ConfigError

PATHS = ("scalar", "avx2", "avx512")
PROBLEMS = {
    1: "no memory for scratch space",
    2: "positions: outside of cos and sin",
    3: "slots: outside of k_cache",
    4: "query_starts: must rise from 0 to at most the number of rows",
    5: "context_lens: shorter than the sequence's rows, or longer than its block table",
    6: "block_tables: a block number outside of k_cache",
    7: "rows: outside of the packed matrix",
    8: "keep: must rise and name rows of the batch",
}
_INTERFACE = 6  # the layout of the structs below and of the caches; native/api.cpp has the same number
_LIBRARY = "_native.so"


def _fields(pointers: str, numbers: str, rest: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [(name, ctypes.c_void_p) for name in pointers.split()]
    return found + [(name, ctypes.c_int64) for name in numbers.split()] + rest


class NormArgs(ctypes.Structure):
    """Arguments of ``paceline_norm``; native/kernels.hpp says what each means."""

    _fields_ = _fields(
        "x residual weight out", "rows width x_stride residual_stride out_stride", [("eps", ctypes.c_float)]
    )


class SiluArgs(ctypes.Structure):
    """Arguments of ``paceline_silu_mul``; native/kernels.hpp says what each means."""

    _fields_ = _fields("gate_up out", "rows width in_stride out_stride", [])


class RotateArgs(ctypes.Structure):
    """Arguments of ``paceline_rotate_and_store``; native/kernels.hpp says what each means."""

    _fields_ = _fields(
        "q k v cos sin positions slots k_cache v_cache",
        "rows heads kv_heads head_dim half q_row q_head k_row k_head v_row v_head block_size table_rows num_slots",
        [("kv_type", ctypes.c_int32)],
    )


class AttentionArgs(ctypes.Structure):
    """Arguments of ``paceline_attention``; native/kernels.hpp says what each means."""

    _fields_ = _fields(
        "q k_cache v_cache block_tables query_starts context_lens out",
        "sequences heads kv_heads head_dim block_size table_stride q_row q_head out_row out_head "
        "rows num_blocks table_width",
        [
            ("kv_type", ctypes.c_int32),
            ("window", ctypes.c_int32),
            ("scale", ctypes.c_float),
            ("soft_cap", ctypes.c_float),
        ],
    )


class PackedArgs(ctypes.Structure):
    """Arguments of ``paceline_packed_product``; native/kernels.hpp says what each means."""

    _fields_ = _fields("x weight bias out", "rows columns outputs x_stride out_stride", [("format", ctypes.c_int32)])


class PackArgs(ctypes.Structure):
    """Arguments of ``paceline_pack``; native/kernels.hpp says what each means."""

    _fields_ = _fields("raw out", "rows columns first", [("format", ctypes.c_int32)])


class UnpackArgs(ctypes.Structure):
    """Arguments of ``paceline_unpack``; native/kernels.hpp says what each means."""

    _fields_ = _fields("weight rows out", "count columns outputs", [("format", ctypes.c_int32)])


class LinearParts(ctypes.Structure):
    """A product inside a layer; native/kernels.hpp says what each means."""

    _fields_ = [
        ("weight", ctypes.c_void_p * 3),
        ("outputs", ctypes.c_int64 * 3),
        ("format", ctypes.c_int32 * 3),
        ("parts", ctypes.c_int32),
        ("bias", ctypes.c_void_p),
    ]


class LayerWeights(ctypes.Structure):
    """One layer; native/kernels.hpp says what each means."""

    _fields_ = [
        ("input_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("qkv", LinearParts),
        ("output", LinearParts),
        ("gate_up", LinearParts),
        ("down", LinearParts),
        ("k_cache", ctypes.c_void_p),
        ("v_cache", ctypes.c_void_p),
    ]


class LayersArgs(ctypes.Structure):
    """Arguments of ``paceline_layers``; native/kernels.hpp says what each means."""

    _fields_ = _fields(
        "layers residual delta x qkv mixed gate_up activated keep nanoseconds",
        "num_layers kept hidden intermediate",
        [("rotate", RotateArgs), ("attention", AttentionArgs), ("eps", ctypes.c_float)],
    )


def load_library() -> tuple[ctypes.CDLL, str]:
    """The library with its path chosen, and that path's name.

    Raises:
        ConfigError: PACELINE_KERNELS names a path that cannot run here, or the library was not built, or from other
            sources than this code.
    """
    wanted = os.environ.get("PACELINE_KERNELS", "auto")
    library = _open(wanted)
    best: int = library.paceline_best_path()
    path = best if wanted == "auto" else PATHS.index(wanted) if wanted in PATHS else -1
    if library.paceline_use_path(path):
        usable = ", ".join(("auto", "torch", *PATHS[: best + 1]))
        raise ConfigError("PACELINE_KERNELS", wanted, "cannot be used on this processor", f"Choose one of: {usable}")
    _share_threads(library)
    return library, PATHS[path]


def _open(wanted: str) -> ctypes.CDLL:
    advice = "Install the package again with pip, or set PACELINE_KERNELS=torch (slow)"
    file = _library_file()
    if file is None:
        raise ConfigError("PACELINE_KERNELS", wanted, "the native kernels were not built", advice)
    library = ctypes.CDLL(str(file))
    if not hasattr(library, "paceline_interface") or library.paceline_interface() != _INTERFACE:
        raise ConfigError("PACELINE_KERNELS", wanted, f"{file} was built from other sources than this code", advice)
    library.paceline_packed_bytes.restype = ctypes.c_int64
    library.paceline_packed_bytes.argtypes = [ctypes.c_int32, ctypes.c_int64, ctypes.c_int64]
    return library


def _library_file() -> Path | None:
    """Beside this module in an installed package; an editable install may keep it elsewhere on the package's path."""
    import paceline.kernels

    for folder in paceline.kernels.__path__:
        if (Path(folder) / _LIBRARY).exists():
            return Path(folder) / _LIBRARY
    return None


def _share_threads(library: ctypes.CDLL) -> None:
    """Hand over the entry points of the OpenMP runtime that torch has loaded; without them one thread does all."""
    for candidate in _openmp_runtimes():
        if hasattr(candidate, "GOMP_parallel") and hasattr(candidate, "omp_get_max_threads"):
            parallel = ctypes.cast(candidate.GOMP_parallel, ctypes.c_void_p)
            library.paceline_use_openmp(parallel, ctypes.cast(candidate.omp_get_max_threads, ctypes.c_void_p))
            return


def _openmp_runtimes() -> Iterator[ctypes.CDLL]:
    yield ctypes.CDLL(None)  # torch makes its runtime's symbols global
    for file in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        yield ctypes.CDLL(str(file))
