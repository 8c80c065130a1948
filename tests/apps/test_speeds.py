"""How fast the clients of a simulation are: drawn by name, or read from a trace."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbary.errors import SettingError
from fedbary.server_app.clocked import COLUMNS, LEAST_SECONDS, MOST_SECONDS, Speed, speeds_of

SITES = [f"partition {k}" for k in range(300)]
HEAD = ",".join(COLUMNS)


@pytest.mark.parametrize("chosen", ["uniform", "lognormal"])
def test_the_seed_and_the_name_set_a_speed(chosen):
    one, again, other = speeds_of(chosen, 1), speeds_of(chosen, 1), speeds_of(chosen, 2)
    assert [one(site) for site in SITES] == [again(site) for site in SITES]
    assert all(one(site) != other(site) for site in SITES)
    assert all(one(site).latency > 0 for site in SITES)


def test_uniform_speeds_lie_within_a_factor_of_ten_and_lognormal_ones_mostly():
    drawn = [speeds_of("uniform", 0)(site).seconds_per_example for site in SITES]
    assert LEAST_SECONDS <= min(drawn) < 1.5e-3 and 9e-3 < max(drawn) <= MOST_SECONDS
    drawn = [speeds_of("lognormal", 0)(site).seconds_per_example for site in SITES]
    low, high = np.quantile(drawn, [0.1, 0.9])
    assert 7 < high / low < 14


def test_a_trace_is_read(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(f"{HEAD}\na,0.5,1\nb,2,0\n")
    speed = speeds_of(str(file), 0)
    assert speed("a").seconds(4) == 3 and speed("b").seconds(4) == 8
    with pytest.raises(SettingError, match="one for c"):
        speed("c")


@given(
    st.lists(st.floats(0.1, 50), max_size=6, unique=True).map(sorted),
    st.floats(0, 60),
    st.floats(0.01, 30),
)
def test_a_site_works_only_while_it_is_there(edges, now, work):
    away = [*zip(edges[::2], edges[1::2], strict=False)]
    arrives = now + Speed(1.0, work, away).seconds(0, now)
    gone = sum(max(0.0, min(high, arrives) - max(low, now)) for low, high in away)
    assert arrives - now - gone == pytest.approx(work)
    assert not any(low + 1e-9 < arrives < high - 1e-9 for low, high in away)


def test_times_away_are_read_from_a_trace(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(f"{HEAD},away\na,1,0,2-5 6.5-7\nb,1,0,\n")
    speed = speeds_of(str(file), 0)
    assert speed("a").away == [(2, 5), (6.5, 7)] and speed("b").away == []
    assert speed("a").seconds(3) == 6 and speed("b").seconds(3) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", f"expected the first line {HEAD}"),
        ("site,seconds\na,1\n", f"expected the first line {HEAD}"),
        (f"{HEAD}\na,1\n", "line 2: 'a,1'; expected 3 entries"),
        (f"{HEAD}\na,1,x\n", "line 2: 'a,1,x'; expected a site, two numbers"),
        (f"{HEAD},away\na,1,1\n", "line 2: 'a,1,1'; expected 4 entries"),
        (f"{HEAD},away\na,1,1,5\n", "times away such as 10-20 35-50"),
        (f"{HEAD},away\na,1,1,5-4\n", "line 2: '5-4'; expected finite times away that ascend"),
        (f"{HEAD},away\na,1,1,2-5 4-6\n", "finite times away that ascend"),
        (f"{HEAD},away\na,1,1,1-inf\n", "finite times away that ascend"),
        (f"{HEAD}\na,0,1\n", "expected finite seconds, above 0"),
        (f"{HEAD}\na,nan,1\n", "expected finite seconds, above 0"),
        (f"{HEAD}\na,1,-1\n", "a latency from 0 up"),
        (f"{HEAD}\na,1,1\na,2,2\n", "line 3: 'a'; expected each site once"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused_by_its_line(text, said, tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(SettingError) as error:
        speeds_of(str(file), 0)
    assert said in str(error.value)


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingError, match="speeds"):
        speeds_of(str(tmp_path / "none.csv"), 0)
