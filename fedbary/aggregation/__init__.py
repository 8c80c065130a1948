"""Rules that aggregate Gaussian posteriors, by name.

A rule is a value at the top of a module of this package; nothing else registers it. The string
below it documents it, or the module's docstring if the module has one rule alone. Such a module may
define ``Parameters``, and ``rule(own)``, which makes the rule of some.

A rule of one's own needs no file here: ``package.module:RULE`` names it, by the same conventions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

from fedbary.aggregation.robust import CoordinateRule, RobustRule, SelectionRule
from fedbary.aggregation.rules import AnyRule, Divergence, JointRule, Rule
from fedbary.aggregation.sums import normalised
from fedbary.aggregation.tensors import Running, aggregate_tensors, check_ratio
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior, layout_difference
from fedbary.parts.imports import own_function, said
from fedbary.parts.parameters import parameters_of
from fedbary.parts.registry import is_factory, rules

__all__ = [
    "DIVERGENCES",
    "RULES",
    "AnyRule",
    "CoordinateRule",
    "JointRule",
    "RobustRule",
    "Rule",
    "SelectionRule",
    "aggregate",
    "aggregate_tensors",
    "rule_named",
    "rule_parameters",
]

_modules = {name: import_module(f"{__name__}.{module}") for name, (module, _) in rules().items()}

RULES: Mapping[str, AnyRule] = MappingProxyType(
    {
        name: rule
        for name, module in _modules.items()
        for rule in vars(module).values()
        if isinstance(rule, AnyRule) and rule.name == name
    }
)
"""Every rule by its name."""

DIVERGENCES: Mapping[str, Divergence] = MappingProxyType(
    {name: r.divergence for name, r in RULES.items() if isinstance(r, Rule) and r.divergence}
)
"""The divergence that each barycentre minimises, by its name."""


def rule_named(name: str, words: Mapping[str, object] = MappingProxyType({})) -> AnyRule:
    """Return the rule of that name, with the values that words give its parameters.

    Parameters
    ----------
    name : str
        A name in `RULES`, or ``package.module:RULE``, a rule of one's own.
    words : mapping
        Values of its parameters by name; the others have their defaults.

    Raises
    ------
    SettingError
        If there is none; the message lists the names. If a parameter is out of its range.
    """
    rule, module = _found(name)
    if (kind := rule_parameters(name)) is None:
        return rule
    return _made(name, module, parameters_of(kind, words))


def rule_parameters(name: str) -> type | None:
    """Return the class of a rule's parameters; None for a rule that has none.

    Raises
    ------
    SettingError
        If there is no rule of that name.
    """
    rule, module = _found(name)
    kind: type | None = getattr(module, "Parameters", None)
    if kind is None or not hasattr(module, "rule"):
        return None
    return kind if _made(name, module, parameters_of(kind, {})).name == rule.name else None


def _found(name: str) -> tuple[AnyRule, ModuleType]:
    """Return a rule and its module."""
    if name in RULES:
        return RULES[name], _modules[name]
    if not is_factory(name):
        raise SettingError("rule", name, f"{', '.join(RULES)}, or package.module:RULE")
    rule: Any = own_function("rule", name, "RULE")
    if not isinstance(rule, AnyRule):
        allowed = "a Rule, JointRule, SelectionRule or CoordinateRule of fedbary.aggregation"
        raise SettingError("rule", name, f"{allowed}, not a {type(rule).__name__}")
    if rule.name in RULES:
        raise SettingError("rule", name, f"a rule with a name of its own, not {rule.name}")
    return rule, import_module(name.partition(":")[0])


def _made(name: str, module: ModuleType, own: object) -> AnyRule:
    """Return the rule that a module makes of its parameters."""
    try:
        made: AnyRule = module.rule(own)
        if not isinstance(made, AnyRule):
            raise TypeError(f"it returns a {type(made).__name__}")
    except Exception as error:  # noqa: BLE001 - code of others raises many kinds
        allowed = f"a module whose rule(own) makes a rule of Parameters() ({said(error)})"
        raise SettingError("rule", name, allowed) from None
    return made


def aggregate(
    rule: str | AnyRule,
    posteriors: Iterable[Posterior],
    weights: Sequence[float],
    max_precision_ratio: float | None = None,
) -> Posterior:
    """Aggregate the clients' posteriors under a rule.

    With w_k = weights[k] / Σ weights, a rule with a chart F makes Gaussian tensors F⁻¹(Σ w_k F(m_k,
    v_k)) (BA-BFL, eqs. 7-10). Deterministic floating tensors become Σ w_k m_k. Integer and bool
    buffers become their rounded mean Σ w_k x_k, or their median under a robust rule. The arithmetic
    is in float64.

    A sequence of posteriors is aggregated by `aggregate_tensors`. A generator's posteriors are read
    one at a time: memory holds the sums alone, however many there are. Robust rules, joint rules
    and the bound need all posteriors at once.

    Parameters
    ----------
    rule : str or Rule or RobustRule or JointRule
        A name in `RULES`, or a rule: ``replace(RULES["TrimmedMean"], trim_fraction=0.3)``.
    posteriors : iterable of Posterior
        One per client, all with the same names and shapes; none is changed.
    weights : sequence of float
        One per client, in the same order: finite, none negative, not all 0; any scale. A robust
        rule ignores them, but for clients of weight 0, which it leaves out.
    max_precision_ratio : float, optional
        The largest ratio of a precision to the clients' median, 1 or more; see
        `fedbary.aggregation.tensors`. None: no bound.

    Returns
    -------
    Posterior
        The aggregate, with the names, order, shapes and dtypes of the first posterior.

    Raises
    ------
    SettingError
        If the rule is unknown, there are no posteriors, or too few for the rule, or the weights
        or the ratio are not allowed.
    ValueError
        If a posterior's names or shapes differ from the first's; names its index and the tensor. If
        two tensors of a posterior would have the same key in its state dict.
    """
    if isinstance(rule, str):
        rule = rule_named(rule)
    check_ratio(max_precision_ratio)
    normalised(weights)
    held = isinstance(posteriors, Sequence) or max_precision_ratio is not None
    if isinstance(rule, Rule) and not held:
        return _one_by_one(rule, posteriors, weights)
    posteriors = list(posteriors)
    for k, posterior in enumerate(posteriors):
        _require_alike(k, posterior, posteriors[0], weights)
    _require_as_many(len(posteriors), weights)
    states = [posterior.state_dict() for posterior in posteriors]
    result = aggregate_tensors(rule, states, weights, max_precision_ratio)
    return Posterior.from_state_dict(result)


def _one_by_one(rule: Rule, posteriors: Iterable[Posterior], weights: Sequence[float]) -> Posterior:
    shares = normalised(weights)
    running: Running | None = None
    count = 0
    for posterior in posteriors:
        running = running or Running(rule, posterior)
        _require_alike(count, posterior, running.layout, weights)
        running.add(posterior, shares[count])
        count += 1
    _require_as_many(count, weights)
    assert running is not None
    return running.finish()


def _require_alike(
    k: int, posterior: Posterior, first: Posterior, weights: Sequence[float]
) -> None:
    if k == len(weights):
        raise SettingError("weights", list(weights), "one per posterior; there are more")
    if difference := layout_difference(posterior, first):
        raise ValueError(f"posterior {k}: {difference}")


def _require_as_many(posteriors: int, weights: Sequence[float]) -> None:
    if posteriors == 0:
        raise SettingError("posteriors", [], "at least one posterior")
    if posteriors < len(weights):
        allowed = f"one per posterior; there are {posteriors}"
        raise SettingError("weights", list(weights), allowed)
