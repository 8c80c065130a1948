"""Threads for work on many large tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import torch

HERE_SECONDS = 0.002
"""Seconds of work that are done before threads are started, which takes as long."""

_Result = TypeVar("_Result")


class Threads:
    """Threads that start once the work has taken a while; until then it is done here.

    Parameters
    ----------
    threads
        Their number.
    stack
        Its end is theirs.
    """

    def __init__(self, threads: int, stack: ExitStack) -> None:
        self._threads, self._stack, self._left = threads, stack, HERE_SECONDS

    def map(self, call: Callable[..., _Result], *columns: Iterable[Any]) -> Iterator[_Result]:
        """Return the results of a call for each row, in order; the work begins at once."""
        rows, done = zip(*columns, strict=False), list[_Result]()
        while self._left > 0:
            if (row := next(rows, None)) is None:
                return iter(done)
            begun = time.perf_counter()
            done.append(call(*row))
            self._left -= time.perf_counter() - begun
        results = [self._pool.submit(call, *row) for row in rows]
        return chain(done, (result.result() for result in results))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(self._threads, initializer=lambda: torch.set_num_threads(1))
        return self._stack.enter_context(pool)


@contextmanager
def workers() -> Iterator[Threads]:
    """Give as many threads as torch has, each of which uses torch with one.

    These threads wait for each other once, at the end. Torch's own threads do so at every
    operation, which takes many times as long on a busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ExitStack() as stack:
            yield Threads(threads, stack)
    finally:
        torch.set_num_threads(threads)
