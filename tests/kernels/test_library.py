"""Which code runs: chosen by the processor, forced by the environment, refused clearly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.kernels import library

ALL_KERNELS = """
import torch
from paceline import kernels
from paceline.kernels import reference
from tests.kernels.batches import make_batch

def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)

for dtype in (torch.float32, torch.bfloat16, torch.float16):
    batch = make_batch(
        1, [(300, 20), (70, 1), (9, 9)], heads=8, kv_heads=2, head_dim=72, block_size=16, kv_dtype=dtype
    )
    ours, theirs = torch.empty_like(batch.q), torch.empty_like(batch.q)
    for options in ({}, {"window": 50, "soft_cap": 4.0}):
        kernels.paged_attention(*batch.arguments(), 0.1, ours, **options)
        close(ours, reference.paged_attention(*batch.arguments(), 0.1, theirs, **options))
x, weight = torch.randn(5, 100), torch.randn(100)
close(kernels.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
close(kernels.silu_mul(x), reference.silu_mul(x))
print(kernels.path())
"""


def _run(code: str, wanted: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    search = os.pathsep.join((str(root), os.environ.get("PYTHONPATH", "")))
    env = os.environ | {"PACELINE_KERNELS": wanted, "PYTHONPATH": search}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, check=False, timeout=120
    )


def _usable_paths() -> tuple[str, ...]:
    loaded, _ = library.load_library()
    return library.PATHS[: loaded.paceline_best_path() + 1]


@pytest.mark.parametrize("wanted", [*library.PATHS, "torch", "auto"])
def test_every_path_computes_what_the_reference_does(wanted: str) -> None:
    """A path that this processor lacks has to say so instead."""
    result = _run(ALL_KERNELS, wanted)
    usable = _usable_paths()
    if wanted in (*usable, "torch", "auto"):
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == (usable[-1] if wanted == "auto" else wanted)
    else:
        assert "cannot be used on this processor" in result.stderr


def test_an_unknown_path_is_named_with_those_that_can_be_used() -> None:
    result = _run("import paceline.kernels as k; k.path()", "sse9")
    assert result.returncode != 0
    assert "sse9" in result.stderr
    assert "scalar" in result.stderr


def test_a_missing_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_LIBRARY", "_not_there.so")
    with pytest.raises(ConfigError, match=r"not built.*PACELINE_KERNELS=torch"):
        library.load_library()


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_INTERFACE", -1)
    with pytest.raises(ConfigError, match="other sources"):
        library.load_library()
