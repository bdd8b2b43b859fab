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
from paceline.errors import ConfigError
from paceline.messages import CoreProgress
from paceline.server.sampling import SamplingDefaults
from paceline.server.state import Served
from paceline.tokenization import Tokenizer, load_tokenizer
from paceline.weights.checkpoint import Checkpoint, open_checkpoint
from paceline.weights.source import ModelFiles, resolve

logger = logging.getLogger(__name__)

T = TypeVar("T")


def find_model(config: EngineConfig) -> tuple[ModelFiles, Checkpoint, Tokenizer]:
    """The model's files, its headers and its tokenizer; blocks, perhaps for a download.

    Raises:
        ModelError: something is missing or damaged.
    """
    where = {"revision": config.revision, "download_dir": config.download_dir}
    files = resolve(config.model, offline=config.offline, **where)
    checkpoint = open_checkpoint(files.path, config.load_format, config.seed)
    path = files.path
    if config.tokenizer is not None:
        path = resolve(config.tokenizer, offline=config.offline, **where).path
    return files, checkpoint, load_tokenizer(path)


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
    files, checkpoint, tokenizer = await _in_background(lambda: find_model(engine_config))
    template = _template(server_config.chat_template)
    eos = tuple(sorted({*checkpoint.generation_config["eos_token_id"], *tokenizer.eos_token_ids}))
    engine = AsyncEngine(engine_config, files.path, eos)
    waiting_for("starting the stages")
    info = await engine.start(_Progress(waiting_for, engine_config.pipeline_parallel_size))
    use_own = server_config.generation_config == "auto"
    defaults = SamplingDefaults.from_generation_config(checkpoint.generation_config) if use_own else SamplingDefaults()
    vocab_size = min(tokenizer.vocab_size, checkpoint.spec.vocab_size)
    served = Served(
        engine=engine,
        tokenizer=tokenizer,
        info=info,
        vocab_size=vocab_size,
        names=engine_config.served_model_name or (files.name,),
        defaults=defaults,
        chat_template=template,
        longest_token=max(len(tokenizer.token_bytes(token)) for token in range(vocab_size)),
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
