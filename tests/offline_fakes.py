"""A deterministic engine under the offline front end."""

from __future__ import annotations

from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.config import EngineConfig
from paceline.engine import offline
from paceline.errors import PacelineError
from paceline.messages import CoreProgress, CoreReady
from tests.server.fakes import EOS, MAX_MODEL_LEN, ByteTokenizer, FakeEngine


class Engine(FakeEngine):
    """With the life of a real one; remembers itself as `Engine.last`."""

    last: Engine
    fails_at_start = ""
    fail_from_start = False

    def __init__(self, config: EngineConfig, path: Any, eos: tuple[int, ...]) -> None:
        super().__init__(lambda prompt: [*bytes(prompt).upper(), *b".", EOS])
        assert eos == (EOS,)
        self.info = CoreReady(64, 16, MAX_MODEL_LEN, 2, [1, 1], "float32")
        self.closes = 0
        self.most_live = 0
        if self.fail_from_start:
            self.fail_after = 0
        Engine.last = self

    @property
    def num_unfinished(self) -> int:
        return len(self.live)

    async def start(self, on_progress: Any) -> None:
        for done in (0.5, 1.0):
            on_progress(CoreProgress(0, "loading weights", done))
        if self.fails_at_start:
            raise PacelineError(self.fails_at_start)

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        async with aclosing(super().generate(*args, **kwargs)) as outputs:
            async for output in outputs:
                self.most_live = max(self.most_live, len(self.live))
                yield output

    async def close(self) -> None:
        self.closes += 1


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every :class:`paceline.engine.offline.OfflineEngine` gets the fake engine and a tokenizer of bytes."""
    model = SimpleNamespace(
        files=SimpleNamespace(path="somewhere", name="fake"),
        tokenizer=ByteTokenizer(),
        eos_token_ids=(EOS,),
        vocab_size=257,
    )
    monkeypatch.setattr(offline, "AsyncEngine", Engine)
    monkeypatch.setattr(offline, "find_model", lambda config: model)
