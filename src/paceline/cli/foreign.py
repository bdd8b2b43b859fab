"""Flags that users of vLLM know and Paceline does not have: accepted where harmless, explained where not."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from paceline.errors import ConfigError

logger = logging.getLogger(__name__)

# flag -> (values that change nothing, what to do instead)
_WITH_VALUE: dict[str, tuple[tuple[str, ...], str]] = {
    "--tensor-parallel-size": (("1",), "Layers are split over stages instead: use --pipeline-parallel-size."),
    "-tp": (("1",), "Layers are split over stages instead: use --pipeline-parallel-size."),
    "--data-parallel-size": (("1",), "Start several servers behind a load balancer."),
    "-dp": (("1",), "Start several servers behind a load balancer."),
    "--gpu-memory-utilization": ((), "Use --memory-utilization."),
    "--num-gpu-blocks-override": ((), "Use --num-blocks."),
    "--distributed-executor-backend": (("mp",), "Leave it out: stages are local processes."),
    "--nnodes": (("1",), "Several machines are not available yet."),
    "-q": ((), "Use --quantization."),
    "--uds": ((), "Use --host and --port."),
    "--ssl-keyfile": ((), "Put a reverse proxy with TLS in front."),
    "--ssl-certfile": ((), "Put a reverse proxy with TLS in front."),
    "--root-path": ((), "Let the reverse proxy strip the path."),
    "--allowed-origins": ((), "Web pages of other origins are never allowed in; use a proxy of the same origin."),
    "--swap-space": (("0",), "Leave it out: preempted requests are recomputed."),
    "--tokenizer-revision": ((), "Use --revision, or give --tokenizer a local folder."),
    "--kv-transfer-config": ((), "Leave it out."),
    "--speculative-config": ((), "Speculative decoding is not available yet."),
    "--tool-call-parser": ((), "Tools are not available yet."),
    "--reasoning-parser": ((), "Reasoning parsers are not available yet."),
}
_SWITCHES: dict[str, str] = {
    "--trust-remote-code": "Paceline never runs code that comes with a model. Leave it out.",
    "--enable-lora": "Adapters are not available. Merge them into the weights.",
    "--enable-auto-tool-choice": "Tools are not available yet. Leave it out.",
    "--headless": "Several machines are not available yet.",
}
_HARMLESS: dict[str, str] = {
    "--enforce-eager": "there are no captured graphs",
    "--enable-prompt-tokens-details": "usage always has them",
    "--disable-log-requests": "requests are not logged unless --enable-log-requests is given",
    "--disable-log-stats": "use --log-stats-interval 0 to silence them",
    "--async-scheduling": "the pipeline is always scheduled ahead",
    "--no-async-scheduling": "the pipeline is always scheduled ahead",
}


def add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Let `parser` understand these flags well enough to say something useful about them."""
    for flag in _WITH_VALUE:
        parser.add_argument(flag, nargs="?", action=_WithValue, help=argparse.SUPPRESS, default=argparse.SUPPRESS)
    for flag in _SWITCHES:
        parser.add_argument(flag, nargs=0, action=_Refused, help=argparse.SUPPRESS, default=argparse.SUPPRESS)
    for flag in _HARMLESS:
        parser.add_argument(flag, nargs=0, action=_Accepted, help=argparse.SUPPRESS, default=argparse.SUPPRESS)


class _WithValue(argparse.Action):
    def __call__(
        self, parser: Any, namespace: Any, values: str | Sequence[Any] | None, flag: str | None = None
    ) -> None:
        neutral, fix = _WITH_VALUE[flag or ""]
        if values not in neutral:
            raise ConfigError((flag or "").lstrip("-"), values or "", "is not an option of Paceline", fix)


class _Refused(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: object, flag: str | None = None) -> None:
        raise ConfigError((flag or "").lstrip("-"), "", "is refused", _SWITCHES[flag or ""])


class _Accepted(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: object, flag: str | None = None) -> None:
        logger.warning("%s has no effect: %s", flag, _HARMLESS[flag or ""])
