"""Class probabilities from several networks.

Each file of this package chooses networks:

``montecarlo``
    drawn from a posterior;
``members``
    the clients' own, or one drawn from each client's posterior;
``dropout``
    one network with its dropout kept.

``value`` holds the networks that predict, `Predictive`. ``choice`` follows the setting
`predictive`. ``draws`` stacks networks drawn from any posterior.

Each has a function ``answers(model, x, …)`` that yields the networks' logits batch by batch,
(networks, batch, classes). `fedbary.predictive.combine` makes them a `Prediction`: their mixture,
or their product.
"""

from fedbary.predictive.combine import Prediction, mixture, product
from fedbary.predictive.montecarlo import predict
from fedbary.predictive.value import Predictive

__all__ = ["Prediction", "Predictive", "mixture", "predict", "product"]
