"""One guided request, streamed. Start a worker and a grammar service first: ``docker compose up``."""

import sys

from shared.client import Client, Result

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

with Client(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5555") as client:
    messages = [{"role": "user", "content": "Describe a person as JSON."}]
    for piece in client.stream(messages=messages, schema=SCHEMA, max_tokens=100, temperature=0.8, seed=7, verify=True):
        if isinstance(piece, Result):
            print(f"\n{piece.engine}, {piece.usage.completion_tokens} tokens, valid: {piece.valid}")
        else:
            print(piece.text, end="", flush=True)
