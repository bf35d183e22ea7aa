"""Prometheus metrics of both processes, by the names users alert on, and the HTTP endpoint (/metrics, /health)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, generate_latest

from shared.errors import ConfigError

# Default buckets hide everything: a mask takes 10 to 40 microseconds.
FINE_SECONDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
PEER_TIMEOUT_S = 5.0  # a connection that asks nothing for so long is closed
COARSE_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

# The worker.
requests_total = Counter("guided_requests_total", "Requests by outcome", ["kind", "outcome"])
requests_in_flight = Gauge("guided_requests_in_flight", "Requests admitted and not ended")
time_to_first_token_seconds = Histogram("guided_time_to_first_token_seconds", "Receipt to first token", buckets=COARSE_SECONDS)
inter_token_latency_seconds = Histogram("guided_inter_token_latency_seconds", "Between tokens", buckets=FINE_SECONDS)
request_duration_seconds = Histogram("guided_request_duration_seconds", "Receipt to the last reply", buckets=COARSE_SECONDS)
output_valid_total = Counter("guided_output_valid_total", "Outputs checked by the validator", ["engine", "result"])
gpu_step_seconds = Histogram("gpu_step_seconds", "One step of the batch", buckets=FINE_SECONDS)
gpu_mask_wait_seconds = Histogram("gpu_mask_wait_seconds", "Time a ready forward waited for rows", buckets=FINE_SECONDS)
gpu_batch_rows = Gauge("gpu_batch_rows", "Live rows of the last step")
gpu_dead_end_rows_total = Counter("gpu_dead_end_rows_total", "Rows without an allowed token")
gpu_invalid_token_total = Counter("gpu_invalid_token_total", "Sampled ids refused by a check")
mask_rows_total = Counter("guided_mask_rows_total", "Rows received by kind", ["kind"])
mask_bytes_total = Counter("guided_mask_bytes_total", "Bytes of step answers received")
gpu_copied_bytes_total = Counter("gpu_copied_bytes_total", "Bytes of mask rows brought to the GPU")
holds_total = Counter("guided_holds_total", "Sequences that repeated a step")
draft_tokens_total = Counter("guided_draft_tokens_total", "Drafted tokens: accepted, verified, rewound", ["outcome"])
session_replays_total = Counter("session_replays_total", "Sessions rebuilt on a service", ["reason"])
peer_up = Gauge("zmq_peer_up", "1 while a grammar service is registered", ["peer"])
reconnects_total = Counter("zmq_reconnects_total", "Handshakes after the first")
dropped_total = Counter("zmq_dropped_total", "Messages that could not be sent", ["reason"])
frame_rejected_total = Counter("zmq_frame_rejected_total", "Frames that could not be used", ["reason"])

# The grammar service.
compile_seconds = Histogram("grammar_compile_seconds", "Compilation", ["engine", "kind", "outcome"], buckets=FINE_SECONDS)
compile_killed_total = Counter("grammar_compile_workers_killed_total", "Compile children killed", ["reason"])
cache_hits_total = Counter("grammar_cache_hits_total", "Compiled grammars found")
cache_misses_total = Counter("grammar_cache_misses_total", "Compiled grammars not found")
cache_evictions_total = Counter("grammar_cache_evictions_total", "Compiled grammars evicted")
cache_bytes = Gauge("grammar_cache_bytes", "Bytes of compiled grammars held")
mask_seconds = Histogram("grammar_mask_seconds", "Filling the rows of one session's step", buckets=FINE_SECONDS)
accept_seconds = Histogram("grammar_accept_seconds", "Accepting the tokens of one session's step", buckets=FINE_SECONDS)
sessions = Gauge("grammar_sessions", "Open sessions")
step_queue_depth = Gauge("grammar_step_queue_depth", "Step entries waiting")
refusals_total = Counter("grammar_refusals_total", "Guides refused", ["code"])


def observe_all(histogram: Histogram, values: Sequence[float]) -> None:
    """What ``histogram.observe`` does for each of the values, at the cost of the buckets they fall into: a step has many, close to
    each other."""
    counts: dict[int, int] = {}
    for value in values:
        at = bisect_left(histogram._upper_bounds, value)
        counts[at] = counts.get(at, 0) + 1
    histogram._sum.inc(sum(values))
    for at, count in counts.items():
        histogram._buckets[at].inc(count)


class Endpoint:
    """HTTP server thread for /metrics and /health. ``health`` returns (ok, text); port 0 chooses one, ``port`` says which.
    Raises ConfigError where the address cannot be bound."""

    def __init__(self, host: str, port: int, health: Callable[[], tuple[bool, str]]) -> None:
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(health))
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {host}:{port}: {error.strerror}; 0 takes a free port", field="metrics_port"
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2)


def _handler(health: Callable[[], tuple[bool, str]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PEER_TIMEOUT_S

        def do_GET(self) -> None:
            if self.path == "/health":
                good, text = health()
                self._reply(200 if good else 503, text.encode())
            elif self.path == "/metrics":
                self._reply(200, generate_latest(REGISTRY))
            else:
                self._reply(404, b"paths: /metrics /health\n")

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes are not worth a log line."""

    return Handler
