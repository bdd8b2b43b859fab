"""Rules of the whole tree: rooms stack without circles, nothing unsafe is called, and what must start fast leaves torch out."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "paceline"

# From the ground up. A room imports only rooms that stand before it.
ROOMS = (
    *("errors", "option_table", "config", "host", "sampling_params", "messages", "request"),
    *("kv_cache", "scheduling", "trace", "kernels", "models", "weights", "tokenization", "sampling"),
    *("pipeline", "engine", "llm", "simulate", "server", "bench", "cli"),
)
DOORS = ("__init__", "__main__")  # they open rooms, and nothing imports them

FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "torch.hub.load", "torch.jit.load", "numpy.load", "np.load"}
FORBIDDEN_CALLS |= {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"}


def _files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every module that a file imports, anywhere in it; `from paceline import x` counts as `paceline.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "paceline":
            yield from (f"paceline.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            yield node.module or ""


def misplaced_imports(room: str, code: str) -> list[str]:
    """Imports of rooms that do not stand below `room`."""
    below = ROOMS if room in DOORS else ROOMS[: ROOMS.index(room)]
    parts = [name.split(".") for name in _imports(ast.parse(code)) if name.startswith("paceline.")]
    return [p[1] for p in parts if p[1] not in (room, *below) and p[1] != "__version__"]


def unsafe_uses(code: str) -> list[str]:
    """Names of the forbidden modules, calls and keyword arguments that code uses."""
    tree = ast.parse(code)
    found = [name for name in _imports(tree) if name.split(".")[0] in FORBIDDEN_MODULES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_CALLS:
                found.append(called)
            found += [
                k.arg
                for k in node.keywords
                if k.arg in ("trust_remote_code", "allow_pickle")
                and not (isinstance(k.value, ast.Constant) and k.value.value is False)
            ]
            found += ["shell"] * any(k.arg == "shell" for k in node.keywords)
    return found


@pytest.mark.parametrize("file", _files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_keeps_the_rules_of_the_house(file: Path) -> None:
    room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert room in (*ROOMS, *DOORS), f"{room} is a new room: give it its place in ROOMS"
    code = file.read_text(encoding="utf-8")
    assert misplaced_imports(room, code) == []
    assert unsafe_uses(code) == []


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("scheduling", "from paceline.engine.core import EngineCore"),
        ("models", "def f():\n    import paceline.weights.gguf"),
        ("errors", "from paceline import config"),
    ],
)
def test_an_import_from_above_is_noticed(room: str, code: str) -> None:
    assert misplaced_imports(room, code) != []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "import torch\ntorch.load('x')",
        "f(trust_remote_code=True)",
        "f(trust_remote_code=flag)",
        "subprocess.run('x', shell=True)",
    ],
)
def test_an_unsafe_use_is_noticed(code: str) -> None:
    assert unsafe_uses(code) != []


@pytest.mark.parametrize("code", ["model.eval()", "f(trust_remote_code=False)", "import json", "executor.exec_later()"])
def test_a_safe_use_passes(code: str) -> None:
    assert unsafe_uses(code) == []


@pytest.mark.parametrize(
    "module",
    [
        "paceline",
        "paceline.engine.core",
        "paceline.engine.process",
        "paceline.models.architectures",
        "paceline.models.layer_split",
        "paceline.weights.checkpoint",
        "paceline.weights.gguf",
        "paceline.weights.safetensors",
        "paceline.cli.explain",
        "paceline.cli.schedule",
        "paceline.cli.main",
    ],
)
def test_what_must_start_fast_does_not_import_torch(module: str) -> None:
    """The engine core and the command line run without torch; only stages need it."""
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
