"""A run ends in MLflow as it ended, and goes on there when it is resumed."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from runs_of import SHORT, lines

from fedbary import client_app, load
from fedbary.runs.tracking import note_killed
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid, run_inline
from fedbary.settings.config import resolve

mlflow = pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = {
    **SHORT, "clients": 2, "rounds": 2, "model": "mlp", "bayesian_layers": 1, "train_fraction": 0.2,
    "tracker": "mlflow", "log_model": False, "evaluate_clients": 0,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def local():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
        yield


def kept(folder):
    """MLflow's only run, and the rounds whose NLL it holds."""
    client = mlflow.MlflowClient((folder.parent / "mlruns").as_uri())
    (made,) = client.search_runs([client.get_experiment_by_name("fedbary").experiment_id])
    history = client.get_metric_history(made.info.run_id, "nll")
    return made, sorted(metric.step for metric in history)


def broken(folder, error):
    """Make a run that ends by an error in its second round."""
    chosen, rounds = resolve(QUICK), iter((1, 2))

    class Breaking(InlineGrid):
        def push_messages(self, messages):
            messages = list(messages)
            kinds = {message.metadata.message_type for message in messages}
            if "train" in kinds and next(rounds) == 2:
                raise error
            return super().push_messages(messages)

    with pytest.raises(type(error)):
        run(Breaking(client_app.app, chosen.clients, chosen.model_dump()), chosen, folder)


@pytest.mark.parametrize(
    "error, status", [(KeyboardInterrupt(), "KILLED"), (ValueError("broken"), "FAILED")]
)
def test_a_run_that_is_broken_off_ends_so_and_goes_on_as_the_same(error, status, tmp_path):
    broken(tmp_path / "run", error)
    made, rounds = kept(tmp_path / "run")
    assert (made.info.status, made.info.end_time is None) == (status, False)
    assert rounds == [0, 1]
    run_inline(resolve({**QUICK, "resume": "last"}), tmp_path / "run")
    again, rounds = kept(tmp_path / "run")
    assert again.info.run_id == made.info.run_id
    assert (again.info.status, rounds) == ("FINISHED", [0, 1, 2])


def test_a_run_whose_processes_were_killed_is_said_to_be(tmp_path):
    run_inline(resolve(QUICK), tmp_path / "run")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    made, _ = kept(tmp_path / "run")
    client.update_run(made.info.run_id, status="RUNNING")
    note_killed(resolve(QUICK), tmp_path / "run")
    assert kept(tmp_path / "run")[0].info.status == "KILLED"


def test_where_the_store_has_lost_the_run_another_begins(tmp_path):
    run_inline(resolve(QUICK), tmp_path / "run")
    (tmp_path / "run" / "mlflow-run.txt").write_text("0" * 32)
    note_killed(resolve(QUICK), tmp_path / "run")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("fedbary").experiment_id])
    assert sorted(made.info.status for made in runs) == ["FINISHED", "KILLED"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory, local):
    """The folder of a run that has logged its model: some 10 seconds."""
    words = {"engine": "inline", "task": "tables", "clients": 2, "rounds": 2, "samples": 3}
    folder = tmp_path_factory.mktemp("ended") / "run"
    run_inline(resolve({**words, "tracker": "mlflow", "partition": "iid"}), folder)
    return folder


def test_it_reads_numbers_settings_and_artefacts(ended):
    made, rounds = kept(ended)
    assert (made.info.run_name, made.info.status) == ("run", "FINISHED")
    assert made.data.params["rule"] == "RKLB"
    client = mlflow.MlflowClient((ended.parent / "mlruns").as_uri())
    history = client.get_metric_history(made.info.run_id, "nll")
    told = {metric.step: pytest.approx(metric.value) for metric in history}
    assert told == {line["round"]: line["nll"] for line in lines(ended)} and len(rounds) == 3
    stored = {Path(file.path).name for file in client.list_artifacts(made.info.run_id)}
    pictures = {file.name for file in ended.glob("*.png")}
    assert stored == {"posterior.safetensors", "model", *pictures} and pictures


def test_its_model_predicts_rows_by_their_columns_without_fedbary(ended):
    made, _ = kept(ended)
    model = mlflow.pyfunc.load_model(f"{made.info.artifact_uri}/model")
    trained = load(ended)
    x = trained.task.evaluation_examples().x[:5].numpy()
    rows = pandas.DataFrame(x, columns=trained.signature.features)
    found = model.predict(rows[rows.columns[::-1]])
    expected = trained.predict(rows).probs
    probs = found[[f"p({name})" for name in trained.signature.classes]]
    np.testing.assert_allclose(probs, expected, rtol=1e-4)
    with pytest.raises(mlflow.MlflowException, match="missing inputs"):
        model.predict(rows.iloc[:, 1:])
