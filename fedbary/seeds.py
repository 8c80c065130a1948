"""Seeds: every draw of a run comes from the run's seed, the client and the round."""

from __future__ import annotations

import zlib

import numpy as np


def derive_seed(seed: int, purpose: str, *indices: int) -> int:
    """Return a seed in 0…2⁶³−1 for a purpose and any indices (client, round).

    The same arguments give the same seed on every machine; different ones give unrelated seeds.
    """
    entropy = [seed, zlib.crc32(purpose.encode()), len(indices), *indices]
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_of_draws(seed: int, again: int = 0) -> int:
    """Return the seed of the networks that predict new examples; others by another number."""
    return derive_seed(seed, "predict-new", again)
