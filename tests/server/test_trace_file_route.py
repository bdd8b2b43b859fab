"""GET /trace and `paceline trace`: the record as a file, for those who may see everything."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from paceline.cli.main import main
from paceline.config import ServerConfig
from tests.server.fakes import FakeEngine, Site
from tests.server.running import Running
from tests.server.test_trace_routes import record
from tests.trace.test_perfetto import two_batches_events
from tests.trace.trace_format import check


def engine_with_record() -> FakeEngine:
    engine = FakeEngine()
    for event in two_batches_events(base=time.monotonic()):
        engine.recorder._append(event)
    return engine


async def test_the_record_of_the_last_seconds() -> None:
    reply = await Site(engine_with_record()).client.get("/trace?seconds=3600")
    assert reply.headers["content-type"] == "application/json"
    assert "paceline-trace.json" in reply.headers["content-disposition"]
    document = reply.json()
    check(document)
    assert {e["args"]["batch"] for e in document["traceEvents"] if e.get("cat") == "prefill"} == {0, 1}
    assert (await Site().client.get("/trace")).status_code == 200  # nothing happened yet


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "long", "1e9"])
async def test_seconds_that_are_none(seconds: str) -> None:
    reply = await Site().client.get(f"/trace?seconds={seconds}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "seconds")


async def test_only_the_admin_key_sees_everything() -> None:
    site = Site(config=ServerConfig(api_key=("key",), admin_api_key="boss"))
    record(site.engine)
    for key, status in (("", 401), ("key", 403), ("boss", 200)):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        assert (await site.client.get("/trace", headers=headers)).status_code == status


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running(Site(engine_with_record(), ServerConfig(api_key=("key",), admin_api_key="boss")))
    yield server
    server.stop()


def test_the_command_saves_it(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "run.json"
    flags = ["--url", running.url + "/v1", "--api-key", "boss", "--seconds", "3600"]
    assert main(["trace", *flags, "-o", str(target)]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    check(json.loads(target.read_text()))
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_the_command_reads_a_trace_file_too(tmp_path: Path) -> None:
    source, target = tmp_path / "trace.jsonl", tmp_path / "run.json"
    source.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in two_batches_events(with_page=True)))
    assert main(["trace", "--trace", str(source), "-o", str(target)]) == 0
    document = json.loads(target.read_text())
    check(document)
    assert "prefill batch 1" in {e["name"] for e in document["traceEvents"]}


def test_what_goes_wrong_leaves_nothing_behind(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "run.json"
    assert main(["trace", "--url", running.url, "--api-key", "key", "-o", str(target)]) == 1
    assert "--admin-api-key" in capsys.readouterr().err
    assert main(["trace", "--url", "http://127.0.0.1:1", "-o", str(target)]) == 1
    assert "no Paceline server" in capsys.readouterr().err
    (tmp_path / "odd").write_text("[1]\n")
    assert main(["trace", "--trace", str(tmp_path / "odd"), "-o", str(target)]) == 1
    assert "no trace file" in capsys.readouterr().err
    assert main(["trace", "--trace", "/dev/null", "-o", str(target)]) == 1
    assert "/dev/null holds no record" in capsys.readouterr().err
    assert main(["trace", "--url", running.url, "--api-key", "boss", "-o", str(tmp_path / "no" / "x.json")]) == 2
    assert "--output" in capsys.readouterr().err
    assert main(["trace", "--seconds", "0", "-o", str(target)]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd"]
