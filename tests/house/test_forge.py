"""Files for a forge: they call what is here, and ask for what a run leaves."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def read(path):
    return yaml.safe_load((ROOT / path).read_text())


def test_the_workflow_calls_the_repository_s_scripts_alone():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    called = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert called == {".ci/run", ".ci/newest"} and (ROOT / ".ci/run").is_file()
    used = {step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step}
    assert all(action.startswith("actions/") for action in used)


def test_hooks_are_the_lines_of_ci():
    (local,) = read(".pre-commit-config.yaml")["repos"]
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert [f"{hook['entry']} ." for hook in local["hooks"]] == [
        line for line in lines if line.startswith("ruff ")
    ]


@pytest.mark.parametrize("form", ["bug", "question"])
def test_a_form_asks_for_the_version_and_the_settings(form):
    body = read(f".github/ISSUE_TEMPLATE/{form}.yml")["body"]
    assert {"version", "settings"} <= {field["id"] for field in body}
    assert all(field["type"] in ("input", "textarea") for field in body)
    said = " ".join(field["attributes"]["description"] for field in body)
    assert "fedbary --version" in said and "settings.yaml" in said


def test_the_page_for_agents_is_a_page():
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) < 60
