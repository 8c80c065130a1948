"""Texts: a run on them is one on their features, and no text leaves its site."""

import json
import logging
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from every_method import night
from own_texts import LONGEST, texts, vectors, write_model, write_table
from refusals import refused
from runs_of import lines, posterior, same

import fedbary
from fedbary import client_app
from fedbary.backbones import load_text
from fedbary.commands import use
from fedbary.errors import SettingError
from fedbary.predictive import Prediction
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve
from fedbary.tasks import Outcome, task_of

QUICK = {
    "task": "text", "engine": "inline", "device": "cpu", "pictures": False, "clients": 3,
    "min_examples": 5, "rounds": 1, "method": "LDA", "samples": 2, "holdout": 0.2, "text": "body",
    "download": False,
}  # fmt: skip
CPU = torch.device("cpu")
OUTCOME = Outcome(1, torch.nn.Identity(), None, {}, [], [50, 50])
PREDICTION = Prediction(torch.eye(2), torch.zeros(2))


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def chosen(named, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_table(folder / "reviews.csv", texts(240))
    write_table(folder / "news.csv", texts(40, seed=1))

    def made(**changes):
        data = {"dataset": str(folder / "reviews.csv"), "data_dir": str(folder)}
        return resolve({**QUICK, "backbone": named, **data, **changes})

    return made


@pytest.fixture(scope="module")
def done(chosen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("done")
    news = chosen().dataset.replace("reviews", "news")
    settings = chosen(conformal=0.9, ood_dataset=news)
    run_inline(settings, folder / "run")
    return settings, folder / "run"


@pytest.mark.slow
def test_features_are_the_mean_over_a_text_s_own_tokens(named):
    backbone, given = load_text(named, "auto", "auto", False, CPU), [t for t, _, _ in texts(20)]
    tokens, cut = backbone.encoder(given)
    assert (tokens.shape, cut) == ((20, LONGEST), 0)
    torch.testing.assert_close(backbone.features(tokens), vectors(given), atol=1e-5, rtol=0)


def test_features_do_not_depend_on_what_else_passes_with_a_text(named):
    backbone = load_text(named, "auto", "auto", False, CPU)
    tokens, _ = backbone.encoder([t for t, _, _ in texts(30)] + ["the " * 60, ""])
    together = backbone.features(tokens)
    alone = torch.cat([backbone.features(part) for part in tokens.split([1, 9, 17, 5])])
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(together, alone)
    assert torch.equal(backbone.features(tokens[order]), together[order])


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mean", "cls", "max"])
@pytest.mark.parametrize("is_normalised", [True, False])
def test_a_sentence_is_pooled_as_its_own_library_does(mode, is_normalised, named, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    body = parts.Transformer(named.removeprefix("hf:"), max_seq_length=12)
    modules = [body, parts.Pooling(16, pooling_mode=mode)]
    theirs = library.SentenceTransformer(
        modules=[*modules, *([parts.Normalize()] if is_normalised else [])], device="cpu"
    )
    theirs.save(str(tmp_path / "model"))
    backbone = load_text(f"hf:{tmp_path / 'model'}", "auto", "auto", False, CPU)
    given = [*(t for t, _, _ in texts(12)), "the film " * 20]
    tokens, cut = backbone.encoder(given)
    assert (tokens.shape[1], cut) == (12, sum(len(text.split()) > 10 for text in given))
    wanted = torch.from_numpy(theirs.encode(given))
    torch.testing.assert_close(backbone.features(tokens), wanted, atol=1e-5, rtol=0)


@night  # by day small models are pooled as their own library does
def test_minilm_of_the_package_is_minilm():
    """It takes some 10 s: 90 MB of weights are unpacked and read twice."""
    library = pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("all_minilm_l6_v2")
    name = "hf:sentence-transformers/all-MiniLM-L6-v2"
    backbone = load_text(name, "auto", "auto", False, CPU)
    assert backbone.width((256,)) == 384
    given = ["A fine film.", "Ein schöner Film.", "word " * 300, "素晴らしい映画", "x"]
    tokens, cut = backbone.encoder(given)
    assert (tokens.shape[1], cut) == (256, 1)
    import tempfile
    import zipfile

    with tempfile.TemporaryDirectory() as place:
        zipfile.ZipFile(package.get_model_zip_path()).extractall(place)
        wanted = library.SentenceTransformer(place, device="cpu").encode(given)
        again = load_text(f"hf:{place}", "auto", "auto", False, CPU)
    torch.testing.assert_close(
        backbone.features(tokens), torch.from_numpy(wanted), atol=1e-5, rtol=0
    )
    assert again.digest == backbone.digest


@pytest.mark.slow
def test_a_run_on_texts_is_one_on_their_features_bit_for_bit(done, tmp_path):
    settings, folder = done
    held, backbone = task_of(settings).held, task_of(settings).backbone
    features = {f"x_{p}": backbone.features(getattr(held, f"x_{p}")) for p in ("train", "test")}
    np.savez(tmp_path / "x.npz", **features, y_train=held.y_train, y_test=held.y_test)
    kept = {k: v for k, v in QUICK.items() if k not in ("task", "text")}
    on = {**kept, "dataset": str(tmp_path / "x.npz"), "model": "linear", "conformal": 0.9}
    run_inline(resolve(on), tmp_path / "on")
    assert same(posterior(folder), posterior(tmp_path / "on"))
    line, on_features = lines(folder)[-1], lines(tmp_path / "on")[-1]
    assert all(line[name] == on_features[name] for name in ("accuracy", "nll", "ece"))
    assert line["accuracy"] > 0.9
    assert "ood" in line


def test_no_text_and_no_token_is_in_a_run_s_folder(done):
    settings, folder = done
    held = task_of(settings).held
    told = b"".join(file.read_bytes() for file in folder.iterdir())
    words = [word for word in ("wonderful", "terrible", "delightful") if word.encode() in told]
    assert words == []
    kept = json.loads((folder / "data.json").read_text())
    assert kept["least"] is kept["most"] is None  # of all tokens
    assert all(row.numpy().tobytes() not in told for row in held.x_train[:20])


@pytest.mark.slow
def test_a_run_that_is_loaded_predicts_and_judges_tables(done, tmp_path, capsys, monkeypatch):
    _, folder = done
    monkeypatch.chdir(tmp_path)
    rows = [*texts(30, seed=3), ("  ", "good", "north"), ("the " * 99, "bad", "south")]
    file = write_table(tmp_path / "new.csv", rows)
    use.predict(folder, file, error_rate=0.05, confidence=0.9, held_out=None)
    use.evaluate(folder, file, by="ward")
    said = capsys.readouterr()
    assert "1 of 32 texts are longer than 24 tokens and cut" in said.err
    assert "hold an empty text, and go to a person" in said.err
    table = [line.split(",") for line in (tmp_path / "predictions.csv").read_text().splitlines()]
    column = table[0].index("class")
    assert [row[column] for row in table[1:31]] == [label for _, label, _ in rows[:30]]
    assert (table[31][column], table[31][-1]) == ("", "True")
    assert "ward=north" in (tmp_path / "evaluation" / "scores.csv").read_text()
    assert "ward=south" in (tmp_path / "evaluation" / "sets.csv").read_text()


def test_a_list_of_texts_is_predicted_as_the_table_is(done, tmp_path):
    trained, rows = fedbary.load(done[1]), texts(12, seed=5)
    examples = trained.read(write_table(tmp_path / "new.csv", rows))
    given = [text for text, _, _ in rows]
    assert torch.equal(trained.predict(given).probs, trained.predict(examples).probs)
    assert torch.equal(trained.sets(given), trained.sets(examples))
    refused("text 2 is empty", trained.predict, ["film", " \x00"])


def test_a_prescribed_test_part_of_hugging_face_is_kept(chosen, tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {name: texts(40, seed=k) for k, name in enumerate(("train", "test"))}
    columns = {
        name: datasets.Dataset.from_dict(
            {"text": [r[0] for r in rows], "label": [r[1] for r in rows]}
        )
        for name, rows in parts.items()
    }
    datasets.DatasetDict(columns).save_to_disk(str(tmp_path / "reviews"))
    held = task_of(chosen(dataset=f"hf:{tmp_path / 'reviews'}", text="text")).held
    assert (len(held.x_train), len(held.x_test), held.classes) == (40, 40, ("bad", "good"))
    backbone = task_of(chosen()).backbone
    assert torch.equal(held.x_test, backbone.encoder([row[0] for row in parts["test"]])[0])


def test_a_column_of_ids_that_is_not_there_is_refused_with_the_nearest(chosen):
    with pytest.raises(SettingError, match="id: 'wards'; expected a column of .*: ward; perhaps"):
        _ = task_of(chosen(id="wards")).held


def test_texts_that_the_backbone_does_not_know_are_named_before_any_advice(chosen, tmp_path):
    strange = [
        (f"zug{k} qarz{k} vloom", label, ward) for k, (_, label, ward) in enumerate(texts(60))
    ]
    settings = chosen(dataset=str(write_table(tmp_path / "strange.csv", strange)), rounds=1)
    run_inline(settings, tmp_path / "run")
    failing = lines(tmp_path / "run")[-1]["failing"]
    said = "6 of 6 scored texts are mostly words unknown to the backbone; another backbone="
    assert 0 <= failing.index(said) < failing.index("every input gets") < failing.index("Try ")
    assert (
        list(task_of(chosen()).causes(OUTCOME, PREDICTION, torch.zeros(2, 4), torch.tensor([0, 1])))
        == []
    )


def test_texts_that_were_trained_on_are_known_again(done, chosen):
    trained = fedbary.load(done[1])
    examples = trained.read(chosen().dataset)
    assert 0.5 < float(trained.trained_on(examples).double().mean()) < 1
    assert not trained.trained_on(trained.read(chosen().dataset.replace("reviews", "news"))).all()


@pytest.mark.slow
@night  # by day the graphs of images, tables and numbers
def test_the_graph_has_the_network(done, tmp_path):
    """It takes some 10 s, nearly all of them the exporter's."""
    onnxruntime = pytest.importorskip("onnxruntime")
    trained = fedbary.load(done[1])
    trained.export(tmp_path / "model.onnx")
    x = trained.evaluation_examples().x[:5]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (probs, *_) = session.run(["probs"], {"x": x.numpy()})
    assert probs == pytest.approx(trained.predict(x).probs.numpy(), abs=1e-4)


@pytest.fixture
def sites(chosen, tmp_path, caplog):
    """Run sites' own tables, the last one with these rows; return the round's line and the log."""

    def made(rows, header=("body", "label", "ward")):
        files = [write_table(tmp_path / f"{k}.csv", texts(60, seed=k)) for k in range(2)]
        files.append(write_table(tmp_path / "secret-place.csv", rows, header))
        nodes = [{"data-path": str(file), "name": f"ward {k}"} for k, file in enumerate(files)]
        settings = chosen(dataset="none", classes="bad,good", min_replies=2)
        with caplog.at_level(logging.INFO):
            run(InlineGrid(client_app.app, nodes, settings.model_dump()), settings, tmp_path / "r")
        return lines(tmp_path / "r")[-1]

    return made


def test_sites_hold_tables_of_their_own(sites):
    line = sites(texts(60, seed=7))
    assert len(line["clients"]) == 3
    assert line["accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "header"),
    [
        (texts(40), ("words", "label", "ward")),
        ([(text, f"{label} zanzibar", ward) for text, label, ward in texts(40)], None),
        ([("", label, ward) for _, label, ward in texts(40)], None),
        (
            [(f"{text} zanzibar", label, ward) for text, label, ward in texts(40)],
            ("body", "a", "b"),
        ),
    ],
)
def test_a_site_s_fault_tells_the_server_no_text(rows, header, sites, caplog):
    line = sites(rows, header or ("body", "label", "ward"))
    assert len(line["clients"]) == 2
    at_server = [
        r.getMessage() for r in caplog.records if "the site's log says more" in r.getMessage()
    ]
    assert at_server
    for word in ("zanzibar", "wonderful", "terrible", "secret-place"):
        assert all(word not in said for said in at_server)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text": "boby"}, "perhaps body"),
        ({"text": "label"}, "another column than target"),
        ({"target": "lable"}, "perhaps label"),
        ({"backbone": "none"}, "a model of transformers"),
        ({"backbone": "timm:resnet18"}, "a model of transformers"),
        ({"backbone": "hf:nobody/nothing"}, "download=true and a network"),
        ({"backbone_weights": "nowhere"}, "an installed package that holds one"),
        ({"max_tokens": 9999}, "auto, or from 3 to 24"),
        ({"model": "cnn"}, "linear, mlp"),
        ({"task": "tables"}, "task=text do"),
    ],
)
def test_what_does_not_go_is_refused_in_one_line(changes, said, chosen):
    with pytest.raises(SettingError) as refused:
        task_of(chosen(**changes)).check(False)
    assert said in str(refused.value)


@pytest.mark.parametrize("download", [True, False])
def test_a_model_in_the_cache_of_the_hub_asks_no_network(download, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *of, **_: asked.append(of))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    held = tmp_path / "models--own--tiny"
    write_model(held / "snapshots" / "abc")
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text("abc")
    backbone = load_text("hf:own/tiny", "auto", "auto", download, CPU)
    assert backbone.width((1,)) == 16 and not asked


def test_another_model_is_refused_by_its_digest(done, tmp_path):
    settings, folder = done
    task_of(settings).require_same_data(folder)
    other = settings.model_copy(update={"backbone_weights": write_model(tmp_path, 1)[3:]})
    refused("digest", lambda: task_of(other).require_same_data(folder))
    shorter = settings.model_copy(update={"max_tokens": 12})
    assert task_of(shorter).backbone.digest != task_of(settings).backbone.digest


def test_without_the_extra_one_line_names_it(chosen, monkeypatch):
    import sys

    settings = chosen(backbone_weights="auto", max_tokens=20)
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(r"pip install 'fedbary\[text\]'", lambda: task_of(settings).signature())


@pytest.mark.parametrize("nested", [False, True])
def test_a_model_of_a_million_layers_is_refused_before_it_is_built(nested, tmp_path):
    folder = Path(write_model(tmp_path / "model").removeprefix("hf:"))
    config = json.loads((folder / "config.json").read_text())
    huge = {"num_hidden_layers": 10**6}
    changed = {**config, "text_config": huge} if nested else {**config, **huge}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(SettingError, match="at most 1000 layers; .*num_hidden_layers: 1e\\+06"):
        load_text(f"hf:{folder}", "auto", "auto", False, CPU)
