"""Threads for work on many large tensors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def workers() -> Iterator[Executor]:
    """Give as many threads as torch has, each of which uses torch with one.

    These threads wait for each other once, at the end. Torch's own threads do so at every
    operation, which takes many times as long on a busy machine.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)
