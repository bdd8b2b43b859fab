"""A slow sampler's view of which tokens may be chosen, written in plain Python floats from the definitions."""

import math

from paceline.sampling_params import SamplingParams


def ranked(logits: list[float]) -> list[int]:
    """Ids, most likely first, the lower id first on a tie."""
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def softmax(logits: list[float], temperature: float = 1.0) -> list[float]:
    top = max(logits)
    weights = [math.exp((x - top) / temperature) if x > -math.inf else 0.0 for x in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]


def allowed(logits: list[float], params: SamplingParams) -> tuple[dict[int, float], bool]:
    """Probability of each token that may be chosen, and whether rounding could change which those are.

    Temperature first, then min_p, top_k and top_p in this order, each on what the one before left, renormalised.
    """
    p = softmax(logits, params.temperature)
    order = ranked(logits)
    close = False
    if params.min_p > 0:
        bar = params.min_p * max(p)
        close |= any(abs(x - bar) <= 1e-5 * bar for x in p)
        order = [i for i in order if p[i] >= bar]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        total = math.fsum(p[i] for i in order)
        running, kept = 0.0, []
        for i in order:
            kept.append(i)
            running += p[i]
            close |= abs(running - params.top_p * total) <= 1e-5 * total
            if running >= params.top_p * total:
                break
        order = kept
    total = math.fsum(p[i] for i in order)
    return {i: p[i] / total for i in order}, close
