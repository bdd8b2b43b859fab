"""Offline use over a deterministic engine; tests/e2e/test_offline.py does the same with the real one."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import paceline
from paceline.errors import ConfigError, EngineDeadError, PacelineError, RequestError
from paceline.llm import LLM
from paceline.messages import CoreStats
from paceline.sampling_params import SamplingParams
from tests import offline_fakes
from tests.offline_fakes import Engine
from tests.server.fakes import EOS, MAX_MODEL_LEN


@pytest.fixture(autouse=True)
def fake_parts(monkeypatch):
    offline_fakes.install(monkeypatch)


@pytest.fixture
def llm():
    with LLM(pipeline_parallel_size=2, use_tqdm=False) as llm:
        yield llm


def texts(completions):
    return [completion.text for completion in completions]


def test_one_prompt_or_several_texts_or_token_ids(llm):
    assert texts(llm.generate("one", use_tqdm=False)) == ["ONE."]
    assert texts(llm.generate(["one", "two"], use_tqdm=False)) == ["ONE.", "TWO."]
    assert texts(llm.generate([*b"ids"], use_tqdm=False)) == ["IDS."]
    assert texts(llm.generate([[*b"ids"], "text"], use_tqdm=False)) == ["IDS.", "TEXT."]
    assert llm.generate([]) == []


def test_what_a_completion_says(llm):
    (done,) = llm.generate("hey", SamplingParams(logprobs=1), use_tqdm=False)
    assert (done.prompt, done.prompt_token_ids, done.text) == ("hey", [*b"hey"], "HEY.")
    assert done.token_ids == [*b"HEY.", EOS]
    assert (done.finish_reason, done.stop_reason, done.num_cached_tokens, done.error) == ("stop", None, 2, "")
    assert done.logprobs is not None
    assert len(done.logprobs) == len(done.token_ids)
    (cut,) = llm.generate([[*b"hey"]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert (cut.prompt, cut.text, cut.finish_reason, cut.logprobs) == (None, "HE", "length", None)


def test_order_is_kept_when_later_prompts_end_first(llm):
    prompts = ["x" * length for length in (9, 1, 7, 3, 5)]
    assert texts(llm.generate(prompts, use_tqdm=False)) == [prompt.upper() + "." for prompt in prompts]


def test_parameters_for_all_or_for_each(llm):
    llm.generate(["a", "b"], SamplingParams(seed=3), use_tqdm=False)
    assert [params.seed for params in Engine.last.sampled] == [3, 3]
    done = llm.generate(["abc", "abc"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)], use_tqdm=False)
    assert texts(done) == ["A", "AB"]
    with pytest.raises(RequestError, match="2 prompts and 1 sampling"):
        llm.generate(["a", "b"], [SamplingParams()])


def test_every_request_gets_a_seed_of_its_own(llm):
    llm.generate(["a"] * 5, SamplingParams(), use_tqdm=False)
    assert len({params.seed for params in Engine.last.sampled} - {None}) == 5


def test_stop_strings_end_an_answer_and_tell_the_engine(llm):
    (done,) = llm.generate("abcd", SamplingParams(stop="C"), use_tqdm=False)
    assert (done.text, done.token_ids, done.finish_reason, done.stop_reason) == ("AB", [*b"ABC"], "stop", "C")
    assert next(what for what in Engine.last.posted if what[0] == "finish")[1][1] == 3


def test_default_parameters_shrink_to_the_room_but_given_ones_are_refused(llm):
    prompt = "p" * (MAX_MODEL_LEN - 3)
    assert texts(llm.generate(prompt, use_tqdm=False)) == ["PPP"]
    with pytest.raises(RequestError, match=r"prompt 0: .*max_tokens is 16") as caught:
        llm.generate(prompt, SamplingParams())
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("bad", "param"), [("", "prompt"), ([257], "prompt"), ([-1], "prompt"), ("p" * MAX_MODEL_LEN, "prompt")]
)
def test_a_bad_prompt_is_named_before_anything_is_sent(llm, bad, param):
    with pytest.raises(RequestError, match="prompt 1: ") as caught:
        llm.generate(["good", bad], use_tqdm=False)
    assert caught.value.param == param
    assert Engine.last.posted == []


def test_a_request_that_fails_costs_only_itself(llm):
    Engine.last.fail_after = 2
    done = llm.generate(["ab", "abcdef"], [SamplingParams(max_tokens=1), SamplingParams()], use_tqdm=False)
    assert [c.finish_reason for c in done] == ["length", "error"]
    assert done[1].text == "AB"
    assert "not finite" in done[1].error
    assert done[0].error == ""


def test_a_dead_engine_is_one_plain_error(llm):
    Engine.last.die_after = 1
    with pytest.raises(EngineDeadError, match="stage 1 was killed"):
        llm.generate(["ab", "cd", "ef"], use_tqdm=False)
    assert Engine.last.live == set()


def test_chat(llm):
    message = {"role": "user", "content": "hello"}
    assert texts(llm.chat([message], use_tqdm=False)) == ["U:HELLO;."]
    both = llm.chat([[message], [message, {"role": "assistant", "content": "x"}]], use_tqdm=False)
    assert texts(both) == ["U:HELLO;.", "U:HELLO;A:X;."]
    with pytest.raises(RequestError) as caught:
        llm.chat([{"role": "user", "content": "bad template"}])
    assert caught.value.code == "template_error"


def test_no_more_at_once_than_the_queue_takes():
    with LLM(use_tqdm=False, max_num_queued_reqs=3) as llm:
        Engine.last.queue = 3  # a fourth would be refused
        assert len(llm.generate(["x"] * 20, use_tqdm=False)) == 20
        assert Engine.last.most_live == 3


def test_works_inside_a_running_loop(llm):
    async def cell():
        return texts(llm.generate("one", use_tqdm=False))

    assert asyncio.run(cell()) == ["ONE."]


def test_progress_bars(capsys):
    with LLM() as llm:
        llm.generate(["a", "b"])
    shown = capsys.readouterr().err
    assert "Loading" in shown
    assert "2/2" in shown
    assert "output tokens/s" in shown
    with LLM(use_tqdm=False) as llm:
        llm.generate(["a", "b"], use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_ends_when_closed_or_forgotten():
    llm = LLM(use_tqdm=False)
    llm.close()
    llm.close()
    assert Engine.last.closes == 1
    with pytest.raises(EngineDeadError, match="closed"):
        llm.generate("one")
    llm = LLM(use_tqdm=False)
    del llm
    assert Engine.last.closes == 1


def test_a_failed_start_leaves_nothing(monkeypatch):
    monkeypatch.setattr(Engine, "fails_at_start", "no such weights")
    with pytest.raises(PacelineError, match="no such weights"):
        LLM(use_tqdm=False)
    assert Engine.last.closes == 1


def test_unusable_options():
    with pytest.raises(ConfigError, match="--max-num-seqs"):
        LLM(max_num_seqs=0)
    with pytest.raises(TypeError, match="max_num_sequences"):
        LLM(max_num_sequences=5)


def test_stats_are_those_after_the_last_token(monkeypatch):
    with LLM(use_tqdm=False) as llm:
        core = llm._engine
        stale = CoreStats(1, 0, 5, 64, 9, 1, 0, 0, 0, [], [], 1.0)
        settled = CoreStats(0, 0, 0, 64, 10, 0, 0, 0, 0, [], [], 1.1)
        Engine.last.stats = stale

        async def arrives_later():
            asyncio.get_running_loop().call_later(0.02, setattr, Engine.last, "stats", settled)

        core._thread.run(arrives_later())
        assert core.stats() == settled


def test_the_package_exports_its_public_names_lazily():
    assert paceline.LLM is LLM
    assert paceline.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="nonsense"):
        _ = paceline.nonsense
    heavy = "{'torch', 'numpy', 'zmq', 'msgspec', 'asyncio', 'tqdm'}"
    code = f"import sys, paceline; sys.exit(len({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
