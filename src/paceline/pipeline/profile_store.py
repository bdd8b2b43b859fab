"""Measured cost models on disk: one small JSON file per model, machine and the options that change speed."""

from __future__ import annotations

import platform
import re
from hashlib import blake2b
from pathlib import Path

import msgspec

from paceline.config import EngineConfig
from paceline.errors import PacelineError
from paceline.host import usable_cores
from paceline.models.model_cost import ModelCost
from paceline.pipeline.build import resolved_cache_dtype, resolved_dtype
from paceline.scheduling.cost_model import StageCost
from paceline.weights.source import cache_folder

FORMAT = 1


class ProfileError(PacelineError):
    """A file is no cost profile that this version can use."""


class CostProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `paceline profile` measured.

    Attributes:
        conditions: what the figures hold for.
        cost: prices of the parts of a stage, in seconds; any split can be predicted from them.
        layer_split: of the pipeline that was measured.
        stages: prices of its stages, each fitted by itself.
        errors: median absolute error on steps that no fit has seen, relative, per kind of batch.
        num_steps: how many batches were measured.
    """

    format: int = FORMAT
    conditions: dict[str, str]
    cost: ModelCost
    layer_split: list[int]
    stages: list[StageCost]
    errors: dict[str, float]
    num_steps: int


def conditions(config: EngineConfig, model: str, threads: int) -> dict[str, str]:
    """Everything that a profile depends on and that is known before the engine starts.

    Args:
        model: the model's name.
        threads: that each stage computes with.
    """
    return {
        "model": model,
        "processor": _processor(),
        "cores": str(len(usable_cores())),
        "device": config.device,
        "dtype": resolved_dtype(config),
        "kv_cache_dtype": resolved_cache_dtype(config),
        "quantization": config.quantization,
        "linear_backend": config.linear_backend,
        "activation_dtype": config.activation_dtype,
        "threads_per_stage": str(threads),
    }


def _processor() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        info = ""
    found = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def profile_path(about: dict[str, str]) -> Path:
    """Where the profile for these conditions is kept."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", about["model"]).strip("-.")[:80] or "model"
    digest = blake2b(msgspec.json.encode(about, order="sorted"), digest_size=6).hexdigest()
    return cache_folder() / "profiles" / f"{name}-{digest}.json"


def save_profile(profile: CostProfile, path: Path) -> None:
    """Write the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
    part.replace(path)


def read_profile(path: Path) -> CostProfile:
    """Read and check a profile.

    Raises:
        ProfileError: it cannot be read or is none; the text says why and what to do.
    """
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=CostProfile)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} is no cost profile: {error}. Make one with: paceline profile") from None
    if profile.format != FORMAT:
        raise ProfileError(
            f"{path} has format {profile.format}, and this version reads {FORMAT}. Run: paceline profile"
        )
    return profile


def saved_profile(about: dict[str, str]) -> CostProfile | None:
    """The profile for these conditions, if there is one that can be used."""
    path = profile_path(about)
    return read_profile(path) if path.exists() else None
