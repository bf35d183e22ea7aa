"""A front door before a step loop without a model, for tests of both ends of the client link."""

import zmq

from gpu_worker.config import WorkerSettings
from gpu_worker.front_door import FrontDoor
from shared import sockets
from shared.clock import MonotonicClock
from shared.protocol import Choice, Delta, Done, HealthReply, Usage
from tests.requests_of import make_model

HEALTH = HealthReply(
    live=True, ready=True, model="echo", vocab_size=264, num_slots=2, active=0, waiting=0, grammar_services=[], version="0"
)
LARGE = "x" * 10_000


class EchoLoop:
    """A step loop whose model repeats the prompt: a piece a token, then the end. A prompt "wait" ends when it is cancelled, one of
    "flood" gets many large pieces. ``seen`` and ``cancelled`` are (client, request id)."""

    def __init__(self):
        self.reply = None
        self.seen, self.cancelled, self.open = [], [], {}

    def submit(self, request):
        self.seen.append(request.key)
        self.open[request.key] = request
        text = bytes(request.prompt_token_ids[1:]).decode()
        if text == "wait":
            return
        pieces = [LARGE] * 4000 if text == "flood" else list(text)
        for number, piece in enumerate(pieces):
            delta = Delta(request_id=request.request_id, choice=0, sequence_number=number, text=piece, token_ids=[65])
            self.reply(request.client, delta)
        if text != "flood":
            self._end(request.key, text, "stop")

    def cancel(self, client, request_id):
        self.cancelled.append((client, request_id))
        if (client, request_id) in self.open:
            self._end((client, request_id), "", "cancelled")

    def _end(self, key, text, reason):
        request = self.open.pop(key)
        choice = Choice(choice=0, text=text, token_ids=[65] * len(text), finish_reason=reason)
        usage = Usage(prompt_tokens=len(request.prompt_token_ids), completion_tokens=len(text))
        self.reply(request.client, Done(request_id=request.request_id, choices=[choice], usage=usage))


class Bench:
    def __init__(self, stack, **settings):
        self._stack, self.loop = stack, EchoLoop()
        chosen = WorkerSettings(client_bind="tcp://127.0.0.1:*", **settings)
        self.door = FrontDoor(chosen, make_model(), self.loop, MonotonicClock(), lambda: HEALTH)
        self.loop.reply = self.door.reply
        self.context = stack.enter_context(zmq.Context())
        self.door.start()
        stack.callback(self.door.close)

    def client(self, **options):
        made = sockets.connect_dealer(self.context, self.door.address, **options)
        self._stack.callback(made.close)
        return made
