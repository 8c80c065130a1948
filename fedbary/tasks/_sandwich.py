"""Standard errors that hold where the model is wrong: the sandwich, by one question at the mode.

With the posterior's precision Λ and the score u_c of cluster c, the sum of its rows' gradients,

    Var β = Λ⁻¹ B Λ⁻¹,      B = Σ_c u_c u_cᵀ,

a sum over sites. A cluster is a row, a group of rows, or a site. Groups that lie at several sites
count once at each. A site with an intercept of its own takes what that leaves of the scores, so
that the variance is that of a model with a column for each site.

References: White 1980; Liang and Zeger 1986.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedbary.aggregation.covariance import Full, packed
from fedbary.data.deal import Shard
from fedbary.inference._head import row_scores
from fedbary.methods._curvature import last_layer, matrix
from fedbary.tasks._values import Dialogue, Loss, Question

NAME = "scores"
"""The name of the question."""

CLUSTERS, PRODUCTS, ROWS, SITES = "clusters", "products", "rows", "sites"
"""Names of the numbers: clusters and B's triangle at a site; their sums, and of how many."""

KEPT = f"{NAME}/"
"""The prefix of the sums' names in a run's folder."""


def answer(shard: Shard, nll: Loss, tensors: Mapping[str, Tensor], whole: bool) -> dict[str, Any]:
    """Return how many clusters a site has, and the triangle of its B.

    Parameters
    ----------
    shard
        Rows as the layer sees them.
    nll
        The mean negative log-likelihood.
    tensors
        The model, a state dict.
    whole
        True: all rows are one cluster.
    """
    names, x = last_layer(tensors), shard.x.double()
    if len(names) > 1:
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    scores = row_scores(nll, x, matrix(tensors, names), shard.y)
    groups = torch.arange(len(x)) if shard.groups is None else shard.groups
    _, place = (torch.zeros_like(groups) if whole else groups).unique(return_inverse=True)
    sums = scores.new_zeros(int(place.max()) + 1, scores.shape[1]).index_add(0, place, scores)
    return {CLUSTERS: len(sums), PRODUCTS: packed(sums.T @ sums).tolist()}


def ask(
    model: Mapping[str, Tensor], parameters: int, most_product: Callable[[int], float]
) -> Dialogue[dict[str, Tensor]]:
    """Ask all sites; return the sums over those that answer, in vectors of numbers.

    Parameters
    ----------
    model
        The model, a state dict.
    parameters
        p, the size of B.
    most_product
        From the rows of a site the largest entry that its B may have.
    """
    size = parameters * (parameters + 1) // 2

    def read(metrics: Mapping[str, Any], most: int) -> tuple[int, int, Tensor]:
        clusters, found = int(metrics[CLUSTERS]), torch.tensor(metrics[PRODUCTS]).double()
        if not 1 <= clusters <= most:
            raise ValueError(f"it claims {clusters} clusters but trains on {most} rows")
        if found.shape != (size,):
            raise ValueError(f"{[*found.shape]} products of scores, not {size}")
        if said := Full(1, parameters).fault({"precision": found}):
            raise ValueError(f"no scores have such products: {said}")
        if (largest := float(found.max())) > most_product(most):
            raise ValueError(f"no {most} rows have a product of scores of {largest:.1e}")
        return most, clusters, found

    answers = yield Question(NAME, read, {}, model)
    if not answers:
        return {}
    counts = zip((ROWS, CLUSTERS), ([each[k] for each in answers] for k in (0, 1)), strict=True)
    found = {name: torch.tensor([float(sum(held))]) for name, held in counts}
    total = torch.stack([each[2] for each in answers]).sum(0)
    found |= {SITES: torch.tensor([float(len(answers))]), PRODUCTS: total}
    return {KEPT + name: held for name, held in found.items()}
