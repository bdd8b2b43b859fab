"""`paceline complete` and `paceline chat` against the real HTTP application over a fake engine."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator

import pytest

from paceline.cli.main import main
from paceline.config import ServerConfig
from tests.server.fakes import EOS, FakeEngine, Site
from tests.server.running import Running


def answer(prompt: list[int]) -> list[int]:
    """The prompt, shouted."""
    return [*bytes(prompt).upper(), EOS]


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running(Site(FakeEngine(answer), ServerConfig(api_key=("key",))))
    yield server
    server.stop()


def test_complete_quick(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (running.url, running.url + "/v1", running.url + "/"):
        assert main(["complete", "--quick", "abc", "--url", url, "--api-key", "key", "--max-tokens", "9"]) == 0
        assert capsys.readouterr().out == "ABC\n"


def test_chat_remembers_what_was_said(
    running: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nho\n"))
    assert main(["chat", "--url", running.url, "--api-key", "key", "--max-tokens", "50"]) == 0
    assert capsys.readouterr().out == "U:HI;\nU:HI;A:U:HI;;U:HO;\n"


def test_a_refusal_is_one_line(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--quick", "x" * 200, "--url", running.url, "--api-key", "key", "--max-tokens", "5"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("paceline: The prompt ")
    assert error.count("\n") == 1
    assert main(["chat", "--quick", "x", "--url", running.url, "--api-key", "wrong"]) == 1
    assert "API key" in capsys.readouterr().err


def test_no_server_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert main(["chat", "--quick", "x", "--url", url]) == 1
    error = capsys.readouterr().err
    assert "paceline serve" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_temperature_that_is_no_number_is_explained(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--quick", "x", "--temperature", value]) == 2
    assert f"--temperature {value}: is " in capsys.readouterr().err
