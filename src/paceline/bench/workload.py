"""Prompts for measuring: random tokens of exact length, the same for the same seed."""

from __future__ import annotations

import random
import secrets

from paceline.engine.offline import Job
from paceline.sampling_params import SamplingParams
from paceline.tokenization import Tokenizer


def plain_tokens(tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """Token ids that mean nothing special to the model."""
    return [token for token in range(vocab_size) if not tokenizer.is_special(token)]


def random_jobs(tokens: list[int], num_prompts: int, input_len: int, output_len: int, seed: int) -> list[Job]:
    """Greedy jobs of exactly these lengths: ends of sequence are ignored."""
    draw = random.Random(seed)
    sampling = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, seed=0)
    return [Job(draw.choices(tokens, k=input_len), sampling) for _ in range(num_prompts)]


def warm_up_jobs(tokens: list[int], num_prompts: int, input_len: int, output_len: int) -> list[Job]:
    """Jobs whose prompts no measured run has: drawn anew each time, so that they warm everything but its prefixes."""
    return random_jobs(tokens, num_prompts, input_len, output_len, secrets.randbits(64))
