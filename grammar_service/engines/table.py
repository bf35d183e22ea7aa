"""One token table for both engines: special tokens are 0xFF + their text, which no grammar over UTF-8 can match."""

from __future__ import annotations

from shared.tokenizer import Vocabulary, special_id_set

MARK = b"\xff"


def hidden_specials(vocabulary: Vocabulary) -> list[bytes]:
    """Token bytes by id, special and stop ids hidden."""
    hidden = special_id_set(vocabulary) | frozenset(vocabulary.stop_ids)
    return [MARK + text if i in hidden else text for i, text in enumerate(vocabulary.token_bytes)]
