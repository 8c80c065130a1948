"""The scores of what is put in the place of a run's posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedbary.gaussian import Posterior
from fedbary.tasks import Outcome
from fedbary.trained.run import Trained


def scores(trained: Trained, posterior: Posterior) -> Mapping[str, float]:
    """Return every score of a posterior that the run's network holds, with the run's draws."""
    by = replace(trained.predictive, posterior=posterior, members={})
    outcome = Outcome(trained.settings.rounds, trained.network, by, trained.line, [])
    found = trained.task.scores(outcome, trained.facts)
    return {**found.scores, **found.line}
