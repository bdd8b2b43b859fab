"""A line about throughput and the pipeline every few seconds while there is some work, and silence otherwise."""

from __future__ import annotations

import asyncio
import logging

from paceline.server.state import ServerState

logger = logging.getLogger(__name__)


FOLLOW_SECONDS = 10.0


async def log_stats(state: ServerState, interval: float) -> None:
    """Log until cancelled; `interval` in seconds, 0 for never. The pipeline's metrics are kept up to date all the same."""
    prompt, generated = state.metrics.prompt_tokens, state.metrics.generation_tokens
    while True:
        await asyncio.sleep(interval or FOLLOW_SECONDS)
        await state.follow_pipeline()
        now_prompt, now_generated = state.metrics.prompt_tokens, state.metrics.generation_tokens
        stats = state.served.engine.stats if state.served is not None else None
        if not interval or stats is None or (not state.active and (now_prompt, now_generated) == (prompt, generated)):
            continue
        queries = stats.prefix_cache_queries
        logger.info(
            "prompt %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, KV cache %.1f%%, prefix hits %.1f%%, %s",
            (now_prompt - prompt) / interval,
            (now_generated - generated) / interval,
            stats.num_running,
            stats.num_waiting,
            100 * stats.num_blocks_used / stats.num_blocks,
            100 * stats.prefix_cache_hits / queries if queries else 0.0,
            _pipeline(state),
        )
        prompt, generated = now_prompt, now_generated


def _pipeline(state: ServerState) -> str:
    pipeline = state.metrics.pipeline
    if pipeline is None or pipeline.bubble is None or pipeline.imbalance is None:
        return "bubble -, imbalance -"
    return f"bubble {pipeline.bubble:.1%}, imbalance {pipeline.imbalance:.2f}"
