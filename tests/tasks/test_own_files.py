"""A backbone's own files: what changes a feature is applied or refused, and is in the digest."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from own_backbones import tiny
from own_texts import LONGEST, model, texts, tokeniser, write_model, write_table
from refusals import refused
from safetensors.torch import save_file
from torch import nn

from fedbary.backbones import load, load_text
from fedbary.backbones._body import Transform, fill
from fedbary.data.tables import load_frame
from fedbary.data.text_rows import read_texts
from fedbary.errors import SettingError
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.variational.adapters import Adapters, with_adapters

CPU = torch.device("cpu")


def chain(count, *before):
    """A body of equal layers, each with weights of its own."""
    return nn.Sequential(
        *before, nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(count)])
    )


def renamed(body, change):
    return {change(name): tensor.clone() for name, tensor in body.state_dict().items()}


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
@pytest.mark.parametrize(
    "change",
    [
        lambda name: f"encoder.{name.split('.')[1]}.weight",
        lambda name: f"module.{name}",
        lambda name: f"_orig_mod.module.{name}",
    ],
)
def test_tensors_go_by_name_after_a_common_prefix(change, ending, tmp_path):
    true, body = chain(12, nn.Flatten()), chain(12, nn.Flatten())
    file = tmp_path / f"weights.{ending}"
    (torch.save if ending == "pt" else save_file)(renamed(true, change), file)
    fill(body, str(file))
    x = torch.rand(3, 8)
    assert torch.equal(body(x), true(x))


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (
            renamed(chain(3), lambda n: f"layer{n[2:]}"),
            "it has no 0.0.weight and has layer0.weight",
        ),
        (chain(4).state_dict(), "it also has 0.3.weight"),
        (chain(2).state_dict(), "it has no 0.2.weight"),
        ({"model": chain(3).state_dict(), "ema": chain(3).state_dict()}, "it has 2: model, ema"),
    ],
)
def test_weights_that_leave_a_choice_or_a_rest_are_refused(held, said, tmp_path):
    torch.save(held, tmp_path / "weights.pt")
    with pytest.raises(SettingError, match="backbone_weights") as refused:
        fill(chain(3), str(tmp_path / "weights.pt"))
    assert said in str(refused.value)


def test_layers_of_other_names_go_by_shape_where_each_has_its_own(tmp_path):
    true, body = (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.BatchNorm1d(5)) for _ in "ab")
    names = dict(zip("012", ("z", "y", "x"), strict=True))
    save_file(renamed(true, lambda n: names[n[0]] + n[1:]), tmp_path / "w.safetensors")
    fill(body, str(tmp_path / "w.safetensors"))
    assert all(torch.equal(t, body.state_dict()[n]) for n, t in true.state_dict().items())


@pytest.mark.slow
def test_timm_s_own_conversion_is_used(tmp_path):
    """Swin's authors count its steps between stages from 0, and keep the tensors under model."""
    timm = pytest.importorskip("timm")
    from fedbary.backbones._timm import conversion

    sizes = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "img_size": 56}
    true = timm.create_model("swin_tiny_patch4_window7_224", num_classes=3, **sizes)
    body = timm.create_model("swin_tiny_patch4_window7_224", num_classes=0, **sizes)
    theirs = renamed(true, lambda n: n.replace("layers.1.downs", "layers.0.downs"))
    torch.save({"model": theirs, "epoch": 3}, tmp_path / "w.pth")
    fill(body, str(tmp_path / "w.pth"), conversion(body))
    assert all(torch.equal(t, true.state_dict()[n]) for n, t in body.state_dict().items())


def test_mean_and_std_are_those_that_are_set_and_a_line_says_them(tmp_path):
    auto = load("own_backbones:tiny", "auto", "auto", CPU)
    other = load("own_backbones:tiny", "auto", "auto", CPU, (0.1,), (0.4,))
    x = torch.rand(2, 1, 12, 12)
    torch.testing.assert_close(other.transform(x), (x - 0.1) / 0.4)
    assert auto.digest != other.digest
    words = {"dataset": "own_data:bars", "data_dir": str(tmp_path), "device": "cpu"}
    by = {"backbone": "own_backbones:tiny", "backbone_mean": "0.1", "backbone_std": "0.4"}
    task = task_of(resolve({**words, **by}))
    assert task.pretrained.digest == other.digest
    line = "own_backbones:tiny: images at 12 pixels, bilinear; mean 0.1, std 0.4"
    assert line in task.notes()
    save_file(tiny()[0].state_dict(), tmp_path / "w.safetensors")
    weights = {"backbone": by["backbone"], "backbone_weights": str(tmp_path / "w.safetensors")}
    notes = task_of(resolve({**words, **weights})).notes()
    assert notes[-1].endswith(f"is that the recipe of {tmp_path / 'w.safetensors'}?")


@pytest.mark.parametrize(
    "words", [{"backbone_mean": "a"}, {"backbone_std": "0"}, {"backbone_mean": "0.1,0.2"}]
)
def test_what_is_no_recipe_is_refused(words):
    with pytest.raises(SettingError, match="one or three numbers"):
        resolve({"dataset": "own_data:bars", "backbone": "own_backbones:tiny", **words})


@pytest.mark.parametrize(("low", "high", "fits"), [(0, 1, True), (-1.3, 1.3, False), (0, 9, False)])
def test_a_backbone_takes_pixels_and_no_standardised_floats(low, high, fits, tmp_path):
    x = torch.linspace(low, high, 128).view(2, 1, 8, 8)
    body = load("own_backbones:tiny", "auto", "auto", CPU)
    if fits:
        assert body.features(x).shape == (2, 12)
        return
    refused("floats from 0 to 1", body.features, x)
    arrays = {"x_train": x, "x_test": x, "y_train": [0, 1], "y_test": [0, 1]}
    np.savez(tmp_path / "x.npz", **{k: np.asarray(v) for k, v in arrays.items()})
    adapted = {"adapters": "lora", "rank": 1} if high > 2 else {}
    words = {
        "dataset": str(tmp_path / "x.npz"),
        "backbone": "own_backbones:tiny",
        "clients": 1,
        "min_examples": 1,
    }
    with pytest.raises(SettingError, match="floats from 0 to 1"):
        task_of(resolve({**words, **adapted, "device": "cpu"})).check(False)


def test_floats_go_as_they_are_to_a_backbone_that_subtracts_no_mean():
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(Transform()(x), x)
    Transform().require(x)


def test_a_target_that_matches_nothing_is_refused_by_its_name():
    refused("targets: '0,77'", lambda: with_adapters(chain(3), Adapters(2, '0.1,"0,77"'), 0))


def sentence_model(folder, sentence=(), prompts=(), pooling=()):
    """Write a sentence model's folder; return its name as a backbone."""
    named = write_model(folder)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    held = [
        {"idx": k, "name": str(k), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for k, (kind, path) in enumerate(modules)
    ]
    (folder / "1_Pooling").mkdir()
    files = {
        "modules.json": held,
        "sentence_bert_config.json": {"max_seq_length": 12, **dict(sentence)},
        "config_sentence_transformers.json": {"__version__": {}, **dict(prompts)},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 16, "pooling_mode_mean_tokens": True, **dict(pooling),
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return named


PROMPT = {"prompts": {"doc": "the film: "}, "default_prompt_name": "doc"}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"prompts": PROMPT}, {"sentence": {"do_lower_case": True}}])
def test_prompts_and_lower_case_are_those_of_the_model_s_own_library(changes, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    named, plain = sentence_model(tmp_path / "a", **changes), sentence_model(tmp_path / "b")
    for folder in (tmp_path / "a", tmp_path / "b"):  # a tokeniser that keeps capitals apart
        held = json.loads((folder / "tokenizer.json").read_text())
        held["normalizer"]["lowercase"] = False
        (folder / "tokenizer.json").write_text(json.dumps(held))
    backbone = load_text(named, "auto", "auto", False, CPU)
    given = [*(t.title() for t, _, _ in texts(8)), "the film " * 20]
    wanted = library.SentenceTransformer(named[3:], device="cpu").encode(given)
    features = backbone.features(backbone.encoder(given)[0])
    torch.testing.assert_close(features, torch.from_numpy(wanted), atol=1e-5, rtol=0)
    assert backbone.digest != load_text(plain, "auto", "auto", False, CPU).digest
    assert backbone.encoder.empty(backbone.encoder(["", "film"])[0]).tolist() == [True, False]
    assert ("the film: " in backbone.said) == ("prompts" in changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sentence": {"processing_kwargs": {"text": {"x": 1}}}}, "processing_kwargs"),
        ({"sentence": {"transformer_task": "fill-mask"}}, "transformer_task fill-mask"),
        ({"prompts": {"truncate_dim": 8}}, "truncate_dim"),
        ({"prompts": PROMPT, "pooling": {"include_prompt": False}}, "include_prompt false"),
        ({"pooling": {"pooling_mode_max_tokens": True}}, "pooling by mean and max"),
    ],
)
def test_what_is_not_applied_is_refused_by_name(changes, said, tmp_path):
    with pytest.raises(SettingError, match=f"backbone: .*without {said}"):
        load_text(sentence_model(tmp_path / "a", **changes), "auto", "auto", False, CPU)


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"num_attention_heads": 4}])
def test_a_configuration_that_no_tensor_shows_is_in_the_digest(change, tmp_path):
    digests = []
    for place, changed in (("a", {}), ("b", change)):
        named = write_model(tmp_path / place)
        file = tmp_path / place / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
        digests.append(load_text(named, "auto", "auto", False, CPU).digest)
    assert digests[0] != digests[1]


def roberta(folder):
    """A RoBERTa of 26 positions, of which a text may take 24."""
    from transformers import RobertaConfig, RobertaModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"intermediate_size": 8, "max_position_embeddings": 26, "pad_token_id": 1}
    RobertaModel(RobertaConfig(vocab_size=36, **sizes, **more)).save_pretrained(folder)
    words = tokeniser()
    words.model_max_length = 10**30
    words.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.slow
def test_the_longest_text_is_one_that_the_network_takes(tmp_path):
    named = roberta(tmp_path / "roberta")
    backbone = load_text(named, "auto", "auto", False, CPU)
    tokens, cut = backbone.encoder(["the film " * 100])
    assert (tokens.shape[1], cut) == (24, 1)
    assert backbone.features(tokens).shape == (1, 8)
    with pytest.raises(SettingError, match="max_tokens: 25; expected auto, or from 3 to 24"):
        load_text(named, "auto", 25, False, CPU)


def test_a_network_that_fails_on_its_longest_text_is_refused_at_the_start(tmp_path):
    named = write_model(tmp_path / "model")
    held = model()
    held.config.max_position_embeddings = LONGEST + 8
    held.embeddings.position_embeddings = nn.Embedding(LONGEST - 4, 16)
    save_file(dict(held.state_dict()), tmp_path / "model" / "model.safetensors")
    refused("max_tokens|backbone", load_text, named, "auto", "auto", False, CPU)


def test_mostly_unknown_words_are_counted_in_a_line(tmp_path):
    encode = load_text(write_model(tmp_path / "model"), "auto", "auto", False, CPU).encoder
    rows = [("der Film war gut", "good", ""), ("the film was great", "good", ""), ("", "bad", "")]
    file = write_table(tmp_path / "t.csv", rows)
    found = read_texts(load_frame(str(file), Path(tmp_path), "label", False), "body", encode)
    assert found.notes[0] == "1 of 3 texts are mostly words unknown to the backbone"
