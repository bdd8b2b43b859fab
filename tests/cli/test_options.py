"""Where option values come from, and what is said about bad ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.cli.options import add_options, resolve
from paceline.cli.parser import Parser
from paceline.config import EngineConfig, ServerConfig
from paceline.errors import ConfigError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)


def config_of(*flags: str, environ: dict[str, str] | None = None) -> tuple[EngineConfig, dict[str, str]]:
    parser = Parser(add_help=False)
    add_options(parser, EngineConfig)
    settings = resolve(parser.parse_args(flags), EngineConfig, environ=environ or {})
    return settings.make(EngineConfig), settings.origins


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("max-num-seqs: 1\nblock_size: 2\nmax_num_batched_tokens: 2k\n")
    environ = {"PACELINE_MAX_NUM_SEQS": "10", "PACELINE_BLOCK_SIZE": "20"}
    config, origins = config_of("--config", str(file), "--max-num-seqs", "100", environ=environ)
    assert (config.max_num_seqs, config.block_size, config.max_num_batched_tokens) == (100, 20, 2000)
    assert config.max_num_queued_reqs == 1024
    assert origins == {
        "max_num_seqs": "flag",
        "block_size": "environment variable PACELINE_BLOCK_SIZE",
        "max_num_batched_tokens": str(file),
    }


def test_yaml_values_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "offline: yes\nlayer_split: [18, 12]\npipeline_parallel_size: 2\nserved_model_name: [a, b]\n"
        "memory_utilization: 1\nmodel: 7\nmax_model_len: null\nkv-cache-memory-bytes: 2G\n"
    )
    config, _ = config_of("--config", str(file))
    assert (config.offline, config.layer_split, config.served_model_name) == (True, "18,12", ("a", "b"))
    assert (config.model, config.max_model_len, config.kv_cache_memory_bytes) == ("7", None, 2 * 2**30)


def test_several_values() -> None:
    assert config_of("--served-model-name", "a,b", "--served-model-name", "c")[0].served_model_name == ("a", "b", "c")
    assert config_of(environ={"PACELINE_SERVED_MODEL_NAME": "a, b"})[0].served_model_name == ("a", "b")


def test_switches() -> None:
    assert config_of("--no-enable-prefix-caching", "--offline")[0].enable_prefix_caching is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_num_seq: 4", "max_num_seqs"),
        ("- 1", "no mapping"),
        ("a: [", "no YAML"),
        ("max_num_seqs: many", "--max-num-seqs many"),
        ("max_num_seqs: 0", "--max-num-seqs 0"),
        ("offline: 3", "--offline 3"),
        ("model: true", "--model True"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config_of("--config", str(file))
    assert said in str(caught.value)


def test_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"--config /nowhere\.yaml"):
        config_of("--config", "/nowhere.yaml")


def test_an_error_says_where_the_value_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_PORT", "99999")
    assert main(["serve", "--print-config"]) == 2
    assert capsys.readouterr().err == (
        "paceline: --port 99999: is out of range. Give a value from 0 to 65535. "
        "(It came from environment variable PACELINE_PORT.)\n"
    )


def test_print_config_shows_values_and_origins_but_no_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "model.gguf", "-pp", "2", "--api-key", "hush", "--print-config"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["pipeline_parallel_size"].split() == ["2", "flag"]
    assert lines["model"].split() == ["model.gguf", "flag"]
    assert lines["api_key"].split() == ["***", "flag"]
    assert lines["max_num_seqs"].split() == ["256", "default"]
    assert len(lines) == len(EngineConfig.__dataclass_fields__) + len(ServerConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--trust-remote-code"], "never runs code"),
        (["--tensor-parallel-size", "2"], "--pipeline-parallel-size"),
        (["-tp", "2"], "--pipeline-parallel-size"),
        (["--gpu-memory-utilization", "0.9"], "--memory-utilization"),
        (["--gpu-memory-utilization=0.9"], "--memory-utilization"),
        (["--enable-lora"], "Adapters"),
        (["--max-num-seq", "4"], "--max-num-seqs"),
        (["--pacing", "even"], "greedy, throttle, paced"),
        (["--max-num-seqs"], "expected one argument"),
    ],
)
def test_flags_of_other_servers_get_one_line_of_advice(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["serve", *flags])
    except SystemExit as ended:  # argparse's own way
        code = ended.code
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


def test_harmless_flags_of_other_servers_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-tp", "1", "--enforce-eager", "--disable-log-requests", "--print-config"]) == 0
