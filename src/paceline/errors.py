"""Every error that Paceline raises on purpose, by who has to act on it."""

from __future__ import annotations


class PacelineError(Exception):
    """Base class: anything that is raised on purpose."""


class ConfigError(PacelineError):
    """An option cannot be used as given. Raised at start, never while serving.

    The text names the option, the value and what to do instead.
    """

    def __init__(self, option: str, value: object, problem: str, fix: str) -> None:
        is_variable = option.isupper()  # of the environment
        given = f"{option}={value}" if is_variable else f"--{option.replace('_', '-')} {value}".rstrip()
        super().__init__(f"{given}: {problem}. {fix}")
        self.option = option


class ModelError(PacelineError):
    """The model's files cannot be used: damaged, incomplete, or of an unsupported kind."""


class RequestError(PacelineError):
    """One request cannot be served as asked. It costs nobody else anything.

    Attributes:
        status: HTTP status code.
        code: stable machine-readable word, such as ``context_length_exceeded``.
        param: name of the request field at fault, if one is.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_request",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class PipelineError(PacelineError):
    """A stage failed or died; no batch in flight will come back."""


class EngineDeadError(PacelineError):
    """The engine core is gone; no request can be served any more."""


class BenchError(PacelineError):
    """A server cannot be measured as asked; the text says why and what to do."""
