"""Numbers in few bits, and packed messages: strategies learn over them as over plain ones."""

import json
import zlib

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st
from strategies_clients import CLIENTS, client_app, grid, initial
from strategies_replies import raw

from fedbary.client_app import app
from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.strategies import CONVENTIONS, RKLB, WB, CompressedGrid, chart, compression
from fedbary.strategies.arrays import array_from_tensor, bytes_of
from fedbary.strategies.compression import (
    CODES,
    PACKINGS,
    Packing,
    halved,
    packed,
    packing_from,
    quantised,
    restored,
    unpacked,
    whole,
)

BITS = sorted(CODES)


def numbers(seed, count=200):
    """Numbers of unlike scales with far outliers."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, generator=generator, dtype=torch.float64)
    return 10 ** (3 * torch.rand((), generator=generator) - 2) * (values**3 + 1)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("seed", range(3))
def test_rounding_stays_within_a_step_and_has_no_bias(bits, seed):
    values, draws = numbers(seed), 400
    generator = torch.Generator().manual_seed(seed)
    found = torch.stack(
        [restored(*quantised(values, bits, generator)) for _ in range(draws)]
    )  # fmt: skip
    _, low, step = quantised(values, bits, generator)
    assert ((found - values).abs() <= step * (1 + 1e-9)).all()
    assert low == values.min() and step >= float(values.max() - values.min()) / (2**bits - 1)
    error = (found.mean(0) - values).abs()  # its standard deviation is at most δ/2 √draws
    assert (error < 5 * step / 2 / draws**0.5).all()
    assert found.var(0).max() <= 1.3 * step**2 / 4


@pytest.mark.parametrize("bits", BITS)
def test_what_is_constant_or_empty_comes_back_exactly(bits):
    for values in (torch.full((3, 2), -7.25), torch.tensor(2.5), torch.empty(0, 4)):
        codes, low, step = quantised(values, bits, torch.Generator())
        back = restored(unpacked(packed(codes), tuple(values.shape), bits), low, step)
        assert torch.equal(back, values.double()) and back.shape == values.shape


@pytest.mark.parametrize("bits", BITS)
@given(st.lists(st.integers(0, 5), max_size=3), st.randoms(use_true_random=False))
def test_packed_codes_come_back(bits, shape, random):
    rng = np.random.default_rng(random.randrange(2**32))
    codes = rng.integers(0, 2**bits, shape).astype(CODES[bits])
    back = unpacked(packed(codes), tuple(shape), bits)
    assert back.dtype == codes.dtype and back.shape == codes.shape and (back == codes).all()


@given(st.binary(max_size=60), st.integers(0, 40))
def test_strange_bytes_are_refused_or_are_codes_of_that_shape(content, count):
    try:
        assert unpacked(content, (count,), 8).shape == (count,)
    except ValueError as error:
        assert "packed bytes" in str(error)


def test_a_bomb_is_not_inflated():
    bomb = zlib.compress(bytes(10**8), 9)
    with pytest.raises(ValueError, match="not those of 4 codes"):
        unpacked(bomb, (4,), 8)
    with pytest.raises(ValueError, match="not those of 4 codes"):
        unpacked(packed(np.zeros(3, np.uint8)), (4,), 8)


def test_half_precision_has_no_bias_at_any_magnitude():
    values = (10.0 ** torch.arange(-30, 31)).repeat(2) * torch.tensor([1.0, -1.3]).repeat(61)
    generator, draws = torch.Generator().manual_seed(0), 2000
    found = torch.stack([whole(halved(values, generator)) for _ in range(draws)]).double()
    relative = (found - values) / values.abs()
    assert relative.abs().max() < 2**-7
    assert (relative.mean(0).abs() < 5 * 2**-8 / draws**0.5).all()
    assert torch.equal(found[0].to(torch.bfloat16).double(), found[0])


def test_the_largest_numbers_stay_finite():
    largest = torch.tensor([3.4e38, -3.4e38, 0.0])
    assert whole(halved(largest, torch.Generator())).isfinite().all()


ROUNDS = 3


def large(seed, convention="fedbary", weights=3000):
    """A posterior with tensors that are worth packing, an integer and a few point weights."""
    generator = torch.Generator().manual_seed(seed)
    log_var = torch.randn(weights, generator=generator) - 6
    chosen = CONVENTIONS[convention]
    mean_key, scale_key = (p.replace("*", "w") for p in (chosen.mean, chosen.scale))
    return ArrayRecord(
        {
            key: array_from_tensor(tensor)
            for key, tensor in {
                mean_key: 0.1 * torch.randn(weights, generator=generator),
                scale_key: chosen.from_log_var(log_var),
                "plain": torch.randn(weights, generator=generator),
                "bias": torch.randn(3, generator=generator),
                "count": torch.arange(weights),
            }.items()
        }
    )


def through(packing, arrays, sent=None):
    """What the other side has of arrays that were packed."""
    small, told = packing.pack(arrays, sent)
    found, how = packing_from(told["packing"])
    assert found == packing
    return found.unpack(small, how, sent)


@pytest.mark.parametrize("convention", ["fedbary", "bayesian-torch", "scale", "torchbnn"])
@pytest.mark.parametrize("what", PACKINGS)
def test_what_is_packed_comes_back_up_to_the_grid_s_step_and_the_rest_as_it_is(what, convention):
    chosen = CONVENTIONS[convention]
    packing, sent, arrays = Packing(what, chosen), large(0, convention), large(1, convention)
    mean_key, scale_key = (p.replace("*", "w") for p in (chosen.mean, chosen.scale))
    for before in (None, sent):
        back = through(packing, arrays, before)
        assert list(back) == list(arrays)
        assert all(back[key].dtype == arrays[key].dtype for key in arrays)
        same = {"bias", "count"} | ({mean_key, "plain"} if what == "log_var" else set())
        assert all(raw(back)[key] == raw(arrays)[key] for key in same)
        log_vars = [chosen.to_log_var(torch.tensor(r[scale_key].numpy())) for r in (arrays, back)]
        assert 0 < (log_vars[0] - log_vars[1]).abs().max() < 0.2
        for key in {mean_key, "plain"} - same:
            error = np.abs(back[key].numpy() - arrays[key].numpy())
            assert 0 < error.max() < 2e-3 * arrays[key].numpy().std()


def test_a_reply_of_what_was_sent_is_exact():
    arrays = large(0)
    assert raw(through(Packing("all", CONVENTIONS["fedbary"]), arrays, arrays)) == raw(arrays)


def runs(strategy, mods=(), what="all", start=None):
    """The model of rounds over a compressed grid, and over a plain one."""
    start = start or initial()
    packed = CompressedGrid(grid(mods=[compression, *mods]), what)
    return strategy().start(packed, start, num_rounds=ROUNDS).arrays, strategy().start(
        grid(mods=list(mods)), start, num_rounds=ROUNDS
    ).arrays


def moves(one, other):
    """The largest difference of a mean or a log-variance."""
    keys = ("w_mean", "w_log_var")
    return max(float(np.abs(one[key].numpy() - other[key].numpy()).max()) for key in keys)


@pytest.mark.in_turn
@pytest.mark.parametrize("strategy", [RKLB, WB, FedAvg])
@pytest.mark.parametrize("what", PACKINGS)
def test_any_strategy_learns_over_a_compressed_grid_what_it_learns_over_a_plain_one(strategy, what):
    start = large(0)
    packed, plain = runs(strategy, what=what, start=start)
    assert list(packed) == list(plain)
    assert 0 < moves(packed, plain) < 0.1 * ROUNDS < moves(start, plain)
    again, _ = runs(strategy, what=what, start=start)
    assert strategy is FedAvg or raw(again) == raw(packed)  # Flower adds replies as they come


def test_small_models_travel_as_they_are():
    packed, plain = runs(RKLB)
    assert raw(packed) == raw(plain)


def test_charted_arrays_are_packed_too():
    start = ArrayRecord({key: a for key, a in large(0).items() if key != "count"})
    mod = chart("RKLB")
    packed, plain = runs(FedAvg, mods=[mod], start=start)
    assert 0 < moves(mod.inverse(packed), mod.inverse(plain)) < 0.1 * ROUNDS
    meter = CompressedGrid(grid(mods=[compression, mod]), "all")
    FedAvg().start(meter, start, num_rounds=2)
    assert meter.traffic["up"] < 0.6 * bytes_of(RecordDict({"arrays": mod.forward(start)}))


def test_a_client_without_the_mod_is_refused_by_name(caplog):
    strategy = RKLB()
    start = large(0)

    class Mixed(InlineGrid):
        def _answer(self, message):
            first = message.metadata.dst_node_id == 2
            self._client_app = client_app(mods=[] if first else [compression])
            return super()._answer(message)

    result = strategy.start(
        CompressedGrid(Mixed(client_app(), CLIENTS, {}), "all"), start, num_rounds=1
    )
    assert (
        strategy.admission.num_admitted == CLIENTS - 1 and "node 2" in strategy.refusals[0].reason
    )
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


WORDS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["log_var", "all", "float32", "int64", "load", "w_mean", "w_log_var", 8, 16]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)  # fmt: skip


@given(st.data())
def test_a_hostile_packing_raises_nothing_and_changes_nothing_for_others(data):
    """Any part of what a client tells of its packing, or any packed byte, may be another."""
    sent = large(0, weights=300)
    packing = Packing("all", CONVENTIONS["fedbary"])
    small, told = packing.pack(large(1, weights=300), sent)
    words = json.loads(told["packing"])
    place = data.draw(
        st.sampled_from(["all", "what", "convention", "arrays", "one", "part", "bytes"])
    )
    if place == "all":
        words = data.draw(WORDS)
    elif place in ("what", "convention", "arrays"):
        words[place] = data.draw(WORDS)
    elif place == "one":
        words["arrays"][data.draw(st.sampled_from(["w_mean", "w_log_var", "plain", "other"]))] = (
            data.draw(WORDS)
        )
    elif place == "part":
        key = data.draw(st.sampled_from(sorted(words["arrays"])))
        words["arrays"][key][data.draw(st.integers(0, 4))] = data.draw(WORDS)
    else:
        small["w_mean"] = Array(np.frombuffer(data.draw(st.binary(max_size=40)), np.uint8))

    def train(message, context):
        metrics = MetricRecord({"num-examples": 1})
        lie = ConfigRecord({"packing": json.dumps(words)})
        content = RecordDict({"arrays": small, "metrics": metrics, "fedbary.packing": lie})
        return Message(content, reply_to=message)

    hostile = ClientApp()
    hostile.train()(train)

    class Hostile(InlineGrid):
        def _answer(self, message):
            honest = client_app(mods=[compression])
            self._client_app = hostile if message.metadata.dst_node_id == 2 else honest
            return super()._answer(message)

    strategy = RKLB(fraction_evaluate=0.0)
    result = strategy.start(
        CompressedGrid(Hostile(client_app(), CLIENTS, {}), "all"), sent, num_rounds=1
    )
    assert strategy.admission.num_admitted >= CLIENTS - 1
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_an_unknown_packing_is_refused():
    with pytest.raises(SettingError, match="compress"):
        CompressedGrid(InlineGrid(app, 1, {}), "some")
