"""`paceline bench serve` as a command, against the real HTTP application over a fake engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paceline.cli.main import main
from paceline.config import ServerConfig
from tests.server.fakes import FakeEngine, Site
from tests.server.running import Running


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running(Site(FakeEngine(), ServerConfig(api_key=("key",))))
    yield server
    server.stop()


def bench(running: Running, *flags: str) -> int:
    own = ["--url", running.url + "/v1/", "--api-key", "key", "--num-prompts", "5", "--quiet"]
    return main(["bench", "serve", *own, "--random-input-len", "20", "--random-output-len", "4", *flags])


def test_a_table_names_what_was_measured(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--request-rate", "1000", "--burstiness", "0.5", "--goodput", "ttft:60000", "--percentile-metrics", "ttft"]
    assert bench(running, *flags, "--max-concurrency", "2", "--metric-percentiles", "50,99.5") == 0
    out = capsys.readouterr().out
    for words in ("1000 requests/s (burstiness 0.5), at most 2 at a time", "5 / 0", "good requests", "p99.5", "seed 0"):
        assert words in out
    assert "to first token" in out
    assert "between tokens" not in out
    assert max(map(len, out.splitlines()[:14])) <= 120


def test_a_ramp_is_told(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "100", "--ramp-up-end-rps", "1k"]
    assert bench(running, *flags) == 2
    flags[-1] = "1000"
    assert bench(running, *flags) == 0
    assert "100 to 1000 requests/s (exponential)" in capsys.readouterr().out


def test_json_has_exact_lengths(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(running, "--json", "--metadata", "machine=laptop", "--num-warmups", "0") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (100, 20)
    assert (result["model_id"], result["machine"], result["request_rate"]) == ("m", "laptop", "inf")
    assert all(sampling.ignore_eos and sampling.temperature == 0 for sampling in running.site.engine.sampled)


def test_results_are_saved_as_one_likes(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.json"
    assert bench(running, "--output-json", str(own), "--save-detailed", "--result-dir", str(tmp_path)) == 0
    (saved,) = [path for path in tmp_path.iterdir() if path != own]
    assert saved.name.startswith("paceline-infqps-model-")
    result = json.loads(own.read_text())
    assert json.loads(saved.read_text()) == result
    assert result["input_lens"] == [20] * 5
    for _ in range(2):
        flags = ["--append-result", "--result-dir", str(tmp_path), "--result-filename", "all.jsonl"]
        assert bench(running, *flags) == 0
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 2


def test_every_request_is_in_the_picture(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "run.svg"
    assert bench(running, "--plot-timeline", str(picture), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert root.attrib["aria-label"].startswith(f"{result['completed']} requests over ")
    assert len(result["start_times"]) == result["completed"]


def test_a_tokenizer_of_ones_own(running: Running, smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--tokenizer", str(smollm2_gguf), "--num-warmups", "0", "--backend", "openai", "--no-ignore-eos"]
    assert bench(running, *flags) == 1  # its ids are beyond the tiny model's vocabulary
    assert "out_of_range" in capsys.readouterr().err


def test_failures_give_code_1(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running.site.engine.fail_after = 2
    assert bench(running, "--num-warmups", "0", "--plot-timeline", str(tmp_path / "x.svg")) == 1
    assert "failed" in (tmp_path / "x.svg").read_text(encoding="utf-8")
    capsys.readouterr()
    assert bench(running, "--num-warmups", "0", "--model", "nosuch", "--output-json", str(tmp_path / "x.json")) == 1
    assert not (tmp_path / "x.json").exists()
    capsys.readouterr()
    assert bench(running, "--num-warmups", "0") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("paceline: all 5 requests failed: ")
    assert told.err.count("\n") == 1
    assert bench(running, "--num-warmups", "0", "--json") == 1
    assert json.loads(capsys.readouterr().out)["failed"] == 5


def test_a_missing_key_is_explained(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(running, "--api-key", "wrong") == 1
    assert "401" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--num-prompts", "0"], "--num-prompts 0"),
        (["--request-rate", "0"], "--request-rate 0"),
        (["--request-rate", "nan"], "--request-rate nan"),
        (["--burstiness", "-1"], "--burstiness -1"),
        (["--max-concurrency", "0"], "--max-concurrency 0"),
        (["--random-range-ratio", "1.5"], "at most 1"),
        (["--dataset-name", "sharegpt"], "--dataset-path"),
        (["--dataset-name", "lognormal", "--input-sigma", "x"], "--input-sigma x"),
        (["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1"], "--ramp-up-end-rps"),
        (["--ramp-up-end-rps", "1"], "--ramp-up-strategy"),
        (["--ramp-up-strategy", "linear", "--request-rate", "1"], "--request-rate 1"),
        (["--goodput", "itl:5"], "ttft, tpot, e2el"),
        (["--goodput", "ttft=5"], "ttft=5"),
        (["--percentile-metrics", "ttft,speed"], "ttft,speed"),
        (["--metric-percentiles", "101"], "--metric-percentiles 101"),
        (["--extra-body", "[1]"], "--extra-body"),
        (["--metadata", "alone"], "KEY=VALUE"),
        (["--output-json", "/nowhere/x.json"], "--output-json"),
        (["--plot-timeline", "/nowhere/x.svg"], "--plot-timeline"),
        (["--plot-timeline", "/tmp"], "--plot-timeline /tmp: is a folder"),
        (["--plot-timeline", ""], "is a folder"),
        (["--save-result", "--result-dir", "/nowhere"], "--result-dir /nowhere"),
    ],
)
def test_wrong_flags_are_named_before_anything_is_sent(
    flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:1", *flags]) == 2
    assert words in capsys.readouterr().err
