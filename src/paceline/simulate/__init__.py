"""Pipelines without a model: the same engine core and scheduler, driven by a script."""
