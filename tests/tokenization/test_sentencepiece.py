"""SentencePiece vocabularies, from GGUF and from tokenizer.model, against `sentencepiece` itself."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.errors import ModelError
from paceline.tokenization import Tokenizer, load_tokenizer
from paceline.tokenization.from_gguf import tokenizer_from_metadata
from paceline.tokenization.sentencepiece import Pieces, read_model_file, sentencepiece_backend
from tests.tokenization.corpus import EXTRA, TEXTS, WORDS

SETTINGS = settings(max_examples=300, deadline=None)
Processor = sentencepiece.SentencePieceProcessor


def train(add_dummy_prefix: bool = True, **options: Any) -> bytes:
    """A model with the settings of Llama 2's."""
    model = io.BytesIO()
    settings_of_llama = {
        "model_type": "bpe",
        "vocab_size": 400,
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
        "normalization_rule_name": "identity",
        "split_digits": True,
        "user_defined_symbols": [EXTRA],
        "minloglevel": 3,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS[:4] * 3),
        model_writer=model,
        add_dummy_prefix=add_dummy_prefix,
        **{**settings_of_llama, **options},
    )
    return model.getvalue()


def metadata_of(model: Processor, add_space_prefix: bool) -> dict[str, Any]:
    """What a converter to GGUF writes."""
    ids = range(model.vocab_size())

    def type_of(index: int) -> int:
        kinds = [(model.is_unknown, 2), (model.is_control, 3), (model.is_unused, 5), (model.is_byte, 6)]
        return next((kind for holds, kind in kinds if holds(index)), 4 if model.id_to_piece(index) == EXTRA else 1)

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [model.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": [type_of(index) for index in ids],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **({} if add_space_prefix else {"tokenizer.ggml.add_space_prefix": False}),
    }


def folder_of(data: bytes, folder: Path, **config: Any) -> Path:
    """A folder from before tokenizer.json."""
    (folder / "tokenizer.model").write_bytes(data)
    texts = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**texts, **config}))
    return folder


@pytest.fixture(
    scope="module",
    params=[(True, "gguf"), (False, "gguf"), (True, "folder"), (False, "folder")],
    ids=lambda value: "-".join(map(str, value)),
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Processor]:
    """Our tokenizer, with a space before texts or without, and the SentencePiece model that it is made from."""
    add_space_prefix, source = request.param
    data = train(add_space_prefix)
    model = Processor(model_proto=data)
    if source == "gguf":
        return tokenizer_from_metadata(metadata_of(model, add_space_prefix)), model
    return load_tokenizer(folder_of(data, tmp_path_factory.mktemp("model"))), model


def test_tokens(pair: tuple[Tokenizer, Processor]) -> None:
    tokenizer, model = pair
    for text in TEXTS:
        if EXTRA in text:
            continue
        assert tokenizer.encode(text) == [1, *model.encode(text)], text
        assert tokenizer.decode(tokenizer.encode(text)) == text


@SETTINGS
@example(text="  two  spaces ")
@given(text=st.text(alphabet="the quickbrown foxü12345 \n▁é😀", max_size=40) | st.text(max_size=20))
def test_tokens_of_any_text(pair: tuple[Tokenizer, Processor], text: str) -> None:
    tokenizer, model = pair
    if "\0" in text:
        return  # ends the text for sentencepiece
    valid = text.encode("utf-8", "replace").decode("utf-8")
    assert tokenizer.encode(text, add_special_tokens=False) == model.encode(valid)
    assert tokenizer.decode(tokenizer.encode(text)) == valid.replace("▁", " ")


def test_control_tokens_of_sentencepiece(pair: tuple[Tokenizer, Processor]) -> None:
    tokenizer, model = pair
    assert tokenizer.encode("</s>", False) == [2]
    assert tokenizer.encode("</s>", False, allow_special=False) == model.encode("</s>")
    assert tokenizer.decode([1, *model.encode("the fox"), 2]) == "the fox"
    assert tokenizer.encode("<0x41>", False, allow_special=False) == model.encode("<0x41>")


def test_names_of_the_special_tokens(pair: tuple[Tokenizer, Processor]) -> None:
    tokenizer, model = pair
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (model.bos_id(), (model.eos_id(),))
    assert tokenizer.vocab_size == model.vocab_size()


@pytest.mark.parametrize(("asked", "expected"), [(None, [1]), (True, [1]), (False, [])])
def test_bos_of_a_folder(asked: bool | None, expected: list[int], tmp_path: Path) -> None:
    config = {} if asked is None else {"add_bos_token": asked}
    data = train()
    tokenizer = load_tokenizer(folder_of(data, tmp_path, **config))
    assert tokenizer.encode("the fox") == [*expected, *Processor(model_proto=data).encode("the fox")]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model_type": "unigram", "vocab_size": 310}, "BPE"),
        ({"normalization_rule_name": "nmt_nfkc"}, "normaliser"),
        ({"remove_extra_whitespaces": True}, "normaliser"),
    ],
)
def test_kinds_that_are_not_supported(options: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=problem):
        load_tokenizer(folder_of(train(**options), tmp_path))


@pytest.fixture(scope="module")
def whole_file() -> bytes:
    return train()


@SETTINGS
@given(st.data())
def test_a_damaged_file_is_a_model_error(
    whole_file: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(whole_file)
    for _ in range(data.draw(st.integers(0, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "tokenizer.model"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(ModelError):  # and nothing else
        read_model_file(path)


def test_a_vocabulary_that_cannot_be() -> None:
    with pytest.raises(ModelError, match="2 pieces but 1 scores"):
        sentencepiece_backend(Pieces(["a", "b"], [0.0], [1, 1], True))
    with pytest.raises(ModelError, match="more than"):
        sentencepiece_backend(Pieces(["a" * 2000], [0.0], [1], True))
