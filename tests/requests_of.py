"""Models, requests and sequences for tests of the worker's pure parts: bytes are tokens, 260 and 261 end a text."""

from gpu_worker.request import Model, Request, admit
from gpu_worker.sequence import make_sequence
from shared.protocol import Generate
from tests.vocabularies import tiny


class ByteEncoder:
    """A byte is a token; a conversation is its contents, line by line."""

    def encode(self, text, *, add_special_tokens=True):
        return ([261] if add_special_tokens else []) + list(text.encode())

    def encode_messages(self, messages, tools=()):
        return [261, *"\n".join(f"{m['role']}: {m['content']}" for m in messages).encode()]


def make_model(max_length=64):
    return Model("bytes", tiny(), ByteEncoder(), max_length)


def make_request(client=b"c", request_id="r", now_s=10.0, max_length=64, **fields) -> Request:
    """An admitted request; ``fields`` are those of Generate, sampling parameters under ``params``."""
    params = fields.pop("params", {})
    if not {"prompt", "messages", "prompt_token_ids"} & set(fields):
        fields["prompt"] = "hi"
    message = Generate(request_id=request_id, sampling_params=params, **fields)
    return admit(message, client, make_model(max_length), now_s=now_s, deadline_s=30.0, max_deadline_s=100.0)


def sequence_of(request=None, epoch=1, child=0, **fields):
    request = request or make_request(**fields)
    return make_sequence(request, child, epoch, 0, 0, tiny())
