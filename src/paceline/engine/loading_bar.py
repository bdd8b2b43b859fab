"""A progress bar for starting an engine in a terminal or a notebook."""

from __future__ import annotations

from tqdm.auto import tqdm

from paceline.messages import CoreProgress


class LoadingBar:
    """How much of the weights is loaded, all stages together; pass it as `on_progress`."""

    def __init__(self, num_stages: int, shown: bool) -> None:
        self._done = [0.0] * num_stages
        self._bar = tqdm(total=100, desc="Loading", unit="%", disable=not shown, leave=False)

    def __call__(self, progress: CoreProgress) -> None:
        if 0 <= progress.stage < len(self._done):
            self._done[progress.stage] = progress.done
            self._bar.n = round(100 * sum(self._done) / len(self._done))
            self._bar.refresh()

    def __enter__(self) -> LoadingBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()
