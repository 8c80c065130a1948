"""The methods: one strategy class per aggregation rule."""

from __future__ import annotations

from fedbary.aggregation import RULES
from fedbary.errors import SettingError
from fedbary.methods import METHODS
from fedbary.methods.barycentre import Barycentre

from .method_strategy import MethodStrategy, method_strategy
from .strategy import PosteriorStrategy


class RKLB(PosteriorStrategy):
    """Reverse-KL barycentre: 1/v = Σ w / v_k, m = v Σ w m_k / v_k (BA-BFL, eq. 7)."""

    rule = RULES["RKLB"]


class WB(PosteriorStrategy):
    """Wasserstein-2 barycentre: m = Σ w m_k, √v = Σ w √v_k (BA-BFL, eq. 8)."""

    rule = RULES["WB"]


class EAA(PosteriorStrategy):
    """Empirical arithmetic average: m = Σ w m_k, v = Σ w v_k."""

    rule = RULES["EAA"]


class GAA(PosteriorStrategy):
    """Gaussian arithmetic average, the law of Σ w X_k: m = Σ w m_k, v = Σ w² v_k."""

    rule = RULES["GAA"]


class AALV(PosteriorStrategy):
    """Arithmetic average of log-variances: m = Σ w m_k, log v = Σ w log v_k."""

    rule = RULES["AALV"]


class FKLB(PosteriorStrategy):
    """Forward-KL barycentre: m = Σ w m_k, v = Σ w (v_k + m_k²) − m²."""

    rule = RULES["FKLB"]


class Median(PosteriorStrategy):
    """Median over the clients of each mean and of each log-variance (Yin et al., 2018)."""

    rule = RULES["Median"]


class TrimmedMean(PosteriorStrategy):
    """Mean of each mean and each log-variance without the extreme clients (Yin et al., 2018)."""

    rule = RULES["TrimmedMean"]


class MultiKrum(PosteriorStrategy):
    """W2 barycentre of the clients closest to their neighbours in W2 (Blanchard et al., 2017)."""

    rule = RULES["MultiKrum"]


_CLASSES: dict[str, type[PosteriorStrategy]] = {
    method.rule.name: method
    for method in (RKLB, WB, EAA, GAA, AALV, FKLB, Median, TrimmedMean, MultiKrum)
}


def strategy_for(name: str) -> type[MethodStrategy]:
    """Return the strategy class of a method or a rule, the same one at every call.

    The class of the method barycentre takes the rule as an argument.

    Raises
    ------
    SettingError
        If there is no method or rule of that name; the message lists the names.
    """
    if name == Barycentre.name:
        return PosteriorStrategy
    if name in METHODS:
        return method_strategy(name)
    if name not in _CLASSES:
        if name not in RULES:
            raise SettingError("rule or method", name, ", ".join([*RULES, *METHODS]))
        rule = RULES[name]
        doc = f"Flower strategy that aggregates posteriors under the rule {name}."
        members = {"rule": rule, "__doc__": doc, "__module__": __name__}
        _CLASSES[name] = type(name, (PosteriorStrategy,), members)
    return _CLASSES[name]
