"""What the record costs, in microseconds of CPU per batch: the core's part, each stage's part, and a reader's.

python benchmarks/trace.py [--requests 8 16 64 256] [--rounds 5]
python benchmarks/trace.py --stream [--seconds 20]

The core runs on a pipeline without a model. What it tells its record is noted and then told once more to a record on its own:
that is the record's cost, the least of several rounds, in CPU time of the thread. With `--stream`, a real server
(SmolLM2-135M-Instruct, two stages) works with and without a bare reader of its live stream, and the CPU time of server and
core is compared, per batch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
from benchmarks.scheduler import Instant, add

from paceline.engine.core import EngineCore
from paceline.messages import BatchResult, StageTimes
from paceline.scheduling import SchedulerOptions
from paceline.trace import History, Recorder
from paceline.trace.events import Facts
from paceline.trace.file import TraceFile
from paceline.trace.frames import FrameMaker

STAGES = 2


class Timed(Instant):
    """Results have the times of two stages, as real ones do."""

    def collect(self) -> BatchResult | None:
        result = super().collect()
        if result is None:
            return None
        now = time.monotonic()
        moments = (now - 2e-5, now - 1e-5)
        times = [StageTimes(s, at, at, at, at + 1e-5, 0.0, at + 1e-5) for s, at in enumerate(moments)]
        return msgspec.structs.replace(result, times=times)


class Noting(Recorder):
    """Notes what it is told, and records nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []


def _note(name: str) -> Any:
    return lambda recorder, *args: recorder.calls.append((name, args))


for _name in ("made", "held", "done", "sent", "flush"):
    setattr(Noting, _name, _note(_name))


def run(requests: int, recorder: Recorder, batches: int) -> tuple[float, int]:
    """Let the requests decode, in two groups that take turns: microseconds of CPU per batch of the whole core, and batches."""
    pipeline = Timed(STAGES)
    options = SchedulerOptions(
        stages=STAGES, max_num_seqs=requests, max_num_batched_tokens=8192, num_blocks=1_000_000, max_model_len=1_000_000
    )
    core = EngineCore(options, pipeline, pipeline, lambda outputs: None, recorder=recorder)
    for group in range(STAGES):
        add(pipeline, requests // STAGES, 32, None, f"group{group}-")
    core.step()
    start = time.thread_time()
    while core.scheduler.num_batches < batches:
        core.step()
    return (time.thread_time() - start) / batches * 1e6, core.scheduler.num_batches


def record_cost(calls: list[tuple[str, tuple[Any, ...]]], batches: int, file: Path | None) -> float:
    """Microseconds of CPU per batch to record what happened, on its own."""
    recorder = Recorder(file=None if file is None else TraceFile(file, 2**26))
    bound = [(getattr(recorder, name), args) for name, args in calls]
    start = time.thread_time()
    for call, args in bound:
        call(*args)
    cost = (time.thread_time() - start) / batches * 1e6
    recorder.close()
    return cost


def stage_cost(rounds: int) -> float:
    """Microseconds for what a stage does for the record: reading clocks, and a StageTimes that travels on."""
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(list[StageTimes]).decode
    passed = encode([StageTimes(0, 1.5, 2.5, 3.5, 4.5, 0.5, 4.6)])
    count, best = 20_000, float("inf")
    for _ in range(rounds):
        begin = time.thread_time()
        for _ in range(count):
            plan, came = time.monotonic(), time.monotonic()
            started, cpu = time.monotonic(), time.thread_time()
            finished, cpu = time.monotonic(), time.thread_time() - cpu
            times = [*decode(passed), StageTimes(1, plan, came, started, finished, cpu, time.monotonic())]
            encode(times)
        best = min(best, (time.thread_time() - begin) / count * 1e6)
    return best


def reader_cost(requests: int, batches: int) -> tuple[float, float, float]:
    """Bytes per batch; microseconds per batch to read the record, and to make frames of it."""
    now = time.monotonic()
    recorder = Recorder(facts=Facts(stages=STAGES, depth=STAGES, started=now, ready=now), max_bytes=2**30)
    run(requests, recorder, batches)
    log = recorder._log
    chunks, read = [], 0
    while read < log.total:
        chunk = recorder.read(read)
        chunks.append(chunk.lines)
        read = chunk.end
    history, maker = History(2**30), None
    feeding = framing = 0.0
    for lines in chunks:
        begin = time.thread_time()
        history.feed(lines)
        feeding += time.thread_time() - begin
        begin = time.thread_time()
        maker = maker or FrameMaker(history, 0.0)
        for frame in maker.frames():
            msgspec.json.encode(frame)
        framing += time.thread_time() - begin
    count = len(history.batches)
    return log.total / count, feeding / count * 1e6, framing / count * 1e6


def measure_parts(args: argparse.Namespace) -> None:
    for requests in args.requests:
        noting = Noting()
        _, batches = run(requests, noting, args.batches)
        core = min(run(requests, Recorder(), args.batches)[0] for _ in range(args.rounds))
        record = min(record_cost(noting.calls, batches, None) for _ in range(args.rounds))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.jsonl"
            filed = min(record_cost(noting.calls, batches, path) for _ in range(args.rounds))
        size, feeding, framing = reader_cost(requests, args.batches)
        print(
            f"{requests:4} running, {requests // STAGES} a batch: core {core:6.1f} us per batch, "
            f"of that its record {record:5.1f}, with a file {filed:5.1f}; {size:5.0f} bytes; "
            f"server reads {feeding:5.1f}, makes frames {framing:5.1f}"
        )
    print(f"each stage: {stage_cost(args.rounds):.1f} us per batch")


# ---------------------------------------------------------------- the live stream


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far, in seconds, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@contextlib.contextmanager
def server() -> Iterator[tuple[str, list[int]]]:
    """A real server's address, and the process ids of server and core."""
    command = [sys.executable, "-m", "paceline.cli.main", "serve", "--port", "0", "-pp", str(STAGES)]
    with subprocess.Popen([*command, "--num-blocks", "1024"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "is ready: " in line:
                    break
            url = line.partition("is ready: ")[2].partition("/v1")[0]
            threading.Thread(target=process.stderr.read, daemon=True).start()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield url, [process.pid, int(children[0])]
        finally:
            process.terminate()


def work(url: str, seconds: float, requests: int) -> int:
    """Keep so many requests going; how many batches that took."""
    end = time.monotonic() + seconds

    def batches() -> float:
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("paceline:batches_total"))

    def one(number: int) -> None:
        body = {"prompt": list(range(number, number + 32)), "max_tokens": 64, "ignore_eos": True, "stream": True}
        while time.monotonic() < end:
            httpx.post(f"{url}/v1/completions", json=body, timeout=120)

    before = batches()
    threads = [threading.Thread(target=one, args=(n,)) for n in range(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(batches() - before)


@contextlib.contextmanager
def bare_reader(url: str) -> Iterator[list[int]]:
    """Another process reads the stream and throws it away; its output is how much it read."""
    read: list[int] = []
    command = ["curl", "--silent", "--no-buffer", "--output", "/dev/null", "--write-out", "%{size_download}"]
    with subprocess.Popen([*command, f"{url}/monitor/stream"], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield read
        finally:
            process.send_signal(2)
            assert process.stdout is not None
            read.append(int(process.stdout.read() or 0))


def measure_stream(args: argparse.Namespace) -> None:
    costs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    with server() as (url, pids):
        work(url, 5, args.streams)
        for turn in range(2 * args.rounds):
            watched = bool(turn % 2)
            with bare_reader(url) if watched else contextlib.nullcontext():
                before = [cpu_seconds(pid) for pid in pids]
                batches = work(url, args.seconds, args.streams)
                used = [cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True)]
            per_batch = used[0] / batches * 1e6, used[1] / batches * 1e6
            costs[watched].append(per_batch)
            print(
                json.dumps({"watched": watched, "batches": batches, "server_us": per_batch[0], "core_us": per_batch[1]})
            )
    for name, place in (("server", 0), ("core", 1)):
        alone, watched = (statistics.median(c[place] for c in costs[w]) for w in (False, True))
        print(f"{name}: {alone:.0f} us of CPU per batch, {watched - alone:+.0f} with a bare reader (medians)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[8, 16, 64, 256])
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--streams", type=int, default=16, help="requests at once with --stream")
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()
    (measure_stream if args.stream else measure_parts)(args)


if __name__ == "__main__":
    main()
