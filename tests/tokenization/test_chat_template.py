"""Chat templates: the dialect that models use, and what a hostile one can do (nothing but fail)."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from datetime import datetime

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from paceline.errors import RequestError
from paceline.tokenization.chat_template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]
CONVERSATION = [
    {"role": "system", "content": "Be <brief> & 'kind'.\n"},
    {"role": "user", "content": "  Grüße 😀 "},
    {"role": "assistant", "content": "A", "tool_calls": [{"name": "f", "arguments": {"é": [1, None, True]}}]},
    {"role": "user", "content": "B"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<d> 'q' é", "parameters": {"b": 1, "a": 2}}}]

DIALECT = [
    "{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}",
    "{{ bos_token }}{%- for m in messages %}\n  {%- if loop.first %}[{{ m.content }}]{% continue %}{% endif %}\n{{ loop.index0 }}"
    "{% if loop.index > 2 %}{% break %}{% endif %}\n{% endfor %}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ m.tool_calls | tojson }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "{% for t in tools or [] %}{{ t | tojson(indent=2) }}{{ t.function | tojson(sort_keys=True) }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + (m.content | length) %}{% endfor %}{{ ns.n }}",
    "{% macro show(m) %}<{{ m.role }}>{% endmacro %}{% for m in messages[1:] %}{{ show(m) }}{% endfor %}{{ nothing }}",
    "    {% if true %}\nx\n    {% endif %}\n{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ strftime_now('%Y') }}{{ custom }}{{ documents is none or documents is not defined }}",
]


@pytest.mark.parametrize("template", DIALECT)
@pytest.mark.parametrize("with_tools", [False, True])
def test_prompts_are_what_transformers_makes_of_them(template: str, with_tools: bool) -> None:
    variables = {"bos_token": "<s>", "custom": "c"}
    tools = TOOLS if with_tools else None
    expected, _ = render_jinja_template(
        conversations=[CONVERSATION], tools=tools, chat_template=template, add_generation_prompt=True, **variables
    )
    made = ChatTemplate({"default": template}).render(CONVERSATION, tools=tools, variables=variables)
    assert made == expected[0]


@pytest.mark.parametrize("name", ["self", "messages", "tools", "documents", "add_generation_prompt"])
def test_variables_cannot_take_the_place_of_the_conversation(name: str) -> None:
    with pytest.raises(RequestError, match=f"chat_template_kwargs may not hold {name}:") as caught:
        ChatTemplate({"default": "{{ messages }}"}).render(USER, variables={"custom": 1, name: 1})
    assert (caught.value.status, caught.value.param) == (400, f"chat_template_kwargs.{name}")


@pytest.mark.parametrize("name", ["cls", "args", "kwargs", "environment", "context", "class", "loop", "range"])
def test_variables_may_have_any_other_name(name: str) -> None:
    rendered = ChatTemplate({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"})
    assert rendered.render(USER, variables={name: 1}) == "Hi"


@pytest.fixture(scope="module")
def impatient() -> ChatTemplate:
    return ChatTemplate({"default": "fine"}, time_limit=1.0)


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{{ 'x' * 10000000000 }}",
        "{{ 'x' | center(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ [0] * 10000000000 }}",
        "{{ 10 ** 1000000000 }}",
        "{% set ns = namespace(s='x' * 1000) %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ range(100001) | list }}",
    ],
)
def test_a_template_that_wants_too_much(impatient: ChatTemplate, template: str) -> None:
    with pytest.raises(RequestError) as caught:
        impatient.render(USER, override=template)
    assert (caught.value.status, caught.value.code) == (400, "template_error")
    assert impatient.render(USER) == "fine"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ self.__init__.__globals__ }}{{ lipsum.__globals__['os'] }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    ],
)
def test_the_sandbox_holds(impatient: ChatTemplate, template: str) -> None:
    with pytest.raises(RequestError) as caught:
        impatient.render(USER, override=template)
    assert caught.value.code == "template_error"
    assert impatient.render(USER) == "fine"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ (messages | first).content.x.y }}", "'str object' has no attribute 'x'"),
    ],
)
def test_what_is_wrong_is_told(impatient: ChatTemplate, template: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        impatient.render(USER, override=template)


def test_no_address_is_told(impatient: ChatTemplate) -> None:
    with pytest.raises(RequestError) as caught:
        impatient.render(USER, override="{{ raise_exception(raise_exception | string) }}")
    assert "function" in str(caught.value)
    assert "0x…" in str(caught.value)


def test_a_model_without_a_template() -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate({}).render(USER)
    assert (caught.value.status, caught.value.code) == (400, "no_chat_template")
    assert not ChatTemplate({}).exists
    assert ChatTemplate({}).render(USER, override="given") == "given"


def test_named_templates() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "with tools"})
    assert both.render(USER) == "plain"
    assert both.render(USER, tools=TOOLS) == "with tools"
    assert ChatTemplate({"default": "plain"}).render(USER, tools=TOOLS) == "plain"
    with pytest.raises(RequestError, match="only rag"):
        ChatTemplate({"rag": "x"}).render(USER)


def test_content_in_parts_is_one_text(impatient: ChatTemplate) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert impatient.render(parts, override="{{ messages[0].content }}") == "a\nb"
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
    with pytest.raises(RequestError, match="'image_url'"):
        impatient.render(picture)


def test_a_conversation_that_is_no_json(impatient: ChatTemplate) -> None:
    with pytest.raises(RequestError, match="JSON"):
        impatient.render([{"role": "user", "content": object()}])


def test_any_text_survives_the_way_to_the_worker(impatient: ChatTemplate) -> None:
    text = "\x00\n\r\u2028 \ud800 😀 </script>"
    assert impatient.render([{"role": "user", "content": text}], override="{{ messages[0].content }}") == text
    long = "é" * 3_000_000
    assert impatient.render([{"role": "user", "content": long}], override="{{ messages[0].content }}") == long


def test_the_time_is_this_machines() -> None:
    before = datetime.now().strftime("%d %b %Y")
    made = ChatTemplate({"default": "{{ strftime_now('%d %b %Y') }}"}).render(USER)
    assert made in (before, datetime.now().strftime("%d %b %Y"))


def test_a_worker_that_was_killed_is_started_again() -> None:
    template = ChatTemplate({"default": "fine"})
    assert template.render(USER) == "fine"
    process = template._worker._process
    assert process is not None
    process.kill()
    process.wait()
    assert template.render(USER) == "fine"


def test_many_threads_at_once(impatient: ChatTemplate) -> None:
    made: dict[int, str] = {}

    def render(number: int) -> None:
        made[number] = impatient.render(
            [{"role": "user", "content": str(number)}], override="{{ messages[0].content }}"
        )

    threads = [threading.Thread(target=render, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == {number: str(number) for number in range(16)}


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"])
def test_the_worker_ends_with_its_parent(end: str) -> None:
    program = (
        "import os\n"
        "from paceline.tokenization.chat_template import ChatTemplate\n"
        "template = ChatTemplate({'default': 'fine'})\n"
        "template.render([])\n"
        "print(template._worker._process.pid, flush=True)\n"
        "input()\n" + end
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        worker = os.pidfd_open(int(parent.stdout.readline()))
        parent.stdin.write("\n")
        parent.stdin.flush()
        ended, _, _ = select.select([worker], [], [], 60)
        os.close(worker)
    assert ended
