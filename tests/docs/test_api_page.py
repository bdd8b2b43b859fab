"""The page of the API names what there is: endpoints, fields, error codes."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.routing import APIRoute

from paceline.server.fields import CHAT_FIELDS, COMPLETION_FIELDS
from paceline.server.protocol import ChatRequest, CompletionRequest
from tests.server.fakes import Site

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))
UNLISTED = {"request_id", "session_id"}  # accepted, without effect


def test_every_endpoint_is_on_the_page_with_the_right_access() -> None:
    rows = {line.split("|")[1]: line.split("|")[2].strip() for line in PAGE.splitlines() if line.startswith("| `")}
    for route in Site().app.routes:
        assert isinstance(route, APIRoute)
        path = route.path
        for name, word in (("{model:path}", "NAME"), ("{request_id}", "ID"), ("{number}", "N")):
            path = path.replace(name, word)
        (access,) = {who for cells, who in rows.items() if re.search(rf"[ `]{re.escape(path)}`", cells)}
        words = {"user": "yes", "public": "no", "owner": "own", "admin": "admin"}
        assert access == words[route.endpoint.access], path


def test_every_supported_field_is_on_the_page() -> None:
    fields = {*CompletionRequest.__struct_fields__, *ChatRequest.__struct_fields__} - UNLISTED
    assert not {name for name in fields if name not in WORDS}


def test_every_field_on_the_list_of_missing_ones_is_missing() -> None:
    text = PAGE.partition("**Known, but not available yet:**")[2].partition("and some")[0]
    for name in re.findall(r"`(\w+)`", text):
        assert name in COMPLETION_FIELDS | CHAT_FIELDS


def test_every_error_code_is_on_the_page() -> None:
    sources = [path.read_text() for path in (ROOT / "src" / "paceline").rglob("*.py")]
    codes = {code for text in sources for code in re.findall(r'code="(\w+)"', text)}
    assert len(codes) > 10
    assert not codes - WORDS
