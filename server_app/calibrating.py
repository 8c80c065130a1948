"""After the last round: the sites' histograms become the run's conformal sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from logging import INFO, WARNING
from typing import Any

from fedbary.figures.set_sizes import set_size_picture
from fedbary.figures.spared import spared
from fedbary.parts.parameters import told
from fedbary.predictive import Predictive
from fedbary.predictive.conformal import QUESTION, Conformal, examples_needed
from fedbary.predictive.histograms import HeldOut, believed, together
from fedbary.runs.conformal_kept import CONFORMAL, write_conformal
from fedbary.scores.coverage import coverage
from fedbary.seeds import seed_of_draws
from fedbary.settings.task_words import OfSets
from fedbary.tasks import Question
from server_app.recorder import Recorder
from server_app.roster.asker import Asker
from server_app.roster.roster import Roster
from strategies.internals import log


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
    own = told(OfSets, recorder.settings)
    level = own.conformal
    if level is None:
        return
    classes = recorder.task.signature().classes
    height = len(classes) if own.conformal_by == "class" else 1
    sites = _histograms(recorder, roster, asker, config, height)
    if not sites:
        (recorder.results.path / CONFORMAL).unlink(missing_ok=True)
        log(WARNING, "No site sent a histogram of its held-out examples: the run has no sets")
        return
    found = Conformal(own.conformal_score, level, together(sites.values(), height).scores)
    tested = _tested(recorder, found, classes)
    write_conformal(recorder.results.path, found, sites, classes, tested)
    _say(found, len(sites), classes, tested)


def _histograms(
    recorder: Recorder, roster: Roster, asker: Asker, config: Mapping[str, Any], height: int
) -> dict[str, HeldOut]:
    """Return the histograms of the sites that told theirs, by name."""
    by = recorder.predictive
    question = Question(
        QUESTION,
        lambda answer, _: believed(answer, height),
        {"joined-by": by.joined_by},
        by.tensors(),
    )
    nodes = roster.evaluators(recorder.settings.rounds)
    answers = asker.answers(question, nodes, config)
    for node in nodes:
        if node not in answers:
            log(WARNING, "%s sent no histogram and is left out of the sets", roster.called(node))
    sites = {}
    for member in roster.members:
        if (held := answers.get(member.node_id)) is None:
            continue
        if held.examples != member.num_held_out:
            log(
                WARNING,
                "%s sent a histogram of %d examples and is left out: it holds out %d",
                roster.called(member.node_id),
                held.examples,
                member.num_held_out,
            )
        elif member.num_held_out:
            sites[member.name] = held
    return sites


def _tested(
    recorder: Recorder, found: Conformal, classes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Score the sets on the server's test set, in all and by class, and draw their sizes.

    Without a test set it returns nothing.
    """
    settings, task = recorder.settings, recorder.task
    if settings.dataset == "none" or (on := task.scored_by_clients(recorder.facts)) is None:
        return {}
    x, y = on
    seed = seed_of_draws(settings.seed)
    held = recorder.predictive
    by = Predictive.from_tensors(held.tensors(), held.joined_by)
    prediction = task.predicted(recorder.model, x, recorder.facts, seed, by)
    sets = found.sets(prediction.probs)
    if settings.pictures:
        with spared("set-sizes.png", partial(log, WARNING, "%s")):
            recorder.results.draw(set_size_picture(sets, y, found.level), "set-sizes")
    of_class = {f"class={name}": y == k for k, name in enumerate(classes)}
    parts = {"all": y >= 0, **{name: here for name, here in of_class.items() if here.any()}}
    return {
        name: {"examples": int(here.sum()), **coverage(sets[here.to(sets.device)], y[here])}
        for name, here in parts.items()
    }


def _say(
    found: Conformal,
    sites: int,
    classes: Sequence[str],
    tested: Mapping[str, Mapping[str, float]],
) -> None:
    if found.examples < (needed := examples_needed(found.level)):
        few = "Sets hold all classes: %d examples are held out, conformal=%s needs %d"
        log(WARNING, few, found.examples, found.level, needed)
    elif found.short:
        names = ", ".join(classes[row] for row in found.short)
        log(WARNING, "Classes with too few examples for a threshold of their own: %s", names)
    said = ""
    if tested:
        all_, worst = tested["all"], min(tested.values(), key=lambda scored: scored["coverage"])
        low, high = (100 * all_[f"coverage_{end}"] for end in ("low", "high"))
        said = f"; on the test set {100 * all_['coverage']:.1f} % ({low:.1f} to {high:.1f}), worst "
        said += f"class {100 * worst['coverage']:.1f} %, {all_['set_size']:.2f} classes a set"
    made = 100 * found.level, found.examples, sites, said
    log(INFO, "Sets of %g %% by %d examples of %d sites%s", *made)
