"""Folders in Hugging Face's layout, against transformers' own reading of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import AutoTokenizer

from paceline.errors import ModelError, RequestError
from paceline.tokenization import load_tokenizer
from tests.tokenization.corpus import CONTROL, EXTRA, TEXTS, byte_level, sentencepiece_like

BYTE_LEVEL = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": CONTROL}
SENTENCEPIECE = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "__type": "AddedToken"},
    "unk_token": "<unk>",
}
CHAT = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"


def write(folder: Path, backend: Backend | None, settings: dict[str, Any], **files: Any) -> Path:
    """A model's folder; `files` are further JSON files by name."""
    folder.mkdir(exist_ok=True)
    if backend is not None:
        backend.save(str(folder / "tokenizer.json"))
    for name, value in {"tokenizer_config": settings, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "byte-level":
        return write(path, byte_level(), {**BYTE_LEVEL, "chat_template": CHAT})
    return write(path, sentencepiece_like(), {**SENTENCEPIECE, "chat_template": CHAT})


@pytest.mark.parametrize("special", [True, False])
def test_tokens_equal_transformers(folder: Path, special: bool) -> None:
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.vocab_size == len(theirs)
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_ids == (theirs.eos_token_id,)
    for text in TEXTS:
        assert ours.encode(text, special) == theirs.encode(text, add_special_tokens=special), text


@pytest.mark.parametrize("skip", [True, False])
def test_texts_equal_transformers(folder: Path, skip: bool) -> None:
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = theirs.encode(text)
        expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert ours.decode(ids, skip) == expected, text


def test_prompts_equal_transformers(folder: Path) -> None:
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages, tokenize=False)


def test_special_tokens_as_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, byte_level(), BYTE_LEVEL))
    text = f"a{CONTROL}b{EXTRA}c"
    end, extra = tokenizer.encode(CONTROL, False)[0], tokenizer.encode(EXTRA, False)[0]
    assert end in tokenizer.encode(text, False)
    plain = tokenizer.encode(text, False, allow_special=False)
    assert end not in plain
    assert extra in plain  # not a control token, so it is text like any other
    assert tokenizer.decode(plain) == text


@pytest.mark.parametrize(("asked", "expected"), [(None, True), (True, True), (False, False)])
def test_the_configuration_decides_about_bos(asked: bool | None, expected: bool, tmp_path: Path) -> None:
    config = BYTE_LEVEL if asked is None else {**BYTE_LEVEL, "add_bos_token": asked}
    tokenizer = load_tokenizer(write(tmp_path, byte_level(), config))
    assert (tokenizer.encode("a")[0] == tokenizer.bos_token_id) == expected


def test_bos_and_eos_can_be_asked_for(tmp_path: Path) -> None:
    backend = byte_level()
    backend.post_processor = None
    config = {**BYTE_LEVEL, "add_bos_token": True, "add_eos_token": True}
    tokenizer = load_tokenizer(write(tmp_path, backend, config))
    ids = tokenizer.encode("a")
    assert (ids[0], ids[-1], len(ids)) == (tokenizer.bos_token_id, tokenizer.eos_token_ids[0], 3)


def test_every_end_of_sequence_token_counts(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), BYTE_LEVEL, config={"eos_token_id": 5}, generation_config={"eos_token_id": [7, 9]})
    end = load_tokenizer(tmp_path).encode(CONTROL, False)[0]
    assert load_tokenizer(tmp_path).eos_token_ids == (7, 9, end)
    (tmp_path / "generation_config.json").unlink()
    assert load_tokenizer(tmp_path).eos_token_ids == (5, end)


def test_tokens_that_only_the_configuration_lists(tmp_path: Path) -> None:
    backend = byte_level()
    number = backend.get_vocab_size()
    listed = {str(number): {"content": "<|tool|>", "special": True}}
    tokenizer = load_tokenizer(write(tmp_path, backend, {**BYTE_LEVEL, "added_tokens_decoder": listed}))
    assert tokenizer.encode("<|tool|>", False) == [number]
    assert tokenizer.is_special(number)


def test_truncation_and_padding_of_training_are_off(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = load_tokenizer(write(tmp_path, backend, BYTE_LEVEL))
    assert len(tokenizer.encode("x y z " * 10, False)) > 8
    assert len(tokenizer.encode("a", False)) == 1


def test_templates_in_all_their_places(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "tools"}]
    folder = write(tmp_path, byte_level(), {**BYTE_LEVEL, "chat_template": several})
    assert load_tokenizer(folder).apply_chat_template([]) == "listed"
    assert load_tokenizer(folder).apply_chat_template([], tools=[{"name": "f"}]) == "tools"
    (folder / "chat_template.jinja").write_text("file")
    assert load_tokenizer(folder).apply_chat_template([]) == "file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools file")
    assert load_tokenizer(folder).apply_chat_template([], tools=[{"name": "f"}]) == "tools file"


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, byte_level(), BYTE_LEVEL))
    assert not tokenizer.has_chat_template
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.apply_chat_template([])


def test_a_vocabulary_with_merges_is_converted(tmp_path: Path) -> None:
    state = json.loads(byte_level().to_str())["model"]
    vocab = {**state["vocab"], "<|endoftext|>": len(state["vocab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in state["merges"]))
    write(tmp_path, None, {"tokenizer_class": "GPT2Tokenizer"}, config={"model_type": "gpt2"})
    tokenizer = load_tokenizer(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == theirs.encode(text), text
        assert tokenizer.decode(tokenizer.encode(text, allow_special=False)) == text


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"looked for tokenizer\.json.*--tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        load_tokenizer(tmp_path / "absent")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 1}', '{"version": "1.0", "model": {"type": "Odd"}}'])
def test_a_damaged_tokenizer(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_decoder_that_cannot_be_streamed(tmp_path: Path) -> None:
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        load_tokenizer(write(tmp_path, backend, {}))


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    config = {**BYTE_LEVEL, "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    write(tmp_path, byte_level(), config, config={"auto_map": {"AutoConfig": "evil.Evil"}})
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    load_tokenizer(tmp_path).encode("a")
    (tmp_path / "tokenizer.json").rename(tmp_path / "other.json")
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ModelError):
        load_tokenizer(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), BYTE_LEVEL, config={})
    program = (
        "import sys, pathlib\n"
        "from paceline.tokenization import load_tokenizer\n"
        f"load_tokenizer(pathlib.Path({str(tmp_path)!r})).encode('a')\n"
        "print(sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
