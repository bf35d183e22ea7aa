"""Digests that tie a row to the plan, prefix and path it was made for (8 bytes of BLAKE2b).

The prefix digest is a chain: d(0) = plan digest, d(n + 1) = H(d(n), token n). Both sides keep it per position, so a step costs one
hash a token and a roll-back costs nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

SIZE = 8
_TOKEN = struct.Struct("<I")


def extend(digest: bytes, token_id: int) -> bytes:
    """Digest of a prefix after one more token."""
    return hashlib.blake2b(digest + _TOKEN.pack(token_id), digest_size=SIZE).digest()


def chain(plan_digest: bytes, token_ids: Sequence[int]) -> list[bytes]:
    """Digests of every prefix of ``token_ids``: len(token_ids) + 1 of them."""
    digests = [plan_digest]
    for token_id in token_ids:
        digests.append(extend(digests[-1], token_id))
    return digests


def of_walk(prefix_digest: bytes, path: Sequence[int], parents: Sequence[int]) -> bytes:
    """Digest of (plan, prefix, path, parents), carried by the answer. Without drafts it is the digest of the prefix with the golden
    token, which both sides need for the next step anyway."""
    if len(path) < 2 and not parents:
        return extend(prefix_digest, path[0]) if path else prefix_digest
    body = struct.pack(f"<{len(path)}I{len(parents)}i", *path, *parents)
    return hashlib.blake2b(prefix_digest + len(path).to_bytes(4, "little") + body, digest_size=SIZE).digest()
