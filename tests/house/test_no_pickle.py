"""No pickle is ever loaded: not from a file, not from a peer."""

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from fedbary.backbones import load as backbone
from fedbary.data.image_examples import own_data
from fedbary.data.image_layout import ImageLayout
from fedbary.data.images import load
from fedbary.errors import SettingError

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("fedbary", "strategies", "client_app", "server_app")


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_our_code_imports_no_unpickler_and_never_allows_one():
    unpicklers = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for file in (file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]}
            else:
                names = set()
            assert not names & unpicklers, file
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) != "read_pickle", file
                allowed = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert allowed.get("allow_pickle", "False") == "False", file
                if ast.unparse(node.func) == "torch.load":  # which then makes tensors alone
                    assert allowed.get("weights_only") == "True", file
                if ast.unparse(node.func) == "np.load":
                    assert "allow_pickle" in allowed, file


def test_a_pickle_in_a_data_file_is_refused_unread(tmp_path):
    mark, file = tmp_path / "mark", tmp_path / "site.npz"
    np.savez(file, x=np.array([Bomb(mark)], dtype=object), y=np.zeros(1, int))
    with pytest.raises(SettingError, match="without pickled objects"):
        own_data(str(file), ImageLayout((1, 8, 8), ("0", "1")))
    file.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(SettingError, match="without pickled objects"):
        load(str(file), tmp_path, False)
    assert not mark.exists()


def test_a_pickle_in_a_file_of_weights_is_never_run(tmp_path, monkeypatch):
    mark, place = tmp_path / "mark", tmp_path / "hub" / "checkpoints"
    place.mkdir(parents=True)
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    for file in (tmp_path / "weights.pt", place / Path(url).name):
        torch.save({"weight": Bomb(mark)}, file)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    cpu = torch.device("cpu")
    for name, weights in (
        ("own_backbones:tiny", str(tmp_path / "weights.pt")),
        ("torchvision:resnet18", "auto"),
    ):
        with pytest.raises(SettingError, match="backbone"):
            backbone(name, weights, "auto", cpu)
    assert not mark.exists()
