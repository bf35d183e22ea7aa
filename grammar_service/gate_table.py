"""The states of a reasoning gate over one vocabulary: where a marker stands, what may follow, what must.

States are numbers: below ``num_start`` the start marker is being written, then comes one state for each part of the end marker
that the text ends with (Knuth, Morris and Pratt's automaton), and ``closed``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

import numpy as np

from grammar_service.engines.stops import StopBits
from shared.bitmask import Words, clear_bit, num_words
from shared.errors import BadRequest
from shared.gate import Gate, Marker
from shared.tokenizer import Vocabulary

REFUSED = -1
MAX_TABLES, MAX_ROWS = 16, 16
"""Of a vocabulary, and of a table: 5 MB at 151,936 tokens."""
MAX_HOLDING = 3_000
"""Tokens that may hold a marker: 30 ms for the first row."""
_SEPARATOR = b"\xff"  # in no text


class TokenIndex:
    """Tokens of a vocabulary by their bytes: 3 MB and 0.2 s for 151,936. Their texts stand in one, in order."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = vocabulary.token_bytes
        self.size = vocabulary.size
        self.stop_ids = frozenset(vocabulary.stop_ids)
        ids = [i for i, text in enumerate(texts) if text and i not in self.stop_ids]
        ids.sort(key=texts.__getitem__)
        self._ids = array("i", ids)
        self._place = array("i", [-1]) * self.size
        self._ends = array("i", accumulate(len(texts[i]) + 1 for i in ids))
        self._joined = _SEPARATOR.join(texts[i] for i in ids)
        for place, token_id in enumerate(ids):
            self._place[token_id] = place

    def text_of(self, token_id: int) -> bytes:
        """Its bytes; none for a stop token, which is no text."""
        place = self._place[token_id]
        return b"" if place < 0 else self._text_at(place)

    def _text_at(self, place: int) -> bytes:
        return self._joined[self._ends[place - 1] if place else 0 : self._ends[place] - 1]

    def _first_from(self, text: bytes) -> int:
        return bisect_left(range(len(self._ids)), text, key=self._text_at)

    def beginning(self, text: bytes) -> Iterator[tuple[int, int]]:
        """(length, id) of the tokens that ``text`` begins with."""
        for length in range(1, len(text) + 1):
            place = self._first_from(text[:length])
            found = self._text_at(place) if place < len(self._ids) else b""
            if not found.startswith(text[:length]):
                return
            if len(found) == length:
                yield length, self._ids[place]

    def starting_with(self, text: bytes) -> Iterator[int]:
        """Tokens that begin with ``text``, itself included."""
        place = self._first_from(text)
        while place < len(self._ids) and self._text_at(place).startswith(text):
            yield self._ids[place]
            place += 1

    def holding(self, text: bytes) -> Iterator[int]:
        """Tokens with ``text`` anywhere inside."""
        at = self._joined.find(text)
        while at >= 0:
            place = bisect_right(self._ends, at)
            yield self._ids[place]
            at = self._joined.find(text, self._ends[place])


def spelling(text: bytes, index: TokenIndex, field: str) -> list[int]:
    """For each position the next token of the shortest way to write the rest of ``text``, the longest where ways are equally
    short. Raises BadRequest where there is no way."""
    counts, firsts = [0] * (len(text) + 1), [0] * len(text)
    for at in range(len(text) - 1, -1, -1):
        ways = [(counts[at + length] + 1, -length, token) for length, token in index.beginning(text[at:])]
        if not ways:
            raise BadRequest(f"no tokens of the vocabulary spell {text[at:]!r}", field=field)
        counts[at], _, firsts[at] = min(ways)
    return firsts


class GateTable:
    """One pair of markers over one vocabulary. Raises BadRequest where no tokens spell a marker."""

    def __init__(self, gate: Gate, index: TokenIndex) -> None:
        self._index = index
        self._start = _ids_of(gate.start, index, "reasoning.start")
        self.num_start = len(self._start)
        self._text = gate.end.encode() if isinstance(gate.end, str) else None  # None: its units are token ids, not bytes
        self._units: Sequence[int] = gate.end.encode() if isinstance(gate.end, str) else _checked(gate.end, index, "reasoning.end")
        self._spelling = list(self._units) if self._text is None else spelling(self._text, index, "reasoning.end")
        self._fallback = _borders(self._units)
        self.closed = self.num_start + len(self._units)
        self._rows: dict[int, Words] = {}
        if self._text is not None and sum(1 for _ in islice(index.holding(self._text), MAX_HOLDING + 1)) > MAX_HOLDING:
            raise BadRequest(f"too common: more than {MAX_HOLDING} tokens hold it", field="reasoning.end")

    def after(self, state: int, token_id: int) -> int:
        """The state after a token; REFUSED for one that may not follow. Not for ``closed``."""
        if state < self.num_start:
            return state + 1 if token_id == self._start[state] else REFUSED
        matched = self._run(state - self.num_start, (token_id,) if self._text is None else self._index.text_of(token_id))
        return REFUSED if matched < 0 else self.num_start + matched

    def _run(self, matched: int, units: Sequence[int]) -> int:
        last = len(units) - 1
        for at, unit in enumerate(units):
            while matched and self._units[matched] != unit:
                matched = self._fallback[matched - 1]
            matched += self._units[matched] == unit
            if matched == len(self._units):
                return matched if at == last else REFUSED
        return matched

    def must_follow(self, state: int) -> int:
        """The token that continues the marker: of the start, or of the end from as much of it as the text ends with."""
        return self._start[state] if state < self.num_start else self._spelling[state - self.num_start]

    def free_row(self, state: int) -> Words:
        """What may follow in the free part: everything but the vocabulary's stop tokens and those that would pass over the end
        of the marker. Not to be changed."""
        row = self._rows.get(state)
        if row is None:
            size = self._index.size
            row = np.full(num_words(size), -1, dtype=np.int32)
            if size % 32:
                row.view(np.uint32)[-1] = (1 << size % 32) - 1
            StopBits.of(self._index.stop_ids).clear(row[None])
            for token_id in self._passing(state - self.num_start):
                clear_bit(row, token_id)
            if len(self._rows) >= MAX_ROWS:
                self._rows.clear()
            self._rows[state] = row
        return row

    def _passing(self, matched: int) -> Iterator[int]:
        """Tokens in which the marker ends before the token does."""
        if self._text is None:
            return
        borders = [matched]
        while borders[-1]:
            borders.append(self._fallback[borders[-1] - 1])
        found = {token for border in borders for token in self._index.starting_with(self._text[border:])}
        found.update(self._index.holding(self._text))
        yield from (token for token in found if self._run(matched, self._index.text_of(token)) == REFUSED)


def _borders(units: Sequence[int]) -> list[int]:
    """For each prefix the length of its longest proper border."""
    borders, length = [0] * len(units), 0
    for at in range(1, len(units)):
        while length and units[at] != units[length]:
            length = borders[length - 1]
        length += units[at] == units[length]
        borders[at] = length
    return borders


def _ids_of(marker: Marker | None, index: TokenIndex, field: str) -> list[int]:
    if marker is None:
        return []
    if not isinstance(marker, str):
        return _checked(marker, index, field)
    text, ids, at = marker.encode(), [], 0
    firsts = spelling(text, index, field)
    while at < len(text):
        ids.append(firsts[at])
        at += len(index.text_of(firsts[at]))
    return ids


def _checked(ids: Sequence[int], index: TokenIndex, field: str) -> list[int]:
    if any(token_id >= index.size or token_id in index.stop_ids for token_id in ids):
        raise BadRequest(f"token ids below {index.size} that do not end a text", field=field)
    return list(ids)


class GateTables:
    """Tables of one vocabulary by their markers, the least recently used dropped."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._index = TokenIndex(vocabulary)
        self._tables: OrderedDict[object, GateTable] = OrderedDict()

    def of(self, gate: Gate) -> GateTable:
        """Raises BadRequest naming the marker."""
        key = tuple(tuple(marker) if isinstance(marker, list) else marker for marker in (gate.start, gate.end))
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = GateTable(gate, self._index)
            if len(self._tables) > MAX_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return table
