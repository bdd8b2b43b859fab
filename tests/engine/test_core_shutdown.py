"""The step never waits for something that cannot come any more."""

from __future__ import annotations

import pytest

from paceline.engine.core import EngineCore
from paceline.messages import BatchResult, Plan, Shutdown, ToCore
from paceline.scheduling import SchedulerOptions


class Idle:
    """A pipeline and mailbox in which nothing happens but `mail`; waiting is counted."""

    depth = 1

    def __init__(self, mail: list[list[ToCore]]) -> None:
        self.mail = mail
        self.waits = 0

    def drain(self) -> list[ToCore]:
        return self.mail.pop(0) if self.mail else []

    def submit(self, plan: Plan) -> None:
        raise AssertionError("there is nothing to compute")

    def collect(self) -> BatchResult | None:
        return None

    def wait(self, timeout: float | None) -> None:
        self.waits += 1

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("mail", "waits"), [([[Shutdown()]], 0), ([[], [Shutdown()]], 1)])
def test_a_shutdown_is_heeded_wherever_in_the_step_it_arrives(mail: list[list[ToCore]], waits: int) -> None:
    idle = Idle(mail)
    core = EngineCore(SchedulerOptions(stages=1, num_blocks=4, max_model_len=16), idle, idle, lambda outputs: None)
    core.step()
    assert core.shutting_down
    assert idle.waits == waits
