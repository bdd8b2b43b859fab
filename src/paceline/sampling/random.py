"""Random numbers that depend on nothing but a request's seed and a position: Philox4x32-10.

A counter-based generator is a keyed scrambling of its counter: there is no state to carry along, so a token that is
sampled again (after preemption, or on restarted stages) gets the same number, and no neighbour can shift it.
Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Four random 32-bit words for a counter of four and a key of two 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _WORD, (product0 >> 32) ^ c3 ^ k1, product0 & _WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2**-53, for sampling the token at `position` of a request with this seed.

    Args:
        seed: any integer; taken modulo 2**64.
        position: index of the token in prompt and output together, 0 to 2**64 - 1.
    """
    key = (seed & _WORD, (seed >> 32) & _WORD)
    high, low, _, _ = philox4x32((position & _WORD, position >> 32, 0, 0), key)
    return float((high >> 5) * 2**26 + (low >> 6)) * 2.0**-53
