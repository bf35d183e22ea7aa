"""NgramDrafter: prompt lookup. What followed the last time that the text looked like this may follow again."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_worker.speculation.drafter import Drafter
from gpu_worker.speculation.suffix_automaton import Match, SuffixAutomaton

MIN_MATCH = 2
PROMPT_WINDOW = 8192
"""Tokens of the prompt that are searched, the last ones: memory is about 1 KB each."""


class NgramDrafter(Drafter):
    """Looks for the longest end of prompt and output that occurs before, at least ``min_match`` tokens long."""

    def __init__(self, prompt: Sequence[int], min_match: int = MIN_MATCH) -> None:
        window = prompt[-PROMPT_WINDOW:]
        self._automaton, self._num_prompt, self._min_match = SuffixAutomaton(window), len(window), min_match

    def push(self, token_id: int) -> None:
        self._automaton.push(token_id)

    def cut(self, length: int) -> None:
        if length < 0:
            raise ValueError(f"an output cannot be cut to {length} tokens")
        self._automaton.cut(self._num_prompt + length)

    def propose(self, most: int) -> list[int]:
        """Where the match reaches the end of the text, the text repeats itself: so do the drafts."""
        match = self._automaton.match()
        return self._following(match, most) if match.length >= self._min_match else []

    def guesses(self, most: int, branches: int) -> list[list[int]]:
        """What followed the longest end of the text, then what followed shorter ones elsewhere: guesses that differ at once."""
        found: list[list[int]] = []
        for match in self._automaton.matches():
            if match.length < self._min_match or len(found) == branches:
                break
            guess = self._following(match, most)
            if all(guess[:1] != other[:1] for other in found):
                found.append(guess)
        return found

    def _following(self, match: Match, most: int) -> list[int]:
        following = self._automaton.tokens[match.end + 1 :]
        return [following[i % len(following)] for i in range(most)]
