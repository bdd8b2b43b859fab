"""Small tokenizers to test with, trained on the spot, and texts that are hard to cut."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = ["the quick brown fox jumps over the lazy dog", "Grüße aus Köln, 12345 Mal!", "   indented\n\ttext\r\n"]
WORDS += ["naïve café, it's 3.14 and you'll see", "привет мир", "日本語のテキスト", "def f(x):\n    return x + 1\n"]
TEXTS = [
    *WORDS,
    "",
    " ",
    "  two  spaces ",
    "1234567890",
    "a\n\n\nb",
    "WE'LL go, I'M here; DON'T",
    "héllo wörld",
    "😀😃 emoji",
    "<|end|> and <|end|>",
    "a<extra>b",
    "Ⅻ ½ ٣",
    "\u00a0nbsp\u3000wide",
    "tail \n ",
    "e\u0301 क्षि",
    "x" * 50,
]
CONTROL, EXTRA = "<|end|>", "<extra>"


def byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer | None = None, ignore_merges: bool = False) -> Tokenizer:
    """A byte-level BPE with a control token, an ordinary added token, and BOS put before texts."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(WORDS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<bos>", special=True), AddedToken(CONTROL, special=True)])
    tokenizer.add_tokens([AddedToken(EXTRA, normalized=False)])
    bos = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    return tokenizer


def sentencepiece_like() -> Tokenizer:
    """A BPE in Llama 2's manner: spaces as U+2581, unknown characters as bytes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(WORDS[:4] * 3, trainer)
    # The pieces for bytes are no control tokens; only training had to know of them.
    state = tokenizer.to_str()
    tokenizer = Tokenizer.from_str(_without_bytes_among_special(state))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _without_bytes_among_special(state: str) -> str:
    import json

    values = json.loads(state)
    values["added_tokens"] = [token for token in values["added_tokens"] if not token["content"].startswith("<0x")]
    return json.dumps(values)
