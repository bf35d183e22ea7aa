"""The same with nothing but pyzmq and msgpack: a message is one frame, a MessagePack map (PROTOCOL.md)."""

import sys

import msgpack
import zmq

REQUEST = {
    "type": "generate",
    "request_id": "example-1",
    "messages": [{"role": "user", "content": "A city and a year?"}],
    "structured_outputs": {"regex": "[A-Z][a-z]{2,12}, [0-9]{4}"},
    "sampling_params": {"max_tokens": 40, "temperature": 0.8, "seed": 7},
    "verify": True,
}

socket = zmq.Context.instance().socket(zmq.DEALER)
socket.setsockopt(zmq.LINGER, 0)
socket.connect(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5555")
socket.send(msgpack.packb(REQUEST))
while socket.poll(120_000):
    reply = msgpack.unpackb(socket.recv())
    if reply["type"] == "delta":
        print(reply["text"], end="", flush=True)
    elif reply["type"] == "done":
        valid = reply["choices"][0].get("valid")  # what has its default is left out
        print(f"\n{reply.get('engine')}, {reply['usage']['completion_tokens']} tokens, valid: {valid}")
        break
    elif reply["type"] == "failed":
        sys.exit(f"{reply['error']['code']}: {reply['error'].get('field', '')} {reply['error']['message']}")
else:
    sys.exit("no answer")
socket.close()
