"""`paceline explain`: from a file and from a server, and what it says when there is nothing to tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from paceline.cli.main import main
from paceline.config import ServerConfig
from paceline.scheduling import Reason
from paceline.trace.events import Refused
from paceline.trace.explain import Step, explain_refused
from paceline.trace.file import TraceFile
from paceline.trace.story import HEAD, TAIL, tell_request
from tests.engine.harness import make_scenario
from tests.server.fakes import Site
from tests.server.running import Running
from tests.server.test_trace_routes import record
from tests.trace.timed import TimedHarness


@pytest.fixture(scope="module")
def run() -> TimedHarness:
    """One with preemptions, so that every kind of line is told."""
    for seed in range(1000):
        found = TimedHarness(make_scenario(seed, few_blocks=True, loop_back=False))
        found.run()
        preempted = found.core.scheduler.num_preemptions > 0 and Reason.IN_FLIGHT in found.reasons
        if preempted and len(found.seen_batches) > 30:
            return found
    raise AssertionError("no scenario preempts")


@pytest.fixture(scope="module")
def file(run: TimedHarness, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    file = TraceFile(path, 2**30)
    file.write(run.core.recorder._log.read(0, 2**30).lines)
    file.close()
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    site = Site(config=ServerConfig(admin_api_key="root"))
    record(site.engine)
    running = Running(site)
    yield running
    running.stop()


def test_every_batch_of_a_file(run: TimedHarness, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seen in run.seen_batches[:40]:
        assert main(["explain", "--trace", str(file), "--batch", str(seen["batch"]), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert {name: tuple(positions) for name, positions in told["slices"].items()} == seen["slices"]
        assert (told["status"], told["why_not"]) == (seen["status"], seen["why_not"])


def test_every_request_of_a_file(run: TimedHarness, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ""
    for request_id, seen in run.seen.items():
        assert main(["explain", "--trace", str(file), "--request", request_id]) == 0
        told = capsys.readouterr().out
        assert told.splitlines()[0] == f"{request_id}: {seen.status}"
        if seen.status != "FINISHED_REFUSED":
            assert "total: " in told
        text += told
    assert "PREEMPTED: its blocks went to r" in text
    assert "not in it: IN_FLIGHT, its next token is in flight in batch" in text


def test_a_long_life_is_shortened() -> None:
    steps = [Step(n, float(n), "RUNNING", (n, n + 1)) for n in range(100)]
    refused = explain_refused(Refused(0.0, "r", 1, "", "", ""), 0.0)
    told = tell_request(msgspec.structs.replace(refused, status="RUNNING", batches=steps))
    assert f"{100 - HEAD - TAIL} more batches" in told
    assert f"batch {HEAD - 1}:" in told
    assert f"batch {HEAD}:" not in told
    assert "batch 99:" in told


def test_a_server_is_asked_with_the_key(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--url", f"{server.url}/v1", "--api-key", "root"]
    assert main(["explain", *where, "--batch", "0"]) == 0
    assert "cmpl-b: WAITING, not in it: SEQ_LIMIT" in capsys.readouterr().out
    assert main(["explain", *where, "--request", "cmpl-a"]) == 0
    assert "cmpl-a (X-Request-Id mine): RUNNING" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "99", "--api-key", "root"], "no batch of this number"),
        (["--request", "../../x y", "--api-key", "root"], "no"),
        (["--batch", "0", "--api-key", "wrong"], "The API key is missing or wrong"),
        (["--batch", "0", "--url", "http://127.0.0.1:9"], "no Paceline server at http://127.0.0.1:9"),
        (["--batch", "0", "--trace", "/none"], "/none: No such file"),
        (["--batch", "0", "--trace", __file__], "is no trace file"),
        (["--batch", "0", "--trace", "/dev/null"], "/dev/null holds no record"),
    ],
)
def test_what_goes_wrong_is_said_in_one_line(
    server: Running, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = "--url" in arguments or "--trace" in arguments
    assert main(["explain", *arguments, *([] if elsewhere else ["--url", server.url])]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "-1"], "--batch -1: is too small. Give at least 0."),
        (["--batch", "first"], "--batch first: is not a whole number."),
        (["--request", " "], "is empty. Give the id that a response carries."),
    ],
)
def test_a_name_that_nothing_can_have_is_refused(
    file: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--trace", str(file), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_file_without_that_batch(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--trace", str(file), "--batch", "100000"]) == 1
    assert main(["explain", "--trace", str(file), "--request", "nobody"]) == 1
    assert "has no such request" in capsys.readouterr().err
