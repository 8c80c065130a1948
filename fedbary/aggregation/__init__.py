"""Rules that aggregate Gaussian posteriors, by name.

A rule is a module of this package that defines ``RULE``; nothing else registers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from fedbary.aggregation.posteriors import aggregate_posteriors
from fedbary.aggregation.rule import Rule
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior

__all__ = ["RULES", "Rule", "aggregate", "rule_named"]

_modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]

RULES: Mapping[str, Rule] = MappingProxyType(
    {module.RULE.name: module.RULE for module in _modules if hasattr(module, "RULE")}
)
"""Every rule by its name."""


def rule_named(name: str) -> Rule:
    """Return the rule of that name.

    Raises
    ------
    SettingError
        If there is none; the message lists the names.
    """
    if name not in RULES:
        raise SettingError("rule", name, ", ".join(RULES))
    return RULES[name]


def aggregate(rule: str, posteriors: Iterable[Posterior], weights: Sequence[float]) -> Posterior:
    """Aggregate the clients' posteriors under the rule of that name.

    Gaussian tensors become F⁻¹(Σ w_k F(m_k, v_k)) in the rule's chart F (BA-BFL, eqs. 7-10),
    deterministic floating tensors Σ w_k m_k, with w_k = weights[k] / Σ weights. Integer and bool
    buffers are the first posterior's. Posteriors are taken one at a time, so that a generator of
    any length needs the memory of the sums alone; sums run in float64.

    Parameters
    ----------
    rule : str
        A name in `RULES`.
    posteriors : iterable of Posterior
        One per client, all with the same names and shapes; none is changed.
    weights : sequence of float
        One per client, in the same order: finite, none negative, not all 0; any scale.

    Returns
    -------
    Posterior
        The aggregate, with the names, order, shapes and dtypes of the first posterior.

    Raises
    ------
    SettingError
        If the rule is unknown, there are no posteriors, or the weights do not fit.
    ValueError
        If a posterior's names or shapes differ from the first's; names its index and the tensor.
    """
    return aggregate_posteriors(rule_named(rule), posteriors, weights)
