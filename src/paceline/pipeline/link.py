"""Activations from one stage to the next: a header, then the raw bytes of the hidden states."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
import zmq
from torch import Tensor

from paceline.errors import PipelineError
from paceline.messages import ActivationHeader, Plan, StageTimes
from paceline.pipeline.wire import decode

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def send_hidden(socket: zmq.Socket[Any], plan: Plan, hidden: Tensor, times: list[StageTimes]) -> None:
    """Send [T, H]; the tensor must not be changed afterwards (its memory is handed over without a copy)."""
    on_cpu = hidden.to("cpu").contiguous()
    header = ActivationHeader(plan.epoch, plan.batch, (on_cpu.shape[0], on_cpu.shape[1]), _NAMES[on_cpu.dtype], times)
    raw = on_cpu.view(torch.uint8).numpy().data
    socket.send(msgspec.msgpack.encode(header), zmq.SNDMORE)
    socket.send(raw, 0, copy=False)


def receive_hidden(socket: zmq.Socket[Any], hidden_size: int) -> tuple[ActivationHeader, Tensor]:
    """One batch's hidden states.

    Raises:
        PipelineError: header and bytes do not belong together.
    """
    frames = socket.recv_multipart(copy=False)
    if len(frames) != 2:
        raise PipelineError(f"an activation came in {len(frames)} frames instead of 2")
    header = decode(frames[0].buffer, ActivationHeader, "activation")
    rows, columns = header.shape
    dtype = _DTYPES.get(header.dtype)
    if dtype is None or columns != hidden_size or rows * columns * dtype.itemsize != len(frames[1].buffer):
        raise PipelineError(f"an activation of {header.shape} {header.dtype} came in {len(frames[1].buffer)} bytes")
    # A copy into memory of our own: the layers add to the hidden states in place.
    return header, torch.frombuffer(bytearray(frames[1].buffer), dtype=dtype).view(rows, columns)


def check_belongs(plan: Plan, header: ActivationHeader) -> None:
    """Stages are first-in first-out, so the oldest plan and the oldest activation are of the same batch.

    Raises:
        PipelineError: they are not.
    """
    rows = sum(slice_.num_tokens for slice_ in plan.slices)
    if (header.epoch, header.batch, header.shape[0]) != (plan.epoch, plan.batch, rows):
        raise PipelineError(f"batch {plan.batch} has {rows} rows, and the activation of batch {header.batch} came")
