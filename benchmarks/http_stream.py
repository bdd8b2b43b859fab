"""What streaming costs the server: CPU time per token, from engine output to socket.

    python -m benchmarks.http_stream [--streams 16] [--tokens 2000]

An engine that costs nothing hands one token to every stream at each step; the real HTTP application and uvicorn send
them over loopback to a client in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from typing import Any

import uvicorn
import uvloop
from tests.server.fakes import FakeEngine, Site

from paceline.messages import RequestOutput
from paceline.sampling_params import SamplingParams
from paceline.server.http_protocol import BoundedHttp

STEP_SECONDS = 0.002
CLIENT = """
import asyncio, json, sys
port, streams, request = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
head = f"POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\n"
async def one():
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Content-Length: {len(request)}\\r\\n\\r\\n".encode() + request)
    while data := await reader.read(65536):
        if b"[DONE]" in data:
            return
async def main():
    await asyncio.gather(*(one() for _ in range(streams)))
asyncio.run(main())
"""


class SteppingEngine(FakeEngine):
    """Every stream gets a token whenever `step` is called."""

    def __init__(self) -> None:
        super().__init__()
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def step(self) -> None:
        passed, self._next = self._next, asyncio.get_running_loop().create_future()
        passed.set_result(None)

    async def generate(
        self, request_id: str, prompt_token_ids: list[int], sampling: SamplingParams, **_: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        last = (sampling.max_tokens or 1) - 1
        for place in range(last + 1):
            await self._next
            yield RequestOutput(request_id, [97 + place % 26], None, "FINISHED_LENGTH" if place == last else "")


async def measure(streams: int, tokens: int) -> float:
    """CPU microseconds of the server per streamed token."""
    engine = SteppingEngine()
    site = Site(engine, max_model_len=tokens + 10)
    server = uvicorn.Server(uvicorn.Config(site.app, http=BoundedHttp, lifespan="off", log_level="warning", port=0))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    body = json.dumps({"prompt": "abc", "max_tokens": tokens, "stream": True})
    client = subprocess.Popen([sys.executable, "-c", CLIENT, str(port), str(streams), body])
    while len(site.state.engine_ids) < streams:
        await asyncio.sleep(0.01)
    begin = time.process_time()
    while site.state.engine_ids:
        engine.step()
        await asyncio.sleep(STEP_SECONDS)
    used = time.process_time() - begin
    client.wait()
    server.should_exit = True
    await serving
    return used / (streams * tokens) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2000)
    args = parser.parse_args()
    cost = uvloop.run(measure(args.streams, args.tokens))
    print(json.dumps({"streams": args.streams, "tokens": args.tokens, "cpu_us_per_token": round(cost, 1)}))


if __name__ == "__main__":
    main()
