"""Sections on classifications of images: scores, calibration, pairs, uncertainty, variances."""

from __future__ import annotations

from fedbary.report.background import add_partitions
from fedbary.report.bayesian_layers import add_layers
from fedbary.report.cautions import add_cautions
from fedbary.report.cells import ACCURACY, ECE_15, ECE_100, NLL
from fedbary.report.document import Document
from fedbary.report.method_tables import OF_IMAGES, add_methods, several
from fedbary.report.pairs import add_pairs
from fedbary.report.results import Results, scored_after, scored_on
from fedbary.report.run_list import add_runs
from fedbary.report.scores_table import BEST, add_scores
from fedbary.report.uncertainty import add_uncertainty
from fedbary.report.variances import add_variances
from fedbary.study.grid import NAMING

MAIN = (ACCURACY, ECE_15, ECE_100, NLL)

BY_CHANCE_15, BY_CHANCE_100 = "by_chance.ece_15", "by_chance.ece_100"
"""Columns of the ECE of a calibrated model by chance."""

REQUIRED = (*NAMING, NLL.column, "seconds", "evaluate_on")

TESTS = {
    "test": "the test set",
    "validation": "a tenth of the training set kept from all clients",
}

UNCERTAINTY = """The entropy of a prediction splits into the entropy that the drawn networks have
    on average (**aleatoric**: the data's own ambiguity) and the mutual information of
    label and weights (**epistemic**: what more data would remove). A model that knows
    what it does not know is more uncertain on images of another kind than it was
    trained on: **AUROC** is the probability that a foreign image gets the higher value;
    50 % is chance. A single network (n = 0) has no mutual information."""


def write(results: Results, document: Document) -> None:
    """Add the sections to a document."""
    _add_introduction(results, document)
    add_cautions(results, document)
    if several(results):
        add_methods(results, document, OF_IMAGES, (NLL, ACCURACY, ECE_15))
    _add_scores(results, document)
    add_pairs(results, document, (NLL, ECE_15, ACCURACY))
    caption = "ECE and NLL against n: mean and standard deviation over seeds."
    add_layers(results, document, "ece-nll", (ECE_15, NLL), caption)
    add_uncertainty(results, document, UNCERTAINTY)
    add_variances(results, document)
    document.heading("Data")
    add_partitions(results, document)
    add_runs(document, results.last)


def _add_introduction(results: Results, document: Document) -> None:
    document.text(
        """{runs} runs. In each, {clients} clients hold a data set between
        them, each fits the network to its own part, and a **method** makes one model of their
        answers; that is a round. The last *n* of the network's layers hold a Gaussian
        for every weight, the others a number; FedAvg has n = 0. All numbers are of the global
        model {after}, on {where}, as mean ± standard deviation over
        {repeats}.""",
        runs=len(results.last),
        after=scored_after(results.last),
        clients=" or ".join(map(str, sorted(results.last["clients"].unique()))),
        where=scored_on(results.last, TESTS),
        repeats=results.repeats,
    )
    document.text(
        """**Accuracy** is the share of right answers. **ECE**, the expected calibration
        error, is how far confidence and accuracy lie apart: 0 is a model that is right in
        80 % of the cases in which it is 80 % sure. **NLL** is the mean negative
        log-likelihood of the true class in nats: it punishes wrong answers, and most of
        all confident ones. The lower ECE and NLL, the better."""
    )


def _add_scores(results: Results, document: Document) -> None:
    """Add accuracy, ECE and NLL by condition, n and method."""
    document.heading("How good, how calibrated")
    document.text(BEST)
    add_scores(results, document, MAIN)
    if {BY_CHANCE_15, BY_CHANCE_100} <= set(results.last):
        document.text(
            """No ECE can be expected to be 0 on so many examples: a calibrated model whose
            confidences are these would have, in the mean over the runs, {few} % with 15 bins and
            {many} % with 100 by chance.""",
            few=f"{100 * results.last[BY_CHANCE_15].mean():.2f}",
            many=f"{100 * results.last[BY_CHANCE_100].mean():.2f}",
        )
