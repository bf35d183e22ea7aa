"""Which sequence has which slot, and which prompt tokens are written next. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from gpu_worker.sequence import Phase, Sequence


class Scheduler:
    """First come, first served over ``num_slots`` slots; a sequence that cannot run now is passed over, not waited for."""

    def __init__(self, num_slots: int, prefill_chunk: int) -> None:
        self.num_slots, self._chunk = num_slots, prefill_chunk
        self.waiting: deque[Sequence] = deque()
        self._by_slot: dict[int, Sequence] = {}
        self._placed: list[Sequence] | None = []  # None: to be made anew

    @property
    def placed(self) -> list[Sequence]:
        """Sequences with a slot, by slot. Not to be changed."""
        if self._placed is None:
            self._placed = [self._by_slot[slot] for slot in sorted(self._by_slot)]
        return self._placed

    @property
    def decoding(self) -> list[Sequence]:
        return [sequence for sequence in self.placed if sequence.phase is Phase.DECODING]

    @property
    def is_idle(self) -> bool:
        return not self._by_slot and not self.waiting

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def place(self, can_run: Callable[[Sequence], bool]) -> list[Sequence]:
        """Gives free slots to waiting sequences that can run; they go to PREFILL. Beams get theirs all at once."""
        placed: list[Sequence] = []
        if not self.waiting:
            return placed
        free = [slot for slot in range(self.num_slots) if slot not in self._by_slot]
        passed_over: deque[Sequence] = deque()
        while self.waiting and free:
            sequence = self.waiting.popleft()
            if not can_run(sequence):
                passed_over.append(sequence)
                continue
            together = sequence.placed_together
            if len(together) > len(free):
                passed_over.append(sequence)
                break  # nobody behind it takes the slots that it waits for
            for member in together:
                member.slot, member.prefilled = free.pop(0), 0
                member.phase = Phase.SPARE if member.spare else Phase.PREFILL
                self._by_slot[member.slot], self._placed = member, None
            placed += together
        self.waiting.extendleft(reversed(passed_over))
        return placed

    def chunks(self, max_chunks: int) -> Iterator[tuple[Sequence, list[int], int]]:
        """The next prompt chunks as (sequence, token ids, start position); a sequence with nothing left goes to READY."""
        for sequence in self.placed:
            while sequence.phase is Phase.PREFILL:
                start, end = sequence.prefilled, min(sequence.prefilled + self._chunk, sequence.to_prefill)
                if start < end and max_chunks <= 0:
                    return
                if start < end:
                    max_chunks -= 1
                    sequence.prefilled = end
                    yield sequence, sequence.context[start:end], start
                if sequence.prefilled >= sequence.to_prefill:
                    sequence.phase = Phase.READY

    def suspend(self, sequence: Sequence) -> None:
        """Takes the slot back for whoever waits first; the sequence is next, and its tokens are written again when it returns.
        Beams leave and return together."""
        together = sequence.placed_together
        for member in together:
            self._free(member)
            member.phase = Phase.WAITING
        self.waiting.insert(1, together[0])

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence that ended, wherever it is."""
        if sequence.slot >= 0:
            self._free(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.phase = Phase.ENDED

    def _free(self, sequence: Sequence) -> None:
        del self._by_slot[sequence.slot]
        self._placed = None
        sequence.slot, sequence.row_ready = -1, False

    def validate(self) -> None:
        """Raises RuntimeError where slots and phases disagree."""
        for slot, sequence in self._by_slot.items():
            if sequence.slot != slot or sequence.phase in (Phase.WAITING, Phase.ENDED):
                raise RuntimeError(f"slot {slot} holds a sequence of slot {sequence.slot} that is {sequence.phase.value}")
        for sequence in self.waiting:
            if sequence.slot != -1 or sequence.phase is not Phase.WAITING:
                raise RuntimeError(f"a waiting sequence has slot {sequence.slot} and is {sequence.phase.value}")
        epochs = [sequence.epoch for sequence in (*self.waiting, *self._by_slot.values())]
        if len(set(epochs)) != len(epochs):
            raise RuntimeError("an epoch is used twice")
