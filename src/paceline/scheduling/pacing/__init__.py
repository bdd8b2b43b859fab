"""Pacing policies: how much work one micro-batch may take, one module each under one interface."""

from __future__ import annotations

from paceline.errors import ConfigError
from paceline.scheduling.pacing.base import Grant, PacingPolicy, Surroundings
from paceline.scheduling.pacing.greedy import Greedy
from paceline.scheduling.pacing.paced import Paced
from paceline.scheduling.pacing.throttle import Throttle

POLICIES: dict[str, type[PacingPolicy]] = {"greedy": Greedy, "throttle": Throttle, "paced": Paced}


def make_policy(name: str, surroundings: Surroundings) -> PacingPolicy:
    """The policy of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in POLICIES:
        raise ConfigError("pacing", name, "no such policy", f"Choose one of: {', '.join(POLICIES)}")
    return POLICIES[name](surroundings)


__all__ = ["POLICIES", "Grant", "PacingPolicy", "Surroundings", "make_policy"]
