"""The generator against its authors' known answers, and its uniform numbers against the uniform distribution."""

import numpy as np
import pytest

from paceline.sampling.random import philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # philox4x32-10 of kat_vectors in the authors' Random123 library
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, answer):
    assert philox4x32(counter, key) == answer


def test_uniform_uses_53_bits_of_the_first_two_words():
    high, low, _, _ = philox4x32((7, 0, 0, 0), (0xDEADBEEF, 0x12345678))
    assert uniform(0x12345678DEADBEEF, 7) == (high >> 5 << 26 | low >> 6) / 2**53


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_every_int64_seed_gives_numbers_in_range(seed):
    assert all(0.0 <= uniform(seed, position) < 1.0 for position in range(100))


def test_negative_seeds_differ_from_their_absolute_values():
    assert uniform(-5, 3) != uniform(5, 3)


@pytest.mark.parametrize("along", ["positions of one seed", "seeds at one position", "every 4096th position"])
def test_numbers_are_uniform_and_uncorrelated(along):
    n = 20_000
    draw = {
        "positions of one seed": lambda i: uniform(42, i),
        "seeds at one position": lambda i: uniform(i, 42),
        "every 4096th position": lambda i: uniform(42, 4096 * i),
    }[along]
    numbers = np.array([draw(i) for i in range(n)])
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    chi2 = ((counts - n / 100) ** 2 / (n / 100)).sum()
    assert 55 < chi2 < 153  # 99 degrees of freedom: both tails beyond 3.5 sigma excluded
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 4 / np.sqrt(n)
