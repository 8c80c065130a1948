"""GAA, Gaussian arithmetic average, the law of Σ w X_k: m = Σ w m_k, v = Σ w² v_k."""

from dataclasses import replace

from fedbary.aggregation.eaa import RULE as EAA

RULE = replace(EAA, name="GAA", powers=(1, 2))
