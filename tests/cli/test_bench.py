"""The command's own options; the real engine under it is in tests/e2e/test_offline.py."""

from __future__ import annotations

import json

import pytest

from paceline.cli.main import main
from tests import offline_fakes
from tests.offline_fakes import Engine

SMALL = ["bench", "throughput", "--num-prompts", "3", "--input-len", "4", "--output-len", "2", "--quiet"]


@pytest.fixture(autouse=True)
def fake_parts(monkeypatch):
    offline_fakes.install(monkeypatch)


def test_a_table_or_json(capsys, tmp_path):
    target = tmp_path / "result.json"
    assert main([*SMALL, "--output-json", str(target)]) == 0
    assert "output tokens per second" in capsys.readouterr().out
    assert main([*SMALL, "--json", "--seed", "5"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["seed"] == 5
    written = json.loads(target.read_text())
    assert written["total_output_tokens"] == printed["total_output_tokens"] == 6
    assert Engine.last.closes == 1


def test_code_1_if_requests_fail(monkeypatch, capsys):
    monkeypatch.setattr(Engine, "fail_from_start", True)
    assert main(SMALL) == 1
    assert "0 / 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num-prompts", "0"], "--num-prompts 0"),
        (["--num-prompts", "many"], "--num-prompts many"),
        (["--input-len", "-1"], "--input-len -1"),
        (["--max-concurrency", "0"], "--max-concurrency 0"),
        (["--warm-up", "-1"], "--warm-up -1"),
        (["--output-json", "/nowhere/at/all.json"], "--output-json /nowhere"),
        (["--max-num-seqs", "0"], "--max-num-seqs 0"),
    ],
)
def test_unusable_options_are_named_before_anything_starts(flags, words, capsys, monkeypatch):
    monkeypatch.delattr(Engine, "last", raising=False)
    assert main([*SMALL, *flags]) == 2
    assert words in capsys.readouterr().err
    assert not hasattr(Engine, "last")


def test_prompts_too_long_for_the_model_end_with_code_1_and_no_engine_left(capsys):
    assert main([*SMALL, "--input-len", "1k"]) == 1
    assert "1000 tokens" in capsys.readouterr().err
    assert Engine.last.closes == 1


def test_print_config(capsys):
    assert main([*SMALL, "--print-config", "-pp", "2"]) == 0
    assert "pipeline_parallel_size" in capsys.readouterr().out


def test_bench_alone_asks_for_a_kind(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["bench"])
    assert caught.value.code == 2
    assert "KIND" in capsys.readouterr().err
