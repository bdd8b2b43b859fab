"""Tokenizers from GGUF metadata, against the tokenizers that the metadata was made from.

Byte-level vocabularies are compared with the `tokenizers` library under the patterns that models were published with.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from paceline.errors import ModelError
from paceline.tokenization.from_gguf import tokenizer_from_metadata
from paceline.tokenization.pretokenizers import _SCHEMES, pre_tokenizer, scheme_named
from tests.tokenization.corpus import CONTROL, EXTRA, TEXTS, byte_level

# As their tokenizer.json files have them.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def published(pattern: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


PUBLISHED = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": published(LLAMA3),
    "qwen2": published(QWEN2),
}


def byte_level_metadata(pre: str | None, cut: pre_tokenizers.PreTokenizer) -> tuple[dict[str, Any], Any]:
    """Metadata as a converter writes it, and the tokenizer that it was made from."""
    backend = byte_level(cut, ignore_merges=pre == "llama-bpe")
    tokens = [backend.id_to_token(index) for index in range(backend.get_vocab_size())]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [{CONTROL: 3, "<bos>": 3, EXTRA: 4}.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": backend.token_to_id("<bos>"),
        "tokenizer.ggml.eos_token_id": backend.token_to_id(CONTROL),
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}",
        "tokenizer.chat_template.tool_use": "tools",
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata, backend


@pytest.mark.parametrize("pre", sorted(PUBLISHED))
def test_byte_level_tokens(pre: str) -> None:
    metadata, backend = byte_level_metadata(pre, PUBLISHED[pre])
    tokenizer = tokenizer_from_metadata(metadata)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == backend.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("pre", sorted(_SCHEMES))
def test_every_scheme_keeps_every_character(pre: str) -> None:
    for text in TEXTS:
        cut = pre_tokenizer(scheme_named(pre)).pre_tokenize_str(text)
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert "".join(word for word, _ in cut) == "".join(word for word, _ in spelled)


@pytest.mark.parametrize(
    ("pre", "written", "expected"),
    [
        ("llama-bpe", None, True),  # the scheme's models expect it
        ("smollm", None, False),
        ("llama-bpe", False, False),  # the file's word is final
        ("smollm", True, True),
    ],
)
def test_bos(pre: str, written: bool | None, expected: bool) -> None:
    metadata, _ = byte_level_metadata(pre, PUBLISHED[pre])
    if written is not None:
        metadata["tokenizer.ggml.add_bos_token"] = written
    tokenizer = tokenizer_from_metadata(metadata)
    assert (tokenizer.encode("a")[:1] == [tokenizer.bos_token_id]) == expected
    assert tokenizer.encode("a", add_special_tokens=False)[0] != tokenizer.bos_token_id


def test_control_and_added_tokens() -> None:
    metadata, _ = byte_level_metadata("gpt-2", PUBLISHED["gpt-2"])
    tokenizer = tokenizer_from_metadata(metadata)
    end, extra = tokenizer.encode(CONTROL, False)[0], tokenizer.encode(EXTRA, False)[0]
    assert (tokenizer.is_special(end), tokenizer.is_special(extra)) == (True, False)
    assert tokenizer.decode([end, extra]) == EXTRA
    plain = tokenizer.encode(CONTROL + EXTRA, False, allow_special=False)
    assert end not in plain
    assert plain[-1] == extra


def test_templates() -> None:
    metadata, _ = byte_level_metadata("gpt-2", PUBLISHED["gpt-2"])
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}]) == "<bos>a"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tools=[{}]) == "tools"


def test_ids_outside_the_vocabulary_are_no_text() -> None:
    metadata, _ = byte_level_metadata("gpt-2", PUBLISHED["gpt-2"])
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.decode([-1, tokenizer.vocab_size, 10**9, *tokenizer.encode("a", False)]) == "a"


def test_every_end_of_turn_ends_an_answer() -> None:
    metadata, _ = byte_level_metadata("gpt-2", PUBLISHED["gpt-2"])
    metadata["tokenizer.ggml.eot_token_id"] = 7
    end = metadata["tokenizer.ggml.eos_token_id"]
    assert tokenizer_from_metadata(metadata).eos_token_ids == (end, 7)
    tokens = [*metadata["tokenizer.ggml.tokens"], "<|eot_id|>", "<|im_end|>"]
    types = [*metadata["tokenizer.ggml.token_type"], 3, 1]
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert tokenizer_from_metadata(metadata).eos_token_ids == (end, 7, len(tokens) - 2)


def test_a_file_that_names_no_scheme_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    metadata, _ = byte_level_metadata(None, PUBLISHED["gpt-2"])
    with caplog.at_level(logging.WARNING):
        tokenizer = tokenizer_from_metadata(metadata)
    assert "does not name its pre-tokenizer" in caplog.text
    assert tokenizer.decode(tokenizer.encode("it's 12345!")) == "it's 12345!"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tokenizer.ggml.pre": "unheard-of"}, r"'unheard-of'.*--tokenizer"),
        ({"tokenizer.ggml.model": "bert"}, r"'bert'.*--tokenizer"),
        ({"tokenizer.ggml.model": None}, "no tokenizer"),
        ({"tokenizer.ggml.tokens": []}, "no tokenizer"),
        ({"tokenizer.ggml.token_type": [1]}, "token types"),
        ({"tokenizer.ggml.merges": ["ab"]}, "no pair"),
        ({"tokenizer.ggml.merges": ["not there"]}, "do not fit"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "outside its vocabulary"),
        ({"tokenizer.ggml.bos_token_id": -1}, "outside its vocabulary"),
        ({"tokenizer.ggml.model": "llama"}, "scores"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokens is not a list of the right kind"),
        ({"tokenizer.ggml.merges": "a b"}, "merges is not a list of the right kind"),
    ],
)
def test_what_cannot_be_used(change: dict[str, Any], problem: str) -> None:
    metadata, _ = byte_level_metadata("gpt-2", PUBLISHED["gpt-2"])
    with pytest.raises(ModelError, match=problem):
        tokenizer_from_metadata({**metadata, **change})
