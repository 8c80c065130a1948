"""A record in any convention reads as fedbary's names and is written back where it was."""

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_replies import reply

from fedbary.aggregation import RULES
from fedbary.gaussian import Posterior
from fedbary.methods.hierarchy import OWN
from strategies import (
    CONVENTIONS,
    Convention,
    aggregate_records,
    arrays,
    posterior_from_arrays,
    strategy_for,
)
from strategies.arrays import Blanks, tensor_from_array
from strategies.names import Names

WORDS = st.text("ab._", max_size=4)


def keys_of(convention, words):
    patterns = (convention.mean, convention.scale)
    return [pattern.replace("*", word) for word in words for pattern in patterns]


@pytest.mark.parametrize("name", CONVENTIONS)
@given(words=st.lists(WORDS, min_size=1, max_size=3, unique=True), plain=WORDS)
@settings(deadline=None)
def test_reading_and_writing_is_the_identity(name, words, plain):
    convention = CONVENTIONS[name]
    generator = torch.Generator().manual_seed(0)
    keys = [f"plain.{plain}", *keys_of(convention, words)]
    record = ArrayRecord({key: torch.rand(3, generator=generator) + 0.5 for key in keys})
    names = Names(keys, convention)
    read = names.read(record)
    posterior = posterior_from_arrays(record, convention)
    ours = Posterior.from_state_dict(dict(read))
    assert list(ours.mean) == list(posterior.mean)
    assert all(torch.equal(ours.log_var[n], posterior.log_var[n]) for n in posterior.log_var)
    of_group = {OWN + name: tensor for name, tensor in read.items()}
    written = names.write({**read, **of_group}, record, Blanks())
    assert list(written) == [*keys, *(OWN + key for key in keys)]
    for key in keys:
        assert torch.equal(*(tensor_from_array(written[k]) for k in (key, OWN + key)))
        there, back = tensor_from_array(record[key]), tensor_from_array(written[key])
        torch.testing.assert_close(back, there, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["w.m", "w.s", "w._mean"], "named 'w._mean'"),
        (["w.m", "w.s", "x_mean", "x_log_var"], "'x_mean' is Gaussian in fedbary's names alone"),
        (["w.m", "w.s", "x_log_var"], "x_log_var"),
        (["w.m", "w.s", "x.s"], "'x.s' is a scale without its mean 'x.m'"),
    ],
)
def test_names_that_would_mean_something_else_are_refused(keys, said):
    with pytest.raises(ValueError, match=said):
        Names(keys, Convention("*m", "*s", "log_var"))


def test_a_result_is_written_in_its_array_s_bytes():
    blanks = Blanks()
    here = blanks.empty(torch.empty(2, 500), torch.float64).fill_(3)
    place = here.data_ptr()
    tensors = {"here": here, "elsewhere": torch.ones(2), "part": here[:1]}
    del tensors["part"], here
    arrays = blanks.arrays(tensors)
    assert not tensors
    written = tensor_from_array(arrays["here"])
    assert written.data_ptr() == place and written.shape == (2, 500) and (written == 3).all()
    assert tensor_from_array(arrays["elsewhere"]).tolist() == [1, 1]


def test_a_view_of_a_blank_is_an_array_of_its_own():
    blanks = Blanks()
    whole = blanks.empty(torch.empty(2, 3), torch.float32)
    whole.copy_(torch.arange(6.0).reshape(2, 3))
    arrays = blanks.arrays({"part": whole[:1], "turned": whole.t()})
    assert tensor_from_array(arrays["part"]).tolist() == [[0, 1, 2]]
    assert tensor_from_array(arrays["turned"]).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("unit", ["log_var", "log_std", "std", "rho"])
def test_records_aggregate_into_their_own_unit_and_dtype(unit):
    convention = Convention("*.m", "*.s", unit)
    for dtype in (torch.float16, torch.float32, torch.float64):
        log_var = torch.tensor([-2.0, 0.0, 1.0], dtype=torch.float64)
        scale = convention.from_log_var(log_var).to(dtype)
        record = ArrayRecord({"w.s": scale, "w.m": torch.ones(3, dtype=dtype)})
        result = aggregate_records(RULES["RKLB"], [record, record], [1, 3], convention)
        assert list(result) == ["w.s", "w.m"]
        for key in record:
            there, back = tensor_from_array(record[key]), tensor_from_array(result[key])
            torch.testing.assert_close(back, there, rtol=2e-3 if dtype == torch.float16 else 1e-6,
                                       atol=2e-3 if dtype == torch.float16 else 1e-6)  # fmt: skip


@pytest.mark.parametrize("rule", ["RKLB", "FKLB", "TrimmedMean"])
def test_a_strategy_s_result_is_not_copied(rule, monkeypatch):
    copied = []
    filled = arrays.BlankArray.filled

    def watched(blank):
        place = blank.tensor.data_ptr()
        array = filled(blank)
        copied.append(tensor_from_array(array).data_ptr() != place)
        return array

    monkeypatch.setattr(arrays.BlankArray, "filled", watched)
    state = {"w_mean": torch.ones(9), "w_log_var": torch.zeros(9), "b": torch.ones(2, 2)}
    strategy_for(rule)().aggregate_train(1, [reply(k, state) for k in range(7)])
    assert copied == [False] * 3
