"""An event loop in a thread of its own, for callers that have none, or that must not use theirs (a notebook)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines one caller at a time or several at once; may be used from any thread but its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, or its exception.

        If the caller is interrupted while it waits (Ctrl-C), the coroutine is cancelled and has cleaned up before the
        interruption goes on.
        """
        tasks: list[asyncio.Task[T]] = []
        ended = threading.Event()

        def start() -> None:
            if not tasks:
                tasks.append(self._loop.create_task(coroutine))
                tasks[0].add_done_callback(lambda task: ended.set())

        def cancel() -> None:
            start()  # the interruption may have come before anything was started
            tasks[0].cancel()

        try:
            self._loop.call_soon_threadsafe(start)
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(cancel)
            ended.wait()
            tasks[0].cancelled() or tasks[0].exception()  # seen, so that the loop does not report it as forgotten
            raise
        return tasks[0].result()

    def close(self) -> None:
        """Cancel what still runs, and end the thread. May be called twice."""
        if self._loop.is_closed():
            return
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
