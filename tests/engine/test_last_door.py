"""A front end that checks nothing: the core itself refuses what the stages could not run, and goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.engine.engines import engine, outputs, sampling, tokens
from tests.pipeline.tiny import MAX_LEN, write_model

VOCABULARY = 256


BAD: list[tuple[list[int], dict[str, Any], str]] = [
    ([], {}, "prompt is empty"),
    ([VOCABULARY], {}, "Token ids"),
    ([-1], {}, "Token ids"),
    ([1] * MAX_LEN, {}, str(MAX_LEN)),
    ([1], {"stop_token_ids": (VOCABULARY,)}, "stop_token_ids"),
    ([1], {"stop_token_ids": (-1,)}, "stop_token_ids"),
    ([1], {"min_tokens": 13}, "min_tokens"),
    ([1], {"min_tokens": MAX_LEN, "max_tokens": None}, "min_tokens"),
    ([1], {"max_tokens": 0}, "max_tokens"),
    ([1], {"max_tokens": MAX_LEN}, "max_tokens"),
    ([1], {"logprobs": 10**9}, "logprobs"),
    ([1], {"temperature": math.nan}, "temperature"),
    ([1], {"top_p": -1.0}, "top_p"),
    ([1], {"top_k": -7}, "top_k"),
]


@pytest.mark.parametrize("pipeline", ["inline", "processes"])
async def test_bad_requests_are_refused_and_cost_nobody_else(pipeline: str, tmp_path: Path) -> None:
    async with engine(write_model(tmp_path), pipeline=pipeline, pipeline_parallel_size=2) as running:
        expected = tokens(await outputs(running, "before", [5, 6, 7]))
        for number, (prompt, fields, words) in enumerate(BAD):
            (refusal,) = await outputs(running, f"bad {number}", prompt, sampling(**fields))
            assert refusal.status == "FINISHED_REFUSED", (prompt, fields)
            assert words in refusal.error
        (last,) = await outputs(running, "no seed", [1], sampling(temperature=1.0, seed=None))
        assert last.status == "FINISHED_ERROR"
        assert tokens(await outputs(running, "after", [5, 6, 7])) == expected
