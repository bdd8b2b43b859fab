"""What happened to a request, over HTTP: told to whom it belongs, and to nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from paceline.config import ServerConfig
from paceline.messages import AddRequest, BatchResult, Plan, SampledToken, Slice
from paceline.request import Request, RequestStatus
from paceline.sampling_params import SamplingParams
from paceline.scheduling import Batch, Reason
from paceline.trace import Recorder
from tests.server.fakes import FakeEngine, Site


def request_of(engine: FakeEngine, number: int, request_id: str, owner: str) -> Request:
    message = AddRequest(request_id, [1, 2, 3], SamplingParams(seed=0), owner=owner, label="mine")
    request = Request(message, number, 100, 1.0)
    engine.recorder.arrived(message, request)
    return request


def record(engine: FakeEngine, owners: tuple[str, str] = ("", "")) -> None:
    """One batch that holds `cmpl-a`, while `cmpl-b` waits for a seat."""
    first = request_of(engine, 0, "cmpl-a", owners[0])
    second = request_of(engine, 1, "cmpl-b", owners[1])
    first.change_status(RequestStatus.RUNNING)
    plan = Plan(0, 0, [Slice(0, 0, 0, [1, 2, 3], True, 0, [0])], [], [])
    engine.recorder.made(2.0, Batch(plan, [first], [0], {second: Reason.SEQ_LIMIT}, [0], 0), 1, 1, 63, 1)
    engine.recorder.done(3.0, BatchResult(0, 0, [SampledToken(0, 0, 7)], []), [0])
    engine.recorder.sent()


async def owners_of(site: Site, *keys: str) -> list[str]:
    """What the record calls the holders of these keys."""
    found = []
    for key in keys:
        await site.client.post("/v1/completions", json={"prompt": "x"}, headers={"Authorization": f"Bearer {key}"})
        found.append(site.engine.owners[-1])
    return found


async def get(site: Site, path: str, key: str = "", **headers: str) -> httpx.Response:
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return await site.client.get(path, headers=headers)


async def test_without_keys_a_client_on_this_machine_sees_all() -> None:
    site = Site()
    record(site.engine)
    batch = (await get(site, "/batches/0")).json()
    assert {name: batch[name] for name in ("batch", "slices", "status", "why_not")} == {
        "batch": 0,
        "slices": {"cmpl-a": [0, 3]},
        "status": {"cmpl-a": "RUNNING", "cmpl-b": "WAITING"},
        "why_not": {"cmpl-b": "SEQ_LIMIT"},
    }
    assert "cmpl-b: WAITING, not in it: SEQ_LIMIT" in batch["text"]
    timeline = (await get(site, "/v1/requests/cmpl-a/timeline")).json()
    assert (timeline["status"], timeline["output_tokens"], timeline["label"]) == ("RUNNING", 1, "mine")
    assert sum(timeline["time_to_first_token_parts"].values()) == pytest.approx(timeline["time_to_first_token"])
    for unknown in ("/batches/1", "/v1/requests/cmpl-c/timeline"):
        assert (await get(site, unknown)).status_code == 404


@pytest.mark.parametrize(("peer", "headers"), [("10.0.0.9", {}), ("127.0.0.1", {"x-forwarded-for": "10.0.0.9"})])
async def test_without_keys_nobody_else_sees_anything(peer: str, headers: dict[str, str]) -> None:
    site = Site()
    record(site.engine)
    site.client._transport = httpx.ASGITransport(site.app, raise_app_exceptions=False, client=(peer, 5))
    for path in ("/batches/0", "/v1/requests/cmpl-a/timeline"):
        reply = await get(site, path, **headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "forbidden")
        assert "cmpl-b" not in reply.text


async def test_a_key_sees_its_own_requests_and_the_admin_key_all() -> None:
    site = Site(config=ServerConfig(api_key=("one", "two"), admin_api_key="root"))
    record(site.engine, tuple(await owners_of(site, "one", "two")))  # type: ignore[arg-type]
    assert (await get(site, "/v1/requests/cmpl-a/timeline", "one")).status_code == 200
    assert (await get(site, "/v1/requests/cmpl-a/timeline", "two")).status_code == 404
    assert (await get(site, "/v1/requests/cmpl-a/timeline", "root")).status_code == 200
    assert (await get(site, "/v1/requests/cmpl-a/timeline")).status_code == 401
    mine = (await get(site, "/batches/0", "two")).json()
    assert (mine["slices"], mine["status"], mine["others"]) == ({}, {"cmpl-b": "WAITING"}, 1)
    assert "cmpl-a" not in str(mine)
    assert (await get(site, "/batches/0", "root")).json()["others"] == 0


async def test_what_the_record_calls_an_owner_is_not_made_of_the_key_alone() -> None:
    names = [(await owners_of(Site(config=ServerConfig(api_key=("one",))), "one"))[0] for _ in range(2)]
    assert len(set(names)) == 2
    assert all(names)


async def test_with_only_an_admin_key_clients_need_none_and_see_nothing() -> None:
    site = Site(config=ServerConfig(admin_api_key="root"))
    record(site.engine)
    assert (await site.complete()).status_code == 200
    assert (await get(site, "/batches/0")).status_code == 401
    assert (await get(site, "/batches/0", "wrong")).status_code == 401
    assert (await get(site, "/batches/0", "root")).status_code == 200


async def test_the_client_s_own_name_is_only_a_label() -> None:
    site = Site()
    await site.client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "my-name"})
    assert site.engine.labels == ["my-name"]
    assert site.engine.posted[0][1][0].startswith("cmpl-")
    assert (await get(site, "/v1/requests/my-name/timeline")).status_code == 404


class Held(FakeEngine):
    """Every request waits after its first token, and ends when it is aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    def abort(self, request_ids: list[str]) -> None:
        super().abort(request_ids)
        self.ended_by_abort = set(request_ids)
        assert self.gate is not None
        self.gate.set()


@pytest.mark.parametrize(
    ("key", "status"), [("one", 200), ("two", 404), ("root", 200), ("", 401)], ids=["own", "other", "admin", "none"]
)
async def test_abort(key: str, status: int) -> None:
    engine = Held()
    site = Site(engine, config=ServerConfig(api_key=("one", "two"), admin_api_key="root"))
    headers = {"Authorization": "Bearer one"}
    answer = asyncio.create_task(site.client.post("/v1/completions", json={"prompt": "x"}, headers=headers))
    await engine.first_out.wait()
    (request_id,) = engine.live
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    reply = await site.client.post(f"/v1/requests/{request_id}/abort", headers=headers)
    assert reply.status_code == status
    aborts: list[Any] = [what for kind, what in engine.posted if kind == "abort"]
    if status == 200:
        assert reply.json() == {"id": request_id, "aborted": True}
        assert aborts == [(request_id,)]
    else:
        assert aborts == []
        assert engine.gate is not None
        engine.gate.set()
    await answer
    gone = await site.client.post(f"/v1/requests/{request_id}/abort", headers={"Authorization": "Bearer root"})
    assert gone.status_code == 404


async def test_a_request_that_somebody_aborts_before_its_answer_is_an_error_of_its_own() -> None:
    from paceline.messages import RequestOutput

    class Aborted(FakeEngine):
        def _outputs(self, request_id: str, prompt: list[int], sampling: SamplingParams) -> list[RequestOutput]:
            return [RequestOutput(request_id, [], status="FINISHED_ABORTED")]

    reply = await Site(Aborted()).complete()
    assert (reply.status_code, reply.json()["error"]["code"]) == (499, "aborted")


async def test_what_was_said_is_told_only_with_trace_text() -> None:
    for keep in (False, True):
        site = Site()
        site.engine.recorder = Recorder(keep_tokens=keep)
        record(site.engine)
        timeline = (await get(site, "/v1/requests/cmpl-a/timeline")).json()
        said = (timeline["prompt_text"], timeline["output_text"])
        assert said == (("\x01\x02\x03", "\x07") if keep else (None, None))
        assert ("prompt: " in timeline["text"]) == keep
        assert (await get(site, "/v1/requests/cmpl-b/timeline")).json()["output_text"] == ("" if keep else None)


async def test_one_response_to_several_prompts_has_several_lives() -> None:
    site = Site()
    for number in range(3):
        request_of(site.engine, number, f"cmpl-x-{number}", "")
    told = (await get(site, "/v1/requests/cmpl-x/timeline")).json()
    assert [choice["id"] for choice in told["choices"]] == ["cmpl-x-0", "cmpl-x-1", "cmpl-x-2"]
    assert all(choice["text"] in told["text"] for choice in told["choices"])
    assert (await get(site, "/v1/requests/cmpl-x-1/timeline")).json()["status"] == "WAITING"


async def test_a_refused_request_has_a_short_life() -> None:
    site = Site()
    message = AddRequest("cmpl-no", [1, 2], SamplingParams(seed=0))
    site.engine.recorder.arrived(message, Request(message, 0, 100, 1.0))
    site.engine.recorder.refused(AddRequest("cmpl-no-2", [1], SamplingParams(seed=0)), "the prompt is too long")
    told = (await get(site, "/v1/requests/cmpl-no-2/timeline")).json()
    assert (told["status"], told["error"]) == ("FINISHED_REFUSED", "the prompt is too long")
    assert "because: the prompt is too long" in told["text"]


async def test_paths_that_name_nothing() -> None:
    site = Site()
    record(site.engine)
    for path in (
        "/batches/-1",
        "/batches/x",
        f"/batches/{'9' * 5000}",
        "/batches/99999999999999999999",
        "/v1/requests//timeline",
    ):
        reply = await get(site, path)
        assert reply.status_code in (400, 404), path
        assert reply.json()["error"]["code"], path
