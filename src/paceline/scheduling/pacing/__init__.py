"""Pacing policies: how much work one micro-batch may take, one module each under one interface."""

from __future__ import annotations

from paceline.errors import ConfigError
from paceline.scheduling.pacing.base import Grant, PacingPolicy
from paceline.scheduling.pacing.greedy import Greedy

POLICIES: dict[str, type[PacingPolicy]] = {"greedy": Greedy}


def make_policy(name: str) -> PacingPolicy:
    """The policy of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in POLICIES:
        raise ConfigError("pacing", name, "no such policy", f"Choose one of: {', '.join(POLICIES)}")
    return POLICIES[name]()


__all__ = ["POLICIES", "Grant", "PacingPolicy", "make_policy"]
