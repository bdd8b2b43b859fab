"""Models from the Hugging Face hub: which files of a repository make a model, and fetching just those.

`huggingface_hub` does the transfer, with its own cache and settings (HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE). A repository often holds the same weights several times over; only one of them is fetched.
"""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from paceline.errors import ModelError

logger = logging.getLogger(__name__)

# organisation/name, and after a colon which of several GGUF files is meant.
_NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(:(?P<which>[\w.-]{1,96}))?", re.A)
_REVISION = re.compile(r"[\w][\w./-]{0,255}", re.A)
_OTHER_FILES = (".json", ".jinja")
_TIMEOUT_SECONDS = 10.0
_TOKENIZER_FILES = ("tokenizer.model", "merges.txt", "vocab.json")


def is_hub_name(name: str) -> bool:
    """Whether it has the form of a hub repository's name: ``organisation/name`` or ``organisation/name:Q4_K_M``."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def fetch_from_hub(name: str, revision: str | None, cache_dir: str | None, offline: bool) -> Path:
    """The folder, or the .gguf file, of a hub repository; from the cache alone when offline.

    Raises:
        ModelError: it is not there, or it holds no model that can be used.
    """
    match = _NAME.fullmatch(name)
    if match is None or ".." in name:
        raise ModelError(f"{name!r} is no name of the form organisation/name[:WHICH]")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ModelError(f"--revision {revision!r} is neither a branch, nor a tag, nor a commit")
    repository, which = match["repository"], match["which"]
    folder = None if offline or _offline_by_environment() else _online(repository, which, revision, cache_dir)
    if folder is None:
        folder = _cached(repository, revision, cache_dir)
    held = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    try:
        wanted = model_files(held, which)
    except ModelError as error:
        raise ModelError(f"{name}, as far as it is in {folder}: {error}") from error
    return folder / wanted[0] if wanted[0].endswith(".gguf") else folder


def model_files(files: Iterable[str], which: str | None) -> list[str]:
    """Those files of a repository that make one model: safetensors and what goes with it, or one .gguf file.

    Raises:
        ModelError: there is none, or it is not clear which.
    """
    files = sorted(files)
    top = [file for file in files if "/" not in file]
    # Besides the parts in Hugging Face's layout, some repositories hold the maker's own copy, "consolidated".
    weights = [file for file in top if file.endswith(".safetensors")]
    weights = [file for file in weights if not file.startswith("consolidated")] or weights
    ggufs = [file for file in files if file.lower().endswith(".gguf")]
    if which is None and weights:
        others = [file for file in top if file.endswith(_OTHER_FILES) or file in _TOKENIZER_FILES]
        return weights + others + [file for file in files if file.startswith("additional_chat_templates/")]
    if which is not None:
        ggufs = [file for file in ggufs if _is_called(file, which)]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        shown = ", ".join(ggufs[:20])
        raise ModelError(f"it holds several GGUF files; say which after a colon, such as :Q4_K_M, of: {shown}")
    wanted = f"no GGUF file {which!r}" if which is not None else "neither .safetensors nor .gguf files"
    raise ModelError(f"it holds {wanted}")


def _is_called(file: str, which: str) -> bool:
    """Whether the file's name ends in that word: ``model-Q4_K_M.gguf`` for ``q4_k_m``."""
    name = PurePosixPath(file).stem.lower()
    return name == which.lower() or name.endswith(tuple(mark + which.lower() for mark in "-._"))


def _offline_by_environment() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _online(repository: str, which: str | None, revision: str | None, cache_dir: str | None) -> Path | None:
    """Fetch what is missing; None if the hub cannot be reached at all."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        about = HfApi().model_info(repository, revision=revision, timeout=_TIMEOUT_SECONDS)
        files = model_files([file.rfilename for file in about.siblings or ()], which)
        patterns = [glob.escape(file) for file in files]
        return Path(snapshot_download(repository, revision=revision, cache_dir=cache_dir, allow_patterns=patterns))
    except ModelError as error:
        raise ModelError(f"{repository} on the Hugging Face hub: {error}") from error
    except HfHubHTTPError as error:
        raise ModelError(
            f"{repository} could not be fetched from the Hugging Face hub: {error} "
            "(for a private or gated repository set HF_TOKEN; a local folder is given as a path)"
        ) from error
    except Exception as error:  # each version of huggingface_hub lets those of another HTTP library through
        logger.warning("the Hugging Face hub cannot be reached (%s); looking for %s in the cache", error, repository)
        return None


def _cached(repository: str, revision: str | None, cache_dir: str | None) -> Path:
    """The snapshot in the cache, by its published layout: models--org--name/{refs,snapshots,blobs}.

    `huggingface_hub` itself would refuse it, since the files that were never wanted are missing from it.
    """
    from huggingface_hub import constants

    root = Path(cache_dir or constants.HF_HUB_CACHE) / ("models--" + repository.replace("/", "--"))
    reference = root / "refs" / (revision or "main")
    commit = reference.read_text(encoding="ascii").strip() if reference.is_file() else revision
    folder = root / "snapshots" / commit if commit and _REVISION.fullmatch(commit) else None
    if folder is None or not folder.is_dir():
        raise ModelError(
            f"{repository}{f' at revision {revision}' if revision else ''} is neither a file or folder here nor in the "
            f"cache ({root}), and the Hugging Face hub was not asked (offline) or could not be reached; fetch it on a "
            "machine with access, or give the path of a local folder"
        )
    return folder
