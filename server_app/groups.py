"""Scores of groups of clients, under a method with a model for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbary.runs import schema
from fedbary.tasks import ClientMetrics

WEIGHT = "num-examples"


def by_group(groups: Mapping[str, str], held_out: Sequence[ClientMetrics]) -> dict[str, Any]:
    """Return the line's entry on groups: their sites, and their clients' mean scores.

    A mean is weighted by held-out examples, over the clients of the group that tell the score.

    Parameters
    ----------
    groups : mapping of str to str
        Each client's group by the site's name.
    held_out : sequence of mapping
        The clients' scores, `site` their name.
    """
    found: dict[str, Any] = {}
    for group in sorted({*groups.values()}):
        sites = [site for site, own in groups.items() if own == group]
        told = [client for client in held_out if client["site"] in sites]
        found[group] = {"sites": sites}
        for name in sorted({name for client in told for name in client} - {"site", WEIGHT}):
            pairs = [(c[WEIGHT], c[name]) for c in told if name in c]
            total = sum(weight for weight, _ in pairs)
            found[group][name] = sum(weight * value for weight, value in pairs) / total
        found[group][WEIGHT] = sum(client[WEIGHT] for client in told)
    return {schema.GROUPS: found} if found else {}
