"""Activations between two sockets of one process: what arrives is what was sent, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
import zmq

from paceline.errors import PipelineError
from paceline.messages import ActivationHeader, Plan, StageTimes
from paceline.pipeline import wire
from paceline.pipeline.link import check_belongs, receive_hidden, send_hidden
from tests.pipeline.tiny import PlanMaker

Sockets = tuple[zmq.Socket[Any], zmq.Socket[Any]]
TIMES = [StageTimes(0, 1.0, 2.0, 3.0, 4.0, 0.5)]


@pytest.fixture
def link() -> Iterator[Sockets]:
    folder, context = wire.SocketFolder(), zmq.Context()
    receiver, sender = wire.make_socket(context, zmq.PULL), wire.make_socket(context, zmq.PUSH)
    receiver.setsockopt(zmq.RCVTIMEO, 10_000)
    receiver.bind(folder.address("link"))
    sender.connect(folder.address("link"))
    yield receiver, sender
    context.destroy(linger=0)
    folder.close()


def plan_of(rows: int) -> Plan:
    return PlanMaker(blocks_each=4096).plan([(0, [1] * rows, True)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 3, 700])  # the last is large enough to travel without a copy
def test_round_trip_is_bitwise(link: Sockets, dtype: torch.dtype, rows: int) -> None:
    receiver, sender = link
    hidden = torch.randn(rows, 48).to(dtype)
    hidden[0, 0] = float("nan")
    send_hidden(sender, plan_of(rows), hidden, TIMES)
    header, arrived = receive_hidden(receiver, 48)
    assert (header.epoch, header.batch, header.shape, header.times) == (0, 0, (rows, 48), TIMES)
    assert arrived.dtype == dtype
    assert torch.equal(arrived.view(torch.uint8), hidden.view(torch.uint8))
    arrived.add_(1)  # memory of its own: layers work in place


def test_a_view_is_sent_in_row_order(link: Sockets) -> None:
    receiver, sender = link
    hidden = torch.arange(12.0).view(4, 3).T
    send_hidden(sender, plan_of(3), hidden, [])
    assert torch.equal(receive_hidden(receiver, 4)[1], hidden)


@pytest.mark.parametrize(
    ("shape", "dtype", "num_bytes"),
    [
        ((2, 3), "float32", 23),
        ((2, 3), "float32", 25),
        ((2, 4), "float32", 32),  # another hidden size
        ((2, 3), "int64", 48),
        ((2, 3), "float16", 24),
        ((-2, -3), "float32", 24),
        ((1 << 60, 3), "float32", 24),
    ],
)
def test_bytes_that_do_not_fit_the_header_are_refused(
    link: Sockets, shape: tuple[int, int], dtype: str, num_bytes: int
) -> None:
    receiver, sender = link
    header = ActivationHeader(0, 0, shape, dtype, [])
    sender.send_multipart([msgspec.msgpack.encode(header), bytes(num_bytes)])
    with pytest.raises(PipelineError, match="activation"):
        receive_hidden(receiver, 3)


@pytest.mark.parametrize("frames", [[b"x"], [b"\xc1", b""], [b"", b"", b""], [msgspec.msgpack.encode([1, 2]), b""]])
def test_damaged_frames_are_refused(link: Sockets, frames: list[bytes]) -> None:
    receiver, sender = link
    sender.send_multipart(frames)
    with pytest.raises(PipelineError, match="activation"):
        receive_hidden(receiver, 3)


@pytest.mark.parametrize(("epoch", "batch", "rows"), [(1, 0, 5), (0, 1, 5), (0, 0, 4)])
def test_an_activation_of_another_batch_is_refused(epoch: int, batch: int, rows: int) -> None:
    plan = plan_of(5)
    check_belongs(plan, ActivationHeader(0, 0, (5, 8), "float32", []))
    with pytest.raises(PipelineError, match="batch 0 has 5 rows"):
        check_belongs(plan, ActivationHeader(epoch, batch, (rows, 8), "float32", []))
