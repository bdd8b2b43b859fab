"""`--trace-file`: what is written can be read back, by size in two files, and whatever happens to the disk."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.messages import RequestOutput
from paceline.trace import History, Recorder
from paceline.trace.events import Facts, Held
from paceline.trace.file import TraceFile, TraceFileError, older, read_lines
from tests.engine.harness import make_scenario
from tests.trace.timed import TimedHarness


def test_the_file_tells_the_same_as_the_record(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    run = TimedHarness(make_scenario(7))
    run.core.recorder._file = TraceFile(path, 2**20)
    run.run()
    run.core.recorder.close()
    history = History()
    history.feed(read_lines(path))
    assert list(history.batches) == [seen["batch"] for seen in run.seen_batches] != []
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("seed", range(5))
def test_whatever_a_client_has_seen_is_in_the_file(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "trace.jsonl"
    run = TimedHarness(make_scenario(seed))
    core = run.core
    core.recorder._file = TraceFile(path, 2**30)
    hand_over, seen = core._emit, Counter[str]()

    def emit(outputs: list[RequestOutput]) -> None:  # as if the process were killed right after
        history = History()
        history.feed(read_lines(path))
        for output in outputs:
            seen[output.request_id] += len(output.token_ids)
            request = history.request(output.request_id)
            assert output.status == "FINISHED_REFUSED" or request is not None
            assert request is None or request.num_output_tokens >= seen[output.request_id]
        hand_over(outputs)

    core._emit = emit
    run.run()
    assert seen.total() > 0


def test_two_files_take_turns_and_each_can_be_read_on_its_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = Recorder(lambda: 1.0, Facts(started=1.0), 4096, file=TraceFile(path, 10_000))
    for i in range(3000):
        recorder._append(Held(float(i), "pace"))
        recorder.flush()
    recorder.close()
    assert older(path).stat().st_size < 20_000
    assert path.stat().st_size < 20_000
    lines = list(read_lines(path))
    assert lines[0].startswith(b'["page"')
    numbers = [float(line.split(b",")[1]) for line in lines if line.startswith(b'["held"')]
    assert numbers == [float(i) for i in range(int(numbers[0]), 3000)]


def test_an_earlier_run_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for text in (b"first\n", b"second\n"):
        file = TraceFile(path, 1000)
        file.write(text)
        file.close()
    assert list(read_lines(path)) == [b"first\n", b"second\n"]


def test_a_line_that_a_crash_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"whole\nhal")
    assert list(read_lines(path)) == [b"whole\n"]


def test_a_file_that_cannot_be_made_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--trace-file"):
        TraceFile(tmp_path / "no" / "folder", 1000)
    with pytest.raises(TraceFileError, match="none"):
        list(read_lines(tmp_path / "none"))


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_regular_file_is_left_where_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(ConfigError, match=f"--trace-file {path}: is no regular file"):
        TraceFile(path, 1000)
    assert [file.name for file in tmp_path.iterdir()] == ["there"]


def test_a_disk_that_fails_ends_the_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = TraceFile(tmp_path / "trace.jsonl", 1000)

    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    file.write(b"line\n")
    file.write(b"line\n")
    assert [record.message.count("ends here") for record in caplog.records] == [1]
