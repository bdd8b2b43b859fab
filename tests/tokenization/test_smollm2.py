"""Every string on which two independent implementations agree, and conversations with known prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.sampling_params import SamplingParams
from paceline.tokenization import Tokenizer
from paceline.tokenization.detokenizer import Detokenizer

DATA = Path(__file__).parents[1] / "data" / "tokenizer"
SETTINGS = settings(max_examples=300, deadline=None)


def test_every_known_string(smollm2_tokenizer: Tokenizer) -> None:
    lines = (DATA / "smollm2.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 360
    for line in lines:
        case = json.loads(line)
        assert smollm2_tokenizer.encode(case["text"], add_special_tokens=False) == case["ids"], case["text"]
        plain = smollm2_tokenizer.encode(case["text"], add_special_tokens=False, allow_special=False)
        assert plain == case["ids_special_as_text"], case["text"]


def test_every_known_conversation(smollm2_tokenizer: Tokenizer) -> None:
    for line in (DATA / "smollm2_chat.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        from_user = case["messages"][-1]["role"] == "user"
        text = smollm2_tokenizer.apply_chat_template(case["messages"], add_generation_prompt=from_user)
        assert text == case["text"]


@pytest.fixture(scope="module")
def known_bytes(smollm2_tokenizer: Tokenizer) -> frozenset[int]:
    """The vocabulary lacks a few bytes that hardly any character in use has; nothing can bring those back."""
    pieces = map(smollm2_tokenizer.token_bytes, range(smollm2_tokenizer.vocab_size))
    return frozenset(piece[0] for piece in pieces if len(piece) == 1)


@SETTINGS
@given(st.text())
def test_round_trip(smollm2_tokenizer: Tokenizer, known_bytes: frozenset[int], text: str) -> None:
    valid = text.encode("utf-8", "replace").decode("utf-8")
    assume(known_bytes.issuperset(valid.encode()))
    ids = smollm2_tokenizer.encode(text, add_special_tokens=False)
    assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == valid


@SETTINGS
@given(st.lists(st.integers(0, 49151) | st.integers(0, 300), max_size=40), st.booleans())
def test_pieces_make_the_whole(smollm2_tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    detokenizer = Detokenizer(smollm2_tokenizer, [], SamplingParams(skip_special_tokens=skip))
    pieces = [detokenizer.push([token], False) for token in ids]
    pieces.append(detokenizer.push([], True))
    assert "".join(pieces) == smollm2_tokenizer.decode(ids, skip_special_tokens=skip)


@SETTINGS
@given(st.text(alphabet="äß€😀a", min_size=1, max_size=12))
def test_no_replacement_character_for_part_of_a_character(smollm2_tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(smollm2_tokenizer, [], SamplingParams())
    ids = smollm2_tokenizer.encode(text, add_special_tokens=False)
    pieces = [detokenizer.push([token], False) for token in ids]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_prompt_that_ends_within_a_character_is_not_repeated(smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode("x😀", add_special_tokens=False)
    cut = next(i for i in range(len(ids)) if "\ufffd" in smollm2_tokenizer.decode(ids[:i]))
    detokenizer = Detokenizer(smollm2_tokenizer, ids[:cut], SamplingParams())
    assert detokenizer.push(ids[cut:], True) == "😀"


def stopped(whole: str, stops: tuple[str, ...], keep: bool) -> tuple[str, str | None]:
    """What a stop string leaves of a text: the one that ends first counts, and of several the one that began first."""
    ends = [(whole.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in whole]
    if not ends:
        return whole, None
    end, _, stop = min(ends)
    return whole[: end if keep else end - len(stop)], stop


@SETTINGS
@given(
    st.text(alphabet="ab ", max_size=30),
    st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
)
def test_stop_strings(smollm2_tokenizer: Tokenizer, text: str, stops: list[str], keep: bool) -> None:
    sampling = SamplingParams(stop=tuple(stops), include_stop_str_in_output=keep)
    detokenizer = Detokenizer(smollm2_tokenizer, [], sampling)
    ids = smollm2_tokenizer.encode(text, add_special_tokens=False)
    shown = ""
    for i, token in enumerate(ids):
        shown += detokenizer.push([token], i + 1 == len(ids))
        so_far = smollm2_tokenizer.decode(ids[: i + 1])
        if detokenizer.stopped_by is not None:
            assert detokenizer.num_tokens == i + 1
            break
        # Nothing is held back longer than it may still become a stop string.
        held = so_far[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
    assert (shown, detokenizer.stopped_by) == stopped(text, tuple(stops), keep)
