"""A line about throughput every few seconds while there is some, and silence otherwise."""

from __future__ import annotations

import asyncio
import logging

from paceline.server.state import ServerState

logger = logging.getLogger(__name__)


async def log_stats(state: ServerState, interval: float) -> None:
    """Log until cancelled; `interval` in seconds, 0 for never."""
    if interval <= 0:
        return
    prompt, generated = state.metrics.prompt_tokens, state.metrics.generation_tokens
    while True:
        await asyncio.sleep(interval)
        now_prompt, now_generated = state.metrics.prompt_tokens, state.metrics.generation_tokens
        stats = state.served.engine.stats if state.served is not None else None
        if stats is None or (not state.active and (now_prompt, now_generated) == (prompt, generated)):
            continue
        queries = stats.prefix_cache_queries
        logger.info(
            "prompt %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, KV cache %.1f%%, prefix hits %.1f%%",
            (now_prompt - prompt) / interval,
            (now_generated - generated) / interval,
            stats.num_running,
            stats.num_waiting,
            100 * stats.num_blocks_used / stats.num_blocks,
            100 * stats.prefix_cache_hits / queries if queries else 0.0,
        )
        prompt, generated = now_prompt, now_generated
