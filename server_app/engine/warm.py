"""What the forks of `fedbary.launching.warm` need, imported before they are forked."""

from __future__ import annotations

import os
from importlib import import_module

from fedbary.inference import INFERENCE
from fedbary.parts.registry import modules
from fedbary.runs.commit import git_commit
from fedbary.runs.ending import spare_imports
from fedbary.settings.config import ROOT

os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
"""pandas loads pyarrow, whose allocator else starts a thread, which no fork would have."""

FOR_THE_FORKS = (
    "fedbary.client_app.answers",
    "fedbary.server_app.experiment",
    *(f"fedbary.inference.{name}" for name in INFERENCE),
    *(f"fedbary.tasks.{name}" for name in modules("tasks")),
    "fedbary.data.images.digits",
    "fedbary.data.tables.diabetes",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "sklearn.datasets",
    "sklearn.linear_model",
)
"""Modules that a run imports later than the apps do."""

for module in FOR_THE_FORKS:
    import_module(module)
git_commit(ROOT)
spare_imports()
