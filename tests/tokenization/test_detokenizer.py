"""Text that comes token by token, against detokenizing everything at once.

The tokens here are arbitrary bytes, so that characters are cut in every possible way.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.sampling_params import SamplingParams
from paceline.tokenization.detokenizer import Detokenizer

SETTINGS = settings(max_examples=500, deadline=None)


class Bytes:
    """Every token stands for the bytes given; some are control tokens."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int] = (), strips_first_space: bool = False) -> None:
        self.tokens = tokens
        self.special = special
        self.strips_first_space = strips_first_space
        self.asked = 0

    def token_bytes(self, token_id: int) -> bytes:
        self.asked += 1
        return self.tokens[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


CHARACTERS = st.text(alphabet=" a€😀ß", max_size=4).map(lambda text: text.encode())
PARTS = st.sampled_from(
    [b"\xe2", b"\x82", b"\xac", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xc3", b"\x9f", b" ", b"\xff", b""]
)
TOKENS = st.lists(CHARACTERS | PARTS, max_size=12)


def unfinished(data: bytes) -> bytes:
    """The bytes at the end that more bytes could make into a character."""
    for size in (3, 2, 1):
        tail = data[-size:]
        try:
            tail.decode("utf-8")
        except UnicodeDecodeError as error:
            if len(tail) == size and error.start == 0 and error.reason == "unexpected end of data":
                return tail
    return b""


def expected(prompt: bytes, output: bytes, strips_first_space: bool) -> str:
    """What the output adds to the text of the prompt."""
    if strips_first_space and prompt:
        prompt = b"x" + prompt[1:]  # whatever the first byte was, the output is not at the start of the text
        strips_first_space = False
    if strips_first_space and output.startswith(b" "):
        output = output[1:]
    tail = unfinished(prompt)
    goes_on = tail and output and unfinished(tail + output[:1]) == tail + output[:1]
    if tail and output and not goes_on:
        try:
            (tail + output[:1]).decode("utf-8")
            goes_on = True
        except UnicodeDecodeError:
            goes_on = False
    return ((tail if goes_on else b"") + output).decode("utf-8", "replace")


def pieces(detokenizer: Detokenizer, ids: Sequence[int], sizes: Sequence[int]) -> list[str]:
    """Push the tokens in groups, and the end by itself."""
    texts, at = [], 0
    for size in [*sizes, *[1] * len(ids)]:
        texts.append(detokenizer.push(ids[at : at + size], False))
        at += size
    return [*texts, detokenizer.push([], True)]


@SETTINGS
@given(TOKENS, TOKENS, st.booleans(), st.lists(st.integers(0, 4), max_size=6))
@example([b"\xe2\x82"], [b"\xac"], False, [])
@example([b"a\xe2"], [b"b"], False, [])
@example([b" "], [b" a"], True, [])
def test_the_parts_make_the_whole(prompt: list[bytes], output: list[bytes], strips: bool, sizes: list[int]) -> None:
    tokenizer = Bytes([*prompt, *output], strips_first_space=strips)
    if strips and unfinished(b"".join(prompt)) == b"".join(prompt) != b"":
        return  # a text that begins with part of a character has no first space to speak of
    ids = list(range(len(prompt) + len(output)))
    detokenizer = Detokenizer(tokenizer, ids[: len(prompt)], SamplingParams())
    texts = pieces(detokenizer, ids[len(prompt) :], sizes)
    assert "".join(texts) == expected(b"".join(prompt), b"".join(output), strips)
    assert detokenizer.num_tokens == len(output)


@SETTINGS
@given(TOKENS)
def test_everything_is_sent_as_soon_as_it_is_certain(output: list[bytes]) -> None:
    detokenizer = Detokenizer(Bytes(output), [], SamplingParams())
    sent, data = "", b""
    for token, part in enumerate(output):
        sent += detokenizer.push([token], False)
        data += part
        assert sent == data[: len(data) - len(unfinished(data))].decode("utf-8", "replace")


@SETTINGS
@given(TOKENS, st.lists(st.text(alphabet=" a€😀\ufffd", min_size=1, max_size=3), min_size=1, max_size=3), st.booleans())
def test_a_stop_string_ends_the_output(output: list[bytes], stops: list[str], keep: bool) -> None:
    sampling = SamplingParams(stop=tuple(stops), include_stop_str_in_output=keep)
    detokenizer = Detokenizer(Bytes(output), [], sampling)
    text = "".join(pieces(detokenizer, range(len(output)), []))
    whole = b"".join(output).decode("utf-8", "replace")
    ends = [(end, -len(s), s) for s in stops for end in range(len(whole) + 1) if whole[:end].endswith(s)]
    if not ends:
        assert (text, detokenizer.stopped_by) == (whole, None)
        return
    end, _, stop = min(ends)
    assert (text, detokenizer.stopped_by) == (whole[: end if keep else end - len(stop)], stop)
    # As many tokens as it takes until the stop string is certainly there; the end of the output is certain too.
    for count in range(1, len(output) + 1):
        data = b"".join(output[:count])
        certain = data if count == len(output) else data[: len(data) - len(unfinished(data))]
        if stop in certain.decode("utf-8", "replace"):
            assert detokenizer.num_tokens == count
            break


def test_nothing_is_taken_in_after_a_stop_string() -> None:
    detokenizer = Detokenizer(Bytes([b"one ", b"STOP", b" two"]), [], SamplingParams(stop=("STOP",)))
    assert detokenizer.push([0, 1, 2], False) == "one "
    assert detokenizer.push([2], True) == ""
    assert (detokenizer.stopped_by, detokenizer.num_tokens) == ("STOP", 2)


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    detokenizer = Detokenizer(Bytes([b"a\n", b"\nU", b"ser", b"!"]), [], SamplingParams(stop=("\n\nUser:",)))
    assert detokenizer.push([0], False) == "a"
    assert detokenizer.push([1], False) == ""
    assert detokenizer.push([2], False) == ""
    assert detokenizer.push([3], False) == "\n\nUser!"


def test_what_is_held_back_comes_at_the_end() -> None:
    detokenizer = Detokenizer(Bytes([b"a\n", b"\xe2\x82"]), [], SamplingParams(stop=("\n\n",)))
    assert detokenizer.push([0], False) == "a"
    assert detokenizer.push([1], True) == "\n\ufffd"


def test_text_of_the_first_min_tokens_does_not_stop() -> None:
    sampling = SamplingParams(stop=("ab",), min_tokens=2)
    detokenizer = Detokenizer(Bytes([b"ab", b"xa", b"b", b"ab"]), [], sampling)
    assert detokenizer.push([0, 1, 2, 3], True) == "abxab"
    assert detokenizer.num_tokens == 4


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<end>b")])
def test_control_tokens(skip: bool, text: str) -> None:
    tokenizer = Bytes([b"a", b"<end>", b"b"], special=[1])
    detokenizer = Detokenizer(tokenizer, [1], SamplingParams(skip_special_tokens=skip))
    assert detokenizer.push([0, 1, 2], True) == text


def test_a_control_token_is_no_text_before_the_first_space() -> None:
    tokenizer = Bytes([b"<s>", b" a"], special=[0], strips_first_space=True)
    assert Detokenizer(tokenizer, [0], SamplingParams()).push([1], True) == "a"
    assert Detokenizer(tokenizer, [0], SamplingParams(skip_special_tokens=False)).push([1], True) == " a"
    assert Detokenizer(tokenizer, [0, 1], SamplingParams()).push([1], True) == " a"


def test_each_token_is_looked_at_once() -> None:
    tokenizer = Bytes([b"a"] * 5000)
    detokenizer = Detokenizer(tokenizer, range(4000), SamplingParams(stop=("aaab",)))
    before = tokenizer.asked
    assert before <= 4  # of the prompt, no more than a character's worth
    for token in range(4000, 5000):
        detokenizer.push([token], False)
    assert tokenizer.asked - before == 1000
