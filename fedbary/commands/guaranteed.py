"""Referral with a guarantee, for `fedbary predict --error-rate --confidence`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbary.errors import SettingError

if TYPE_CHECKING:
    import numpy as np

    from fedbary.data.examples import Examples
    from fedbary.trained import Trained


def kept_to(
    trained: Trained,
    examples: Examples,
    known: Examples | None,
    error_rate: float,
    confidence: float,
) -> np.ndarray:
    """Return the cases that go to a person, (N,) bool, and print the guarantee for the others.

    Parameters
    ----------
    trained, examples
        The model, and the examples to predict.
    known
        Labelled examples that were not trained on; None: the run's sites' held-out examples.
    error_rate, confidence
        Largest fraction of errors among the kept, and the probability that it holds.

    Raises
    ------
    SettingError
        If there are no held-out examples, or a number is out of its range.
    """
    from fedbary.predictive import Prediction
    from fedbary.predictive.conformal import together
    from fedbary.predictive.risk import certain, risk_histogram, uncertainty_bins

    prediction = trained.scored_by_sites(examples)
    if not isinstance(prediction, Prediction) or prediction.probs.ndim > 2:
        raise SettingError("error_rate", error_rate, "none: an example has no single class")
    if known is not None and known.y is not None:
        counts = risk_histogram(trained.scored_by_sites(known), known.y)
    elif trained.sites:
        counts = together(trained.sites.values()).risk
    else:
        allowed = "--held-out with labelled examples, or a run with conformal=0.9"
        raise SettingError("confidence", confidence, allowed)
    found = certain(counts, error_rate, confidence)
    asked = f"at most {100 * error_rate:g} % wrong with {100 * confidence:g} % confidence"
    if found.number < 0:
        many = f"about {found.needed:,} would suffice" if found.needed else "more would not help"
        print(f"All go to a person: {found.examples} held-out examples do not show {asked}; {many}")
    flags: np.ndarray = (uncertainty_bins(prediction) > found.number).cpu().numpy()
    if found.number >= 0:
        print(
            f"Kept: {asked}. {found.kept} of {found.examples} held-out examples are kept, and "
            f"{found.wrong} of these are wrong. Here {int(flags.sum())} of {len(flags)} "
            "go to a person"
        )
    return flags
