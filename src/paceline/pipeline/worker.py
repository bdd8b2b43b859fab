"""A stage as a program: ``python -m paceline.pipeline.worker``, started by the engine core.

It reads its configuration from standard input, loads its layers, and then waits on its sockets: plans from the engine
core, activations from the stage before, and on the first stage tokens from the last (loop-back). Whenever the oldest of
each are there it computes that batch. It blocks while it waits, and ends when its standard input does.

A plan that waits for a token holds up nothing that the token depends on: that is in a batch before it, which has left the
first stage, and no later stage waits for the first one to take anything.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from paceline.errors import PacelineError, PipelineError
from paceline.host import available_memory
from paceline.messages import ActivationHeader, BatchResult, LoopedTokens, Plan, SampledToken, StageTimes
from paceline.pipeline import wire
from paceline.pipeline.build import (
    load_stage,
    now_and_then,
    open_model,
    resolved_cache_dtype,
    resolved_dtype,
    torch_dtype,
)
from paceline.pipeline.child import end, end_with_parent, read_config
from paceline.pipeline.loop_back import looped_tokens

if TYPE_CHECKING:
    from torch import Tensor


class Worker:
    """One stage: its sockets, its layers, and what has arrived and not been computed."""

    def __init__(self, config: wire.WorkerConfig) -> None:
        self.config = config
        self.context = zmq.Context()
        self.control = wire.make_socket(self.context, zmq.DEALER)
        self.control.setsockopt(zmq.IDENTITY, str(config.stage).encode())
        self.control.connect(config.control)
        self.link_in = self._link(zmq.PULL, config.link_in)
        self.link_out = self._link(zmq.PUSH, config.link_out)
        self.tokens_in = self._link(zmq.PULL, config.tokens_in)
        self.tokens_out = self._link(zmq.PUSH, config.tokens_out)
        self.plans: deque[tuple[Plan, float]] = deque()
        self.inputs: deque[tuple[ActivationHeader, Tensor, float]] = deque()
        self.tokens_received = 0.0

    def _link(self, kind: int, address: str | None) -> zmq.Socket[Any] | None:
        if address is None:
            return None
        socket = wire.make_socket(self.context, kind)
        if kind == zmq.PULL:
            socket.bind(address)
        else:
            socket.connect(address)
            socket.send(wire.LINK_UP)
        return socket

    def send(self, kind: bytes, message: Any = None) -> None:
        self.control.send_multipart([kind, msgspec.msgpack.encode(wire.Empty() if message is None else message)])

    # ------------------------------------------------------------ start

    def load(self) -> None:
        """Load the layers, report what they take, and make the cache that the core decides on."""
        from paceline.pipeline.stage import StageRunner

        config, engine = self.config, self.config.engine
        self.send(wire.HELLO)
        checkpoint = open_model(engine, Path(config.model_path))
        model = load_stage(
            engine,
            checkpoint,
            (config.first_layer, config.last_layer),
            config.max_model_len,
            now_and_then(lambda done: self.send(wire.PROGRESS, wire.Progress("loading weights", done))),
        )
        cache_dtype = torch_dtype(resolved_cache_dtype(engine))
        bytes_per_block = model.cache_bytes_per_block(engine.block_size, cache_dtype)
        self.send(
            wire.LOADED,
            wire.Loaded(model.weight_bytes, bytes_per_block, self._free_memory(), resolved_dtype(engine)),
        )
        kind, payload = self.control.recv_multipart()
        if kind != wire.MAKE_CACHE:
            end(0)
        model.allocate_cache(wire.decode(payload, wire.MakeCache, "cache").num_blocks, engine.block_size, cache_dtype)
        self.hidden_size = checkpoint.spec.hidden_size
        self.runner = StageRunner(model, engine.block_size)
        for socket in (self.link_in, self.tokens_in):
            if socket is not None:
                self._await_link(socket)
        self.send(wire.READY)

    def _await_link(self, socket: zmq.Socket[Any]) -> None:
        """Wait until the stage at the other end is connected; the folder with the sockets goes away after that."""
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        if socket not in dict(poller.poll()):
            end(0)  # the parent closed standard input
        if socket.recv() != wire.LINK_UP:
            raise PipelineError("another stage began with something else than a greeting")

    def _free_memory(self) -> int:
        if self.config.engine.device == "cuda":
            import torch

            return torch.cuda.mem_get_info()[0]
        return available_memory()

    # ------------------------------------------------------------ the loop

    def serve(self) -> None:
        """Compute batches until told to stop, or until the parent closes standard input."""
        poller = zmq.Poller()
        poller.register(self.control, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        for socket in (self.link_in, self.tokens_in):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        while True:
            events = dict(poller.poll(0 if self._can_compute() else None))
            if sys.stdin.fileno() in events:
                return
            if self.control in events and not self._take_plans():
                return
            if self.link_in is not None and self.link_in in events:
                self._take_inputs()
            if self.tokens_in is not None and self.tokens_in in events:
                self._take_tokens(self.tokens_in)
            if self._can_compute():
                self._compute()

    def _can_compute(self) -> bool:
        if not self.plans or (self.link_in is not None and not self.inputs):
            return False
        return self.runner.can_execute(self.plans[0][0])

    def _take_plans(self) -> bool:
        """Queue the plans that are there; False when told to stop."""
        while self.control.poll(0):
            kind, payload = self.control.recv_multipart()
            if kind == wire.STOP:
                return False
            if kind == wire.PING:
                self.send(wire.PONG, wire.Pong(wire.decode(payload, wire.Ping, "ping").sent, time.monotonic()))
            else:
                self.plans.append((wire.decode(payload, Plan, "plan"), time.monotonic()))
        return True

    def _take_inputs(self) -> None:
        from paceline.pipeline.link import receive_hidden

        assert self.link_in is not None
        while self.link_in.poll(0):
            header, hidden = receive_hidden(self.link_in, self.hidden_size)
            self.inputs.append((header, hidden, time.monotonic()))

    def _take_tokens(self, socket: zmq.Socket[Any]) -> None:
        while socket.poll(0):
            self.runner.take_looped(wire.decode(socket.recv(), LoopedTokens, "loop-back"))
            self.tokens_received = time.monotonic()

    def _compute(self) -> None:
        from paceline.pipeline.link import check_belongs, send_hidden

        plan, plan_received = self.plans.popleft()
        hidden, passed = None, []
        runs_ahead = any(slice_.runs_ahead for slice_ in plan.slices)
        input_received = max(plan_received, self.tokens_received) if runs_ahead else plan_received
        if self.link_in is not None:
            header, hidden, input_received = self.inputs.popleft()
            check_belongs(plan, header)
            passed = header.times
        started, cpu = time.monotonic(), self._cpu_seconds()
        out = self.runner.execute(plan, hidden)
        finished, cpu = time.monotonic(), self._cpu_seconds() - cpu
        if not isinstance(out, list):
            out = out.to("cpu").contiguous()
        sent = time.monotonic()
        times = [*passed, StageTimes(self.config.stage, plan_received, input_received, started, finished, cpu, sent)]
        if isinstance(out, list):
            self._loop_back(plan, out)
            self.send(wire.RESULT, BatchResult(plan.epoch, plan.batch, out, times))
        else:
            assert self.link_out is not None
            send_hidden(self.link_out, plan, out, times)

    def _loop_back(self, plan: Plan, sampled: list[SampledToken]) -> None:
        """Hand the tokens to the first stage, which may be this one; before the core hears of them."""
        if not self.config.engine.loop_back:
            return
        tokens = looped_tokens(plan, sampled)
        if self.tokens_out is None:
            self.runner.take_looped(tokens)
        elif tokens.tokens:
            self.tokens_out.send(msgspec.msgpack.encode(tokens))

    def _cpu_seconds(self) -> float:
        return time.thread_time() if self.config.threads == 1 else time.process_time()


def main() -> None:
    end_with_parent()
    config = msgspec.json.decode(read_config(), type=wire.WorkerConfig)
    if config.cpus:
        os.sched_setaffinity(0, config.cpus)
    # OpenMP reads these when torch loads it, so they come first.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(config.threads)
    # Between steps the cores belong to the other processes; torch's many small products want threads that wait actively.
    if config.engine.linear_backend != "torch":
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    worker = Worker(config)
    try:
        import torch

        torch.set_num_threads(config.threads)
        worker.load()
        worker.serve()
        worker.runner.show_profile(config.stage)
    except Exception as error:  # the one place where a stage's failure becomes a message
        if not isinstance(error, PacelineError):
            traceback.print_exc()
        text = str(error) if isinstance(error, PacelineError) else f"{type(error).__name__}: {error}"
        worker.control.setsockopt(zmq.LINGER, 1000)
        worker.send(wire.FAILED, wire.Failed(text))
        worker.context.destroy(linger=1000)
        end(1)
    worker.context.destroy(linger=0)
    end(0)


if __name__ == "__main__":
    main()
