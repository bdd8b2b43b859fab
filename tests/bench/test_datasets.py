"""Lengths against their distributions, prompts against their lengths, and ShareGPT files."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from paceline.bench.datasets import Lengths, random_samples, read_sharegpt, sharegpt_samples
from paceline.bench.vocabulary import WORDS, Vocabulary
from paceline.errors import ConfigError


async def letters(text: str) -> Sequence[int]:
    return list(text.encode())


IDS = Vocabulary(range(1000), letters)
TEXTS = Vocabulary([], letters)


def test_log_normal_lengths_have_their_median_and_sigma() -> None:
    logs = np.log(Lengths(500, sigma=0.7).draw(50_000, np.random.default_rng(1)))
    assert math.exp(np.median(logs)) == pytest.approx(500, rel=0.02)
    assert logs.std() == pytest.approx(0.7, rel=0.02)
    assert min(Lengths(1, sigma=3.0).draw(1000, np.random.default_rng(1))) == 1


def test_uniform_lengths_fill_their_range() -> None:
    lengths = Lengths(100, spread=0.2).draw(20_000, np.random.default_rng(1))
    assert (min(lengths), max(lengths)) == (80, 120)
    assert np.mean(lengths) == pytest.approx(100, rel=0.01)
    assert set(Lengths(7).draw(100, np.random.default_rng(1))) == {7}


def test_prompts_have_exactly_the_drawn_lengths_and_depend_on_the_seed_alone() -> None:
    load = (20, Lengths(50, sigma=1.0), Lengths(20, sigma=0.5), None)
    samples, cut = random_samples(IDS, *load, seed=3)
    assert cut == 0
    assert [len(sample.prompt) for sample in samples] == [sample.input_len for sample in samples]
    assert len({sample.input_len for sample in samples}) > 5
    assert random_samples(IDS, *load, seed=3)[0] == samples
    assert random_samples(IDS, *load, seed=4)[0] != samples


def test_prompts_as_text_have_as_many_words() -> None:
    samples, _ = random_samples(TEXTS, 5, Lengths(12), Lengths(3), None, seed=0)
    for sample in samples:
        assert isinstance(sample.prompt, str)
        assert len(sample.prompt.split()) == 12
        assert set(sample.prompt.split()) <= set(WORDS)


def test_the_tail_of_a_log_normal_is_cut_to_the_model_and_counted() -> None:
    samples, cut = random_samples(IDS, 300, Lengths(100, sigma=1.5), Lengths(40, sigma=1.0), 200, seed=0)
    assert all(sample.input_len + sample.output_len <= 200 for sample in samples)
    assert all(sample.input_len >= 1 and sample.output_len >= 1 for sample in samples)
    assert 0 < cut < 300
    fixed, cut = random_samples(IDS, 3, Lengths(300), Lengths(40), 200, seed=0)
    assert (fixed[0].input_len, cut) == (300, 0)  # the server refuses it, and the figures show that


def sharegpt(*pairs: tuple[str, ...]) -> str:
    return json.dumps(
        [{"id": "x", "conversations": [{"from": "human", "value": value} for value in pair]} for pair in pairs]
    )


async def test_sharegpt_keeps_what_is_usable(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    file.write_text(
        sharegpt(
            ("a question", "an answer", "more"),
            ("alone",),
            ("hi", "too short a question"),
            ("another question", "no"),
            ("long " * 300, "an answer"),
            ("long " * 200, "answer " * 200),
        )
    )
    pairs = read_sharegpt(file)
    assert len(pairs) == 5
    samples = await sharegpt_samples(pairs, TEXTS, 3, None, seed=0)
    assert [(sample.prompt, sample.input_len, sample.output_len) for sample in samples] == [("a question", 10, 9)] * 3
    fixed = await sharegpt_samples(pairs, TEXTS, 2, 5, seed=0)
    assert {(sample.prompt, sample.output_len) for sample in fixed} == {("a question", 5), ("another question", 5)}


async def test_sharegpt_order_comes_from_the_seed() -> None:
    pairs = [(f"question {i}", "an answer") for i in range(20)]
    orders = [[s.prompt for s in await sharegpt_samples(pairs, TEXTS, 20, None, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


@pytest.mark.parametrize(
    ("content", "words"), [("{", "no ShareGPT file"), ('{"a": 1}', "no ShareGPT file"), (None, "cannot be read")]
)
def test_files_that_are_no_sharegpt(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "data.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_sharegpt(file)


async def test_a_file_without_usable_conversations() -> None:
    with pytest.raises(ConfigError, match="no conversation of usable length"):
        await sharegpt_samples([("a", "b")], TEXTS, 3, None, seed=0)
