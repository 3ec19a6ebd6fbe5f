"""What watches a party: a small OpenTelemetry collector, and a reader of metrics."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families


class Collector:
    """Takes OTLP over HTTP and keeps every byte."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.received))
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[tuple[dict[str, str], Any]]:
        """Every span with the attributes of its party."""
        found = []
        for body in self._bodies("/v1/traces"):
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                found += [(_named(part.resource), span) for scope in part.scope_spans for span in scope.spans]
        return found

    def logs(self) -> list[tuple[dict[str, str], Any]]:
        """Every log record with the attributes of its party."""
        found = []
        for body in self._bodies("/v1/logs"):
            for part in ExportLogsServiceRequest.FromString(body).resource_logs:
                found += [(_named(part.resource), line) for scope in part.scope_logs for line in scope.log_records]
        return found

    def _bodies(self, path: str) -> list[bytes]:
        return [body for place, body in self.received if place == path]


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()


def scrape(address: str) -> bytes:
    """The metrics at an address, or nothing while nobody serves them."""
    try:
        with urlopen(f"http://{address}/metrics", timeout=300) as reply:
            return bytes(reply.read())
    except OSError:  # URLError among them
        return b""


def values(scraped: bytes, name: str) -> dict[tuple[str, ...], float]:
    """The samples of one name, by the values of their labels in the order of their names."""
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(scraped.decode())
        for sample in family.samples
        if sample.name == name
    }


def _named(resource: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in resource.attributes}


def _handler(received: list[tuple[str, bytes]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            received.append((self.path, gzip.decompress(body) if packed else body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
