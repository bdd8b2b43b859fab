"""How a server starts, drains and dies."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.server import Server, serve
from tests.processes import all_end, children_of

pytestmark = pytest.mark.e2e

SMALL = ["--pipeline-parallel-size", "2", "--max-model-len", "1024", "--num-blocks", "256"]


class Stream:
    """A long answer being read by a thread; `first` is set when its first token is there."""

    def __init__(self, server: Server, max_tokens: int) -> None:
        self.first = threading.Event()
        self.events: list[str] = []
        self._body = {"prompt": "Tell a long story.", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        self._url = f"{server.url}/v1/completions"
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        assert self.first.wait(60)

    def _read(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=120) as reply:
            for line in reply.iter_lines():
                if line.startswith("data:"):
                    self.events.append(line[6:])
                    self.first.set()


def test_sigterm_lets_running_requests_end(smollm2_gguf: Path) -> None:
    with serve(str(smollm2_gguf), *SMALL) as server:
        pids = children_of(server.process.pid)
        assert len(pids) == 3
        stream = Stream(server, 100)
        server.process.send_signal(signal.SIGTERM)
        server.read_until("draining")
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        stream.thread.join(60)
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-2])["choices"][0]["finish_reason"] == "length"
        assert server.wait() == 0
        assert all_end(pids)


def test_a_signal_while_loading_ends_cleanly(smollm2_gguf: Path) -> None:
    with serve(str(smollm2_gguf), *SMALL, ready=False) as server:
        url = server.read_until(r"listening on (\S+);").group(1)
        health = httpx.get(f"{url}/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, "loading")
        assert httpx.get(f"{url}/health/live").status_code == 200
        pids = children_of(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "Traceback" not in server.log
        assert all_end(pids)


def test_what_outlives_the_shutdown_timeout_is_cut_off_and_told_so(smollm2_gguf: Path) -> None:
    with serve(str(smollm2_gguf), *SMALL, "--shutdown-timeout", "0.1") as server:
        stream = Stream(server, 1000)
        server.process.send_signal(signal.SIGTERM)
        stream.thread.join(30)
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-2])["choices"][0]["finish_reason"] == "abort"
        assert server.wait() == 0


def test_a_second_signal_ends_at_once(smollm2_gguf: Path) -> None:
    with serve(str(smollm2_gguf), *SMALL) as server:
        pids = children_of(server.process.pid)
        stream = Stream(server, 1000)
        server.process.send_signal(signal.SIGTERM)
        server.read_until("draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
        stream.thread.join(10)
        assert all_end(pids)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_killed_stage_ends_every_stream_with_an_error(smollm2_gguf: Path, stage: int) -> None:
    with serve(str(smollm2_gguf), *SMALL) as server:
        pids = children_of(server.process.pid)
        stream = Stream(server, 1000)
        workers = [p for p in pids if "paceline.pipeline.worker" in " ".join(psutil.Process(p).cmdline())]
        os.kill(sorted(workers)[stage], signal.SIGKILL)
        stream.thread.join(15)
        assert stream.events[-1] == "[DONE]"
        assert "error" in json.loads(stream.events[-2])
        assert server.wait() != 0
        assert f"stage {stage} was killed by signal 9" in server.log
        assert all_end(pids)


def test_children_end_with_their_parent(smollm2_gguf: Path) -> None:
    with serve(str(smollm2_gguf), *SMALL) as server:
        pids = children_of(server.process.pid)
        server.process.kill()
        assert all_end(pids)


def test_a_client_that_goes_away_aborts_its_request(smollm2_gguf: Path) -> None:
    with serve(str(smollm2_gguf), *SMALL) as server:
        body = {"prompt": "Tell a long story.", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as reply:
            next(reply.iter_lines())
        server.read_until("aborted: the client disconnected", 10)
        done = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 1}, timeout=30)
        assert done.status_code == 200
        metrics = httpx.get(f"{server.url}/metrics").text
        assert next(line for line in metrics.splitlines() if "num_requests_running{" in line).endswith(" 0.0")


def test_an_idle_server_rests(smollm2_gguf: Path) -> None:
    """The processes' own CPU clocks over half a second after everything was ready."""
    with serve(str(smollm2_gguf), *SMALL) as server:
        processes = [psutil.Process(pid) for pid in [server.process.pid, *children_of(server.process.pid)]]
        httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 2}, timeout=30)

        def used() -> float:
            return sum(sum(p.cpu_times()[:2]) for p in processes)

        before = used()
        threading.Event().wait(3.0)
        assert used() - before <= 0.03 + 0.02  # 1 % of a core, and two ticks of the clock


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--layer-split", "20,11"], "--layer-split 20,11"),
        (["--pipeline-parallel-size", "31"], "--pipeline-parallel-size 31"),
        (["--kv-cache-memory-bytes", "1k"], "--kv-cache-memory-bytes 1000"),
        (["--pacing", "even"], "--pacing even"),
        (["--dtype", "int7"], "--dtype int7"),
    ],
)
def test_bad_configuration_names_option_and_fix(smollm2_gguf: Path, arguments: list[str], said: str) -> None:
    stages = [] if "--pipeline-parallel-size" in arguments else ["--pipeline-parallel-size", "2"]
    with serve(str(smollm2_gguf), *stages, *arguments, ready=False) as server:
        assert server.wait(60) != 0
        assert said in server.log
        assert "Traceback" not in server.log


def test_a_damaged_model_is_reported(smollm2_gguf: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "half.gguf"
    with smollm2_gguf.open("rb") as whole:
        damaged.write_bytes(whole.read(50_000_000))
    with serve(str(damaged), ready=False) as server:
        assert server.wait(60) != 0
        assert "does not lie within the file" in server.log


def test_only_the_http_port_listens(smollm2_gguf: Path) -> None:
    with serve(str(smollm2_gguf), *SMALL) as server:
        listening = []
        for pid in [server.process.pid, *children_of(server.process.pid)]:
            connections = psutil.Process(pid).net_connections("inet")
            listening += [c.laddr for c in connections if c.status == psutil.CONN_LISTEN]
        assert [(a.ip, a.port) for a in listening] == [("127.0.0.1", int(server.url.rpartition(":")[2]))]
