"""What a model's layers and its head cost, so that the stages of any split can be predicted. No torch.

A stage costs the sum of its parts: each of its layers, on the last stage the head with sampling, and what any stage pays
whatever it holds. The prices come from measured steps (:mod:`paceline.engine.profile`) or, where nothing was
measured, from counting operations; those are only proportions.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import msgspec

from paceline.models.spec import ModelSpec
from paceline.scheduling.cost_model import CostModel, LinkCost, StageCost, Work

# Counted in multiply-adds of matrices. What is no matrix product runs slower per operation.
SAMPLING_ELEMENTS = 4  # reading a logit to sample costs about as much as so many multiply-adds
ATTENTION_WEIGHT = 2.0  # one multiply-add of attention against one of a matrix
READING_TOKENS = 3.0  # reading a matrix once costs about as much as multiplying it by so many rows

EXPECTED_BATCH_TOKENS = 64  # of a typical batch, over which a split balances the stages
EXPECTED_CONTEXT = 256
EXPECTED_PROMPT_TOKENS = 128  # per prompt; only its last token pays the head


class ModelCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of the parts that stages are made of."""

    layer: StageCost
    head: StageCost  # final norm, head and sampling
    stage: StageCost = StageCost()  # what every stage pays
    link: LinkCost = LinkCost()

    def stage_cost(self, num_layers: int, *, is_last: bool, weight: float = 1.0) -> StageCost:
        """The prices of a stage with so many layers, on a worker `weight` times as fast as the one measured."""
        total = _sum(self.stage, self.layer.scaled(num_layers))
        return (_sum(total, self.head) if is_last else total).scaled(1.0 / weight)

    def pipeline(self, split: Sequence[int], weights: Sequence[float] | None = None) -> CostModel:
        """The cost model of stages with these numbers of layers."""
        last = len(split) - 1
        stages = (
            self.stage_cost(count, is_last=i == last, weight=1.0 if weights is None else weights[i])
            for i, count in enumerate(split)
        )
        return CostModel(tuple(stages), self.link)


def _sum(a: StageCost, b: StageCost) -> StageCost:
    return StageCost(*map(add, msgspec.structs.astuple(a), msgspec.structs.astuple(b)))


def operation_count(spec: ModelSpec) -> ModelCost:
    """Multiply-adds instead of seconds: right in proportion, as far as operations are what takes time."""
    matrices = spec.hidden_size * (2 * spec.q_size + 2 * spec.kv_size) + 3 * spec.hidden_size * spec.intermediate_size
    pair = ATTENTION_WEIGHT * 2 * spec.q_size
    head = spec.vocab_size * spec.hidden_size
    return ModelCost(
        layer=StageCost(fixed=READING_TOKENS * matrices, token=matrices, decode_context=pair, prefill_context=pair),
        head=StageCost(fixed=READING_TOKENS * head, sample=head + SAMPLING_ELEMENTS * spec.vocab_size),
    )


def expected_work(prompt_share: float) -> Work:
    """A typical batch in which this part of the tokens are prompt tokens, 0 to 1."""
    prompt = prompt_share * EXPECTED_BATCH_TOKENS
    decodes = EXPECTED_BATCH_TOKENS - prompt
    prompts = prompt / EXPECTED_PROMPT_TOKENS
    return Work(
        fixed=1.0,
        token=EXPECTED_BATCH_TOKENS,
        sequence=decodes + prompts,
        decode_context=decodes * EXPECTED_CONTEXT,
        prefill_context=prompt * EXPECTED_PROMPT_TOKENS / 2,
        sample=decodes + prompts,
    )
