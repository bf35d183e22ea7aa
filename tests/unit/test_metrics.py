"""Metrics: the names that alerts are written on, and the endpoint."""

import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client import REGISTRY, Histogram, generate_latest

from shared import metrics
from shared.errors import ConfigError

NAMES = (
    "guided_requests_total", "guided_time_to_first_token_seconds", "gpu_step_seconds", "gpu_mask_wait_seconds",
    "gpu_dead_end_rows_total", "guided_mask_rows_total", "guided_mask_bytes_total", "session_replays_total", "zmq_peer_up",
    "zmq_frame_rejected_total", "grammar_compile_seconds", "grammar_mask_seconds", "grammar_accept_seconds",
    "grammar_cache_hits_total", "grammar_cache_bytes", "grammar_refusals_total", "guided_output_valid_total",
)  # fmt: skip


@pytest.fixture
def endpoint():
    state = [True, "live\n"]
    made = metrics.Endpoint("127.0.0.1", 0, lambda: (state[0], state[1]))
    made.state = state
    yield made
    made.close()


def get(endpoint, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("name", NAMES)
def test_names(name):  # spec R28
    assert (
        f"# TYPE {name}" in generate_latest(REGISTRY).decode()
        or f"# TYPE {name.removesuffix('_total')}" in generate_latest(REGISTRY).decode()
    )


def test_microseconds_can_be_told_apart():  # spec R28
    before = _bucket(2.5e-5)
    metrics.mask_seconds.observe(2e-5)
    assert _bucket(2.5e-5) == before + 1
    assert _bucket(1e-5) == before or _bucket(1e-5) < _bucket(2.5e-5)


def _bucket(limit):
    return REGISTRY.get_sample_value("grammar_mask_seconds_bucket", {"le": str(limit)})


def test_a_count_shows_at_the_endpoint(endpoint):  # spec R28
    metrics.requests_total.labels("regex", "done").inc()
    status, text = get(endpoint, "/metrics")
    assert status == 200
    assert 'guided_requests_total{kind="regex",outcome="done"}' in text


def test_health_follows_the_process(endpoint):
    assert get(endpoint, "/health") == (200, "live\n")
    endpoint.state[:] = [False, "not live\n"]
    assert get(endpoint, "/health") == (503, "not live\n")


def test_other_paths_are_told_the_right_ones(endpoint):
    status, text = get(endpoint, "/")
    assert status == 404
    assert "/metrics" in text


def test_garbage_harms_nobody(endpoint):
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=5) as peer:
        peer.sendall(b"\x00\xff garbage\r\n\r\n")
        assert b"400" in peer.recv(4096)
    assert get(endpoint, "/health")[0] == 200


def test_a_port_in_use_is_a_config_error(endpoint):
    with pytest.raises(ConfigError) as caught:
        metrics.Endpoint("127.0.0.1", endpoint.port, lambda: (True, ""))
    assert caught.value.field == "metrics_port"
    assert str(endpoint.port) in str(caught.value)


def test_many_observations_at_once_are_those_one_by_one():  # spec R28
    values = [0.0, 1e-5, 1.1e-5, 0.003, 0.004, 0.005, 7.0]
    one, many = (Histogram(f"test_observe_{name}", "test", buckets=metrics.FINE_SECONDS, registry=None) for name in ("one", "many"))
    for value in values:
        one.observe(value)
    metrics.observe_all(many, values[:3])
    metrics.observe_all(many, values[3:])
    samples = [[(s.name.replace(name, ""), s.labels, s.value) for s in h.collect()[0].samples if "created" not in s.name]
               for name, h in (("one", one), ("many", many))]  # fmt: skip
    assert samples[0] == samples[1]
