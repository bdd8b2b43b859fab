"""The option table: values, bounds, cross checks, and the way to child processes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.config import EngineConfig, ServerConfig
from paceline.errors import ConfigError
from paceline.option_table import options, parse_int


def test_a_config_survives_the_way_to_a_child_process() -> None:
    config = EngineConfig(model="m.gguf", pipeline_parallel_size=2, layer_split="18,12", num_blocks=7)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_num_seqs": 0}, ["--max-num-seqs 0", "from 1 to 65536"]),
        ({"max_num_seqs": 1.5}, ["--max-num-seqs 1.5", "whole number"]),
        ({"max_num_seqs": True}, ["--max-num-seqs True", "whole number"]),
        ({"memory_utilization": 1.5}, ["--memory-utilization 1.5", "out of range"]),
        ({"memory_utilization": float("nan")}, ["--memory-utilization nan", "finite"]),
        ({"dtype": "int3"}, ["--dtype int3", "float32"]),
        ({"pacing": "even"}, ["--pacing even", "greedy", "paced"]),
        ({"pipeline_parallel_size": 2, "stage_weights": "2"}, ["--stage-weights 2", "1.5,1.5"]),
        ({"stage_memory": "much"}, ["--stage-memory much", "24G"]),
        ({"stage_weights": "-1"}, ["--stage-weights -1", "positive"]),
        ({"pipeline_parallel_size": 2, "layer_split": "30"}, ["--layer-split 30", "2 stage", "2 counts"]),
        ({"layer_split": "0"}, ["--layer-split 0", "18,12"]),
        ({"num_blocks": 4, "kv_cache_memory_bytes": 9}, ["--num-blocks 4", "--kv-cache-memory-bytes"]),
    ],
)
def test_a_bad_value_is_named_with_its_fix(values: dict[str, object], said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**values)  # type: ignore[arg-type]
    for part in said:
        assert part in str(caught.value)


def test_server_options_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="--port 70000"):
        ServerConfig(port=70000)


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("4k", 4000), ("4K", 4096), ("25.6k", 25600), ("2G", 2**31), ("1_000", 1000)]
)
def test_integers_with_units(text: str, value: int) -> None:
    assert parse_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1.5", "1.0001k", "nank", "infK", "1e3", "4kk"])
def test_no_integer(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any message: the option table writes its own
        parse_int(text)


@given(st.integers(-(2**70), 2**70))
def test_plain_integers_are_read_exactly(value: int) -> None:
    assert parse_int(str(value)) == value


@pytest.mark.parametrize("cls", [EngineConfig, ServerConfig])
def test_the_table_is_complete(cls: type) -> None:
    for row in options(cls).values():
        row.check(row.default)
        assert row.help.endswith(".")
        assert row.group
    assert not options(EngineConfig).keys() & options(ServerConfig).keys()


def test_none_and_lists_from_text() -> None:
    table = options(EngineConfig)
    assert table["max_model_len"].parse("auto") is None
    assert table["max_model_len"].parse("2k") == 2000
    assert table["served_model_name"].parse("a, b") == ("a", "b")
    assert table["offline"].parse("ON") is True
    with pytest.raises(ConfigError, match="--offline perhaps"):
        table["offline"].parse("perhaps")
    with pytest.raises(ConfigError, match=r"1k = 1000"):
        table["max_num_seqs"].parse("many")


def test_numbers_per_stage_are_read() -> None:
    config = EngineConfig(pipeline_parallel_size=2, stage_weights="2, 1", stage_memory="24G,500M")
    assert config.numbers_per_stage("stage_weights") == [2.0, 1.0]
    assert config.numbers_per_stage("stage_memory") == [24 * 2**30, 500 * 2**20]
    assert EngineConfig().numbers_per_stage("stage_weights") is None


@pytest.mark.parametrize(
    ("stages", "pacing", "policy"), [(1, "auto", "greedy"), (2, "auto", "paced"), (2, "throttle", "throttle")]
)
def test_pacing_follows_the_number_of_stages(stages: int, pacing: str, policy: str) -> None:
    assert EngineConfig(pipeline_parallel_size=stages, pacing=pacing).pacing_policy == policy
