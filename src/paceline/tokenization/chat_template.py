"""Conversations to prompts: the model's chat template, rendered by a worker process that can be killed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import RequestError
from paceline.tokenization import template_worker

TIME_LIMIT_SECONDS = 5.0
RESERVED = frozenset(
    {"self", "messages", "tools", "documents", "add_generation_prompt"}
)  # no names for variables of one's own
START_LIMIT_SECONDS = 60.0  # for the worker program to come up, on however busy a machine


class ChatTemplate:
    """A model's chat templates by name: ``default``, and perhaps ``tool_use`` for requests with tools."""

    def __init__(self, templates: Mapping[str, str], time_limit: float = TIME_LIMIT_SECONDS) -> None:
        self._templates = dict(templates)
        self._worker = TemplateWorker(time_limit)

    @property
    def exists(self) -> bool:
        return bool(self._templates)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        override: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt; see :meth:`paceline.tokenization.tokenizer.Tokenizer.apply_chat_template`."""
        if taken := sorted(RESERVED.intersection(variables or ())):
            raise RequestError(
                f"chat_template_kwargs may not hold {', '.join(taken)}: "
                "templates get their conversation and its settings by other ways.",
                param=f"chat_template_kwargs.{taken[0]}",
            )
        template = override if override is not None else self._choose(with_tools=bool(tools))
        return self._worker.render(
            template,
            {
                **(variables or {}),
                "messages": [_plain_content(message) for message in messages],
                "tools": list(tools) if tools else None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
        )

    def _choose(self, with_tools: bool) -> str:
        for name in (["tool_use"] if with_tools else []) + ["default"]:
            if name in self._templates:
                return self._templates[name]
        if not self._templates:
            problem = "the model has no chat template"
        else:
            problem = f"the model has no default chat template, only {', '.join(sorted(self._templates))}"
        raise RequestError(
            f"{problem}; use /v1/completions, or start the server with --chat-template FILE",
            code="no_chat_template",
        )


def _plain_content(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Content in parts becomes one text, which every template understands."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RequestError(f"the model reads text only, not content of type {kind!r}", param="messages")
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


class TemplateWorker:
    """Holds one :mod:`paceline.tokenization.template_worker`, started when first needed; serves one caller at a time."""

    def __init__(self, time_limit: float) -> None:
        self._time_limit = time_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """Render within the time limit.

        Raises:
            RequestError: ``template_error``; the worker has been killed if it was late or used too much memory.
        """
        try:
            request = json.dumps({"template": template, "variables": variables}).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            raise _template_error(f"the conversation cannot be written as JSON ({error})") from error
        with self._lock:
            try:
                reply = json.loads(_exchange(self._running(), request, self._time_limit))
            except TimeoutError:
                self._kill()
                raise _template_error(f"it took longer than {self._time_limit:g} s") from None
            except (EOFError, OSError):
                self._kill()
                raise _template_error("it used too much time or memory") from None
        if "error" in reply:
            raise _template_error(reply["error"])
        text: str = reply["text"]
        return text

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._kill()
        self._process = subprocess.Popen(
            [sys.executable, "-m", template_worker.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is for the server, which ends this one itself
        )
        weakref.finalize(self, _end, self._process)
        # An empty request is answered as soon as the program is up, so that its start does not count as rendering.
        _exchange(self._process, b'{"template": "", "variables": {}}', START_LIMIT_SECONDS)
        return self._process

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            _end(self._process)
            self._process = None


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.kill()
    process.wait()


def _exchange(process: subprocess.Popen[bytes], request: bytes, time_limit: float) -> bytes:
    """Send a request and wait for its answer.

    Raises:
        TimeoutError: it took longer than `time_limit` seconds.
        EOFError, OSError: the program has ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + time_limit
    poll = select.poll()  # select() cannot wait for a descriptor above 1023, and a server has many connections
    poll.register(descriptor, select.POLLIN)

    def read_exactly(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            chunk = os.read(descriptor, size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    process.stdin.write(template_worker.frame(request))
    process.stdin.flush()
    return template_worker.read_frame(read_exactly)


def _template_error(problem: str) -> RequestError:
    return RequestError(
        f"the chat template cannot make a prompt of this conversation: {problem}", code="template_error"
    )
