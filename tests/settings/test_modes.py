"""How much a late change counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbary.aggregation.arriving import parts_of
from fedbary.errors import SettingError
from fedbary.settings.modes import Asynchronous, Synchronous


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


@given(st.data())
def test_no_client_s_say_is_more_than_that_of_its_examples_in_rounds_however_it_hurries(data):
    """Under even, in any order of arrivals: R rounds' worth of replies give it at most R nₖ/Σn."""
    examples = data.draw(st.lists(st.integers(1, 1000), min_size=2, max_size=5))
    clients = len(examples)
    mode = Asynchronous(staleness="even", buffer=data.draw(st.integers(1, clients)))
    say, began = [0.0] * clients, [0] * clients
    aggregates = data.draw(st.integers(1, 30))
    for aggregate in range(1, aggregates + 1):
        order = data.draw(st.permutations(range(clients)))[: mode.buffer]
        parts = parts_of(
            [examples[k] / sum(examples) for k in order],
            [mode.weight(aggregate - 1 - began[k], clients) for k in order],
        )
        for k, part in zip(order, parts, strict=True):
            say[k], began[k] = say[k] + part, aggregate
    rounds = aggregates * mode.buffer / clients
    for total, own in zip(say, examples, strict=True):
        assert total <= rounds * own / sum(examples) + 1e-9


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=9).map(sorted),
    st.floats(0.01, 1),
    st.none() | st.floats(0.1, 12),
    st.integers(1, 9),
)
def test_a_round_ends_with_the_fastest_or_at_its_deadline(seconds, part, deadline, least):
    mode = Synchronous(wait_for=part, deadline=deadline)
    count, lasts = mode.awaited(seconds, least)
    least = min(least, len(seconds))
    assert least <= count <= len(seconds)
    if lasts != seconds[count - 1]:
        assert seconds[count - 1] < lasts == deadline < seconds[count]
    elif count < part * len(seconds) - 1e-6:
        assert count == least and lasts > deadline or lasts == deadline
    elif count > least:
        assert count - 1 < part * len(seconds) and lasts <= (deadline or lasts)


@pytest.mark.parametrize(
    "wrong",
    [{"staleness": "linear"}, {"staleness_rate": -1.0}, {"staleness_grace": -1}, {"buffer": 0},
     {"concurrency": 0}],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong))):
        Asynchronous(**wrong)
