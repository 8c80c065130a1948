"""The sites' new examples: which sites have some, and whether a run may start by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import INFO

from fedbary.data.paths import user_path
from fedbary.errors import RunError
from fedbary.runs.location import SETTINGS, read_settings
from fedbary.runs.metrics_file import read_rounds
from fedbary.runs.schema import CLIENTS
from fedbary.settings.config import Settings, read_yaml
from server_app.roster.member import Member
from strategies.internals import log

Holding = tuple[int, list[int]]
"""A site's number of training examples, and of examples of each class where it tells them."""


def holdings(run: str) -> dict[str, Holding]:
    """Return each site's examples in the newest run that counted it: this one, or an earlier one.

    Parameters
    ----------
    run
        The folder of a run, or none. The runs that it started from follow, as far as they are here.
    """
    found: dict[str, Holding] = {}
    while run != "none" and (user_path(run) / SETTINGS).is_file():
        folder = user_path(run)
        content = read_yaml(folder / SETTINGS)
        labels = dict(zip(content["sites"], content["label_counts"], strict=True))
        for line in reversed(read_rounds(folder)):
            for each in line.get(CLIENTS, []):
                name = each["site"]
                found.setdefault(name, (int(each["num-examples"]), labels.get(name, [])))
        run = read_settings(folder)["start_from"]
    return found


def left_out_of(
    settings: Settings, forgotten: Iterable[str], left_out: Iterable[str]
) -> Callable[[Member], str]:
    """Return the function that says why a run leaves a member out; "" if it does not.

    With `new_examples` that is also a site whose numbers are still those of the last run.
    """
    gone, without = frozenset(forgotten), frozenset(left_out)
    held = holdings(settings.start_from) if settings.new_examples else {}

    def why(member: Member) -> str:
        if member.name in gone:
            return f"the run has forgotten {member.name}"
        if member.name in without:
            return f"the run goes on without {member.name}"
        examples, labels = held.get(member.name, (-1, []))
        unknown = not (labels and member.label_counts)
        if member.num_examples == examples and (unknown or labels == member.label_counts):
            return f"{member.name} holds as many examples as in its last run, so none is new"
        return ""

    return why


def require_enough(settings: Settings, members: Iterable[Member]) -> None:
    """Raise a RunError unless the members hold `new_examples` that no run has counted.

    A site counts for at most 1/`min_replies` of them, whatever it claims.
    """
    wanted, said, counted = settings.new_examples, [], 0.0
    for member in members:
        held = member.num_examples + member.num_held_out
        counted += min(held, wanted / settings.min_replies)
        said.append(f"{member.name} {held}")
    if counted + 0.5 < wanted:
        told = f"{round(counted)} of {wanted} new examples"
        raise RunError(f"no run starts yet: {told} ({', '.join(said)})")
    if wanted:
        log(INFO, "%d new examples count, %d are enough: the run starts", counted, wanted)
