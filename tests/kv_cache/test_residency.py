"""Ages of KV blocks: held against a plain account of every block's history."""

from __future__ import annotations

import random

import pytest

from paceline.kv_cache.block_pool import BlockPool
from paceline.kv_cache.residency import AGE_BOUNDS, Ages

BLOCKS = 6


def test_a_bound_belongs_to_its_own_bucket() -> None:
    ages = Ages()
    for seconds in (0.0, 0.001, 0.0011, 1800.0, 1800.1):
        ages.add(seconds)
    assert ages.so_far().counts == [2, 1, *[0] * (len(AGE_BOUNDS) - 3), 1, 1]
    assert ages.so_far().seconds == pytest.approx(3600.1021)


@pytest.mark.parametrize("seed", range(50))
def test_ages_are_those_of_a_plain_account(seed: int) -> None:
    draw = random.Random(seed)
    findable: set[int] = set()
    lives: dict[int, tuple[float, float]] = {}  # per block: when its content came, when it was last used
    expected: dict[str, list[float]] = {"lifetime": [], "idle": [], "reuse_gap": []}

    def reuse(block: int) -> bool:
        if known := block in findable:
            findable.remove(block)
            expected["lifetime"].append(pool.residency.now - lives[block][0])
            expected["idle"].append(pool.residency.now - lives[block][1])
        return known

    pool = BlockPool(BLOCKS, reuse)
    held: list[int] = []
    for _ in range(200):
        now = pool.residency.now = pool.residency.now + draw.choice([0.0, 0.001, 0.3, 100.0])
        action = draw.choice(["take", "share", "release", "publish", "forget"])
        if action == "take" and pool.num_free:
            [block] = pool.take_new(1)
            lives[block] = (now, now)
            held.append(block)
        elif action == "share" and findable:
            block = draw.choice(sorted(findable))
            pool.share(block)
            expected["reuse_gap"].append(now - lives[block][1])
            lives[block] = (lives[block][0], now)
            held.append(block)
        elif action == "release" and held:
            block = held.pop(draw.randrange(len(held)))
            pool.release([block])
            if block not in held:
                lives[block] = (lives[block][0], now)
        elif action == "publish" and held:
            findable.add(draw.choice(held))
        elif action == "forget":  # as after a failure: the content goes, and nobody could have wanted it again
            findable.discard(draw.randrange(BLOCKS))
    for name, values in expected.items():
        ages = Ages()
        for value in values:
            ages.add(value)
        found = getattr(pool.residency, name).so_far()
        assert found.counts == ages.so_far().counts, name
        assert found.seconds == pytest.approx(ages.seconds), name
