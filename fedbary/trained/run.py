"""The model of a run that has ended, as plain PyTorch, with its posterior and its predictions."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from fedbary.data.digest import Digest, repeats
from fedbary.data.examples import Examples
from fedbary.data.forms import one_state, user_path
from fedbary.data.layout import Layout
from fedbary.data.tables import emptied
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.predictive import Predictive
from fedbary.predictive.conformal import HeldOut, Thresholds, repeated_words, together
from fedbary.runs.schema import ROUND, result_line
from fedbary.runs.whole import write_whole
from fedbary.seeds import seed_of_draws
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfClasses, OfGuarantees
from fedbary.tasks import Outcome, Signature, Task, groups, row_names, task_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedbary.trained.coefficients import Coefficients

Inputs: TypeAlias = "Tensor | Examples | DataFrame | Sequence[str]"
"""Examples, or inputs as a task takes them."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A federation's model, and all that is needed to use it; it needs no Flower.

    Attributes
    ----------
    network : nn.Module
        The global model, a plain module in evaluation mode. Outside of
        `fedbary.variational.drawing` it uses the posterior's means.
    predictive : Predictive
        What predicts: the posterior, the members that some methods keep, and how they are joined.
    settings : Settings
        The run's settings.
    signature : Signature
        Shape and classes of images, or the columns of a table.
    facts : mapping of str to Tensor
        Facts on the training data that the task needs, such as the standardisation.
    rounds : list of dict
        The lines of metrics.jsonl.
    data : Digest or None
        Digest of the data; None if the run's folder has none.
    sites : mapping of str to HeldOut
        Each site's histograms by its name; empty if the run has no conformal sets.
    folder : Path
        The run's folder.
    told : mapping of str to Tensor
        What sites told after the last round; empty if the task does not ask.
    """

    network: nn.Module
    predictive: Predictive
    settings: Settings
    signature: Signature
    facts: Mapping[str, Tensor]
    rounds: list[dict[str, Any]]
    data: Digest | None = None
    sites: Mapping[str, HeldOut] = field(default_factory=dict)
    folder: Path = Path()
    told: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def posterior(self) -> Posterior:
        """The global posterior."""
        return self.predictive.posterior

    @property
    def members(self) -> Mapping[str, Tensor]:
        """The networks that predict together, (K, *shape) by name; empty for most methods."""
        return self.predictive.members

    @property
    def task(self) -> Task:
        """The run's task."""
        return task_of(self.settings)

    @property
    def line(self) -> Mapping[str, Any]:
        """The line of metrics.jsonl of the model's round: the last, or the best."""
        return result_line(self.rounds)

    def thresholds(self, level: float | None = None, site: str | None = None) -> Thresholds:
        """Return the thresholds of the run's conformal sets or intervals.

        Parameters
        ----------
        level
            Above 0 and below 1; by default the run's.
        site
            The site for which they are, see `Thresholds.of_site`; by default all sites together.

        Raises
        ------
        SettingError
            If the level is out of its range, the run has no sets, or no such site.
        """
        own = self.settings.of_task(OfGuarantees)
        if own.conformal is None or not self.sites:
            allowed = "a run with conformal=0.9, whose sites sent histograms"
            raise SettingError("conformal", "none", allowed)
        all_ = together(self.sites.values())
        asked = own.conformal if level is None else level
        found = Thresholds(asked, all_.scores, repeated=all_.repeated)
        if site is None:
            return found
        if site not in self.sites:
            raise SettingError("site", site, ", ".join(self.sites))
        return found.of_site(self.sites[site].scores, own.conformal_by == "class")

    def read(self, path: Path | str, target: str = "") -> Examples:
        """Read a user's own examples, in the forms that the task takes.

        Parameters
        ----------
        path
            Their file or folder.
        target
            The column of a CSV file with the targets; by default the run's setting.

        Raises
        ------
        SettingError
            If there are none that fit the model, or images have a far wider range than the training
            images.
        """
        column = {"target": target} if target else {}
        task, place = task_of(self.settings.model_copy(update=column)), user_path(path)
        if not place.exists():
            raise SettingError("data", str(path), "the path of a file or a folder; there is none")
        examples = task.examples(place, self.signature)
        return replace(examples, notes=(*examples.notes, *self._notes(examples)))

    def evaluation_examples(self) -> Examples:
        """Return the labelled examples that scored the run, in their own units.

        Raises
        ------
        SettingError
            If the data set is no longer the one that the run was started with.
        """
        with one_state():
            examples = self.task.evaluation_examples()
        if self.data is not None and examples.y is not None:
            self.data.require_scored(examples.x, examples.y, self.settings.dataset)
        return examples

    def as_scored(self, examples: Examples) -> Any:
        """Predict by the very networks that scored the run: its scores are those of its metrics.

        `predict` draws other networks of the same posterior.
        """
        task, number = self.task, self.line[ROUND]
        seed = task.seed("predict-global", number)
        return task.predict(self._outcome, examples.x, self.facts, seed)

    def trained_on(self, examples: Examples) -> Tensor:
        """Return which examples equal a training example, or are of its group, (N,) bool."""
        if self.data is None:
            return torch.zeros(len(examples.x), dtype=torch.bool)
        return self.data.trained_on(examples.x, examples.groups)

    def called(self, examples: Examples) -> str:
        """Return words on examples that `trained_on` finds."""
        return "are equal to ones trained on" + " or of their groups" * (
            examples.groups is not None
        )

    def doubt(self, examples: Examples) -> str:
        """Return why examples may be no independent ones of what was not trained on; "" if none.

        Those of groups are independent group by group, see `Examples.independent`.
        """
        if (groups := examples.groups) is not None:
            known = int(self.trained_on(examples).sum())
            many = f"{known} of {len(groups)} examples {self.called(examples)}"
            return many if known else ""
        if group := self.task.group:
            return f"nothing here names their groups, as group={group} does"
        seen = torch.zeros(0).long() if self.data is None else self.data.rows[self.data.trained]
        repeated = repeats(examples.x, seen)
        return repeated_words(repeated, len(examples.x), "labelled") if repeated else ""

    def predict(self, x: Inputs, samples: int | None = None, seed: int = 0) -> Any:
        """Predict, by the run's `predictive`.

        Parameters
        ----------
        x
            Examples from `read`, or inputs: images (N, C, H, W), uint8 or float; the DataFrame of a
            table, or its features (N, D) in their own units, coded as `signature` says; or texts.
        samples
            Number of drawn networks; by default the run's. 0: the network of the means alone.
        seed
            Seed of the draws.

        Returns
        -------
        Prediction or Forecast
            For classes it has `probs`, `entropy` (total uncertainty), `epistemic` and `aleatoric`;
            for numbers `mean`, `var`, `epistemic` and `aleatoric`, in the target's own units.

        Raises
        ------
        SettingError
            If the inputs are not what the model takes: their shape, names, levels or range differ,
            or a number is not finite.
        """
        task, seed = self._told(samples), seed_of_draws(self.settings.seed, seed)
        return task.predict(self._outcome, self.inputs(x), self.facts, seed)

    def inputs(self, x: Inputs) -> Tensor:
        """Return inputs in their own units, (N, …), after the checks that `predict` names.

        It warns of values that differ from training, as `fedbary predict` does.
        """
        if isinstance(x, Examples):
            return x.x
        found = self.task.inputs(x, self.signature)
        layout = self.signature if isinstance(self.signature, Layout) else Layout((), ())
        for note in self._notes(Examples(found, None, layout=layout)):
            warnings.warn(note, stacklevel=3)
        return found

    def _notes(self, examples: Examples) -> Sequence[str]:
        said = self.data.said if self.data else None
        return self.task.compared(examples, self.facts, said)

    def sets(self, x: Inputs, level: float | None = None, site: str | None = None) -> Tensor:
        """Return which classes are in each example's conformal set, (N, classes) bool.

        A set holds the true class at the rate `level`, see `fedbary.predictive.conformal`. It uses
        the networks by which the sites scored: the run's number of networks, drawn from its seed,
        without a temperature.

        Parameters
        ----------
        x
            As in `predict`.
        level, site
            As in `thresholds`.

        Raises
        ------
        SettingError
            As in `thresholds`.
        """
        by, rows = self._said_thresholds(level, site), self._rows(self.inputs(x))
        score = self.settings.of_task(OfClasses).conformal_score
        return by.sets(score, self.scored_by_sites(x).probs, rows)

    def intervals(
        self, x: Inputs, level: float | None = None, site: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the ends of each example's conformal interval, (N,) each; see `sets`."""
        by, rows = self._said_thresholds(level, site), self._rows(self.inputs(x))
        return by.intervals(self.scored_by_sites(x), rows)

    def _said_thresholds(self, level: float | None, site: str | None) -> Thresholds:
        """Return the thresholds; warn where too few examples are behind them."""
        found = self.thresholds(level, site)
        if said := self.lacking(level, site):
            warnings.warn(said, stacklevel=3)
        return found

    def lacking(self, level: float | None = None, site: str | None = None) -> str:
        """Return a line on thresholds with too few held-out examples behind them; "" for none.

        Parameters and errors are those of `thresholds`.
        """
        names, found = row_names(self.settings, self.signature), self.thresholds(level)
        if site is None or self.settings.of_task(OfGuarantees).conformal_by == "class":
            return found.lacking(names)
        short = Thresholds(found.level, self.sites[site].scores).short
        rows = ", ".join(names[row] for row in short)
        own = f"{site} holds out too few examples for thresholds of its own: {rows}"
        return "; ".join(filter(None, (own if short else "", found.lacking(names))))

    def _rows(self, x: Tensor) -> Tensor | None:
        return groups(self.settings, self.signature, x)

    def scored_by_sites(self, x: Inputs) -> Any:
        """Predict as the sites did to score: by the run's own networks, without a temperature."""
        seed = seed_of_draws(self.settings.seed)
        plain = replace(self._outcome, told={})
        return self.task.predict(plain, self.inputs(x), self.facts, seed)

    def coefficients(self, level: float = 0.95, anyway: bool = False) -> Coefficients:
        """Return coefficients in the columns' own units, with intervals and how sites differ.

        Parameters
        ----------
        level
            Level of the intervals, above 0 and below 1.
        anyway
            True: also where cells were filled in or rounds have not settled; a note says so.

        Returns
        -------
        Coefficients
            Its `table` is a DataFrame, its `summary()` a text.

        Raises
        ------
        SettingError
            If the run has no such table: no linear model of a table's columns, no factors that
            hold all covariances, weights or noise in these, cells that were filled in, rounds that
            have not settled; or if columns are combinations of others.
        """
        from fedbary.trained.factors import coefficients

        return coefficients(self, level, anyway)

    def export(
        self,
        file: Path | str,
        samples: int | None = None,
        seed: int = 0,
        level: float | None = None,
        site: str | None = None,
    ) -> int:
        """Write an ONNX file of networks drawn now; it predicts as `predict` does on a CPU.

        The input ``x`` has N examples: images (N, C, H, W), float32, bytes divided by 255;
        features of a table (N, D), float64, in their own units; or tokens of texts (N, L), int32,
        −1 after a text's end.
        The outputs for classes are ``probs`` (N, classes), ``entropy`` and ``epistemic`` (N,), in
        nats, and each network's probabilities ``networks`` (S, N, classes). The outputs for numbers
        are ``mean``, ``var`` and ``epistemic`` (N,), and each network's mean ``networks`` (S, N),
        in the target's units. The file's metadata names classes and features. Conformal sets give
        the output ``set`` (N, classes), bool, or ``low`` and ``high`` (N,), as `sets` and
        `intervals` return them. These need the run's number of draws and its seed.

        Parameters
        ----------
        file
            File to write, whole or not at all; it replaces an existing one.
        samples, seed
            As in `predict`. 0 samples: the network of the posterior's means alone.
        level, site
            As in `thresholds`, for the sets or intervals.

        Returns
        -------
        int
            Number of networks in the file; 0 if a closed form predicts.

        Raises
        ------
        SettingError
            As in `thresholds`; if a level or a site is given with other networks than the run's,
            the extra `onnx` is not installed, the model predicts by passes, as with dropout,
            or its network cannot be exported.
        """
        from fedbary.trained.onnx import of_known_levels, onnx_bytes, with_sets

        task, held = self._told(samples, device="cpu"), self.settings.samples
        outcome = replace(self._outcome, model=copy.deepcopy(self.network).cpu())
        graph = task.graph(outcome, self.facts, seed_of_draws(self.settings.seed, seed))
        networks = len(graph(task.zeros(self.signature)).get("networks", ()))
        are_asked = (level, site) != (None, None)
        if are_asked and (task.settings.samples, seed) != (held, 0):
            raise SettingError("samples", samples, f"{held} and seed 0, as the sites scored")
        if are_asked or (self.sites and (task.settings.samples, seed) == (held, 0)):
            plain = replace(outcome, told={})
            of_run = task.graph(plain, self.facts, seed_of_draws(task.settings.seed))
            of_sets = (
                self._said_thresholds(level, site),
                self.settings.of_task(OfClasses).conformal_score,
            )
            graph = with_sets(graph, of_run, *of_sets, self._rows)
        features = list(getattr(self.signature, "features", ()))
        classes, task_name = list(self.signature.classes), self.settings.task
        facts = {"classes": classes, "features": features, "task": task_name}
        whole = graph
        if isinstance(layout := self.signature, Layout):
            whole = of_known_levels(graph, layout)
            if layout.missing_words:
                facts["missing_words"], known = list(layout.missing_words), whole
                whole = lambda x: known(emptied(x, layout))  # noqa: E731 - a graph is a function
        write_whole(Path(file), onnx_bytes(whole, task.zeros(self.signature), facts))
        return networks

    def _told(self, samples: int | None, **changes: Any) -> Task:
        """Return the task under the run's settings, with changed samples and other values."""
        if samples is not None and samples < 0:
            raise SettingError("samples", samples, "a whole number from 0 up")
        held = self.settings.samples if samples is None else samples
        return task_of(self.settings.model_copy(update={"samples": held, **changes}))

    @property
    def _outcome(self) -> Outcome:
        return Outcome(self.line[ROUND], self.network, self.predictive, self.line, [])
