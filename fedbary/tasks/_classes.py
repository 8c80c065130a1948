"""Common part of tasks with classes: predictions by the mean softmax, and all that follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fedbary.data.batches import scale_pixels
from fedbary.data.deal import Shard, evaluation_data, training_data
from fedbary.data.examples import Examples
from fedbary.data.formats.npz import read_npz_arrays
from fedbary.data.image_layout import ImageLayout
from fedbary.errors import SettingError
from fedbary.figures.run_pictures import Curve, reliability_picture, who_gains
from fedbary.figures.sheet import BLUE, GREEN, RED
from fedbary.predictive import Prediction, Predictive
from fedbary.predictive.networks import device_of
from fedbary.predictive.predictor import Draws, kind_of
from fedbary.predictive.projection import STRENGTHS
from fedbary.runs import schema
from fedbary.scores.metrics import KNOWN as KNOWN_AT_TEMPERATURES
from fedbary.scores.metrics import (
    NLL_OFFSET,
    NLL_RANGE,
    TEMPERATURES,
    accuracy_after_rejection,
    ece_by_chance,
    end_of_temperatures,
    evaluate,
    fairness,
    fitted_temperature,
    least_nll,
    nll_at_temperatures,
)
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfClasses
from fedbary.tasks import _failing
from fedbary.tasks._network import network
from fedbary.tasks._task import Task
from fedbary.tasks._values import (
    ClientMetrics,
    Condition,
    Facts,
    Graph,
    Loss,
    Outcome,
    Scored,
    Tested,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ECE_BINS = (15, 100)
"""Numbers of bins of most papers and of BA-BFL; both are recorded beside `ece_bins`."""

SCORES = {"accuracy": (0.0, 1.0), "nll": NLL_RANGE, "ece": (0.0, 1.0), "brier": (0.0, 2.0)}
"""The scores of a model's probabilities, each with its least and its largest value."""

NLL_STD = "nll_std"
"""The standard error of the NLL, which clients send beside it."""

OWN = {
    "global": "",
    "personal": "personal-",
    **{f"projected-{called}": f"projected-{called}-" for called in STRENGTHS},
}
"""Prefixes of a client's evaluation metrics, by the scored model."""

DATA = {"held_out": "", "shares": "share-"}
"""Their second parts, by the data: the client's holdout, or the test set by its label shares."""

REJECTED = tuple(tenth / 10 for tenth in range(10))
"""Fractions of the test set that are rejected, most uncertain first."""

ACCURACY = ("accuracy", 100, "Accuracy (%)", BLUE)
NLL = ("nll", 1, "Negative log-likelihood (nats)", RED)
ECE = ("ece", 100, "Expected calibration error (%)", GREEN)


def known_temperature(outcome: Outcome) -> float | None:
    """Return the calibration temperature of the global model, if the clients have told it."""
    if schema.TEMPERATURE in outcome.told:
        return float(outcome.told[schema.TEMPERATURE])
    return fitted_temperature(outcome.held_out)


def at_temperature(prediction: Prediction, labels: Tensor, temperature: float) -> dict[str, Any]:
    """Return the line's entries on a temperature: T, and the scores without it."""
    plain = evaluate(prediction.probs, labels)
    ece = {f"ece_{bins}": evaluate(prediction.probs, labels, bins)["ece"] for bins in ECE_BINS}
    return {schema.TEMPERATURE: temperature, schema.UNTEMPERED: {**plain, **ece}}


def known(scores: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Return the limits of scores as clients send them: of the global model, and of their own."""
    prefixes = (
        "",
        "local-",
        *(f"{model}{data}" for model in OWN.values() for data in DATA.values()),
    )
    found = {f"{p}{name}": limits for p in prefixes for name, limits in scores.items()}
    return {**found, **KNOWN_AT_TEMPERATURES}


def uncertainty(prediction: Prediction, labels: torch.Tensor) -> dict[str, Any]:
    """Return the ECE in the usual bins, and the mean entropy with its two parts, in nats.

    One network tells no epistemic part.
    """
    line: dict[str, Any] = {
        f"ece_{bins}": evaluate(prediction.probs, labels, bins)["ece"] for bins in ECE_BINS
    }
    line[schema.UNCERTAINTY] = {
        "entropy": float(prediction.entropy.mean()),
        "aleatoric": float(prediction.aleatoric.mean()),
        **({} if prediction.networks == 1 else {"epistemic": float(prediction.epistemic.mean())}),
    }
    return line


def at_end(prediction: Prediction, labels: torch.Tensor, seed: int) -> dict[str, Any]:
    """Return selective accuracies: the most uncertain predictions are put aside.

    Beside them stands the ECE that a calibrated model of these confidences has by chance.
    """
    kept = accuracy_after_rejection(prediction.probs, labels, prediction.entropy, REJECTED)
    chance = {f"ece_{bins}": ece_by_chance(prediction.probs, bins, seed) for bins in ECE_BINS}
    rejection = {f"{part:.1f}": value for part, value in zip(REJECTED, kept, strict=True)}
    return {schema.REJECTION: rejection, schema.BY_CHANCE: chance}


def means(clients: Sequence[ClientMetrics], names: Iterable[str] = SCORES) -> dict[str, float]:
    """Return the means of the clients' scores, weighted by their numbers of examples.

    A score is that of the clients who have told it; NaN where none has.
    """
    found = {}
    for name in names:
        told = [client for client in clients if name in client]
        weights = [client["num-examples"] for client in told]
        values = [client[name] for client in told]
        found[name] = float(np.average(values, weights=weights)) if told else math.nan
    return found


def _spread(clients: Sequence[ClientMetrics], name: str) -> dict[str, float]:
    weights = [client["num-examples"] for client in clients]
    return fairness([client[name] for client in clients], weights)


AT_ONCE = 500
"""Inputs that networks answer at a time."""

TOO_MUCH, LEAST_GAIN = 0.1, 0.01
"""Part of the NLL at the best temperature, and nats, from which an NLL above it is worth a word."""

BEST_BY = ("nll", "accuracy", "ece", "brier")
"""Scores that may choose the best round."""


def predicts_classes(settings: Settings) -> Iterator[Condition]:
    """Yield the condition that predictions are of classes."""
    word = settings.predictive
    yield "predictive", kind_of(word).classes, f"another value: {word} is for regression"


class Classes(Task):
    """A task whose networks answer with classes.

    Attributes
    ----------
    limits : mapping of str to (float, float)
        The scores, each with its least and its largest value.
    """

    limits: Mapping[str, tuple[float, float]] = SCORES
    best_by: tuple[str, ...] = BEST_BY
    curves: tuple[Curve, ...] = (ACCURACY, NLL, ECE)

    def __init_subclass__(cls) -> None:
        """Know each score as clients send it, of the global model and of their own."""
        cls.known_metrics = known({**cls.limits, NLL_STD: (0.0, math.inf)})

    @property
    def bins(self) -> int:
        """Number of bins of the expected calibration error."""
        return self.settings.of_task(OfClasses).ece_bins

    # What a task may change

    def signature(self) -> Any:
        """Return the shape of an input and the classes, as `held` has them."""
        held: Any = self.held
        return ImageLayout(tuple(held.examples[0].shape[1:]), held.classes)

    def signature_from(self, config: Mapping[str, Any]) -> Any:
        """Return the shape and the classes that a ConfigRecord holds."""
        return ImageLayout.from_config(config)

    def zeros(self, signature: Any) -> Tensor:
        """Return two inputs of zeros."""
        return torch.zeros(2, *signature.shape)

    def make_model(self, signature: Any) -> nn.Module:
        """Return the network that the settings name, for inputs of that shape."""
        shape, outputs = signature.shape, len(signature.classes)
        answer = self.network_answer(signature)
        return network(self.settings, shape, outputs, self.seed("model"), answer)

    def network_answer(self, signature: Any) -> tuple[int, ...]:
        """Return the shape of what the network answers an input with."""
        return (len(signature.classes),)

    def loss(self, facts: Facts) -> Loss:
        """Return the cross-entropy."""
        return functional.cross_entropy

    def scored_by_clients(self, facts: Facts) -> tuple[Tensor, Tensor]:
        """Return the test inputs, as the model takes them, and their labels."""
        x, y = evaluation_data(self.held, self.deal)
        return self.taken(x, facts), y.to(torch_device(self.settings))

    def taken(self, x: Tensor, facts: Facts) -> Tensor:
        """Return inputs in their own units as the model takes them; bytes may stay bytes."""
        return x.to(torch_device(self.settings))

    def examples(self, path: Path, signature: Any) -> Examples:
        """Read an ``.npz`` file of inputs ``x``, and perhaps labels ``y``."""
        arrays = read_npz_arrays(path, ("x", "y"))
        x, y = (torch.from_numpy(arrays[name]) if name in arrays else None for name in "xy")
        if x is None or tuple(x.shape[1:]) != signature.shape or y is not None and len(y) != len(x):
            held = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            shape = ", ".join(map(str, signature.shape))
            raise SettingError(str(path), held or "no array", f"x (N, {shape}) and labels y (N, …)")
        x = x if x.dtype == torch.uint8 else x.float()
        return Examples(x, None if y is None else y.long())

    def traced(self, x: Tensor, facts: Facts) -> Tensor:
        """Return the same in plain operations, for a graph."""
        return self.taken(x, facts)

    def at_once(self, x: Tensor) -> int:
        """Return the number of inputs that networks answer at a time."""
        return AT_ONCE

    def adjusting(self, facts: Facts) -> Callable[[Tensor], Tensor]:
        """Return the function that turns a network's answer into logits of the probabilities."""
        return lambda answer: answer

    def judged(self, prediction: Prediction, y: Tensor) -> dict[str, float]:
        """Return accuracy, NLL, ECE and Brier score, of each pixel or label by itself."""
        each = prediction.one_by_one().probs
        return evaluate(each, y.to(each.device).flatten(), self.bins)

    def at_end(
        self, outcome: Outcome, prediction: Prediction, x: Tensor, y: Tensor, facts: Facts
    ) -> dict[str, Any]:
        """Return the worth of a kept round's uncertainties, class by class."""
        return at_end(prediction, y, self.seed("chance"))

    def temperature(self, outcome: Outcome) -> float | None:
        """Return the temperature of the global model's predictions; None where none is known."""
        return known_temperature(outcome)

    # At a client

    def label_counts(self, shard: Shard, signature: Any) -> list[int]:
        """Return a shard's number of examples of each class, held-out ones included."""
        labels = self.strata(torch.cat([shard.y, shard.y_held_out]))
        counts: list[int] = torch.bincount(labels, minlength=len(signature.classes)).tolist()
        return counts

    def client_scores(
        self, model: nn.Module, on: Tested, facts: Facts, seed: int, by: Predictive | None = None
    ) -> dict[str, float]:
        """Score a model at a client; weighted examples have only the scores of probabilities."""
        x, y, weights = on
        held = by or Predictive(model.state_dict())
        prediction = self.predicted(model, x, facts, seed, held)
        each, labels = prediction.one_by_one(), y.flatten()
        if weights is not None:
            weights = weights.repeat_interleave(len(labels) // len(y))
            return evaluate(each.probs, labels, self.bins, weights)
        found = self.judged(prediction, y)
        if by is not None:
            found |= self.standard_errors(each.probs, labels)
        if self.settings.of_task(OfClasses).calibrate == "temperature" and by is not None:
            found |= nll_at_temperatures(each, labels)
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def standard_errors(self, probs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the standard error of the NLL of rows that stand alone."""
        of_label = probs.double().gather(1, labels[:, None].to(probs.device))[:, 0]
        nll = -(of_label + NLL_OFFSET).log()
        return {NLL_STD: float(nll.std() / math.sqrt(len(nll)))} if len(nll) > 1 else {}

    def predicted(
        self, model: nn.Module, x: Tensor, facts: Facts, seed: int, by: Predictive
    ) -> Prediction:
        """Predict inputs as the model takes them, by the networks of the setting `predictive`."""
        draws, adjusted = self._draws(model, seed), self.adjusting(facts)
        return self.predictor.predict(model, x, by, draws, adjusted, self.at_once(x))

    def _draws(self, model: nn.Module, seed: int) -> Draws:
        return Draws(self.settings.samples, Generator(device_of(model)).manual_seed(seed))

    # At the server

    def scores(self, outcome: Outcome, facts: Facts) -> Scored:
        """Score the global model on the test set; without one, on the sites' holdouts."""
        temperature = self.temperature(outcome)
        if self.settings.dataset == "none":
            return self._scored_by_sites(outcome, temperature)
        x, y = self.scored_by_clients(facts)
        prediction, labels = self.predict_global(outcome, x, facts), y.flatten()
        if not prediction.probs.isfinite().all():
            nothing = dict.fromkeys(self.limits, math.nan)
            return Scored(nothing, {schema.FAILING: _failing.NOT_FINITE})
        line: dict[str, Any] = {}
        if temperature is not None:
            line = at_temperature(prediction.one_by_one(), labels, temperature)
            prediction = prediction.tempered(temperature)
        each = prediction.one_by_one()
        line |= uncertainty(each, labels)
        if self.settings.may_be_kept(outcome.round):
            line |= self.at_end(outcome, each, x, labels, facts)
        found = self.judged(prediction, y)
        line |= _failing.classes_failing(found, each, labels, outcome.model, x)
        if outcome.round and y.ndim == 1 and schema.FAILING not in line:
            line |= self.behind(each, labels)
        line = _failing.with_causes(line, self.causes(outcome, each, x, y))
        return Scored(found, line, prediction)

    def causes(
        self, outcome: Outcome, prediction: Prediction, x: Tensor, y: Tensor
    ) -> Iterator[str]:
        """Yield what in the data may be why a model fails."""
        if y.ndim == 1:
            names = [*map(str, self.signature().classes)]
            yield from _failing.causes_in_labels(prediction.probs, y, outcome.label_counts, names)

    def behind(self, prediction: Prediction, labels: Tensor) -> dict[str, str]:
        """Return the lag behind a linear model of the inputs, if it is large."""
        return _failing.classes_behind(self.rival(), prediction, labels)

    def rival(self) -> _failing.Rival | None:
        """Return the linear model of the inputs; None if all labels are equal."""
        return _failing.rival(self.held, self.deal, classes=len(self.signature().classes))

    def simpler(self) -> Iterator[tuple[str, Prediction]]:
        """Yield the linear model's prediction, and that of the training classes' shares."""
        if not self.one_class:
            return
        if (found := self.rival()) is not None:
            yield "linear model", _alone(found.answers.exp())
        labels, classes = training_data(self.held, self.deal)[1], len(self.signature().classes)
        shares = torch.bincount(labels, minlength=classes) / len(labels)
        scored = evaluation_data(self.held, self.deal)[1]
        yield "commonest class", _alone(shares.expand(len(scored), classes))

    def _scored_by_sites(self, outcome: Outcome, temperature: float | None) -> Scored:
        """Return the sites' mean scores at temperature 1, weighted by the size of the holdouts."""
        scores = dict.fromkeys(self.limits, math.nan)
        if told := [client for client in outcome.held_out if client.keys() >= SCORES.keys()]:
            scores = means(told, self.limits)
        line: dict[str, Any] = {} if temperature is None else {schema.TEMPERATURE: temperature}
        if failing := _failing.no_better(scores, outcome.label_counts):
            line[schema.FAILING] = failing
        return Scored(scores, line)

    def said(self, scores: Mapping[str, float]) -> str:
        """Return accuracy, NLL and ECE; without data at the server the ECE is the clients' mean."""
        at_server = self.settings.dataset != "none"
        if math.isnan(scores["accuracy"]):
            why = "predictions are not finite" if at_server else "no site has answered"
            return f"not scored, {why}"
        accuracy, nll, ece = (scores[name] for name in ("accuracy", "nll", "ece"))
        called = "ECE" if at_server else "clients' mean ECE"
        return f"accuracy {100 * accuracy:.2f} %  NLL {nll:z.4f}  {called} {100 * ece:.2f} %"

    def summary(
        self, trained: Sequence[ClientMetrics], held_out: Sequence[ClientMetrics]
    ) -> dict[str, Any]:
        """Return the fairness of the clients' own models, and of the global one on their holdouts.

        Beside the latter stand the means of the clients' scores.
        """
        line: dict[str, Any] = {}
        if told := [client for client in trained if "local-accuracy" in client]:
            line[schema.LOCAL_MODELS] = _spread(told, "local-accuracy")
        if told := [client for client in held_out if client.keys() >= SCORES.keys()]:
            shown = [{k: v for k, v in client.items() if k not in TEMPERATURES} for client in told]
            tempered = least_nll(told)
            line[schema.HELD_OUT] = {
                **means(told, self.limits),
                **({} if tempered is None else {"tempered_nll": tempered}),
                **_spread(told, "accuracy"),
                "clients": shown,
            }
        for data, part in DATA.items():
            both = {f"{OWN[model]}{part}accuracy" for model in ("global", "personal")}
            told = [client for client in held_out if client.keys() >= both]
            for model, prefix in OWN.items():
                name = f"{prefix}{part}accuracy"
                if of_model := [client for client in told if name in client]:
                    spreads = line.setdefault(schema.PERSONAL, {}).setdefault(data, {})
                    spreads[model] = _spread(of_model, name)
        return line

    def pictures_of_clients(self, line: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
        """Yield a picture of the clients' gains by models of their own, if there are scores."""
        clients = line.get(schema.HELD_OUT, {}).get("clients", [])
        gains: dict[str, dict[str, float]] = {}
        for data, part in DATA.items():
            pair = f"{part}accuracy", f"personal-{part}accuracy"
            found = {c["site"]: c[pair[1]] - c[pair[0]] for c in clients if c.keys() >= set(pair)}
            if found:
                gains[data] = found
        if gains:
            yield "who-gains", who_gains(gains)

    def advice(self, found: Scored, facts: Facts) -> tuple[str, ...]:
        """Return lines on what is left out, on a temperature's end, and on a better temperature."""
        held, gone = found.prediction, ""
        if held is not None:
            gone = self.left_out(held, self.scored_by_clients(facts)[1])
        end = end_of_temperatures(found.line.get(schema.TEMPERATURE, 1.0))
        return tuple(filter(None, (gone, end, self._better_tempered(found, facts))))

    def _better_tempered(self, found: Scored, facts: Facts) -> str:
        """Return what a temperature would make of the NLL, where that is a tenth less; or ""."""
        settings = self.settings
        if found.prediction is None or settings.of_task(OfClasses).calibrate != "none":
            return ""
        if (labels := self.scored_by_clients(facts)[1]).ndim > 1:
            return ""
        now, nlls = found.scores["nll"], nll_at_temperatures(found.prediction, labels)
        best = min(nlls, key=nlls.__getitem__)
        if not now - nlls[best] > max(TOO_MUCH * nlls[best], LEAST_GAIN):
            return ""
        kind = "sure" if TEMPERATURES[best] > 1 else "unsure"
        more = "" if settings.holdout else " holdout=0.1"
        return (
            f"The probabilities are too {kind}: the NLL is {now:.4f}, and {nlls[best]:z.4f} at a "
            f"temperature of {TEMPERATURES[best]:.2g}. Try calibrate=temperature{more}"
        )

    # Predictions

    def predict(self, outcome: Outcome, x: Tensor, facts: Facts, seed: int) -> Prediction:
        """Predict inputs in their own units, by the networks of the setting `predictive`."""
        found = self.predicted(outcome.model, self.taken(x, facts), facts, seed, outcome.predictive)
        return found.tempered(self.temperature(outcome) or 1.0)

    def predict_global(self, outcome: Outcome, x: Tensor, facts: Facts, *again: int) -> Prediction:
        """Predict the scored inputs of a round; further numbers choose another draw of networks."""
        seed = self.seed("predict-global", outcome.round, *again)
        return self.predicted(outcome.model, x, facts, seed, outcome.predictive)

    def graph(self, outcome: Outcome, facts: Facts, seed: int) -> Graph:
        """Return probabilities and uncertainties of a batch, and each network's probabilities.

        The networks' own are without the temperature.
        """
        by, draws = outcome.predictive, self._draws(outcome.model, seed)
        kind = self.predictor.resolved(by, draws.samples)
        if not kind.exports:
            allowed = f"0, which exports the network of the means: a graph has no {kind.word}"
            raise SettingError("samples", draws.samples, allowed)
        answers, adjusted = kind.answering(outcome.model, by, draws), self.adjusting(facts)
        temperature = self.temperature(outcome) or 1.0

        def answered(x: Tensor) -> dict[str, Tensor]:
            logits = answers(scale_pixels(self.traced(x, facts)))
            found = kind.joined(logits, by, adjusted).tempered(temperature)
            return {
                "probs": found.probs,
                "entropy": found.entropy,
                "epistemic": found.epistemic,
                "networks": kind.probs_of_each(logits, adjusted),
            }

        return answered

    def answers(self, prediction: Prediction, signature: Any) -> dict[str, np.ndarray]:
        """Return the most probable class, each one's probability, and uncertainties in nats."""
        probs, classes = prediction.probs.double().cpu().numpy(), signature.classes
        far = prediction.distance
        return {
            "class": np.array(classes, dtype=object)[probs.argmax(1)],
            **{f"p({name})": probs[:, k] for k, name in enumerate(classes)},
            "total uncertainty": prediction.entropy.double().cpu().numpy(),
            "epistemic uncertainty": prediction.epistemic.double().cpu().numpy(),
            **({} if far is None else {"relative Mahalanobis distance": far.cpu().numpy()}),
        }

    def judgement(
        self, prediction: Prediction, y: Tensor, title: str
    ) -> Iterator[tuple[str, Figure]]:
        """Yield the reliability diagram."""
        each, labels = prediction.one_by_one(), y.flatten()
        yield "reliability", reliability_picture(each, labels, self.bins, title)


def _alone(probs: Tensor) -> Prediction:
    """Return the prediction of one network's probabilities."""
    return Prediction(probs, torch.special.entr(probs).sum(-1), networks=1)
