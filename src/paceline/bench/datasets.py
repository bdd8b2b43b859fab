"""What is sent to a server: prompts of random tokens with lengths of a distribution, or conversations from a file."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from paceline.bench.vocabulary import Vocabulary
from paceline.errors import ConfigError

# As vllm's ShareGPT reader does: what is nearly empty or very long is left out.
_SHORTEST, _LONGEST_PROMPT, _LONGEST = 4, 1024, 2048
_CHARACTERS_PER_TOKEN = 16  # more than any text has on average


@dataclass(frozen=True)
class Sample:
    """One request: a prompt as token ids or as text, and how many tokens to ask for."""

    prompt: list[int] | str
    input_len: int  # tokens; for a text as well as it is known before it is sent
    output_len: int


@dataclass(frozen=True)
class Lengths:
    """How long prompts or outputs are, in tokens: log-normal where `sigma` is set, else uniform around `middle`.

    Attributes:
        middle: the median of a log-normal, the centre of a uniform distribution.
        sigma: standard deviation of the logarithm of a log-normal.
        spread: a uniform length lies between (1 - spread) and (1 + spread) times the centre.
    """

    middle: int
    sigma: float | None = None
    spread: float = 0.0

    def draw(self, count: int, generator: np.random.Generator) -> list[int]:
        """`count` lengths, each at least 1."""
        if self.sigma is not None:
            lengths = np.rint(generator.lognormal(math.log(self.middle), self.sigma, count))
        else:
            low, high = math.floor(self.middle * (1 - self.spread)), math.ceil(self.middle * (1 + self.spread))
            lengths = generator.integers(low, high, count, endpoint=True)
        return [max(1, int(length)) for length in lengths]


def random_samples(
    vocabulary: Vocabulary, count: int, inputs: Lengths, outputs: Lengths, longest: int | None, seed: int
) -> tuple[list[Sample], int]:
    """Prompts of random tokens, the same for the same seed; and how many had to be cut.

    Args:
        longest: tokens of prompt and output together that the server takes, if known. Only log-normal lengths are cut
            to it: they have a tail that nobody asked for, while a fixed length that does not fit is a mistake to show.
    """
    generator = np.random.default_rng(seed)
    wanted = list(zip(inputs.draw(count, generator), outputs.draw(count, generator), strict=True))
    fitting = wanted
    if longest is not None and inputs.sigma is not None:
        fitting = [_cut(prompt, output, longest) for prompt, output in wanted]
    draw = random.Random(seed)
    samples = [Sample(vocabulary.prompt(draw, prompt), prompt, output) for prompt, output in fitting]
    return samples, sum(a != b for a, b in zip(wanted, fitting, strict=True))


def _cut(prompt: int, output: int, longest: int) -> tuple[int, int]:
    output = min(output, longest - 1)
    return min(prompt, longest - output), output


class _Turn(msgspec.Struct):
    value: str = ""


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] = msgspec.field(default_factory=list)


def read_sharegpt(path: Path) -> list[tuple[str, str]]:
    """Each conversation's first question and answer.

    Raises:
        ConfigError: no such file, or not the ShareGPT format.
    """
    try:
        conversations = msgspec.json.decode(path.read_bytes(), type=list[_Conversation])
    except OSError as error:
        raise ConfigError("dataset_path", path, f"cannot be read ({error.strerror})", "Check the path.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fix = 'It must be a JSON list of {"conversations": [{"from": ..., "value": ...}, ...]}.'
        raise ConfigError("dataset_path", path, f"is no ShareGPT file ({error})", fix) from None
    return [
        (one.conversations[0].value, one.conversations[1].value) for one in conversations if len(one.conversations) > 1
    ]


async def sharegpt_samples(
    pairs: Sequence[tuple[str, str]], vocabulary: Vocabulary, count: int, output_len: int | None, seed: int
) -> list[Sample]:
    """`count` of the conversations in an order drawn from `seed`, again from the start if there are fewer.

    Each asks for as many tokens as the recorded answer has, unless `output_len` is given.

    Raises:
        ConfigError: no conversation is of a usable length.
        BenchError: the server cannot count tokens.
    """
    order = list(pairs)
    random.Random(seed).shuffle(order)
    samples: list[Sample] = []
    for question, answer in order:
        if len(samples) == count:
            break
        if max(len(question), len(answer)) > _LONGEST * _CHARACTERS_PER_TOKEN:
            continue  # the server may refuse to count the tokens of a text that is longer than any prompt
        prompt = len(await vocabulary.encode(question))
        output = output_len or len(await vocabulary.encode(answer))
        if (
            _SHORTEST <= prompt <= _LONGEST_PROMPT
            and (output_len or output >= _SHORTEST)
            and prompt + output <= _LONGEST
        ):
            samples.append(Sample(question, prompt, output))
    if not samples:
        raise ConfigError("dataset_path", "", "has no conversation of usable length", "Give another file.")
    return [samples[place % len(samples)] for place in range(count)]
