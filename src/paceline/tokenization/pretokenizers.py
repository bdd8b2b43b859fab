"""How a byte-level vocabulary cuts text into words before it merges bytes: one entry per published scheme.

A GGUF file names its scheme in ``tokenizer.ggml.pre``; the vocabulary says nothing about it, and a wrong cut
gives wrong tokens without any error. The patterns are those that the models' own tokenizers were published
with. A scheme is a list of patterns: each cuts what the one before left whole, matches and gaps alike.
"""

from __future__ import annotations

from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers

from paceline.errors import ModelError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}" + _SLASH_TAIL
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}" + _SLASH_TAIL
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Scheme(NamedTuple):
    """How to cut, and what goes with it.

    Attributes:
        patterns: applied one after the other.
        ignore_merges: a word that is in the vocabulary as a whole is one token, whatever the merges say.
        add_bos: whether prompts begin with the BOS token when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2_SCHEME = Scheme((_GPT2,))
_DIGITS_SCHEME = Scheme((r"\p{N}", _GPT2))
_LLAMA3_SCHEME = Scheme((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_SCHEME = Scheme((_QWEN2,))
_GPT4O_SCHEME = Scheme((_GPT4O,))

DEFAULT = "default"

_SCHEMES: dict[str, Scheme] = {
    DEFAULT: Scheme((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "gigachat"), _GPT2_SCHEME),
    **dict.fromkeys(("a.x-4.0", "mellum", "granite-docling"), _GPT2_SCHEME),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS_SCHEME),
    **dict.fromkeys(("exaone", "minerva-7b", "mellum2"), _DIGITS_SCHEME),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"), _LLAMA3_SCHEME),
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2"), _LLAMA3_SCHEME),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Scheme((_LLAMA3,))),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "hunyuan"), _QWEN2_SCHEME),
    **dict.fromkeys(("kormo", "solar-open", "grok-2"), _QWEN2_SCHEME),
    "qwen35": Scheme((_QWEN35,)),
    "tekken": Scheme((_TEKKEN,), ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _GPT4O_SCHEME),
    "deepseek-v3": Scheme((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)),
    "falcon": Scheme((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
}


def scheme_named(name: str) -> Scheme:
    """Look up a ``tokenizer.ggml.pre`` name.

    Raises:
        ModelError: the name is unknown. Going on with another scheme would serve wrong tokens silently.
    """
    if name not in _SCHEMES:
        known = ", ".join(sorted(_SCHEMES))
        raise ModelError(
            f"the GGUF file asks for the pre-tokenizer {name!r}, which Paceline does not know (it knows {known}). "
            "Give the model's original tokenizer with --tokenizer FOLDER_OR_HUB_NAME."
        )
    return _SCHEMES[name]


def pre_tokenizer(scheme: Scheme) -> pre_tokenizers.PreTokenizer:
    """The scheme as a step of the ``tokenizers`` library, which ends by spelling bytes as characters."""
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in scheme.patterns]
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, spell])
