"""The composed system as a user starts it: three grammar services, one is killed in mid-text, another's process dies and returns.

Run by ``pytest -m compose``; needs a Docker engine with compose, and a user who may signal the containers' processes.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
import zmq

from shared import protocol
from shared.protocol import Accepted, Delta, Done, Failed, Generate, HealthReply

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
GRAMMAR_IMAGE_BYTES = 200_000_000  # beyond its base
SERVICES = 3
PROMPT = "Write about a person from a novel that you know."


class Fleet:
    """``docker compose`` with a project name and a port of its own."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self._environment = {**os.environ, "MASKSTREAM_PORT": str(self.port), "COMPOSE_PROJECT_NAME": "maskstream-test"}

    def compose(self, *arguments: str) -> str:
        command = ["docker", "compose", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self._environment, capture_output=True, text=True)
        if done.returncode:
            pytest.fail(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}", pytrace=False)
        return done.stdout

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "-q", service).split()


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def state(container: str) -> dict:
    return json.loads(docker("inspect", container))[0]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    try:
        fleet.compose("up", "-d", "--build", "--wait", "--scale", f"grammar={SERVICES}")
        yield fleet
    finally:
        sys.stdout.write(fleet.compose("logs", "--no-color", "--tail", "60"))
        fleet.compose("down", "--volumes", "--timeout", "5")


class Conversation:
    """Requests sent at once over one connection, and what came back for each."""

    def __init__(self, address: str, guides: dict[str, dict]) -> None:
        self.guides, self.done, self.failed = guides, {}, {}
        self.tokens = dict.fromkeys(guides, 0)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.connect(address)

    def __enter__(self) -> "Conversation":
        for request_id, guide in self.guides.items():
            parameters = {"max_tokens": 400, "temperature": 0.8, "seed": len(request_id)}
            request = Generate(
                request_id=request_id,
                messages=[protocol.ChatMessage("user", PROMPT)],
                sampling_params=parameters,
                structured_outputs={"json": guide},
                verify=True,
                deadline_s=300,
            )
            self._socket.send(protocol.encode(request))
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close(linger=0)
        self._context.term()

    def read_until(self, reached: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            if not self._socket.poll(max(0, 1000 * (deadline - time.monotonic()))):
                pytest.fail(f"not reached: {self.tokens=} {sorted(self.done)=} {self.failed=}")
            self._take(protocol.decode_reply(self._socket.recv()))

    def _take(self, reply: object) -> None:
        if isinstance(reply, Delta):
            self.tokens[reply.request_id] += len(reply.token_ids)
        elif isinstance(reply, Done | Failed):
            assert reply.request_id not in self.done | self.failed, "ended twice"
            (self.done if isinstance(reply, Done) else self.failed)[reply.request_id] = reply
        else:
            assert isinstance(reply, Accepted | HealthReply)  # a sign of life, where the stream paused

    def flowing(self) -> bool:
        """Every request that has not ended has given tokens."""
        return all(count > 3 for name, count in self.tokens.items() if name not in self.done)

    def ended(self) -> bool:
        return len(self.done) + len(self.failed) == len(self.guides)

    def services(self) -> set[str]:
        return {service for reply in self.done.values() for service in reply.services}

    def check(self) -> None:
        """Each request ended once and well, and its text is valid by an independent validator."""
        assert self.failed == {}
        for request_id, guide in self.guides.items():
            choice = self.done[request_id].choices[0]
            assert choice.finish_reason == "stop", (request_id, choice)
            assert choice.valid is True
            jsonschema.validate(json.loads(choice.text), guide)


def guides(count: int, sentences: int) -> dict[str, dict]:
    """Different guides, so that they are spread over the services; their texts are long enough to be interrupted."""
    sentence = {"type": "string", "minLength": 12, "maxLength": 30}
    body = {"type": "array", "items": sentence, "minItems": sentences, "maxItems": sentences}
    return {
        f"request-{number}": {
            "type": "object",
            "properties": {"number": {"const": number}, "sentences": body},
            "required": ["number", "sentences"],
            "additionalProperties": False,
        }
        for number in range(count)
    }


def health(address: str) -> HealthReply:
    context = zmq.Context()
    asked = context.socket(zmq.DEALER)
    try:
        asked.connect(address)
        asked.send(protocol.encode(protocol.Health()))
        assert asked.poll(10_000), "no answer to Health"
        reply = protocol.decode_reply(asked.recv())
    finally:
        asked.close(linger=0)
        context.term()
    assert isinstance(reply, HealthReply)
    return reply


def until(reached: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.25)


def test_every_container_is_hardened_and_healthy(fleet):
    for container in fleet.containers("worker") + fleet.containers("grammar"):
        seen = state(container)
        host = seen["HostConfig"]
        assert seen["State"]["Health"]["Status"] == "healthy"
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["SecurityOpt"]) == (True, ["ALL"], ["no-new-privileges:true"])
        assert seen["Config"]["User"] == "maskstream"
        assert host["RestartPolicy"]["Name"] == "unless-stopped"
        assert host["PidsLimit"] > 0
        assert host["Memory"] > 0
        assert re.search(r"^Uid:\t10001\t", docker("exec", container, "cat", "/proc/1/status"), re.MULTILINE)
        published = [binding["HostIp"] for bindings in host["PortBindings"].values() for binding in bindings]
        assert set(published) <= {"127.0.0.1"}


def test_the_grammar_image_is_small_and_has_no_torch(fleet):
    size = int(docker("image", "inspect", "-f", "{{.Size}}", "maskstream-grammar"))
    base = int(docker("image", "inspect", "-f", "{{.Size}}", "python:3.11-slim-bookworm"))
    assert size - base < GRAMMAR_IMAGE_BYTES
    code = "import importlib.util as u; print(*(n for n in ('torch', 'cuda', 'transformers', 'triton') if u.find_spec(n)))"
    assert docker("exec", fleet.containers("grammar")[0], "python", "-c", code) == ""


ENGINES_IN_IMAGE = """
import sys
from grammar_service.engines import load
from shared.tokenizer import Vocabulary

table = [bytes([i]) for i in range(256)] + [b"<eos>"]
for name, engine in load(Vocabulary(token_bytes=table, special_ids=[256], stop_ids=[256])).items():
    matcher = engine.compile("regex", "ab+", {}).create([256])
    print(name, *(matcher.accept_token(byte) for byte in b"abxb"))
"""


def test_both_engines_work_inside_the_grammar_image(fleet):
    seen = docker("exec", fleet.containers("grammar")[0], "python", "-c", ENGINES_IN_IMAGE)
    assert seen.splitlines() == [f"{name} True True False True" for name in ("llguidance", "xgrammar")]


def test_requests_land_on_all_services(fleet):
    until(lambda: len(health(fleet.address).grammar_services) == SERVICES, 60, "three services registered")
    with Conversation(fleet.address, guides(9, sentences=1)) as conversation:
        conversation.read_until(conversation.ended)
    conversation.check()
    assert len(conversation.services()) == SERVICES


def test_the_command_on_the_host_talks_to_the_worker(fleet):
    schema = ROOT / "examples" / "person.json"
    command = [sys.executable, "-m", "shared.cli", "generate", "--worker", fleet.address, "--schema", str(schema)]
    done = subprocess.run([*command, "Describe Ada Lovelace."], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    jsonschema.validate(json.loads(done.stdout), json.loads(schema.read_text()))


def busiest(fleet: Fleet) -> str:
    """The grammar container with the most sessions, by its own word."""

    def sessions(container: str) -> int:
        told = re.search(r"sessions=(\d+)", docker("exec", container, "maskstream", "health", "--grammar"))
        assert told is not None
        return int(told.group(1))

    counts = {container: sessions(container) for container in fleet.containers("grammar")}
    victim = max(counts, key=lambda container: counts[container])
    assert counts[victim] > 0
    return victim


def test_a_killed_container_costs_no_request(fleet):
    with Conversation(fleet.address, guides(6, sentences=4)) as conversation:
        conversation.read_until(conversation.flowing)
        victim = busiest(fleet)
        docker("kill", victim)
        conversation.read_until(conversation.ended)
    conversation.check()
    assert sum(reply.usage.replays for reply in conversation.done.values()) > 0
    assert state(victim)["State"]["Status"] == "exited"  # the engine restarts nothing that it was told to kill
    assert len(health(fleet.address).grammar_services) == SERVICES - 1


def test_a_process_that_dies_is_restarted_and_costs_no_request(fleet):
    with Conversation(fleet.address, guides(6, sentences=4)) as conversation:
        conversation.read_until(conversation.flowing)
        victim = busiest(fleet)
        os.kill(state(victim)["State"]["Pid"], signal.SIGKILL)
        conversation.read_until(conversation.ended)
    conversation.check()
    assert sum(reply.usage.replays for reply in conversation.done.values()) > 0
    until(lambda: state(victim)["RestartCount"] == 1, 30, "the container is started again")
    until(lambda: len(health(fleet.address).grammar_services) == SERVICES - 1, 60, "its service registers again")
    until(lambda: state(victim)["State"]["Health"]["Status"] == "healthy", 60, "the container is healthy again")


def test_a_killed_service_comes_back_by_up(fleet):
    fleet.compose("up", "-d", "--wait", "--no-recreate", "--scale", f"grammar={SERVICES}")
    until(lambda: len(health(fleet.address).grammar_services) == SERVICES, 60, "three services registered")
    with Conversation(fleet.address, guides(9, sentences=1)) as conversation:
        conversation.read_until(conversation.ended)
    conversation.check()
    assert len(conversation.services()) == SERVICES
