"""Sections on classifications of tables: scores, calibration, ROC curves."""

from __future__ import annotations

from fedbary.report.background import add_partitions
from fedbary.report.bayesian_layers import add_layers
from fedbary.report.cautions import add_cautions
from fedbary.report.cells import ACCURACY, ECE_15, NLL, Metric
from fedbary.report.document import Document
from fedbary.report.method_tables import BRIER, add_methods, several
from fedbary.report.pairs import add_pairs
from fedbary.report.results import Results, listed_values, scored_after, scored_on
from fedbary.report.run_list import add_runs
from fedbary.report.scores_table import BEST, add_scores
from fedbary.report.uncertainty import add_uncertainty
from fedbary.report.variances import add_variances
from fedbary.study.grid import NAMING

AUROC = Metric("auroc", "AUROC %", 100, 2)
SENSITIVITY = Metric("sensitivity", "Sensitivity %", 100, 2)
MAIN = (ACCURACY, NLL, ECE_15, AUROC, SENSITIVITY)

REQUIRED = (*NAMING, NLL.column, "seconds", "evaluate_on", "specificity", "split")

TESTS = {
    "test": "the rows that a split keeps for the test",
    "validation": "a tenth of each class's training rows, kept from all clients",
}

UNCERTAINTY = """The entropy of a prediction splits into the entropy that the drawn networks have
    on average (**aleatoric**: the data's own ambiguity) and the mutual information of
    label and weights (**epistemic**: what more data would remove). A single network (n = 0) has no
    mutual information. An uncertainty is worth something if accuracy rises when the most
    uncertain rows are put aside."""


def write(results: Results, document: Document) -> None:
    """Add the sections to a document."""
    _add_introduction(results, document)
    add_cautions(results, document)
    if several(results):
        shown = (ACCURACY, NLL, BRIER, AUROC, SENSITIVITY)
        add_methods(results, document, shown, (NLL, AUROC))
    document.heading("How good, how calibrated, how well classes are told apart")
    document.text(BEST)
    add_scores(results, document, MAIN)
    add_pairs(results, document, (NLL, ECE_15, AUROC))
    caption = "NLL and AUROC against n: mean and standard deviation over the runs."
    add_layers(results, document, "nll-auroc", (NLL, AUROC), caption)
    add_uncertainty(results, document, UNCERTAINTY)
    add_variances(results, document)
    document.heading("Data")
    add_partitions(results, document)
    add_runs(document, results.last)


def _add_introduction(results: Results, document: Document) -> None:
    document.text(
        """{runs} runs. In each, {clients} clients hold the rows of a table between them,
        standardised together; each fits the network to its own rows, and a **method** makes one
        model of their answers; that is a round. The last *n* of the network's layers hold a
        Gaussian for every weight, the others a number; FedAvg has n = 0. All numbers are of the
        global model {after}, on {where}, as mean ± standard deviation over
        {repeats}.""",
        runs=len(results.last),
        after=scored_after(results.last),
        clients=" or ".join(map(str, sorted(results.last["clients"].unique()))),
        where=scored_on(results.last, TESTS),
        repeats=results.repeats,
    )
    document.text(
        """**Accuracy** is the share of right answers, **NLL** the mean negative log-likelihood of
        the true class in nats, **ECE** how far confidence and accuracy lie apart, of few rows
        mostly noise. **AUROC** is the probability that a row of the positive class, the last,
        is given a higher probability of it than another row; **sensitivity** is the share of
        positive rows that are found where a share of {specificity} of the others is left in
        peace. Of more than two classes both are means over the classes, each against the
        rest.""",
        specificity=listed_values(results.last["specificity"]),
    )
