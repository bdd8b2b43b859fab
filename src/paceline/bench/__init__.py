"""Measuring speed: workloads, figures and reports."""
