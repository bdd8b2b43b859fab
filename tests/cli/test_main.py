"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

import paceline
from paceline.cli.main import COMMANDS, main


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(capsys, "--version") == f"paceline {paceline.__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output_of(capsys, "--help")
    for name, (_, text) in COMMANDS.items():
        assert name in shown
        assert text in shown


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "usage: paceline" in output_of(capsys, command, "--help")


def test_help_can_be_searched(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output_of(capsys, "serve", "--help=prefix")
    assert "--enable-prefix-caching" in shown
    assert "--port" not in shown
    assert "No option mentions" in output_of(capsys, "serve", "--help=zzz")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999", "much"])
@pytest.mark.parametrize(
    "command",
    [
        ["top", "--seconds"],
        ["trace", "--output", "/dev/null", "--seconds"],
        ["complete", "--quick", "x", "--temperature"],
        ["chat", "--quick", "x", "--temperature"],
        ["profile", "--seconds"],
        ["profile", "--target-tpot-ms"],
        ["profile", "--pipeline-parallel-size", "2", "--stage-weights"],
        ["serve", "--shutdown-timeout"],
        ["simulate", "--jitter"],
        ["simulate", "--target-tpot-ms"],
        ["bench", "serve", "--burstiness"],
        ["bench", "serve", "--temperature"],
        ["bench", "serve", "--random-range-ratio"],
        ["bench", "serve", "--metric-percentiles"],
    ],
    ids=" ".join,
)
def test_no_number_option_takes_what_is_no_number(
    command: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command[:-1], f"{command[-1]}={value}"]) == 2
    error = capsys.readouterr().err
    assert command[-1] in error
    assert error.count("\n") == 1


def test_no_command_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "serve" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from paceline.cli.main import main\n"
        "try: main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn', 'httpx', 'zmq', 'tokenizers'} & sys.modules.keys()\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
