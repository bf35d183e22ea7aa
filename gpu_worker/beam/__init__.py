"""Beam search: the ranking (``search.py``), what the device tells (``scores.py``), texts and slots of a request (``group.py``), and
a step of it in the loop (``steps.py``).

A request takes as many slots as it has beams, all at once, and its texts stand in them like any others: one forward for the whole
batch, a row of the guide and an overlay a beam. What differs is the choice: the device tells each beam's best continuations with
their log-probabilities, the host ranks those of all beams together. A beam with several continuations is copied into slots of beams
that have none (KV, counts, bans, and its session by a fork); all others stay where they are. The device is told before the launch
after the next is enqueued: a beam search moves every second step beside texts whose steps overlap, every step alone, and never
makes another text wait.
"""
