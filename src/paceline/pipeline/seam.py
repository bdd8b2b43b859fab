"""The one seam between the engine core and whatever computes its batches."""

from __future__ import annotations

from typing import Protocol

from paceline.messages import BatchResult, Plan


class Pipeline(Protocol):
    """Takes plans in order, gives results back in the same order.

    Implementations: inline (same process), processes (this machine); later cluster and virtual.
    """

    depth: int  # how many batches may be in flight

    def submit(self, plan: Plan) -> None:
        """Hand over a plan. Never blocks on computation that another process does.

        Raises:
            PipelineError: a stage is gone.
        """

    def collect(self) -> BatchResult | None:
        """The oldest result if it is there, else None; never waits.

        Raises:
            PipelineError: a stage is gone or failed.
        """

    def wait(self, timeout: float | None) -> None:
        """Return once a result may be there, or mail for the core has arrived, or `timeout` seconds passed.

        Raises:
            PipelineError: a stage is gone or failed.
        """

    def close(self) -> None:
        """Stop every stage; returns when they have ended. May be called twice."""
