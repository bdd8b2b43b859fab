"""A tiny OpenTelemetry collector: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import gzip
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Span:
    """One span as it came over the wire; times in nanoseconds since 1970."""

    def __init__(self, service: str, span: Any) -> None:
        self.service = service
        self.name: str = span.name
        self.trace_id: str = span.trace_id.hex()
        self.span_id: str = span.span_id.hex()
        self.parent_id: str = span.parent_span_id.hex()
        self.start: int = span.start_time_unix_nano
        self.end: int = span.end_time_unix_nano
        self.error: str = span.status.message if span.status.code == 2 else ""
        self.attributes = {pair.key: _value(pair.value) for pair in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


class Collector:
    """Attributes:
    url: its address, without a path.
    paths: where spans were posted to.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._spans: queue.Queue[Span] = queue.Queue()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    data = gzip.decompress(data)
                collector._take(self.path, ExportTraceServiceRequest.FromString(data))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def _take(self, path: str, request: Any) -> None:
        self.paths.append(path)
        for resource in request.resource_spans:
            service = next(p.value.string_value for p in resource.resource.attributes if p.key == "service.name")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._spans.put(Span(service, span))

    def spans(self, count: int, seconds: float = 30.0) -> list[Span]:
        """Wait for so many spans; a request's own comes after its phases."""
        return [self._spans.get(timeout=seconds) for _ in range(count)]

    def none_left(self) -> bool:
        return self._spans.empty()

    @contextmanager
    def running(self) -> Iterator[Collector]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
