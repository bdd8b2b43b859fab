"""Coroutines run from a thread without a loop, interruptions included."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from paceline.engine.loop_thread import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


async def value(of):
    await asyncio.sleep(0)
    return of


def test_results_and_exceptions_come_back(thread):
    async def fails():
        raise KeyError("why")

    assert thread.run(value(5)) == 5
    with pytest.raises(KeyError, match="why"):
        thread.run(fails())
    assert thread.run(value(6)) == 6


def test_works_inside_a_running_loop(thread):
    """As in a notebook."""

    async def cell():
        return thread.run(value(7))

    assert asyncio.run(cell()) == 7


def test_several_threads_at_once(thread):
    both_in = asyncio.Barrier(2)

    async def meet(mine):
        await both_in.wait()  # only passed if both run side by side
        return mine

    results = {}
    callers = [threading.Thread(target=lambda i=i: results.update({i: thread.run(meet(i))})) for i in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(20)
    assert results == {0: 0, 1: 1}


def test_an_interrupted_caller_leaves_after_the_coroutine_has_cleaned_up(thread):
    happened = []

    async def work():
        try:
            happened.append("started")
            # As Ctrl-C does: the signal's handler raises KeyboardInterrupt in the main thread, which waits in run().
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            happened.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        thread.run(work())
    assert happened == ["started", "cleaned up"]
    assert thread.run(value("still usable")) == "still usable"


def test_closing_twice_and_with_work_left():
    thread = LoopThread("test")
    ended = []

    async def leave_a_task():
        async def forever():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        return task

    task = thread.run(leave_a_task())
    thread.close()
    thread.close()
    assert ended == [True]
    assert task.cancelled()
