"""Short runs of methods of sums, of some of the parts that a data set is dealt to."""

from fedbary import client_app, server_app
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import completed

QUICK = {
    "engine": "inline", "pictures": False, "device": "cpu", "clients": 3, "rounds": 1,
    "model": "linear", "alpha": 0.3, "round_timeout": 0.5, "holdout": 0.1, "min_examples": 30,
}  # fmt: skip
RUNS = {
    "images": {"method": "Ridge"},
    "pixels": {"method": "LDA", "normalise": "none"},
    "tables": {"method": "LDA", "task": "tables", "dataset": "breast_cancer"},
    "numbers": {"method": "ConjugateGaussian", "task": "regression", "dataset": "diabetes",
                "noise": "learned", "holdout": 0.0},
}  # fmt: skip


def chosen(name, **changes):
    return completed({**QUICK, **RUNS[name], **changes})


def run_of(settings, nodes, folder):
    """A run of some of the parts that a data set is dealt to."""
    parts = [{"partition-id": k, "num-partitions": settings.clients} for k in nodes]
    settings = settings.model_copy(update={"output": str(folder)})
    grid = InlineGrid(client_app.app, parts, settings.model_dump())
    server_app.run(grid, settings, folder)
    return folder
