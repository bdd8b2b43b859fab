"""Fixtures that many tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from paceline.tokenization import Tokenizer, load_tokenizer
from paceline.weights.source import pull

# A busy machine is no finding: nothing in the tests depends on how long an example takes.
settings.register_profile("paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("paceline")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real default model's file; fetched once into the user's cache."""
    return pull("smollm2")


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(smollm2_gguf)


@pytest.fixture(autouse=True)
def ctrl_c_interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started in the background and inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
