"""Multi-Krum: the mean of the K − h clients that lie closest to their neighbours.

The score of a client is the sum of its squared distances to the K − h − 2 others closest to it,
with h = ⌊trim_fraction · K⌋ (Blanchard et al., 2017, section 4). The rule leaves out the h clients
with the highest scores. Distances are Wasserstein-2, √Σ [(m − m′)² + (√v − √v′)²] over all tensors;
the mean is the Wasserstein-2 barycentre. The paper's guarantee is for a single selected client and
needs K ≥ 2h + 3. Averaging K − h clients is the usual practice. It keeps every honest client if the
hostile ones lie far away.

It assumes at most h hostile clients of K ≥ 2h + 3, and that honest clients are closer to one
another than to hostile ones. Every selected client counts once.

Messages: the posterior, once each way: two numbers per Gaussian weight.

Cost: the server makes two passes over the replies. The first computes K (K − 1)/2 distances.

Use it against clients whose whole replies are false. It also leaves out unusual honest clients. If
each client holds two classes, that costs more than an attack does.

Reference: Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent, NIPS 2017.
"""

from torch import Tensor

from fedbary.aggregation.robust import SelectionRule
from fedbary.errors import SettingError


def multi_krum(squared_distances: Tensor, hostile: int) -> list[int]:
    """Return the indices of the selected clients.

    Raises
    ------
    SettingError
        If some are to be left out of fewer than 2 · hostile + 3 clients.
    """
    clients = len(squared_distances)
    if hostile == 0:
        return list(range(clients))
    if clients < 2 * hostile + 3:
        allowed = f"{2 * hostile + 3} or more for MultiKrum to leave out {hostile}"
        raise SettingError("number of posteriors", clients, allowed)
    closest = squared_distances.sort(1).values[:, 1 : clients - hostile - 1]
    order = closest.sum(1).argsort(stable=True)
    return order[: clients - hostile].tolist()


RULE = SelectionRule("MultiKrum", multi_krum)
