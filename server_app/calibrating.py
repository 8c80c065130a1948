"""After the last round: the sites' histograms become the run's conformal sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import INFO, WARNING
from typing import Any

import torch

from fedbary.data.digest import repeats
from fedbary.figures.run_pictures import set_size_picture
from fedbary.figures.spared import spared
from fedbary.predictive import Predictive
from fedbary.predictive.conformal import (
    BINS,
    FEW_SITES,
    QUESTION,
    SIZES,
    HeldOut,
    Thresholds,
    believed,
    bounded,
    least_coverage,
    together,
)
from fedbary.runs.conformal_kept import CONFORMAL, write_conformal
from fedbary.runs.data_kept import read_digest
from fedbary.runs.schema import NOISE_VAR
from fedbary.scores.coverage import coverage, mean_size
from fedbary.seeds import seed_of_draws
from fedbary.server_app.recorder import Recorder
from fedbary.server_app.roster.asker import Asker
from fedbary.server_app.roster.roster import Roster
from fedbary.settings.task_words import OfGuarantees
from fedbary.strategies.internals import log
from fedbary.tasks import (
    Question,
    Signature,
    edges,
    groups,
    hits_and_sizes,
    risks,
    row_names,
)
from fedbary.texts import listed


def calibrate(recorder: Recorder, roster: Roster, asker: Asker, config: Mapping[str, Any]) -> None:
    """Ask the sites for histograms of their holdouts, and keep the thresholds.

    A site is left out, with a warning, if its histogram does not match its claimed holdout. Nothing
    happens in a run without conformal sets.

    Parameters
    ----------
    recorder, roster, asker
        The run's; the recorder holds the model of the result.
    config
        Entries of every message beside its arrays.
    """
    settings, level = recorder.settings, recorder.settings.of_task(OfGuarantees).conformal
    if level is None:
        return
    signature = recorder.task.signature()
    sites = _histograms(recorder, roster, asker, config, signature)
    if not sites:
        (recorder.results.path / CONFORMAL).unlink(missing_ok=True)
        log(WARNING, "No site sent a histogram of its held-out examples: the run has no sets")
        return
    all_ = together(sites.values())
    found = Thresholds(level, all_.scores, repeated=all_.repeated)
    tested = _tested(recorder, found, signature)
    kept = edges(settings, signature, found)
    sizes = _sizes(recorder, roster, asker, config, found, sites)
    write_conformal(recorder.results.path, found, sites, kept, tested, sizes)
    _say(found, sites, list(kept), tested)


def _histograms(
    recorder: Recorder,
    roster: Roster,
    asker: Asker,
    config: Mapping[str, Any],
    signature: Signature,
) -> dict[str, HeldOut]:
    """Return each site's histogram by its name, bounded, of those who told what they hold."""
    height = len(row_names(recorder.settings, signature))

    def read(answer: Mapping[str, Any], _: int) -> HeldOut:
        return believed(answer, height, risks(signature))

    question = _question(recorder, QUESTION, read)
    nodes = roster.evaluators(recorder.settings.rounds)
    answers = asker.answers(question, nodes, config)
    for node in nodes:
        if node not in answers:
            log(WARNING, "%s sent no histogram and is left out of the sets", roster.called(node))
    sites: dict[str, HeldOut] = {}
    for member in roster.members:
        if (held := answers.get(member.node_id)) is None:
            continue
        most = member.num_held_out
        if not min(1, most) <= held.examples <= most:  # of each group one example counts
            log(
                WARNING,
                "%s sent a histogram of %d examples and is left out: it holds out %d",
                roster.called(member.node_id),
                held.examples,
                most,
            )
        elif held.examples:
            sites[member.name] = held
    counted = bounded(sites, recorder.settings.weight_bound)
    for name, held in counted.items():
        if held.examples < (claimed := sites[name].examples):
            said = "%s holds out %d examples, which count as %d in the sets: see max_weight_ratio"
            log(WARNING, said, name, claimed, held.examples)
    return counted


def _sizes(
    recorder: Recorder,
    roster: Roster,
    asker: Asker,
    config: Mapping[str, Any],
    found: Thresholds,
    sites: Mapping[str, HeldOut],
) -> dict[str, dict[str, float]]:
    """Return the mean size of each site's sets, or width of its intervals, as `mean_size` does.

    Nobody is asked if an interval has no end.
    """
    classes = len(recorder.task.signature().classes)
    if not classes and int(found.bins.max()) == BINS - 1:
        return {}
    most = float(classes or sys.float_info.max)

    def read(answer: Mapping[str, Any], _: int) -> tuple[float, float]:
        mean, std = float(answer["mean"]), float(answer["std"])
        if not (0 <= mean <= most and 0 <= std <= most):
            raise ValueError(f"a size beyond 0 to {most:g}")
        return mean, std

    asked = {member.node_id: member.name for member in roster.members if member.name in sites}
    question = _question(recorder, SIZES, read, bins=found.bins.tolist())
    answers = asker.answers(question, list(asked), config)
    called = "set_size" if classes else "width"
    return {
        asked[node]: mean_size(mean, std, sites[asked[node]].examples, called)
        for node, (mean, std) in answers.items()
    }


def _question(
    recorder: Recorder, name: str, read: Callable[[Mapping[str, Any], int], Any], **asked: Any
) -> Question:
    """Return a question on the sites' holdouts, with what predicts them."""
    by = recorder.predictive
    how = {"joined-by": by.joined_by, "noise-var": _noise_var(recorder), **asked}
    return Question(name, read, how, by.tensors())


def _noise_var(recorder: Recorder) -> float:
    return float(recorder.results.result.get(NOISE_VAR, 0.0))


def _tested(
    recorder: Recorder, found: Thresholds, signature: Signature
) -> dict[str, dict[str, float]]:
    """Return how the sets do on the server's test set, in all and by row, and draw their sizes.

    Without a test set it returns nothing.
    """
    settings, task = recorder.settings, recorder.task
    if settings.dataset == "none" or (on := task.scored_by_clients(recorder.facts)) is None:
        return {}
    examples, kept, repeated = task.evaluation_examples(), read_digest(recorder.results.path), 0
    if kept is not None and examples.groups is None:
        repeated = repeats(examples.x, kept.rows[kept.trained])
    x, y = (part[examples.counted.to(part.device)] for part in on)
    held = recorder.predictive
    by = Predictive.from_tensors(held.tensors(), held.kind, _noise_var(recorder))
    prediction = task.predicted(recorder.model, x, recorder.facts, seed_of_draws(settings.seed), by)
    rows = groups(settings, signature, examples.x[examples.counted])
    hits, sizes = hits_and_sizes(settings, found.bins, prediction, y, rows)
    if settings.pictures:
        with spared("set-sizes.png", partial(log, WARNING, "%s")):
            drawn = set_size_picture(hits, sizes, found.level)
            recorder.results.draw(drawn, "set-sizes")
    parts = {"all": torch.ones(len(hits), dtype=torch.bool)}
    parts |= {f"class={name}": y.cpu() == k for k, name in enumerate(signature.classes)}
    if rows is not None:
        by_column = settings.of_task(OfGuarantees).conformal_by
        names = enumerate(row_names(settings, signature))
        parts |= {f"{by_column}={name}": rows == k for k, name in names}
    called = "set_size" if signature.classes else "width"
    return {
        name: {
            "examples": int(here.sum()),
            **coverage(hits[here], sizes[here], called, not repeated),
        }
        for name, here in parts.items()
        if here.any()
    }


def _say(
    found: Thresholds,
    sites: Mapping[str, HeldOut],
    names: Sequence[str],
    tested: Mapping[str, Mapping[str, float]],
) -> None:
    if lacking := found.lacking(names):
        log(WARNING, "%s", lacking)
    if found.repeated:
        log(
            WARNING,
            "Equal examples are held out by %s",
            listed(n for n in sites if sites[n].repeated),
        )
    said = ""
    if tested:
        all_, worst = tested["all"], min(tested, key=lambda name: tested[name]["coverage"])
        said = f"; on the test set {100 * all_['coverage']:.1f} %"
        if "coverage_low" in all_:
            low, high = (100 * all_[f"coverage_{end}"] for end in ("low", "high"))
            said += f" ({low:.1f} to {high:.1f})"
        if worst != "all":
            said += f", least {100 * tested[worst]['coverage']:.1f} % of {worst}"
        many = "{set_size:.2f} classes a set" if "set_size" in all_ else "mean width {width:.4g}"
        said += f", {many.format(**all_)}"
    made = 100 * found.level, found.examples, len(sites), said
    log(INFO, "Sets of %g %% by %d examples of %d sites%s", *made)
    if len(sites) > 1 and len(found.counts) == 1 and not found.repeated:
        most = 1 if len(sites) < FEW_SITES else 2
        held = [site.examples for site in sites.values()]
        parts = [
            f"{100 * least_coverage(found.level, held, liars):.1f} % if {liars} of {len(held)} lies"
            for liars in range(1, most + 1)
        ]
        log(INFO, "At honest sites the sets hold the truth in at least %s", ", ".join(parts))
