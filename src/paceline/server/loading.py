"""From options to a served model: files, tokenizer, engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from paceline.config import EngineConfig, ServerConfig
from paceline.engine.client import AsyncEngine
from paceline.engine.model_files import find_model
from paceline.errors import ConfigError
from paceline.messages import CoreProgress
from paceline.server.sampling import SamplingDefaults
from paceline.server.state import Served

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def load(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    waiting_for: Callable[[str], None],
) -> tuple[AsyncEngine, Served]:
    """Start everything that serving needs; `waiting_for` is told what it waits for.

    Raises:
        PacelineError: why it cannot start; nothing is left running.
    """
    waiting_for("finding the model's files")
    model = await _in_background(lambda: find_model(engine_config))
    template = _template(server_config.chat_template)
    engine = AsyncEngine(engine_config, model.files.path, model.eos_token_ids)
    waiting_for("starting the stages")
    info = await engine.start(_Progress(waiting_for, engine_config.pipeline_parallel_size))
    use_own = server_config.generation_config == "auto"
    own = model.checkpoint.generation_config if use_own else {}
    if own.get("repetition_penalty", 1) not in (1, None):
        logger.warning("the model's default repetition_penalty is not available yet and has no effect")
    served = Served(
        engine=engine,
        tokenizer=model.tokenizer,
        info=info,
        vocab_size=model.vocab_size,
        names=engine_config.served_model_name or (model.files.name,),
        defaults=SamplingDefaults.from_generation_config(own),
        chat_template=template,
        longest_token=max(len(model.tokenizer.token_bytes(token)) for token in range(model.vocab_size)),
    )
    return engine, served


async def _in_background(work: Callable[[], T]) -> T:
    """Run blocking `work`; unlike one of the loop's own threads, this one does not hold up the end of the program."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not result.done():  # else nobody waits any more
            set_outcome(outcome)

    def thread() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the program ends
            try:
                value = work()
            except Exception as error:
                loop.call_soon_threadsafe(settle, result.set_exception, error)
            else:
                loop.call_soon_threadsafe(settle, result.set_result, value)

    threading.Thread(target=thread, daemon=True).start()
    return await result


def _template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("chat_template", path, f"cannot be read ({error})", "Give a readable text file.") from error


class _Progress:
    """Tells which stages are still loading, and logs when each is done."""

    def __init__(self, waiting_for: Callable[[str], None], num_stages: int) -> None:
        self._waiting_for = waiting_for
        self._done = dict.fromkeys(range(num_stages), 0.0)
        self._started = asyncio.get_running_loop().time()

    def __call__(self, progress: CoreProgress) -> None:
        if progress.stage not in self._done:
            return
        if progress.done >= 1.0 > self._done[progress.stage]:
            seconds = asyncio.get_running_loop().time() - self._started
            logger.info("stage %d: weights loaded after %.1f s", progress.stage, seconds)
        self._done[progress.stage] = progress.done
        late = [f"stage {stage}: loading weights {done:.0%}" for stage, done in self._done.items() if done < 1.0]
        self._waiting_for(", ".join(late) or "making the KV cache")
