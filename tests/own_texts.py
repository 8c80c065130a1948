"""A small model of texts in a folder, and tables of texts: what `task=text` is tested on."""

import csv
import random

import torch

from fedbary.seeds import derive_seed
from fedbary.variational.layers import seeded

GOOD = "wonderful superb moving funny delightful loved fine great".split()
BAD = "terrible boring cold tedious dull hated poor worst".split()
OTHERS = "a the film story cast music end was and very again today with my sister".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LONGEST = 24


def tokeniser():
    """A tokeniser of whole words, in lower case."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = {word: k for k, word in enumerate([*SPECIAL, *GOOD, *BAD, *OTHERS])}
    found = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer(lowercase=True)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    named = {f"{name}_token": token for name, token in named.items()}
    return PreTrainedTokenizerFast(tokenizer_object=found, model_max_length=LONGEST, **named)


def model(seed=0):
    """A BERT of 16 features, drawn at random, that knows the good words from the bad."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 32, "max_position_embeddings": LONGEST}
    config = BertConfig(vocab_size=len(SPECIAL) + 31, initializer_range=0.3, **sizes, **more)
    with seeded(derive_seed(seed, "texts")):
        found = BertModel(config).eval()
    with torch.no_grad():
        words = found.embeddings.word_embeddings.weight
        first, after = len(SPECIAL), len(SPECIAL) + len(GOOD)
        words[first:after, 0] += 5
        words[after : after + len(BAD), 0] -= 5
    return found


def write_model(folder, seed=0):
    """Write the model into a folder; return its name as a backbone."""
    model(seed).save_pretrained(folder)
    tokeniser().save_pretrained(folder)
    return f"hf:{folder}"


def texts(count, seed=0):
    """Return so many texts, their classes and a ward for each."""
    draw = random.Random(seed)
    found = []
    for k in range(count):
        words = draw.choices([BAD, GOOD][k % 2], k=2) + draw.choices(OTHERS, k=draw.randint(1, 9))
        draw.shuffle(words)
        found.append((" ".join(words), ["bad", "good"][k % 2], draw.choice(["north", "south"])))
    return found


def write_table(file, rows, header=("body", "label", "ward")):
    """Write a CSV file of texts."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(header)
        writer.writerows(rows)
    return file


def vectors(given):
    """Return what a backbone makes of texts, one by one by hand: the mean over their tokens."""
    held, words = model(), tokeniser()
    with torch.no_grad():
        return torch.stack(
            [
                held(torch.tensor([words(text)["input_ids"]])).last_hidden_state[0].mean(0)
                for text in given
            ]
        )
