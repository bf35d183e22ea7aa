"""The GPU worker: clients in front, grammar services beside, one model in the middle."""

from gpu_worker import environment as environment  # first of all: it sets what torch reads when it loads
