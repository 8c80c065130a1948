"""The interface of a task: the apps know nothing else of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedbary.data.batches import Augment
from fedbary.data.deal import (
    Deal,
    Dealable,
    Shard,
    client_rows,
    client_shard,
    evaluation_data,
    evaluation_groups,
    server_shard,
    site_shard,
    trained_rows,
    training_data,
)
from fedbary.data.digest import Digest, content_hash, digest_of, repeats, row_hashes
from fedbary.data.examples import Examples
from fedbary.data.sites import Limits, Site
from fedbary.errors import SettingError
from fedbary.figures.run_pictures import Curve
from fedbary.methods import Reply, Server
from fedbary.parts.parameters import Checked
from fedbary.predictive import Forecast, Prediction, Predictive, Predictor
from fedbary.predictive.predictor import predictor_named
from fedbary.runs.data_kept import read_digest
from fedbary.runs.own_code import require_same_code
from fedbary.runs.run_folder import read_signature
from fedbary.settings.config import Settings
from fedbary.settings.device import torch_device
from fedbary.settings.task_words import OfGuarantees
from fedbary.tasks._contrasts import Contrasts
from fedbary.tasks._shown import FewShown
from fedbary.tasks._values import (
    ClientMetrics,
    Conditions,
    Dialogue,
    Facts,
    Graph,
    Loss,
    Outcome,
    Scored,
    Signature,
    Tested,
    Unused,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@lru_cache(maxsize=1024)
def moved(shard: Shard, device: torch.device) -> Shard:
    """Return a shard on a device, once per process."""
    parts: dict[str, Any] = {
        name: held.to(device) if isinstance(held, Tensor) else held
        for name, held in vars(shard).items()
    }
    return Shard(**parts)


@lru_cache(maxsize=4)
def _content(held: Dealable, dealt: Deal) -> str:
    parts = held.examples, evaluation_data(held, dealt)
    return " ".join(content_hash(row_hashes(x), y) for x, y in parts)


@lru_cache(maxsize=4)
def _trained_hashes(held: Dealable, dealt: Deal, clients: int) -> Tensor:
    return row_hashes(held.examples[0][trained_rows(held, dealt, clients)])


class Task(ABC):
    """A task: it holds the run's settings, and nothing else. A task below another inherits all.

    Attributes
    ----------
    Parameters : type
        The settings that the task owns, a frozen dataclass.
    defaults : mapping
        A task of one's own: defaults of settings, where they differ from those of its base.
    reads : str
        The folder of its data sets, the function that reads one, and the endings of files that it
        reads. Without endings it reads any path. It is read from the task's file, before PyTorch is
        imported. A task of one's own that leaves it empty reads `dataset` itself, any text.
    best_by : sequence of str
        Scores that may choose the best round; `fedbary.runs.schema` has the better direction.
    conditions : sequence of functions
        Each yields conditions on a run's settings.
    numbers : bool
        True if targets are numbers, not classes.
    one_class : bool
        False if an example has several classes: methods that learn from one softmax do not fit.
    private : bool
        True if a run without normalisation takes no sums of the sites' data but its method's.
    facts : str
        File name of the facts in the run folder; "" for a task without questions.
    counts_classes : bool
        True if the answer to a question counts the examples of each class.
    plain : collection of str
        Questions that are of rows in their own units, also once there are facts.
    known_metrics : mapping of str to (float, float)
        Clients' metrics that are recorded, beside those of all tasks; each with its least and its
        largest value.
    curves : tuple of Curve
        Scores that are drawn over the rounds.
    """

    Parameters: type[Checked]
    defaults: Mapping[str, object] = {}
    reads = ""
    best_by: Sequence[str] = ()
    conditions: Sequence[Conditions] = ()
    numbers = False
    one_class = True
    private = False
    facts = ""
    counts_classes = False
    plain: Collection[str] = ()
    known_metrics: Mapping[str, tuple[float, float]] = {}
    curves: tuple[Curve, ...]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @staticmethod
    def unused(settings: Settings) -> Iterator[Unused]:
        """Yield settings that a run of the task does not use, though one of its parts owns them."""
        yield from ()

    def seed(self, purpose: str, *indices: int) -> int:
        """Return the seed of a purpose."""
        return self.deal.derived(purpose, *indices)

    @cached_property
    def deal(self) -> Deal:
        """Rules by which the examples are dealt."""
        by = self.settings
        return Deal(
            None,
            by.evaluate_on,
            by.partition,
            by.min_examples,
            by.holdout,
            by.seed,
            by.train_fraction,
            by.server_fraction,
            by.partition_parameters,
        )

    @property
    def group(self) -> str:
        """What names the groups of rows, in the settings; "" for none."""
        word = self.settings.of_task(OfGuarantees).group
        return "" if word == "none" else word

    @property
    def predicts(self) -> bool:
        """True if the global model predicts; else `predict` says why it does not."""
        return True

    @property
    def predictor(self) -> Predictor:
        """The kind of prediction that the settings name."""
        return predictor_named(self.settings.predictive, dict(self.settings))

    # What the data are

    @property
    @abstractmethod
    def held(self) -> Dealable:
        """The data set that the settings name, the same object throughout the process."""

    def check(self, own_data: bool) -> None:
        """Raise a SettingError if the device, the data, the model or the split cannot be had.

        There is no split if sites have `own_data`.
        """
        torch_device(self.settings)
        self.make_model(self.signature())
        if self.group and self.settings.dataset != "none" and self.held.groups is None:
            raise SettingError("group", self.group, "none: these data have no groups")
        if not own_data:
            client_rows(self.held, self.deal, self.settings.clients)

    @abstractmethod
    def signature(self) -> Signature:
        """Return the signature of the data, by the settings or by the server's own data."""

    @abstractmethod
    def signature_from(self, config: Mapping[str, Any]) -> Signature:
        """Return the signature that a ConfigRecord holds."""

    def shard(self, site: Site, signature: Any) -> Shard:
        """Return what a site holds, in its own units, made once per process.

        Raises
        ------
        SettingError
            If its data do not fit the signature.
        """
        if site.partition is None:
            return self.own_shard(site, signature)
        dealt = client_shard(self.held, self.deal, site.partitions, site.partition)
        return moved(dealt, torch_device(self.settings))

    def own_shard(self, site: Site, signature: Any) -> Shard:
        """Return what a site trains on and holds out of its own data, read as `examples` are."""
        own = self.examples(Path(site.data_path), signature)
        if own.y is None:
            raise SettingError(site.data_path, "examples without targets", "a target for each")
        dealt = site_shard(own.x, own.y, self.deal, site.key, own.groups)
        return moved(dealt, torch_device(self.settings))

    def disclosure(self, site: Site) -> Limits | None:
        """Return what a site tells of its rows at most; None for no bound."""
        return site.limits

    def terms_of(self, signature: Any) -> int:
        """Return how many columns the products in a site's answers are of; 0 if it counts none."""
        return 0

    def is_of_terms(self, question: str, asked: Mapping[str, Any]) -> bool:
        """Return whether an answer has sums or products of these columns."""
        return False

    def facts_of(self, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Facts:
        """Return the facts that a question has."""
        return {}

    def points(self, facts: Facts) -> dict[str, list[float]]:
        """Return where functions of a column bend by the server's facts, by the column."""
        return {}

    def fewest_shown(self, held: Shard, points: Mapping[str, Sequence[float]]) -> int:
        """Return the fewest rows of a site that such points show alone; 0 if none do."""
        return 0

    def require_told(
        self,
        held: Shard,
        facts: Facts,
        points: Mapping[str, Sequence[float]],
        least: int,
        cell: int,
    ) -> None:
        """Raise a SettingError if the server's facts would show fewer than `least` rows.

        The points are those of all runs. A cell has `cell` rows at least.
        """
        if 0 < self.fewest_shown(held, points) < least:
            allowed = f"splines whose knots, those of earlier runs too, have none or {least} of a "
            allowed += "site's rows beyond them"
            raise FewShown("terms", "few rows beyond knots", allowed)

    def require_weight(  # noqa: B027 - most tasks have no such sums
        self, held: Shard, shard: Shard, model: Mapping[str, Tensor], least: int
    ) -> None:
        """Raise a SettingError if a model leaves weight to few of a site's rows."""

    def raw(self, site: Site, signature: Any) -> Shard:
        """Return what a site holds, before a network makes features of it."""
        return self.shard(site, signature)

    def notes(self) -> Sequence[str]:
        """Return lines on the settings' data, and on files that were not read."""
        return ()

    def site_notes(self, site: Site, signature: Any) -> Sequence[str]:
        """Return such lines on a site's own data; they stay at the site."""
        return ()

    def digest(self, clients: int = 0) -> Digest | None:
        """Return the digest of the settings' data, dealt to `clients`; None without data."""
        if self.settings.dataset == "none":
            return None
        held, layout = self.held, self.signature().config()
        trained = trained_rows(held, self.deal, clients)
        scored = evaluation_data(held, self.deal)
        return digest_of(*held.examples, scored, trained, layout, held.groups)

    def idle(self, facts: Facts) -> Sequence[str]:
        """Return a line on inputs without spread in the training data, which have no effect."""
        return ()

    def repeated(self, digest: Digest, clients: int = 0) -> Sequence[str]:
        """Return a line on test and held-out examples that equal training examples, if some do.

        The digest is of the data, as they are dealt to so many clients; 0: to none.
        """
        parts = {"test": self.evaluation_examples().x}
        if clients and self.deal.holdout:
            dealt = np.concatenate(client_rows(self.held, self.deal, clients))
            held_out = np.setdiff1d(dealt, trained_rows(self.held, self.deal, clients).numpy())
            parts["held-out"] = self.held.examples[0][torch.from_numpy(held_out)]
        counts = {part: int(digest.trained_on(x).sum()) for part, x in parts.items()}
        said = [f"{n} of {len(parts[part])} {part} examples" for part, n in counts.items() if n]
        worse = "equal training examples: scores on new examples may be worse"
        return (f"{' and '.join(said)} {worse}",) if said else ()

    def repeats(self, raw: Shard, site: Site) -> int:
        """Return how many held-out examples equal a training example, or an earlier held-out one.

        `raw` is what the site holds. A simulated site compares with all clients' examples.
        """
        if site.partition is None:
            return repeats(raw.x_held_out, row_hashes(raw.x))
        return repeats(raw.x_held_out, _trained_hashes(self.held, self.deal, site.partitions))

    @property
    def content(self) -> str:
        """The hash of the settings' rows in their order, the same in every process; "" for none."""
        if self.settings.dataset == "none":
            return ""
        return _content(self.held, self.deal)

    def require_same_data(self, folder: Path) -> None:
        """Raise a SettingError unless the settings' data and code are those of a folder's run."""
        require_same_code(self.settings, read_signature(folder))
        kept = read_digest(folder)
        if kept is not None and (now := self.digest()):
            kept.require_same(now, self.settings.dataset)

    def server_shard(self) -> Shard:
        """Return what the server keeps of the training data to learn from, in its own units."""
        return server_shard(self.held, self.deal)

    @abstractmethod
    def zeros(self, signature: Any) -> Tensor:
        """Return two inputs of zeros, in their own units: images (2, C, H, W), or rows (2, D)."""

    def sample(self, count: int) -> tuple[Tensor, Tensor, int]:
        """Return some `count` training inputs and targets, and how many there are in all."""
        (x, y), device = training_data(self.held, self.deal), torch_device(self.settings)
        return x[:count].to(device), y[:count].to(device), len(y)

    # At a client

    @abstractmethod
    def make_model(self, signature: Any) -> nn.Module:
        """Return the network, on its device, initialised from the seed."""

    @abstractmethod
    def loss(self, facts: Facts) -> Loss:
        """Return the mean negative log-likelihood of (outputs, targets), in nats."""

    def seen(self, shard: Shard, folder: str = "") -> Shard:
        """Return a shard in the form that `prepared` takes; its inputs come in their own units.

        Results that take long to compute are kept in a folder, by default the settings' `data_dir`.
        """
        return shard

    def prepared(self, shard: Shard, facts: Facts) -> Shard:
        """Return a shard in the form that the model takes."""
        return shard

    def augments(self, site: Site) -> Augment:
        """Return the random changes of a site's inputs in training."""
        return False

    def strata(self, targets: Tensor) -> Tensor:
        """Return the values that examples are dealt by, (N,): classes, or the targets."""
        return targets

    def label_counts(self, shard: Shard, signature: Any) -> list[int]:
        """Return a shard's number of examples of each class; nothing for a regression."""
        return []

    def scored_by_clients(self, facts: Facts) -> tuple[Tensor, Tensor] | None:
        """Return the server's inputs and targets on which clients score, for the model; or None."""
        return None

    def client_scores(
        self, model: nn.Module, on: Tested, facts: Facts, seed: int, by: Predictive | None = None
    ) -> dict[str, float]:
        """Score a model at a client; `by` holds the members and more to predict with.

        Scores that are not finite are left out.
        """
        return {}

    @abstractmethod
    def predicted(
        self, model: nn.Module, x: Tensor, facts: Facts, seed: int, by: Predictive
    ) -> Prediction | Forecast:
        """Predict inputs as the model takes them: classes without a temperature, or numbers."""

    def answer(
        self, question: str, shard: Shard, asked: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Answer a question of the server in numbers and lists of numbers.

        Raises
        ------
        ValueError
            If the task has no such question.
        """
        raise ValueError(f"{self.settings.task} has no question {question!r}")

    # At the server

    def ask_first(self) -> Dialogue[dict[str, Tensor]]:
        """Ask all sites before the first round; return the facts."""
        return {}
        yield

    def ask_after(
        self, members: Mapping[str, Tensor], last: Mapping[str, Any]
    ) -> Dialogue[dict[str, Any]]:
        """Ask a round's sites after the round; return the entries for the round's line.

        Parameters
        ----------
        members
            The clients' networks, stacked, if the method keeps them. Each site is told its place in
            the stack. Without networks no site is asked.
        last
            The line of the round before; empty at first.
        """
        return {}
        yield

    def ask_last(self, model: nn.Module, facts: Facts) -> Dialogue[dict[str, Tensor]]:
        """Ask all sites after the last round, of the run's model; return what they tell.

        It is kept in the run's folder. No question may be needed: the model is there already.
        """
        return {}
        yield

    def near(self, lines: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether sites that may answer seldom are asked now, by the lines so far."""
        return True

    def said_last(self, found: Mapping[str, Tensor], facts: Facts) -> Iterable[str]:
        """Return lines on what sites told after the last round."""
        return ()

    def settled(self, lines: Sequence[Mapping[str, Any]]) -> str:
        """Return why rounds end early, by the lines of all rounds so far; "": they go on."""
        return ""

    def doubt(self, facts: Facts, server: Server, reply: Reply) -> str:
        """Return why no rows give a reply of these numbers; "": some may."""
        return ""

    @abstractmethod
    def scores(self, outcome: Outcome, facts: Facts) -> Scored:
        """Score the global model."""

    def said(self, scores: Mapping[str, float]) -> str:
        """Return the scores as the log's line has them."""
        return "  ".join(f"{name} {score:.4g}" for name, score in scores.items())

    def advice(self, found: Scored, facts: Facts) -> Sequence[str]:
        """Return lines on what a result's scores leave out, and how they could be better."""
        return ()

    def summary(
        self, trained: Sequence[ClientMetrics], held_out: Sequence[ClientMetrics]
    ) -> dict[str, Any]:
        """Return the entries of the round's line that sum up all clients' metrics."""
        return {}

    def pictures_of_clients(self, line: Mapping[str, Any]) -> Iterable[tuple[str, Figure]]:
        """Yield pictures of the clients' scores, given the line of the last round."""
        return ()

    def pictures(self, prediction: Any, facts: Facts) -> Iterable[tuple[str, Figure]]:
        """Yield pictures of the final model's predictions, each with its file's name."""
        scored = self.scored_by_clients(facts)
        return () if scored is None else self.judgement(prediction, scored[1], "Final global model")

    # After the run

    def inputs(self, x: Any, signature: Any) -> Tensor:
        """Return inputs in their own units as a tensor (N, …), after a check.

        Raises
        ------
        SettingError
            If they are no finite tensor of the signature's shape, or nothing that the task reads.
        """
        shape = tuple(self.zeros(signature).shape[1:])
        allowed = f"a tensor (N, {', '.join(map(str, shape))})"
        if not isinstance(x, Tensor):
            raise SettingError("x", f"a {type(x).__name__}", allowed)
        if tuple(x.shape[1:]) != shape:
            raise SettingError("x", f"a tensor {tuple(x.shape)}", allowed)
        if not x.isfinite().all():
            raise SettingError("x", "NaN or infinity", "finite numbers")
        return x

    @abstractmethod
    def predict(self, outcome: Outcome, x: Any, facts: Facts, seed: int) -> Any:
        """Predict inputs: a tensor in their own units, or texts as they are."""

    @abstractmethod
    def graph(self, outcome: Outcome, facts: Facts, seed: int) -> Graph:
        """Return `predict` for a batch in plain operations on the CPU, for export."""

    @abstractmethod
    def examples(self, path: Path, signature: Any) -> Examples:
        """Read a user's own examples, in their own units.

        Raises
        ------
        SettingError
            If there are none that fit the signature.
        """

    def compared(
        self, examples: Examples, facts: Facts, said: Mapping[str, Any] | None
    ) -> Sequence[str]:
        """Return lines on how examples differ from the training data.

        The facts describe these, and the words of a `Digest`, where the run has one.

        Raises
        ------
        SettingError
            If the model cannot be used on them.
        """
        return ()

    def evaluation_examples(self) -> Examples:
        """Return the labelled examples that the server scores models on, in their own units."""
        if self.settings.dataset == "none":
            raise SettingError("dataset", "none", "labelled examples: this run's server had none")
        groups = evaluation_groups(self.held, self.deal)
        return Examples(*evaluation_data(self.held, self.deal), groups=groups)

    def simpler(self) -> Iterable[tuple[str, Any]]:
        """Yield simple models' predictions of these examples, by name: what a run should beat."""
        return ()

    @abstractmethod
    def answers(self, prediction: Any, signature: Any) -> dict[str, np.ndarray]:
        """Return the columns of a prediction, (N,) by name."""

    def contrasts(self, signature: Any, facts: Facts) -> Contrasts:
        """Return how the last layer's weights become coefficients in the columns' own units.

        Raises
        ------
        SettingError
            If the inputs are no columns of a table.
        """
        raise SettingError("task", self.settings.task, "a task on tables: it has coefficients")

    @abstractmethod
    def judged(self, prediction: Any, y: Tensor) -> dict[str, float]:
        """Score a prediction of examples whose targets are known."""

    def left_out(self, prediction: Any, y: Tensor) -> str:
        """Return a line on classes or labels that a mean score leaves out; "" for none."""
        return ""

    def judgement(self, prediction: Any, y: Tensor, title: str) -> Iterable[tuple[str, Figure]]:
        """Yield pictures of such a prediction under a title, each with its file's name."""
        return ()
