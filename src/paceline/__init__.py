"""Paceline: a pipeline-parallel inference engine and server for large language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.llm import LLM, Completion
    from paceline.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "Completion", "SamplingParams", "__version__"]

_LAZY = {"LLM": "paceline.llm", "Completion": "paceline.llm", "SamplingParams": "paceline.sampling_params"}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used: every process imports this package, few need them."""
    if name not in _LAZY:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
