"""Paceline: a pipeline-parallel inference engine and server for large language models."""

__version__ = "0.1.0"
