"""The offline benchmark over a deterministic engine."""

from __future__ import annotations

import dataclasses
import json

import pytest

from paceline.bench.report import as_text
from paceline.bench.throughput import Load, measure
from paceline.bench.workload import plain_tokens, random_jobs, warm_up_jobs
from paceline.config import EngineConfig
from paceline.engine.offline import OfflineEngine
from paceline.errors import RequestError
from tests import offline_fakes
from tests.offline_fakes import Engine
from tests.server.fakes import EOS, ByteTokenizer

LOAD = Load(num_prompts=6, input_len=10, output_len=5, max_concurrency=None, warm_up=2, seed=3)


@pytest.fixture(autouse=True)
def fake_parts(monkeypatch):
    offline_fakes.install(monkeypatch)


@pytest.fixture
def engine():
    engine = OfflineEngine(EngineConfig(), lambda progress: None)
    yield engine
    engine.close()


def test_prompts_have_their_length_and_depend_on_the_seed_alone():
    tokens = plain_tokens(ByteTokenizer(), 257)
    assert tokens == list(range(256))
    jobs = random_jobs(tokens, 20, 7, 5, seed=1)
    assert [len(job.prompt_token_ids) for job in jobs] == [7] * 20
    assert len({tuple(job.prompt_token_ids) for job in jobs}) == 20
    assert all(job.sampling.max_tokens == 5 and job.sampling.ignore_eos for job in jobs)
    assert jobs == random_jobs(tokens, 20, 7, 5, seed=1)
    assert jobs != random_jobs(tokens, 20, 7, 5, seed=2)
    assert EOS not in {token for job in jobs for token in job.prompt_token_ids}


def test_warming_up_uses_prompts_of_its_own():
    tokens = list(range(256))
    once, again = warm_up_jobs(tokens, 3, 9, 5), warm_up_jobs(tokens, 3, 9, 5)
    assert not {tuple(job.prompt_token_ids) for job in once} & {tuple(job.prompt_token_ids) for job in again}


def test_counts_and_description(engine):
    result = measure(engine, LOAD, show_progress=False)
    assert (result["completed"], result["failed"]) == (6, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (60, 30)
    assert (result["seed"], result["num_prompts"], result["prefix_cache"]) == (3, 6, "cold")
    assert result["output_throughput"] == pytest.approx(30 / result["duration"])
    assert result["pipeline"]["layer_split"] == [1, 1]
    assert len(Engine.last.sampled) == 2 + 6
    assert "errors" not in result
    json.dumps(result, allow_nan=False)


def test_concurrency_is_limited(engine):
    result = measure(engine, dataclasses.replace(LOAD, max_concurrency=2), show_progress=False)
    assert result["max_concurrent_requests"] == 2
    assert Engine.last.most_live == 2


def test_failures_are_counted_and_shown(engine):
    Engine.last.fail_after = 3
    result = measure(engine, LOAD, show_progress=False)
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (0, 6, 0)
    assert len(result["errors"]) == 1
    assert "not finite" in as_text(result)


def test_prompts_that_cannot_fit_are_refused_before_anything_runs(engine):
    with pytest.raises(RequestError, match="max_tokens is 95"):
        measure(engine, Load(4, 10, 95, None, 2, 0), show_progress=False)
    assert Engine.last.sampled == []


def test_the_table_names_seed_cache_and_stages(engine):
    text = as_text(measure(engine, LOAD, show_progress=False))
    for words in ("seed 3", "prefix cache cold", "2 stage(s) of 1, 1 layers", "output tokens per second", "busy"):
        assert words in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_progress_is_shown_only_on_demand(engine, capsys):
    measure(engine, LOAD, show_progress=False)
    assert capsys.readouterr().err == ""
    measure(engine, LOAD)
    assert "Measuring" in capsys.readouterr().err
