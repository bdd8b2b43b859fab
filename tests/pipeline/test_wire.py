"""Frames and sockets: what is damaged or too large is refused, and the folder is private and short."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import msgspec
import pytest
import zmq

from paceline.errors import PipelineError
from paceline.messages import Plan
from paceline.pipeline import wire
from tests.pipeline.tiny import PlanMaker


def test_the_folder_is_private_and_goes_away() -> None:
    folder = wire.SocketFolder()
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o700
    folder.close()
    folder.close()
    assert not Path(folder.path).exists()


def test_a_long_temporary_folder_still_gives_a_usable_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder, context = wire.SocketFolder(), zmq.Context()
    wire.make_socket(context, zmq.PULL).bind(folder.address("control"))
    context.destroy(linger=0)
    folder.close()


def test_connections_outlive_the_folder() -> None:
    folder, context = wire.SocketFolder(), zmq.Context()
    a, b = wire.make_socket(context, zmq.PAIR), wire.make_socket(context, zmq.PAIR)
    a.bind(folder.address("mail"))
    b.connect(folder.address("mail"))
    b.send(b"here")
    assert a.recv() == b"here"
    folder.close()
    a.send(b"still")
    assert b.recv() == b"still"
    context.destroy(linger=0)


def test_an_oversized_message_never_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 1000)
    folder, context = wire.SocketFolder(), zmq.Context()
    pull = wire.make_socket(context, zmq.PULL)
    pull.bind(folder.address("x"))
    large, small = wire.make_socket(context, zmq.PUSH), wire.make_socket(context, zmq.PUSH)
    events = large.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    large.connect(folder.address("x"))
    large.send(bytes(1001))
    assert events.poll(10_000), "the receiver must hang up on an oversized message"
    small.connect(folder.address("x"))
    small.send(bytes(1000))
    assert pull.poll(10_000)
    assert len(pull.recv()) == 1000
    context.destroy(linger=0)
    folder.close()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"epoch": 0}),
        msgspec.msgpack.encode([0, 0, [], []]),
        msgspec.msgpack.encode([0, "0", [], [], []]),
        msgspec.msgpack.encode([0, 0, [[1, 0, 0, ["1"], True, 0, []]], [], []]),
    ],
)
def test_a_damaged_plan_is_an_error_with_its_name(payload: bytes) -> None:
    with pytest.raises(PipelineError, match="damaged plan"):
        wire.decode(payload, Plan, "plan")


def test_a_plan_survives_the_wire() -> None:
    plan = PlanMaker().plan([(3, [1, 2, 3], True), (1, [4], False)], released=(9,))
    assert wire.decode(msgspec.msgpack.encode(plan), Plan, "plan") == plan


@pytest.mark.parametrize(("seconds", "milliseconds"), [(None, None), (0.0, 0), (0.0001, 1), (0.25, 250)])
def test_timeouts_are_rounded_up(seconds: float | None, milliseconds: int | None) -> None:
    assert wire.milliseconds(seconds) == milliseconds
