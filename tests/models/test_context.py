"""How long a sequence may be."""

from __future__ import annotations

import msgspec
import pytest

from paceline.errors import ConfigError
from paceline.models.context import context_length
from paceline.models.spec import ModelSpec, RopeSpec

SPEC = ModelSpec("llama", 3, 32, 48, 4, 2, 8, 50, 1e-5, RopeSpec(10000.0, 8), 64)


def scaled(rope: RopeSpec) -> ModelSpec:
    return msgspec.structs.replace(SPEC, rope=rope)


@pytest.mark.parametrize(
    ("spec", "longest"),
    [
        (SPEC, 64),
        (scaled(RopeSpec(10000.0, 8, "llama3", 8.0, 16)), 64),
        (scaled(RopeSpec(10000.0, 8, "linear", 4.0)), 256),
        (scaled(RopeSpec(10000.0, 8, "dynamic", 2.0)), 128),
        (scaled(RopeSpec(10000.0, 8, "yarn", 4.0, 64)), 256),
        (scaled(RopeSpec(10000.0, 8, "yarn", 4.0, 16)), 64),
    ],
)
def test_as_long_as_the_positions_reach(spec: ModelSpec, longest: int) -> None:
    assert context_length(spec, None) == 64
    assert context_length(spec, 1) == 1
    assert context_length(spec, longest) == longest
    with pytest.raises(ConfigError, match=f"--max-model-len {longest + 1}: .*Choose at most {longest}"):
        context_length(spec, longest + 1)
