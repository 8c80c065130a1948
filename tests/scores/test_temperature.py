"""A temperature that clients find together is the one of all their examples in one place."""

import math

import pytest
import torch
from hostile_site import killed_at
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_of import lines
from scipy.optimize import minimize_scalar

import fedbary
from fedbary.errors import SettingError
from fedbary.predictive import Prediction, Predictive
from fedbary.scores.metrics import (
    TEMPERATURES,
    end_of_temperatures,
    evaluate,
    fitted_temperature,
    least_nll,
    nll_at_temperatures,
)
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import Outcome, task_of

OWN = {"dataset": "none", "classes": "10", "input_shape": "1x8x8"}


def predicted(generator, examples, sureness):
    """Predictions that are as sure as `sureness` times what the labels allow, and the labels."""
    logits = 2 * torch.randn(examples, 5, generator=generator).double()
    labels = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    probs = (sureness * logits).softmax(-1)
    return Prediction(probs, torch.special.entr(probs).sum(-1) / 2), labels


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 10**6), st.floats(0.4, 6), st.integers(1, 5))
def test_clients_find_the_temperature_of_all_examples_together(seed, sureness, clients):
    generator = torch.Generator().manual_seed(seed)
    prediction, labels = predicted(generator, 1500, sureness)
    parts = torch.randint(clients, (1500,), generator=generator)
    told = []
    for client in range(clients):
        mine = parts == client
        part = Prediction(prediction.probs[mine], prediction.aleatoric[mine])
        scores = nll_at_temperatures(part, labels[mine])
        told.append({"num-examples": int(mine.sum()), **scores})
    found = fitted_temperature(told)
    best = minimize_scalar(
        lambda t: evaluate(prediction.tempered(t).probs, labels)["nll"],
        bounds=(0.25, 8), method="bounded",
    )  # fmt: skip
    assert found == pytest.approx(best.x, rel=0.02)
    assert found == pytest.approx(sureness, rel=0.2)
    steps = [evaluate(prediction.tempered(t).probs, labels)["nll"] for t in TEMPERATURES.values()]
    assert best.fun - 1e-9 <= least_nll(told) == pytest.approx(min(steps))


@given(st.integers(0, 10**6), st.floats(0.3, 7))
def test_a_temperature_keeps_the_order_of_the_classes_and_the_parts_of_the_entropy(seed, t):
    prediction, _ = predicted(torch.Generator().manual_seed(seed), 50, 1.0)
    tempered = prediction.tempered(t)
    assert torch.equal(tempered.probs.argmax(1), prediction.probs.argmax(1))
    assert torch.allclose(tempered.probs.sum(1), torch.ones(50).double())
    assert torch.allclose(tempered.epistemic, tempered.entropy / 2)
    assert bool((tempered.entropy.mean() > prediction.entropy.mean()) == (t > 1))


def test_certainty_is_tempered_and_nobody_s_answer_is_none():
    sure = Prediction(torch.tensor([[1.0, 0.0]]), torch.zeros(1))
    assert sure.tempered(2.0).probs.isfinite().all()
    for nobody in ([{"num-examples": 3, "nll": 1.0}], [{"num-examples": 0, **TEMPERATURES}]):
        assert fitted_temperature(nobody) is None and least_nll(nobody) is None
    assert min(TEMPERATURES.values()) == 0.25 and max(TEMPERATURES.values()) == 8


@pytest.mark.parametrize(
    ("sign", "said"), [(1, "0.25 is the least"), (-1, "8 is the largest"), (0, "")]
)
def test_a_temperature_at_an_end_of_those_tried_is_said(sign, said):
    """Labels that follow the classes ask for the least, labels against them for the largest."""
    nlls = {name: 1 + sign * math.log(t) / 9 for name, t in TEMPERATURES.items()}
    found = fitted_temperature([{"num-examples": 3, **nlls}]) if sign else 1.3
    line = end_of_temperatures(found)
    assert said in line and bool(line) == bool(sign)


@pytest.mark.slow
def test_a_run_predicts_at_the_temperature_that_its_clients_found(tmp_path):
    chosen = {
        "engine": "inline", "pictures": False, "device": "cpu", "model": "mlp", "clients": 3,
        "bayesian_layers": 0, "rule": "FedAvg", "rounds": 3, "holdout": 0.3,
        "calibrate": "temperature",
    }  # fmt: skip
    run_inline(resolve(chosen), tmp_path / "run")
    last = lines(tmp_path / "run")[-1]
    trained = fedbary.load(tmp_path / "run")
    examples = trained.task.evaluation_examples()
    probs = trained.predict(examples.x).probs
    assert evaluate(probs, examples.y)["nll"] == pytest.approx(last["nll"], rel=1e-5)
    assert last["temperature"] != 1 and last["nll"] != last["untempered"]["nll"]
    assert last["accuracy"] == last["untempered"]["accuracy"]
    assert not any("nll-at" in name for client in last["held_out"]["clients"] for name in client)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"holdout": 0.0}, "calibrate.*holdout"),
        ({"evaluate_clients": 0}, "calibrate.*evaluate_clients"),
        (
            {"evaluate_clients": 5, "evaluate_on": "validation", "keep_best": "nll"},
            "evaluate_clients: 5; expected 1 for keep_best",
        ),
    ],
)
def test_it_needs_what_clients_hold_out(words, named):
    with pytest.raises(SettingError, match=named):
        resolve({"calibrate": "temperature", "holdout": 0.1, **words})


@pytest.mark.parametrize("own", [{}, OWN])
def test_a_round_s_line_has_the_temperature_if_clients_have_told(own):
    task = task_of(resolve({"calibrate": "temperature", "holdout": 0.1, **own}))
    model = task.make_model(task.signature())
    by = Predictive(model.state_dict())
    told = {name: math.log(t / 2) ** 2 for name, t in TEMPERATURES.items()}
    told |= {"num-examples": 9, "accuracy": 0.5, "nll": 1.0, "ece": 0.1, "brier": 0.3}
    for held_out in ([], [told]):
        line = task.scores(Outcome(3, model, by, {}, held_out), {}).line
        assert line.get("temperature") == (pytest.approx(2.0, rel=1e-3) if held_out else None)


@pytest.mark.slow
def test_a_run_that_goes_on_after_its_last_round_draws_what_it_would_have_drawn(tmp_path):
    chosen = {
        "engine": "inline", "device": "cpu", "model": "mlp", "clients": 3, "bayesian_layers": 0,
        "rule": "FedAvg", "rounds": 2, "holdout": 0.3, "calibrate": "temperature",
    }  # fmt: skip
    run_inline(resolve(chosen), tmp_path / "whole")

    with killed_at("fedbary.server_app.recorder.Recorder.finish"):
        run_inline(resolve(chosen), tmp_path / "run")
    run_inline(resolve({**chosen, "resume": "last"}), tmp_path / "run")
    drawn = [(tmp_path / name / "reliability.png").read_bytes() for name in ("whole", "run")]
    assert drawn[0] == drawn[1]
