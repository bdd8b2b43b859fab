"""Hub repositories: from a cache folder with sockets forbidden, and over HTTP from a small hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ModelError
from paceline.weights.hub import fetch_from_hub, model_files
from tests.weights.test_source import no_network  # noqa: F401 (a fixture)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b'{"a": 1}',
    "README.md": b"read me",
    "pytorch_model.bin": b"a pickle",
    "model-Q8_0.gguf": b"GGUF again",
    "original/consolidated.safetensors": b"the same once more",
}


def in_cache(cache: Path, repository: str, files: dict[str, bytes]) -> Path:
    """What huggingface_hub's cache looks like: names in a snapshot that point to blobs."""
    root = cache / ("models--" + repository.replace("/", "--"))
    snapshot = root / "snapshots" / COMMIT
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    (root / "blobs").mkdir()
    for name, content in files.items():
        blob = root / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    return snapshot


@pytest.mark.usefixtures("no_network")
def test_offline_takes_what_the_cache_has(tmp_path: Path) -> None:
    snapshot = in_cache(tmp_path, "org/name", {"config.json": b"{}", "model.safetensors": b"w"})
    assert fetch_from_hub("org/name", None, str(tmp_path), offline=True) == snapshot
    assert fetch_from_hub("org/name", COMMIT, str(tmp_path), offline=True) == snapshot
    assert fetch_from_hub("org/name", "main", str(tmp_path), offline=True) == snapshot


@pytest.mark.usefixtures("no_network")
def test_offline_takes_one_gguf_file(tmp_path: Path) -> None:
    snapshot = in_cache(tmp_path, "org/quants", {"m-Q4_0.gguf": b"4", "m-Q8_0.gguf": b"8"})
    assert fetch_from_hub("org/quants:q8_0", None, str(tmp_path), offline=True) == snapshot / "m-Q8_0.gguf"
    with pytest.raises(ModelError, match=r"several.*m-Q4_0\.gguf, m-Q8_0\.gguf"):
        fetch_from_hub("org/quants", None, str(tmp_path), offline=True)
    with pytest.raises(ModelError, match="'Q5_0'"):
        fetch_from_hub("org/quants:Q5_0", None, str(tmp_path), offline=True)


@pytest.mark.usefixtures("no_network")
def test_offline_without_the_model_says_what_to_do(tmp_path: Path) -> None:
    in_cache(tmp_path, "org/name", {"config.json": b"{}"})
    with pytest.raises(ModelError, match=r"org/other.*machine with access"):
        fetch_from_hub("org/other", None, str(tmp_path), offline=True)
    with pytest.raises(ModelError, match=r"org/name at revision v2.*machine with access"):
        fetch_from_hub("org/name", "v2", str(tmp_path), offline=True)
    with pytest.raises(ModelError, match=r"neither \.safetensors nor \.gguf"):
        fetch_from_hub("org/name", None, str(tmp_path), offline=True)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("revision", ["../../etc", "a b", "", "-x", "/etc"])
def test_a_revision_is_no_path(revision: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="revision"):
        fetch_from_hub("org/name", revision, str(tmp_path), offline=False)


@pytest.mark.parametrize(
    ("files", "which", "expected"),
    [
        (["config.json", "model.safetensors", "x.bin"], None, ["model.safetensors", "config.json"]),
        (["consolidated.safetensors", "model.safetensors"], None, ["model.safetensors"]),
        (["consolidated.safetensors"], None, ["consolidated.safetensors"]),
        (["model.safetensors", "model-Q4_0.gguf"], None, ["model.safetensors"]),
        (["model.safetensors", "model-Q4_0.gguf"], "Q4_0", ["model-Q4_0.gguf"]),
        (["Q4_0/m.Q4_0.gguf", "m.IQ4_0.gguf"], "q4_0", ["Q4_0/m.Q4_0.gguf"]),
        (["only.gguf", "README.md"], None, ["only.gguf"]),
        (
            ["onnx/config.json", "model.safetensors", "chat_template.jinja", "additional_chat_templates/rag.jinja"],
            None,
            ["model.safetensors", "chat_template.jinja", "additional_chat_templates/rag.jinja"],
        ),
    ],
)
def test_which_files_make_a_model(files: list[str], which: str | None, expected: list[str]) -> None:
    assert model_files(files, which) == expected


class Hub(ThreadingHTTPServer):
    """As much of the hub's interface as fetching a repository uses."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fetched: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self) -> None:
        assert isinstance(self.server, Hub)
        path = self.path.split("?")[0]
        resolved = f"/org/name/resolve/{COMMIT}/"
        if path in (
            "/api/models/org/name",
            "/api/models/org/name/revision/main",
            f"/api/models/org/name/revision/{COMMIT}",
        ):
            about: dict[str, Any] = {
                "id": "org/name",
                "sha": COMMIT,
                "siblings": [{"rfilename": name} for name in FILES],
            }
            self.answer(200, json.dumps(about).encode(), {"Content-Type": "application/json"})
        elif path.startswith("/api/models/org/name/tree/"):
            tree = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in FILES.items()]
            self.answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        elif path.startswith(resolved) and path[len(resolved) :] in FILES:
            name = path[len(resolved) :]
            if self.command == "GET":
                self.server.fetched.append(name)
            tag = hashlib.sha1(FILES[name]).hexdigest()
            self.answer(200, FILES[name], {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def resolve_elsewhere(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Resolve in a process of its own: huggingface_hub reads its settings when it is imported."""
    program = f"from paceline.weights.source import resolve\nprint(resolve({name!r}).path)"
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_hub_is_asked_for_one_copy_of_the_weights_only(hub: Hub, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    done = resolve_elsewhere("org/name", HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder == tmp_path / "hub" / "models--org--name" / "snapshots" / COMMIT
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert sorted(hub.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]
    # Afterwards it is there, whether the hub can be reached or must not be.
    for environment in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        again = resolve_elsewhere("org/name", HF_HOME=str(tmp_path), **environment)
        assert again.stdout == done.stdout, again.stderr
    assert len(hub.fetched) == 3


def test_a_repository_that_the_hub_does_not_have(hub: Hub, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    done = resolve_elsewhere("org/absent", HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path))
    assert done.returncode != 0
    assert "ModelError: org/absent could not be fetched from the Hugging Face hub" in done.stderr
    assert "HF_TOKEN" in done.stderr
