"""The variances of the global posterior, and the spread of the clients'."""

from __future__ import annotations

from fedbary.report.document import Document
from fedbary.report.results import Results, grouped


def add_variances(results: Results, document: Document) -> None:
    """Add the layers' log-variances and the spread of the clients'."""
    spread = [c for c in results.last if c.startswith("log_var_spread.")]
    if not spread:
        return
    document.heading("The variances")
    document.text(
        """RKLB, WB, EAA and AALV can differ only where the clients' variances do; GAA and
        FKLB make other variances even of equal ones. Per layer: the mean log-variance of
        the global posterior, and in parentheses how far apart the clients' log-variances
        lie in the last round (their standard deviation over the clients, averaged over
        the weights). Where that is 0, those four rules give the same posterior up to
        rounding, which training then amplifies."""
    )
    layers = [column.removeprefix("log_var_spread.") for column in spread]
    body = []
    bayesian = results.last[results.last["bayesian_layers"] > 0]
    for (condition, n, arm), runs in grouped(bayesian, "condition", "bayesian_layers", "arm"):
        cells = []
        for layer in layers:
            level, apart = runs[f"log_var.{layer}"], runs[f"log_var_spread.{layer}"]
            known = level.notna().any()
            cells.append(f"{level.mean():.2f} ({apart.mean():.3f})" if known else "")
        body.append([condition, str(n), arm, *cells])
    document.table(["data set", "n", "method", *layers], body)
