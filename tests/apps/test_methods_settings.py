"""What does not do for a method is refused before the start, and says what does."""

import pytest
from every_method import OF_CLASSES, QUICK

from fedbary.errors import SettingError
from fedbary.launching.launch import prepare
from fedbary.methods import METHODS, require_method
from fedbary.settings.config import completed, resolve
from server_app.engine.inline import run_inline

PUBLISHED = [name for name in METHODS if name != "barycentre"]
"""Methods after which runs are called."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_regression_says_which_noise_its_method_takes(name):
    method = METHODS[name]
    chosen = {"method": name, "bayesian_layers": 0 if method.deterministic else 1}
    if method.fits_last_layer and not method.needs_numbers:
        with pytest.raises(SettingError, match=f"method: '{name}'.*ConjugateGaussian.*classes"):
            resolve({"task": "regression", **chosen})
        return
    wrong, said = ("learned", "none, cross") if method.squares else ("cross", "learned")
    with pytest.raises(SettingError, match=f"noise: '{wrong}'.*{said}.*{name}"):
        resolve({"task": "regression", **chosen, "noise": wrong})


@pytest.mark.parametrize(
    "name", [name for name in METHODS if METHODS[name].deterministic is not None]
)
def test_a_model_of_the_other_kind_is_refused_before_the_start(name):
    with pytest.raises(SettingError, match=f"bayesian_layers.*{name}"):
        resolve({"method": name, "bayesian_layers": 3 if METHODS[name].deterministic else 0})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"method": "FedPA", "local_epochs": 1}, "local_epochs"),
        ({"method": "PVI", "damping": 0.5}, "damping"),
        ({"method": "FedLAW"}, "server_fraction.*FedLAW"),
        (
            {"method": "FedProx", "bayesian_layers": 0, "predictive": "product"},
            "predictive: .product",
        ),
        ({"predictive": "members"}, "predictive: 'members'.*whose networks predict together"),
        *(({"method": n, "kl_weight": 0}, "kl_weight") for n, m in METHODS.items() if m.needs_kl),
    ],
)
def test_rounds_that_do_not_do_for_a_method_are_refused_before_the_start(words, named, tmp_path):
    chosen = resolve({**QUICK, "output": str(tmp_path / "run"), **words})
    with pytest.raises(SettingError, match=named):
        prepare(chosen, tmp_path / "run")
    with pytest.raises(SettingError, match=named):
        run_inline(chosen, tmp_path / "run")


def test_a_temperature_of_other_predictions_is_refused():
    for name in OF_CLASSES:
        kind = METHODS[name]
        by_model = not (kind.has_members or kind.draws_around)
        words = {"method": name, "bayesian_layers": 0 if kind.deterministic else 3}
        words |= {"calibrate": "temperature", "server_fraction": 0.1, "kl_weight": 1.0}
        if by_model or kind.shows or kind.personalises:
            require_method(completed(words))
        else:
            with pytest.raises(SettingError, match=f"calibrate: 'temperature'.*none for {name}"):
                require_method(completed(words))
