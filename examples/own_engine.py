"""An engine with a forward of its own samples through us: same process, or (``--beside``) a sampler process on the same device.

``python examples/own_engine.py [--device cuda] [--beside]``. Two texts over a vocabulary of 128 characters: slot 0 may write digits
alone (its mask rows come from the engine here; a grammar service makes them for any guide), slot 1 writes what it likes.
"""

import argparse

import torch

from gpu_worker.sampler import SamplerBeside, SlotSampler
from shared.bitmask import pack
from shared.sampling_params import SamplingParams

VOCABULARY, SLOTS = [chr(i) for i in range(128)], [0, 1]
DIGITS = pack([ord(digit) for digit in "0123456789"], len(VOCABULARY))
flags = argparse.ArgumentParser()
flags.add_argument("--device", default="cpu")
flags.add_argument("--beside", action="store_true")
asked = flags.parse_args()
# The engine's model: the next logits are a row of a table.
model = torch.randn(len(VOCABULARY), len(VOCABULARY), generator=torch.Generator().manual_seed(3)).mul_(2).to(asked.device)
last = torch.tensor([ord("a"), ord("b")], dtype=torch.int32, device=asked.device)
sampler = (SamplerBeside if asked.beside else SlotSampler)(len(SLOTS), len(VOCABULARY), asked.device)
sampler.admit(0, SamplingParams(temperature=0.8, seed=7, presence_penalty=1.0), prompt=[ord("a")], guided=True)
sampler.admit(1, SamplingParams(temperature=1.0, top_k=20, seed=8, logit_bias={str(ord("e")): 4.0}), prompt=[ord("b")])
texts = ["", ""]
for _ in range(16):
    if isinstance(sampler, SamplerBeside):
        torch.index_select(model, 0, last, out=sampler.logits)  # the forward writes into the shared buffer
        sampler.launch(SLOTS, {0: DIGITS})
        last = sampler.tokens.clone()  # on the device: the next forward need not wait for the host
        sampled = sampler.take()
    else:
        sampled = sampler.sample(model[last], SLOTS, {0: DIGITS})
        last = torch.tensor(sampled.token_ids, dtype=torch.int32, device=asked.device)
    texts = [text + VOCABULARY[token] for text, token in zip(texts, sampled.token_ids, strict=True)]
print(*map(ascii, texts), sep="\n")
if isinstance(sampler, SamplerBeside):
    sampler.close()
