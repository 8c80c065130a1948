"""Predictions by several networks together.

``predictor`` holds what predicts, `Predictive`, and the kinds of prediction, the values of the
setting `predictive`; ``dropout`` is one more, in a file of its own. ``prediction`` has their
results, and how networks' answers are joined. ``any_network`` predicts by a network that any
program trained.
"""

from fedbary.predictive.predictor import (
    Forecast,
    Prediction,
    Predictive,
    Predictor,
    mixture,
    product,
)

__all__ = ["Forecast", "Prediction", "Predictive", "Predictor", "mixture", "product"]
