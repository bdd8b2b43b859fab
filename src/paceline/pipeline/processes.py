"""One process per stage on this machine.

The core has one socket to all stages: plans go out, results and start-up news come in. Activations travel from stage to
stage directly. The core waits on that socket, on its own mail, and on a process descriptor per stage, so the death of
a stage is noticed at once and nothing is polled.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from paceline.config import EngineConfig
from paceline.errors import PipelineError
from paceline.host import share_cores, usable_cores
from paceline.messages import BatchResult, CoreProgress, Plan
from paceline.pipeline import wire
from paceline.pipeline.build import cache_blocks
from paceline.pipeline.child import how_it_ended, start, stop
from paceline.trace.clocks import ClockBounds

STOP_SECONDS = 2.0  # how long stages may take to end by themselves

LAST_WORDS_SECONDS = 2.0  # how long a stage's reason may take to arrive after its end

CLOCK_INTERVAL = 5.0  # seconds of work between two comparisons of the stages' clocks with ours
FIRST_PINGS = 8  # per stage, before there is any work that could delay them

OnProgress = Callable[[CoreProgress], None]
OnClocks = Callable[[list[tuple[float, float]]], None]


class ProcessPipeline:
    """Implements :class:`paceline.pipeline.seam.Pipeline` over stage processes.

    Args:
        ranges: layers [first, last) of each stage.
        mail: the core's own socket, waited for together with the stages.

    Attributes:
        on_clocks: told by how many seconds each stage's clock is ahead of ours, and how uncertain that is, whenever it
            was measured again.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_path: Path,
        ranges: list[tuple[int, int]],
        max_model_len: int,
        mail: zmq.Socket[Any],
        context: zmq.Context[Any],
    ) -> None:
        self.num_stages = len(ranges)
        self.depth = len(ranges) + config.loop_back
        self._config = config
        self._max_model_len = max_model_len
        self._mail = mail
        self._folder = wire.SocketFolder()
        self._control = wire.make_socket(context, zmq.ROUTER)
        self._control.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._control.bind(self._folder.address("control"))
        self._ready: deque[BatchResult] = deque()
        self._serving = False
        self.on_clocks: OnClocks = lambda offsets: None
        self._clocks = [ClockBounds() for _ in ranges]
        self._pinged = 0.0
        self._children: list[subprocess.Popen[bytes]] = []
        self._death_fds: dict[int, int] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._control, zmq.POLLIN)
        self._poller.register(mail, zmq.POLLIN)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(BatchResult)
        try:
            for stage in range(self.num_stages):
                self._start(stage, ranges, model_path)
        except BaseException:
            self.close()
            raise

    def _start(self, stage: int, ranges: list[tuple[int, int]], model_path: Path) -> None:
        config = self._config
        is_last = stage + 1 == self.num_stages
        # A stage that is first and last has no link to itself.
        tokens = self._folder.address("tokens") if config.loop_back and self.num_stages > 1 else None
        share = share_cores(usable_cores(), self.num_stages, config.threads_per_stage, config.pin_threads)[stage]
        worker = wire.WorkerConfig(
            engine=config,
            model_path=str(model_path),
            stage=stage,
            first_layer=ranges[stage][0],
            last_layer=ranges[stage][1],
            max_model_len=self._max_model_len,
            threads=share.threads,
            cpus=share.cpus,
            control=self._folder.address("control"),
            link_in=self._folder.address(f"link-{stage}") if stage > 0 else None,
            link_out=self._folder.address(f"link-{stage + 1}") if not is_last else None,
            tokens_in=tokens if stage == 0 else None,
            tokens_out=tokens if is_last else None,
        )
        child = start("paceline.pipeline.worker", msgspec.json.encode(worker))
        self._children.append(child)
        fd = os.pidfd_open(child.pid)
        self._death_fds[fd] = stage
        self._poller.register(fd, zmq.POLLIN)

    # ------------------------------------------------------------ start

    def load(self, on_progress: OnProgress) -> tuple[int, list[wire.Loaded]]:
        """Wait until every stage has its weights, have them make their caches, and wait again.

        Returns:
            the number of KV blocks, and what each stage reported.

        Raises:
            PipelineError: a stage could not start, or died.
            ConfigError: there is too little memory for the KV cache.
        """
        for stage in range(self.num_stages):
            on_progress(CoreProgress(stage, "starting", 0.0))
        loaded: dict[int, wire.Loaded] = {}
        while len(loaded) < self.num_stages:
            stage, kind, payload = self._news()
            if kind == wire.HELLO:
                on_progress(CoreProgress(stage, "loading weights", 0.0))
            elif kind == wire.PROGRESS:
                progress = wire.decode(payload, wire.Progress, "progress")
                on_progress(CoreProgress(stage, progress.phase, progress.done))
            elif kind == wire.LOADED:
                loaded[stage] = wire.decode(payload, wire.Loaded, "loaded")
                on_progress(CoreProgress(stage, "loading weights", 1.0))
        reports = [loaded[stage] for stage in range(self.num_stages)]
        num_blocks = cache_blocks(
            self._config,
            [report.cache_bytes_per_block for report in reports],
            [report.available_memory for report in reports],
            self._max_model_len,
        )
        self._send_all(wire.MAKE_CACHE, self._encoder.encode(wire.MakeCache(num_blocks)))
        ready = 0
        while ready < self.num_stages:
            _, kind, _ = self._news()
            ready += kind == wire.READY
        self._folder.close()  # every socket is connected
        self._compare_clocks()
        self._serving = True
        return num_blocks, reports

    def _compare_clocks(self) -> None:
        """Some pings to each stage in turn, while all of them are idle."""
        for stage in range(self.num_stages):
            for _ in range(FIRST_PINGS):
                self._ping(stage)
                _, kind, payload = self._news()
                assert kind == wire.PONG
                self._take_pong(stage, payload)

    def _ping(self, stage: int) -> None:
        self._pinged = time.monotonic()
        self._send(stage, wire.PING, self._encoder.encode(wire.Ping(self._pinged)))

    def _take_pong(self, stage: int, payload: bytes) -> None:
        pong = wire.decode(payload, wire.Pong, "pong")
        self._clocks[stage].exchange(pong.sent, pong.clock, time.monotonic())

    def clocks(self) -> list[tuple[float, float]]:
        """By how many seconds each stage's clock is ahead of ours, and how far that may be off."""
        return [(clock.offset, clock.uncertainty) for clock in self._clocks]

    def _news(self) -> tuple[int, bytes, bytes]:
        """The next message of any stage, during start-up."""
        while True:
            events = dict(self._poller.poll())
            if self._control in events:
                identity, kind, payload = self._control.recv_multipart()
                if kind == wire.FAILED:
                    raise self._failure(identity, payload)
                return int(identity), kind, payload
            self._check_alive(events)
            if self._mail in events:  # nobody writes before the engine is ready, so the front end has gone
                raise PipelineError("the front end ended while the stages were starting")

    # ------------------------------------------------------------ the seam

    def submit(self, plan: Plan) -> None:
        self._send_all(wire.PLAN, self._encoder.encode(plan))
        if time.monotonic() - self._pinged >= CLOCK_INTERVAL:
            for stage in range(self.num_stages):
                self._ping(stage)

    def collect(self) -> BatchResult | None:
        if not self._ready:
            self._receive()
        return self._ready.popleft() if self._ready else None

    def wait(self, timeout: float | None) -> None:
        if self._ready:
            return
        events = dict(self._poller.poll(wire.milliseconds(timeout)))
        if self._control in events:
            self._receive()
        else:
            self._check_alive(events)

    def close(self) -> None:
        with contextlib.suppress(PipelineError, zmq.ZMQError):
            self._send_all(wire.STOP, b"")
        stop(self._children, STOP_SECONDS)
        for fd in self._death_fds:
            os.close(fd)
        self._death_fds.clear()
        self._children.clear()
        self._control.close(0)
        self._folder.close()

    def _receive(self) -> None:
        while self._control.poll(0):
            identity, kind, payload = self._control.recv_multipart()
            if kind == wire.RESULT:
                try:
                    self._ready.append(self._decoder.decode(payload))
                except msgspec.MsgspecError as error:
                    raise PipelineError(f"a damaged result arrived: {error}") from error
            elif kind == wire.PONG:
                self._take_pong(int(identity), payload)
                self.on_clocks(self.clocks())
            elif kind == wire.FAILED:
                raise self._failure(identity, payload)

    def _send_all(self, kind: bytes, payload: bytes) -> None:
        for stage in range(self.num_stages):
            self._send(stage, kind, payload)

    def _send(self, stage: int, kind: bytes, payload: bytes) -> None:
        try:
            self._control.send_multipart([str(stage).encode(), kind, payload])
        except zmq.ZMQError as error:
            raise PipelineError(f"stage {stage} cannot be reached: {error}") from error

    def _failure(self, identity: bytes, payload: bytes) -> PipelineError:
        error = wire.decode(payload, wire.Failed, "failure").error
        return PipelineError(f"stage {int(identity)} {'failed' if self._serving else 'could not start'}: {error}")

    def _check_alive(self, events: dict[Any, int]) -> None:
        """Raise if a stage has ended: with its own reason if it gave one, which may still be on its way."""
        for fd, stage in self._death_fds.items():
            if fd not in events:
                continue
            code = self._children[stage].wait()
            deadline = time.monotonic() + (LAST_WORDS_SECONDS if code > 0 else 0.0)
            while self._control.poll(wire.milliseconds(max(0.0, deadline - time.monotonic()))):
                self._receive()
            raise PipelineError(f"stage {stage} {how_it_ended(code)}")
