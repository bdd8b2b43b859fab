"""`paceline top`: its picture without a terminal, and the command in a real one."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from rich.console import Console

from paceline.cli.monitor_stream import Frame, Hello, LiveRequest, Record
from paceline.cli.top_view import BATCHES, CAUSES, KINDS, picture
from tests.server import test_palette
from tests.server.fake_monitor import REQUESTS, FakeMonitor, story
from tests.server.running import Running

SECONDS = 30.0  # a busy machine is no finding


def record_of(stages: int = 2, until: float = 20.0, requests: int | None = None) -> Record:
    fake = FakeMonitor(stages)
    record = Record(Hello(stages, [30 // stages] * stages, "Fake-135M", "greedy", 0.0))
    news: dict[str, list[object]] = {"spans": [], "idle": []}
    for told, key, item in story(stages):
        if told < until and key in news:
            news[key].append(item)
    record.add(msgspec.convert(news | {"now": until}, Frame))
    record.add(msgspec.convert(fake._facts(until), Frame))
    if requests is not None:
        waiting = [LiveRequest(f"cmpl-{n}", "WAITING", "waiting", 1, 0, 0, 0.5) for n in range(requests)]
        record.add(Frame(until, requests=waiting))
    return record


def drawn(record: Record, width: int, height: int, seconds: float = 2.0) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(picture(record, width, height, seconds, "live"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (80, 30), (100, 40), (200, 60)])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_it_fits_the_window(width: int, height: int, stages: int) -> None:
    lines = drawn(record_of(stages, requests=200), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert any(line.startswith("Stage 0 ") for line in lines)
    assert any("more" in line for line in lines)  # not all requests have room


def test_lanes_say_what_each_stage_did() -> None:
    record = record_of()
    lines = drawn(record, 80, 24)
    for stage in range(2):
        at = next(place for place, line in enumerate(lines) if line.startswith(f"Stage {stage} 15 layers · busy "))
        letters = lines[at + 2].ljust(80)
        end = 20.0 - 0.25
        for place in range(80):
            middle = end - 2.0 + 2.0 * (place + 0.5) / 80
            whole = (middle - 1 / 80, middle + 1 / 80)
            sign = next(
                (KINDS[kind] for _, _, s, e, kind in record.spans[stage] if s <= whole[0] and e >= whole[1]), None
            )
            sign = sign or next(
                (CAUSES[c] for _, s, e, c in record.idle[stage] if s <= whole[0] and e >= whole[1]), None
            )
            assert sign is None or letters[place] == sign, place
        busy = sum(
            min(e, end) - max(s, end - 2.0) for _, _, s, e, _ in record.spans[stage] if e > end - 2.0 and s < end
        )
        shown = int(re.findall(r"busy (\d+)%", lines[at])[0])
        assert shown == pytest.approx(100 * busy / 2.0, abs=4)


def test_figures_and_requests() -> None:
    text = "\n".join(drawn(record_of(), 100, 40))
    for part in (
        "free blocks 4",
        "/512",
        "imbalance 1.18×",
        "running 6",
        "preemptions 2",
        "mine",
        "stage 1, batch 200",
    ):
        assert part in text
    assert f"{REQUESTS[0]} mine" in "\n".join(drawn(record_of(), 150, 40))
    assert "mine" not in "\n".join(drawn(record_of(), 80, 40))
    assert "no request at the moment" in "\n".join(drawn(record_of(requests=0), 100, 40))


def test_the_record_is_bounded() -> None:
    record = record_of(until=5.0)
    for second in range(5, 600):
        spans = [(stage, second, float(second), second + 0.5, "decode") for stage in range(2)]
        record.add(Frame(float(second), spans, [(0, second + 0.5, second + 1.0, "core")]))
    assert max(len(kept) for kept in [*record.spans, *record.idle]) <= 62


def test_colours_and_signs_are_those_of_the_page() -> None:
    assert list(BATCHES) == test_palette.BATCHES
    assert set(CAUSES) == set(test_palette.CAUSES)
    assert len({*CAUSES.values(), *KINDS.values()}) == len(CAUSES) + len(KINDS)


# ---------------------------------------------------------------- the command


@contextmanager
def running(fake: FakeMonitor | None = None) -> Iterator[Running]:
    server = Running(fake or FakeMonitor())  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.stop()


class Terminal:
    """`paceline top` in a terminal of its own."""

    def __init__(self, url: str) -> None:
        self.master, self._slave = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(self._slave)
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", "top", "--url", url],
            stdin=self._slave,
            stdout=self._slave,
            stderr=subprocess.PIPE,
            env=environment | {"TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.seen = ""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read_until(self, pattern: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not re.search(pattern, self.seen):
            ready, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen[-2000:]!r}"
            self.seen += os.read(self.master, 65536).decode("utf-8", "replace")

    def forget(self) -> None:
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> tuple[int, str]:
        """Exit code and errors; the terminal must be as it was."""
        assert self.process.stderr is not None
        self.read_until(r"\x1b\[\?1049l")  # back from the other screen
        code = self.process.wait(SECONDS)
        assert termios.tcgetattr(self._slave) == self.before
        return code, self.process.stderr.read().decode()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self.master)
        os.close(self._slave)


def test_it_lives_in_a_terminal_resizes_and_quits() -> None:
    with running() as server, Terminal(server.url) as terminal:
        terminal.read_until("Stage 1")
        terminal.type("+")
        terminal.read_until(r"busy \d+% of 1 s")
        terminal.type(" ")
        terminal.read_until("paused")
        terminal.forget()
        terminal.resize(120, 30)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.read_until("unattributed[^\n]*quit")  # one line now
        terminal.type("q")
        assert terminal.end() == (0, "")


def test_ctrl_c_quits_cleanly_too() -> None:
    with running() as server, Terminal(server.url) as terminal:
        terminal.read_until("Stage 1")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == (0, "")


def test_a_server_that_goes_away_is_waited_for() -> None:
    fake = FakeMonitor()
    with running(fake) as server, Terminal(server.url) as terminal:
        terminal.read_until("live")
        fake.break_off = True
        terminal.read_until("ended the stream")
        terminal.forget()
        terminal.read_until("live")
        terminal.type("q")
        assert terminal.end() == (0, "")


def test_without_a_terminal_one_picture_is_printed() -> None:
    with running() as server:
        done = subprocess.run(
            [sys.executable, "-m", "paceline.cli.main", "top", "--url", server.url],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Stage 1 15 layers" in done.stdout
    assert "\x1b" not in done.stdout
    assert REQUESTS[1][:13] in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1"),
        (["--seconds", "0"], "--seconds 0: is out of range. Give at least 0.1, at most 60."),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "top", "--once", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode != 0
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_key_that_is_missing_or_given() -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "top", "--once", "--url"]
    environment = {name: value for name, value in os.environ.items() if name != "PACELINE_ADMIN_API_KEY"}
    with running(FakeMonitor(key="chief")) as server:
        refused = subprocess.run(
            [*command, server.url], capture_output=True, text=True, timeout=SECONDS, env=environment
        )
        assert refused.returncode == 1
        assert "PACELINE_ADMIN_API_KEY" in refused.stderr
        environment |= {"PACELINE_ADMIN_API_KEY": "chief"}
        done = subprocess.run([*command, server.url], capture_output=True, text=True, timeout=SECONDS, env=environment)
        assert done.returncode == 0
