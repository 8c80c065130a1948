"""Ids that repeat over sites, found by digests whose key the sites share and the server lacks.

A digest is HMAC-SHA256 of the id, cut to 64 bits: of a million ids two agree by chance in one of 40
million looks. Who has the key can try names, so it must never reach the server.

Reference: Krawczyk, Bellare and Canetti, HMAC: keyed-hashing for message authentication, 1997.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Iterable, Mapping

SIZE = 8
"""Bytes of a digest."""

SHORTEST_KEY = 16
"""Fewest characters of a key: a shorter one could be guessed."""


def digests(names: Iterable[str], key: str) -> dict[bytes, list[int]]:
    """Return the rows of each id that is not empty, by its digest, in the digests' order."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name:
            rows.setdefault(name, []).append(row)
    held = {hmac.digest(key.encode(), n.encode(), "sha256")[:SIZE]: own for n, own in rows.items()}
    return dict(sorted(held.items()))


def split(joined: bytes) -> list[bytes]:
    """Return digests that are written after each other, ascending; a ValueError for other bytes."""
    found = [joined[place : place + SIZE] for place in range(0, len(joined), SIZE)]
    if len(joined) % SIZE or found != sorted({*found}):
        raise ValueError(f"{len(joined)} bytes are no ascending digests")
    return found


def shared(told: Mapping[str, Iterable[bytes]]) -> dict[str, list[bytes]]:
    """Return each site's digests that another site has, too."""
    sites = Counter(digest for held in told.values() for digest in held)
    return {site: [digest for digest in held if sites[digest] > 1] for site, held in told.items()}
