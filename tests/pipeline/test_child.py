"""How children begin and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.pipeline import child


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with exit code 0"), (3, "ended with exit code 3"), (-9, "was killed by signal 9 (SIGKILL)")],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert child.how_it_ended(code) == words


def test_an_unknown_signal_has_a_number() -> None:
    assert child.how_it_ended(-99) == "was killed by signal 99"


def test_a_child_that_ignores_its_input_is_killed() -> None:
    stubborn = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], stdin=subprocess.PIPE)
    child.stop([stubborn], 0.05)
    assert stubborn.returncode == -signal.SIGKILL


def test_a_child_that_ends_with_its_input_ends_by_itself() -> None:
    polite = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    child.stop([polite], 30)
    assert polite.returncode == 0


def test_a_child_that_ended_before_it_was_configured_raises_nothing() -> None:
    gone = child.start("paceline.no_such_module", b"x" * (1 << 20))  # more than a pipe holds
    assert gone.wait(30) != 0
    child.stop([gone], 0)


@pytest.mark.parametrize("arguments", [[], ["1"]])
def test_children_refuse_to_run_for_another_parent(arguments: list[str]) -> None:
    """Nobody starts them by hand, and a parent that died too early is noticed by its process id."""
    assert arguments != [str(os.getpid())]
    for module in ("paceline.pipeline.worker", "paceline.engine.process"):
        ended = subprocess.run(
            [sys.executable, "-m", module, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
        assert ended.returncode == 1
        assert b"started by Paceline itself" in ended.stderr
        assert b"Traceback" not in ended.stderr


def test_a_child_imports_nothing_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(77)")
    monkeypatch.chdir(tmp_path)
    worker = child.start("paceline.pipeline.worker", b"{}")
    assert worker.wait(60) == 1  # refused its configuration, with the real msgspec
