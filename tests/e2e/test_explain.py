"""The question that started the project, asked of a real server; and what its record says of a real run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from paceline.trace import History
from paceline.trace.file import read_lines
from tests.e2e.server import Server, serve
from tests.processes import all_end, children_of
from tests.trace.test_idle import check

pytestmark = pytest.mark.e2e

OPTIONS = ["--pipeline-parallel-size", "2", "--max-model-len", "2048", "--num-blocks", "512"]
OPTIONS += ["--pacing", "greedy", "--no-loop-back"]
LONG = 1500  # prompt tokens: seconds of work, so that there is time to send something meanwhile


def complete(server: Server, prompt: list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True} | fields
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120, headers={"X-Request-Id": "asked"})
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def explain(*arguments: str) -> str:
    command = [sys.executable, "-m", "paceline.cli.main", "explain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@contextmanager
def watching(server: Server) -> Iterator[Iterator[dict[str, Any]]]:
    """The frames of the live stream."""
    with httpx.stream("GET", f"{server.url}/monitor/stream", timeout=60) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        assert next(lines) == "event: hello"
        yield (json.loads(line[6:]) for line in lines if line.startswith("data: {") and '"batches"' in line)


def ask_the_question(server: Server) -> tuple[str, str]:
    """Send req_a, and req_b on the event that batch 0 was dispatched; gives their ids when both have ended."""
    with watching(server) as frames, ThreadPoolExecutor() as threads:
        first = threads.submit(complete, server, list(range(100, 100 + LONG)))
        dispatched = (batch["batch"] for frame in frames for batch in frame["batches"])
        assert next(dispatched) == 0
        second = complete(server, [7, 8, 9, 10, 11])
        return first.result()["id"], second["id"]


def test_the_question_with_a_prompt_that_fits(smollm2_gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    arguments = [*OPTIONS, "--max-num-batched-tokens", "2048", "--trace-file", str(file)]
    with serve(str(smollm2_gguf), *arguments) as server:
        pids = children_of(server.process.pid)
        req_a, req_b = ask_the_question(server)
        batch = json.loads(explain("--url", server.url, "--batch", "1", "--json"))
        assert {key: batch[key] for key in ("batch", "slices", "status", "why_not")} == {
            "batch": 1,
            "slices": {req_b: [0, 5]},
            "status": {req_a: "RUNNING", req_b: "RUNNING"},
            "why_not": {req_a: "IN_FLIGHT"},
        }
        assert batch["in_flight_in"] == {req_a: 0}
        text = explain("--url", server.url, "--batch", "1")
        assert f"{req_a}: RUNNING, not in it: IN_FLIGHT, its next token is in flight in batch 0" in text
        story = explain("--url", server.url, "--request", req_a)
        assert "(X-Request-Id asked): FINISHED_LENGTH" in story
        assert "batch 1: RUNNING, not in it: IN_FLIGHT, its next token is in flight in batch 0" in story

        an_abort_ends_a_stream(server)
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda n: complete(server, list(range(n, n + 40)), max_tokens=24), range(8)))
        timeline = httpx.get(f"{server.url}/v1/requests/{req_a}/timeline").json()
        for what in ("time_to_first_token", "total"):
            assert sum(timeline[f"{what}_parts"].values()) == pytest.approx(timeline[what])
        assert timeline["total_parts"]["prefill_compute"] > 0.5 * timeline["time_to_first_token"]
        (core,) = (p for p in pids if "paceline.engine.process" in " ".join(psutil.Process(p).cmdline()))
        os.kill(core, signal.SIGKILL)
        assert server.wait() != 0
        assert all_end(pids)
    told = explain("--trace", str(file), "--batch", "1")
    assert told == text, "the file outlives the core"
    idle_time_is_accounted_for(file)


def an_abort_ends_a_stream(server: Server) -> None:
    """By the id that the stream's own events carry."""
    body = {"prompt": "Tell a long story.", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as reply:
        events = (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {"))
        request_id = next(events)["id"]
        url = f"{server.url}/v1/requests/{request_id}/abort"
        assert httpx.post(url).json() == {"id": request_id, "aborted": True}
        assert [event["choices"][0]["finish_reason"] for event in events][-1] == "abort"
    assert httpx.post(url).status_code == 404


def idle_time_is_accounted_for(file: Path) -> None:
    """S10 on a real run: causes and busy time add up to the wall time, and at most 1 % has no cause."""
    history = History()
    history.feed(read_lines(file))
    history.settle(history.now)
    assert len(history.batches) > 20
    assert all(0 <= uncertainty < 0.05 for _, uncertainty in history.offsets)
    assert all(abs(offset) <= uncertainty for offset, uncertainty in history.offsets), "one machine, one clock"
    check(history, tolerance=1e-3)
    assert history.account is not None
    for stage in (0, 1):
        causes = {cause for cause, seconds in history.account.idle[stage].items() if seconds}
        assert {"startup", "no_work", "core"} <= causes
    assert history.account.idle[1]["starved"] > 0.1, "stage 1 waited while stage 0 computed the long prompt"


def test_the_question_with_a_prompt_that_is_cut(smollm2_gguf: Path) -> None:
    with serve(str(smollm2_gguf), *OPTIONS, "--max-num-batched-tokens", "1024") as server:
        req_a, _ = ask_the_question(server)
        batch = json.loads(explain("--url", server.url, "--batch", "1", "--json"))
        assert batch["slices"] == {req_a: [1024, LONG]}
        assert batch["status"][req_a] == "RUNNING"
        assert req_a not in batch["why_not"]
        before = httpx.get(f"{server.url}/batches/0").json()
        assert before["done"] > batch["made"], "its first chunk was still in the pipeline"
