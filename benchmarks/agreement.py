"""How far 8-bit activations are from float32: perplexity of a text, most likely next tokens, and greedy answers.

python benchmarks/agreement.py [--model MODEL] [--text benchmarks/agreement.txt] [--output-len 64]

The text's paragraphs are read one by one, each from its beginning. At every position the two models' next-token
distributions are compared: perplexity, how often the most likely token is the same, and the mean Kullback-Leibler
divergence. Then the first words of each paragraph are continued greedily by both.
"""

from __future__ import annotations

import argparse
import math
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.config import EngineConfig
from paceline.engine.model_files import find_model
from paceline.models.inputs import BatchInputs
from paceline.pipeline.build import load_stage, open_model

KINDS = ("float32", "int8")
PROMPT_TOKENS = 12


def log_probabilities(config: EngineConfig, paragraphs: list[list[int]]) -> list[Tensor]:
    """Of the next token, after every token of each paragraph: [T, vocabulary]."""
    found = find_model(config)
    longest = max(map(len, paragraphs))
    layers = (0, found.checkpoint.spec.num_layers)
    model = load_stage(config, open_model(config, found.files.path), layers, longest, lambda done, what: None)
    model.allocate_cache(1, longest, torch.float32)
    return [model.forward(_whole(tokens)).log_softmax(dim=-1) for tokens in paragraphs]


def _whole(tokens: list[int]) -> BatchInputs:
    """A batch of one sequence from its beginning, in one block; every row's logits are wanted."""
    rows = torch.arange(len(tokens))
    return BatchInputs(
        token_ids=torch.tensor(tokens),
        positions=rows.int(),
        slots=rows,
        block_tables=torch.zeros((1, 1), dtype=torch.int32),
        query_starts=torch.tensor([0, len(tokens)], dtype=torch.int32),
        context_lens=torch.tensor([len(tokens)], dtype=torch.int32),
        sample_rows=rows,
    )


def compare_text(model: str | None, paragraphs: list[list[int]]) -> None:
    exact, rounded = (
        [
            found[:-1].double()
            for found in log_probabilities(EngineConfig(model=model, activation_dtype=kind), paragraphs)
        ]
        for kind in KINDS
    )
    targets = torch.cat([torch.tensor(tokens[1:]) for tokens in paragraphs])
    p, q = torch.cat(exact), torch.cat(rounded)
    for kind, found in zip(KINDS, (p, q), strict=True):
        loss = -found.gather(1, targets[:, None]).mean().item()
        print(f"perplexity of {len(targets)} tokens, {kind}: {math.exp(loss):.3f}")
    same = (p.argmax(dim=1) == q.argmax(dim=1)).double().mean().item()
    print(f"same most likely token: {100 * same:.1f} %")
    print(f"mean KL divergence: {(p.exp() * (p - q)).sum(dim=1).mean().item():.5f} nats")


def compare_answers(model: str | None, paragraphs: list[list[int]], output_len: int) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    answers = []
    for kind in KINDS:
        with LLM(model, activation_dtype=kind, use_tqdm=False) as llm:
            prompts = [tokens[:PROMPT_TOKENS] for tokens in paragraphs]
            answers.append([done.token_ids for done in llm.generate(prompts, greedy, use_tqdm=False)])
    pairs = list(zip(*answers, strict=True))
    equal = [sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(a, b, strict=True))) for a, b in pairs]
    print(f"greedy answers of {output_len} tokens that are equal: {equal.count(output_len)} of {len(pairs)}")
    print(f"equal tokens before the first difference: {', '.join(map(str, equal))}")


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--text", type=Path, default=Path(__file__).with_suffix(".txt"))
    parser.add_argument("--output-len", type=int, default=64)
    args = parser.parse_args()
    tokenizer = find_model(EngineConfig(model=args.model)).tokenizer
    paragraphs = [tokenizer.encode(text) for text in args.text.read_text(encoding="utf-8").split("\n\n")]
    compare_text(args.model, paragraphs)
    compare_answers(args.model, paragraphs, args.output_len)


if __name__ == "__main__":
    main()
