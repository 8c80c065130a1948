"""Work on many tensors: in order, at first by the thread that asks, then by others."""

import threading
import time

import pytest
import torch

from fedbary.aggregation.sums import HERE_SECONDS, workers


@pytest.mark.parametrize("seconds", [0.0, HERE_SECONDS])
def test_long_work_is_given_to_threads_and_the_results_keep_their_order(seconds):
    def work(number, _):
        time.sleep(seconds)
        return number, threading.get_ident(), torch.get_num_threads()

    before = torch.get_num_threads()
    with workers() as pool:
        numbers, doers, threads = zip(*pool.map(work, range(6), range(7)), strict=True)
        assert list(pool.map(work, [], [])) == []
    assert numbers == tuple(range(6))
    assert set(threads) == {1}
    assert torch.get_num_threads() == before
    assert doers[0] == threading.get_ident()
    assert not seconds or threading.get_ident() not in doers[1:]


def test_an_error_reaches_whoever_asked():
    with pytest.raises(ZeroDivisionError), workers() as pool:
        list(pool.map(lambda n: time.sleep(HERE_SECONDS) or 1 / n, [2, 1, 0]))
