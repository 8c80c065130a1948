"""The picture of what `fedbary predict` answers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedbary.commands.use import _sheet


@pytest.mark.parametrize("answers", [{"class": ["a", "b"]}, {"labels": ["a", ""]}, {}])
def test_every_task_of_images_has_one_that_tells_the_surest_apart(answers):
    for told, shown in (([0.1, 0.2], {"0.20 nats"}), ([1e-11, 3e-7], {"1.0e-11", "3.0e-07 nats"})):
        columns = {**answers, "total uncertainty": np.array(told)}
        figure = _sheet(SimpleNamespace(x=torch.rand(2, 1, 6, 6)), columns)
        texts = [(axes.title, axes.xaxis.label, *axes.texts) for axes in figure.axes]
        said = " ".join(text.get_text() for group in texts for text in group)
        assert all(text in said for text in shown)
