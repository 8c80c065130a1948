"""A run is called by what the server does."""

import pandas as pd
import pytest
from every_method import task_words

from fedbary.methods import METHODS
from fedbary.runs.location import run_folder
from fedbary.settings.config import resolve
from fedbary.study.arms import with_methods


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"barycentre"}))
def test_a_run_s_folder_has_the_name_of_its_method(method, tmp_path):
    name = run_folder(resolve({"method": method, **task_words(method)}), tmp_path).name
    assert f"-{method}-" in name and "RKLB" not in name


def test_a_barycentre_is_called_by_its_rule(tmp_path):
    assert "-WB-n3-" in run_folder(resolve({"rule": "WB"}), tmp_path).name
    runs = pd.DataFrame({"method": ["PVI", "barycentre"], "rule": ["RKLB", "WB"]})
    assert list(with_methods(runs)["rule"]) == ["PVI", "WB"]
