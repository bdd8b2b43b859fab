"""What goes into each micro-batch, and why the rest does not. No torch, and no clock of its own."""

from paceline.scheduling.batch import Batch, Reason
from paceline.scheduling.scheduler import Scheduler, SchedulerOptions

__all__ = ["Batch", "Reason", "Scheduler", "SchedulerOptions"]
