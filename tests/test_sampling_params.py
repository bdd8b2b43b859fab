"""What a request may ask for: every limit, and the values that have crashed other engines."""

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import RequestError
from paceline.sampling_params import LIMITS, SamplingParams, check_number, validate, validate_request

VOCABULARY, LENGTH, PROMPT = 1000, 512, 12
NUMBERS = [name for name in LIMITS if name in SamplingParams.__struct_fields__]


def checked(length=LENGTH, prompt=PROMPT, **fields):
    params = SamplingParams(**fields)
    return validate(params, vocab_size=VOCABULARY, max_model_len=length, num_prompt_tokens=prompt)


def refusal(length=LENGTH, prompt=PROMPT, **fields):
    with pytest.raises(RequestError) as caught:
        checked(length, prompt, **fields)
    assert caught.value.status == 400
    return caught.value


def test_every_number_of_the_parameters_has_a_limit():
    numeric = {
        name
        for name, default in SamplingParams().__class__.__annotations__.items()
        if default.removesuffix(" | None") in ("int", "float")
    }
    assert set(NUMBERS) == numeric


def test_defaults_pass_unchanged():
    assert checked() == SamplingParams()


@pytest.mark.parametrize("name", NUMBERS)
def test_bounds_are_inclusive_and_nothing_beyond_passes(name):
    limit = LIMITS[name]
    low, high = limit.kind(limit.low), limit.kind(limit.high)
    step = 1 if limit.kind is int else 1e-10
    for value in (low, high):
        check_number(name, value)
    for value in (low - step, high + 1, -math.inf, math.inf, math.nan, 10**400, -(10**400)):
        if isinstance(value, float) and limit.kind is int:
            continue
        error = refusal(**{name: value})
        assert (error.code, error.param) == ("out_of_range", name)
        assert str(low) in str(error)
        assert str(high) in str(error)
        assert len(str(error)) < 200


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value",
    ["1", True, [1], {}, object(), 1.5, math.nan],
    ids=lambda value: "an-object" if type(value) is object else repr(value),
)
def test_wrong_types_are_refused_by_name(name, value):
    if isinstance(value, float) and LIMITS[name].kind is float:
        return
    error = refusal(**{name: value})
    assert (error.code, error.param) == ("invalid_request", name)


@pytest.mark.parametrize("name", NUMBERS)
def test_none_means_decide_for_me_only_where_that_is_defined(name):
    if LIMITS[name].optional:
        assert getattr(checked(**{name: None}), name) is None
    else:
        assert refusal(**{name: None}).param == name


@pytest.mark.parametrize("name", ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens"])
@pytest.mark.parametrize("value", [None, 0, 1, "yes"])
def test_switches_are_true_or_false(name, value):
    assert refusal(**{name: value}).param == name


# Values that took other servers down, or slipped past their checks; each must be refused by name, or be harmless.
CRASHERS = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**32}, "max_tokens"),
    ({"min_tokens": 17, "max_tokens": 16}, "min_tokens"),
    ({"min_tokens": 501, "max_tokens": None}, "min_tokens"),
    ({"min_tokens": 2**31 - 1, "max_tokens": None}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": 2**32 + 1}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": math.nan}, "temperature"),
    ({"temperature": math.inf}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_p": 1.0000001}, "top_p"),
    ({"top_p": math.nan}, "top_p"),
    ({"min_p": -1e-9}, "min_p"),
    ({"top_k": -2}, "top_k"),
    ({"seed": 2**63}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"stop": ("",)}, "stop"),
    ({"stop": ("a", "")}, "stop"),
    ({"stop": ("x" * 1025,)}, "stop"),
    ({"stop": ("x",) * 17}, "stop"),
    ({"stop": ("a\ud800",)}, "stop"),
    ({"stop": (1,)}, "stop"),
    ({"stop": None}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": {"a": 1}}, "stop"),
    ({"stop_token_ids": (VOCABULARY,)}, "stop_token_ids"),
    ({"stop_token_ids": (-1,)}, "stop_token_ids"),
    ({"stop_token_ids": (2**64,)}, "stop_token_ids"),
    ({"stop_token_ids": (True,)}, "stop_token_ids"),
    ({"stop_token_ids": ("7",)}, "stop_token_ids"),
    ({"stop_token_ids": None}, "stop_token_ids"),
    ({"stop_token_ids": tuple(range(257))}, "stop_token_ids"),
]


@pytest.mark.parametrize(("fields", "param"), CRASHERS, ids=lambda value: repr(value)[:40])
def test_values_that_crashed_engines(fields, param):
    assert refusal(**fields).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1e-300},
        {"temperature": 5e-324},
        {"seed": -(2**63)},
        {"seed": 2**63 - 1},
        {"top_k": -1},
        {"top_k": 2**31 - 1},
        {"stop": ("x" * 1024,) * 16},
        {"stop": ("\x00", "é", "🙂")},
        {"stop_token_ids": (0, VOCABULARY - 1, 0)},
        {"min_tokens": 500, "max_tokens": None},
        {"min_tokens": 500, "max_tokens": 500},
        {"logprobs": 0},
        {"logprobs": 20},
    ],
    ids=lambda value: repr(value)[:40],
)
def test_extreme_but_usable_values(fields):
    assert checked(**fields) == SamplingParams(**fields)


def test_lists_and_single_texts_become_tuples():
    params = checked(stop="END", stop_token_ids=[3, 4])
    assert (params.stop, params.stop_token_ids) == (("END",), (3, 4))
    assert checked(stop=["a", "b"]).stop == ("a", "b")
    hash(params)


# ---------------------------------------------------------------- lengths


def test_empty_prompt():
    error = refusal(prompt=0)
    assert (error.code, error.param) == ("invalid_request", "prompt")


@pytest.mark.parametrize("prompt", [LENGTH, LENGTH + 1, 10**9])
@pytest.mark.parametrize("max_tokens", [1, None])
def test_a_prompt_of_the_models_length_or_more_is_refused_with_both_numbers(prompt, max_tokens):
    error = refusal(prompt=prompt, max_tokens=max_tokens)
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert str(prompt) in str(error)
    assert str(LENGTH) in str(error)


def test_one_token_of_room_is_enough():
    assert checked(prompt=LENGTH - 1, max_tokens=1).max_tokens == 1
    assert checked(prompt=LENGTH - 1, max_tokens=None).max_tokens is None


def test_prompt_and_max_tokens_together_must_fit():
    assert checked(prompt=12, max_tokens=500).max_tokens == 500
    error = refusal(prompt=12, max_tokens=501)
    assert (error.code, error.param) == ("context_length_exceeded", "max_tokens")
    for text in ("12", "501", "max_tokens", str(LENGTH)):
        assert text in str(error)


# ---------------------------------------------------------------- beside the parameters


def request_refusal(prompt=(1, 2), priority=0, cache_salt="", timeout=None):
    with pytest.raises(RequestError) as caught:
        validate_request(prompt, priority, cache_salt, timeout, vocab_size=VOCABULARY)
    return caught.value.param


def test_the_rest_of_a_request():
    validate_request([0, VOCABULARY - 1], -5, "\x00/../🙂 odd but harmless", 0.5, vocab_size=VOCABULARY)
    assert request_refusal(prompt=[]) == "prompt"
    assert request_refusal(prompt=[0, -1]) == "prompt"
    assert request_refusal(prompt=[VOCABULARY]) == "prompt"
    assert request_refusal(prompt=[2**70]) == "prompt"
    assert request_refusal(priority=2**31) == "priority"
    assert request_refusal(priority=True) == "priority"
    assert request_refusal(cache_salt="s" * 1025) == "cache_salt"
    assert request_refusal(cache_salt=b"bytes") == "cache_salt"
    assert request_refusal(cache_salt="\udc00") == "cache_salt"
    assert request_refusal(timeout=0) == "timeout"
    assert request_refusal(timeout=math.nan) == "timeout"


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=5),
    st.lists(st.integers() | st.text(max_size=3), max_size=4),
    st.lists(st.text(max_size=3), max_size=4).map(tuple),
)


@given(st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), anything, max_size=4), st.integers(0, 600))
def test_anything_is_refused_by_name_or_usable(fields, prompt):
    """Whatever passes can be sent as msgpack and JSON, comes back equal, and passes again."""
    try:
        params = checked(prompt=prompt, **fields)
    except RequestError as error:
        named = error.param
    else:
        named = None
    if named is not None:
        assert named in {*SamplingParams.__struct_fields__, "prompt"}
        return
    assert validate(params, vocab_size=VOCABULARY, max_model_len=LENGTH, num_prompt_tokens=prompt) is params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    json.dumps(msgspec.to_builtins(params), allow_nan=False)
