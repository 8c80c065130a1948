"""Run cases on this process's device, and keep what they found: run_cases.py FOLDER [CASE …].

With PRETEND set the device is the pretended one, else it is the CPU.
"""

import sys
import traceback
from pathlib import Path

import numpy as np
import own_texts
import torch
from cases import cases
from runs_of import timeless_lines
from safetensors.torch import load_file

import fedbary
from fedbary.commands import use
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import completed
from fedbary.trained.judgement import scores, set_columns

COMMANDED = ("cnn plain", "lora gaussian", "sets lac")
FORGETFUL = ("LDA", "Ridge", "laplace full")
"""Cases whose runs the commands use too, and of whose runs a site is taken out."""


def used(name, run):
    """The device of a run's model, and all numbers that it says of its test set."""
    trained = fedbary.load(run, own_code=True)
    examples = trained.evaluation_examples()
    prediction = trained.predict(examples)
    said = {
        **trained.task.answers(prediction, trained.signature),
        **scores(trained, prediction, examples),
        **set_columns(trained, examples, None, None),
    }
    drawn = dict(trained.task.judgement(prediction, examples.y, ""))
    device = next(iter(trained.network.state_dict().values())).device.type
    if name in COMMANDED:
        np.savez(run / "x.npz", x=examples.x.numpy(), y=examples.y.numpy())
        for number, more in enumerate([{}, {"error_rate": 0.5}]):
            output = run / f"{number}.csv"
            use.predict(run, run / "x.npz", output=output, own_code=True, **more)
        use.evaluate(run, run / "x.npz", output=run / "scores", own_code=True)
    if name in FORGETFUL:
        use.forget(run, "partition 1", run / "without", own_code=True)
    arrays = {key: np.asarray(value) for key, value in said.items()}
    numbers = {k: torch.tensor(a) for k, a in arrays.items() if a.dtype.kind in "fib"}
    return {"device": device, "pictures": sorted(drawn), "tensors": numbers}


def main(folder, names):
    """Run cases; write FOLDER/found.pt with what each found, or its error."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    if not names or "text" in names:
        own_texts.write_table(folder / "texts.csv", own_texts.texts(120))
        own_texts.write_model(folder / "model")
    found = {}
    for name in names or cases(folder):
        run = folder / name.replace(" ", "-")
        try:
            run_inline(completed(cases(folder)[name]), run)
            found[name] = {**used(name, run), "lines": timeless_lines(run)}
            for file in sorted(run.rglob("*.safetensors")):
                held = load_file(file)
                held.pop("strategy.run", None)  # its name, drawn anew
                parts = file.relative_to(run).parts
                place = *parts[:2], parts[-1]  # without a run's name at a client, drawn anew
                found[name]["tensors"] |= {f"{place} {k}": t.clone() for k, t in held.items()}
        except Exception:
            found[name] = {"error": traceback.format_exc()}
        print(name, found[name].get("error", "ran"), flush=True)
    torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
