"""How much a late change counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbary.errors import SettingError
from fedbary.settings.modes import Asynchronous


@given(st.integers(0, 100), st.floats(0, 5), st.integers(0, 10))
def test_the_weights_of_the_stale(late, rate, grace):
    def weight(kind):
        mode = Asynchronous(
            concurrency=2, staleness=kind, staleness_rate=rate, staleness_grace=grace
        )
        return mode.weight(late, 4)

    assert weight("constant") == 1 and weight("even") == (1 + late) / 4
    assert weight("polynomial") == pytest.approx((1 + late) ** -rate)
    expected = 1 if late <= grace else 1 / (rate * (late - grace) + 1)
    assert weight("hinge") == pytest.approx(expected)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
def test_even_weights_give_clients_of_any_speed_the_same_say(seconds):
    """Up to what is out at the end."""
    clients, arrives, began = len(seconds), list(seconds), [0] * len(seconds)
    say, mode = [0.0] * clients, Asynchronous(staleness="even")
    for aggregate in range(1, 401):
        k = min(range(clients), key=arrives.__getitem__)
        say[k] += mode.weight(aggregate - 1 - began[k], clients)
        began[k], arrives[k] = aggregate, arrives[k] + seconds[k]
    for total, last in zip(say, began, strict=True):
        assert total == pytest.approx(last / clients)


@pytest.mark.parametrize(
    "wrong",
    [{"staleness": "linear"}, {"staleness_rate": -1.0}, {"staleness_grace": -1}, {"buffer": 0},
     {"concurrency": 0}],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Asynchronous(**wrong)
