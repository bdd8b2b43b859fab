"""The pages for people: served with a strict policy, whole, and without anything from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paceline.server
from tests.server.fakes import Site

FOLDER = Path(paceline.server.__file__).parent / "pages"
SERVED = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".html", ".css", ".js", ".svg"))
OURS = [name for name in SERVED if name != "marked.esm.js"]
NAMESPACE = "http://www.w3.org/2000/svg"  # a name; nothing is fetched from it


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ["/", "/monitor", *(f"/pages/{name}" for name in SERVED)])
async def test_a_page_is_served_under_the_strict_policy(path: str) -> None:
    reply = await Site().client.get(path)
    assert reply.status_code == 200
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == policy.pop("frame-ancestors") == "'none'"
    assert {policy[kind] for kind in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert not [name for name in reply.headers if name.startswith("access-control") or name == "set-cookie"]


async def test_an_unchanged_page_is_not_sent_twice() -> None:
    client = Site().client
    tag = (await client.get("/")).headers["etag"]
    again = await client.get("/", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert (await client.get("/monitor", headers={"if-none-match": tag})).status_code == 200


@pytest.mark.parametrize(
    "name", ["nothing.js", "marked.LICENSE", "..%2fapp.py", "%2e%2e/app.py", "../page_routes.py", ""]
)
async def test_only_files_of_the_bundle_are_served(name: str) -> None:
    assert (await Site().client.get(f"/pages/{name}")).status_code == 404


@pytest.mark.parametrize("name", SERVED)
def test_whatever_a_file_refers_to_is_in_the_bundle(name: str) -> None:
    found = re.findall(r"/pages/([\w.-]+)", text_of(name))
    assert [other for other in found if other not in SERVED] == []


@pytest.mark.parametrize("name", OURS)
def test_a_file_neither_loads_from_elsewhere_nor_makes_html_of_texts(name: str) -> None:
    text = text_of(name).replace(NAMESPACE, "")
    assert re.findall(r"""["'(]\s*(?:https?:)?//[\w.]+""", text) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []
    if name.endswith(".html"):
        assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]* src=)", text) == []


@pytest.mark.parametrize("name", OURS)
def test_icons_that_a_file_names_are_drawn(name: str) -> None:
    drawn = set(re.findall(r'<symbol id="([\w-]+)"', text_of("icons.svg")))
    used = set(re.findall(r"""icons\.svg#([\w-]+)|icon\("([\w-]+)"\)""", text_of(name)))
    assert {a or b for a, b in used} <= drawn


def test_files_are_short_enough_to_read() -> None:
    assert [name for name in OURS if len(text_of(name).splitlines()) > 300] == []
