"""Offline use: a model in a few lines of Python, without a server.

::

    from paceline import LLM, SamplingParams

    with LLM(pipeline_parallel_size=2) as llm:
        for completion in llm.generate(["Once upon a time", "The capital of France is"], SamplingParams(max_tokens=32)):
            print(completion.text)
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec
from tqdm.auto import tqdm

from paceline.config import EngineConfig
from paceline.engine.choice import Delta
from paceline.engine.loading_bar import LoadingBar
from paceline.engine.offline import Job, OfflineEngine, Outcome
from paceline.errors import EngineDeadError, RequestError
from paceline.messages import TokenLogprobs
from paceline.sampling_params import SamplingParams
from paceline.tokenization import Tokenizer

Prompt = str | Sequence[int]
Conversation = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Completion:
    """What the model made of one prompt.

    Attributes:
        prompt: the prompt's text, or None if it was given as token ids.
        prompt_token_ids: what the model read.
        text: what it wrote, without stop strings and special tokens unless they were asked for.
        token_ids: its tokens, with the one that ended it.
        finish_reason: ``stop``, ``length``, or ``error`` (then `error` says why).
        stop_reason: the stop string or stop token id that ended it, if one of the request's own did.
        logprobs: one entry per token if they were asked for, else None.
        num_cached_tokens: prompt tokens that the prefix cache already had.
        error: why the engine gave up on this prompt; empty if it did not.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0
    error: str = ""


class LLM:
    """A model, ready to generate. Ends its processes when closed, forgotten, or at the interpreter's end.

    Args:
        model: folder, .gguf file, known name or Hugging Face id; None: the default model.
        pipeline_parallel_size: number of stages, each a process with part of the layers.
        use_tqdm: show a progress bar while loading.
        options: any other option of ``paceline serve`` that concerns the engine, such as ``max_num_seqs=64``.

    Raises:
        ConfigError: an option cannot be used as given.
        PacelineError: the model or the engine cannot start; says why.
    """

    def __init__(
        self, model: str | None = None, *, pipeline_parallel_size: int = 1, use_tqdm: bool = True, **options: Any
    ) -> None:
        config = EngineConfig(model=model, pipeline_parallel_size=pipeline_parallel_size, **options)
        with LoadingBar(pipeline_parallel_size, use_tqdm) as bar:
            self._engine = OfflineEngine(config, bar)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.model.tokenizer

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        return self._engine.info.max_model_len

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Continue each prompt. Ctrl-C aborts all of them, and the LLM can be used again.

        Args:
            prompts: one prompt or several, each a text or a list of token ids.
            sampling_params: one for all or one per prompt. None: ``SamplingParams()``, with fewer tokens where the
                model's length leaves less room.
            use_tqdm: show a progress bar.

        Returns:
            Completions in the order of the prompts.

        Raises:
            RequestError: a prompt or its parameters cannot be used; nothing was generated. The message says which.
            EngineDeadError: the engine is gone.
        """
        texts, token_ids = self._tokenize(_as_list(prompts), add_special_tokens=True)
        return self._run(texts, token_ids, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Completion]:
        """Answer one conversation or several, each a list of ``{"role": …, "content": …}``.

        Everything else is as for :meth:`generate`; `chat_template` replaces the model's own.

        Raises:
            RequestError: also for a conversation that the template refuses.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [
            self.tokenizer.apply_chat_template(
                conversation,  # type: ignore[arg-type]  # told apart by the first item just above
                chat_template=chat_template,
                kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        texts, token_ids = self._tokenize(prompts, add_special_tokens=False)
        return self._run(texts, token_ids, sampling_params, use_tqdm)

    def close(self) -> None:
        """End the engine and its processes. May be called twice."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------ steps

    def _tokenize(
        self, prompts: Sequence[Prompt], *, add_special_tokens: bool
    ) -> tuple[list[str | None], list[list[int]]]:
        texts = [prompt if isinstance(prompt, str) else None for prompt in prompts]
        ids = [
            self.tokenizer.encode(prompt, add_special_tokens) if isinstance(prompt, str) else list(prompt)
            for prompt in prompts
        ]
        return texts, ids

    def _run(
        self,
        texts: list[str | None],
        token_ids: list[list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[Completion]:
        if self._engine.closed:
            raise EngineDeadError("this LLM is closed")
        params = self._params_for(token_ids, sampling_params)
        jobs = []
        for index, (ids, sampling) in enumerate(zip(token_ids, params, strict=True)):
            try:
                jobs.append(self._engine.check(Job(ids, sampling)))
            except RequestError as error:
                raise RequestError(f"prompt {index}: {error}", code=error.code, param=error.param) from None
        answers = [_Answer() for _ in jobs]
        with _GeneratingBar(len(jobs), use_tqdm) as bar:

            def take(index: int, delta: Delta) -> None:
                answers[index].add(delta)
                bar.add(delta)

            outcomes = self._engine.run(jobs, on_delta=take)
        return [
            answer.completion(text, outcome) for answer, text, outcome in zip(answers, texts, outcomes, strict=True)
        ]

    def _params_for(
        self, token_ids: list[list[int]], given: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        """Parameters per prompt, each with a seed."""
        if given is None:
            rooms = [max(1, self.max_model_len - len(ids)) for ids in token_ids]
            params = [SamplingParams(max_tokens=min(SamplingParams().max_tokens or room, room)) for room in rooms]
        elif isinstance(given, SamplingParams):
            params = [given] * len(token_ids)
        else:
            params = list(given)
        if len(params) != len(token_ids):
            raise RequestError(
                f"There are {len(token_ids)} prompts and {len(params)} sampling parameters.", param="sampling_params"
            )
        return [msgspec.structs.replace(p, seed=secrets.randbits(63)) if p.seed is None else p for p in params]


class _Answer:
    """Collects one prompt's text and tokens."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()

    def completion(self, prompt: str | None, outcome: Outcome) -> Completion:
        choice = outcome.choice
        return Completion(
            prompt=prompt,
            prompt_token_ids=choice.prompt_token_ids,
            text="".join(self.text),
            token_ids=self.token_ids,
            finish_reason=choice.finish_reason or "error",
            stop_reason=choice.stop_reason,
            logprobs=None if choice.sampling.logprobs is None else self.logprobs,
            num_cached_tokens=choice.num_cached_tokens,
            error=outcome.error,
        )


class _GeneratingBar:
    """Prompts done, and output tokens per second."""

    def __init__(self, total: int, shown: bool) -> None:
        self._bar = tqdm(total=total, desc="Generating", unit="prompt", disable=not shown or not total)
        self._tokens = 0

    def add(self, delta: Delta) -> None:
        self._tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            elapsed = self._bar.format_dict["elapsed"]
            rate = self._tokens / elapsed if elapsed else 0.0
            self._bar.set_postfix_str(f"{rate:.0f} output tokens/s", refresh=False)
            self._bar.update()

    def __enter__(self) -> _GeneratingBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Several prompts, whether one or several were given; a list of numbers is one."""
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]  # told apart by its first item
    return prompts  # type: ignore[return-value]
