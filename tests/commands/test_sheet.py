"""The picture of what `fedbary predict` answers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedbary.commands.use import _sheet


@pytest.mark.parametrize("answers", [{"class": ["a", "b"]}, {"labels": ["a", ""]}, {}])
def test_every_task_of_images_has_one(answers):
    columns = {**answers, "total uncertainty": np.array([0.1, 0.2])}
    figure = _sheet(SimpleNamespace(x=torch.rand(2, 1, 6, 6)), columns)
    texts = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, *axes.texts)]
    assert any("0.20 nats" in text.get_text() for text in texts)
