"""The YAML of the pages loads, and that of the schedulers reruns a job after exit code 75."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks, pages, section
from tests.kubernetes import one

PAGE = ROOT / "docs" / "how-to" / "launch" / "schedulers.md"
yaml = pytest.importorskip("yaml")


def documents(kind: str) -> dict[str, Any]:
    """The document of the page that has this kind, or the only one without any."""
    found = [
        document
        for block in blocks(PAGE)
        if block.language == "yaml"
        for document in yaml.safe_load_all(block.text)
        if document.get("kind", "") == kind
    ]
    assert len(found) == 1
    loaded: dict[str, Any] = found[0]
    return loaded


def test_every_block_of_yaml_loads() -> None:
    loaded = [
        list(yaml.safe_load_all(each.text))
        for page in pages()
        for each in blocks(page)
        if each.language == "yaml"
    ]
    assert len(loaded) >= 5
    assert all(document for documents in loaded for document in documents)


def test_no_yaml_hides_in_a_block_of_text() -> None:
    for page in pages():
        for block in blocks(page):
            if block.language == "text":
                assert not re.match(r"(?:# .*\n)*(?:- )?[\w.]+:(?: .*)?\n +[-\w]", block.text), (
                    f"{block.page}:{block.line}"
                )


def test_the_runtime_of_a_trainjob_counts_pods_as_the_printed_job_does() -> None:
    (job,) = documents("TrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]
    spec, printed = job["template"]["spec"], one("job", "aws", "Job")["spec"]
    rules = json.loads(json.dumps(printed["podFailurePolicy"]).replace('"train"', f'"{job["name"]}"'))
    assert spec["podFailurePolicy"] == rules
    for field in ("backoffLimit", "podReplacementPolicy"):
        assert spec[field] == printed[field]
    for field in ("restartPolicy", "terminationGracePeriodSeconds"):
        assert spec["template"]["spec"][field] == printed["template"]["spec"][field]
    validate = pytest.importorskip("kubernetes_validate").validate
    validate(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec},
        "1.37",
        strict=True,
    )


def test_a_trainjob_names_that_runtime_and_has_the_window_of_its_grace() -> None:
    job, runtime = documents("TrainJob")["spec"], documents("TrainingRuntime")
    assert job["runtimeRef"] == {"kind": "TrainingRuntime", "name": runtime["metadata"]["name"]}
    assert job["trainer"]["command"][:3] == ["spotguard", "run", "--"]
    env = {each["name"]: each["value"] for each in job["trainer"]["env"]}
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    grace = replicated["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert int(env["SPOTGUARD_WINDOW"]) == grace - 3


def test_a_rayjob_tries_again_and_its_nodes_have_time_to_drain() -> None:
    spec = documents("RayJob")["spec"]
    assert spec["backoffLimit"] > 0
    cluster = spec["rayClusterSpec"]
    validate = pytest.importorskip("kubernetes_validate").validate
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "x"},
            "spec": group["template"]["spec"],
        }
        validate(pod, "1.37", strict=True)
    pod = cluster["workerGroupSpecs"][0]["template"]["spec"]
    (drain,) = pod["containers"][0]["env"]
    assert drain["name"] == "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    assert int(drain["value"]) < pod["terminationGracePeriodSeconds"]


def test_skypilot_and_aws_batch_rerun_a_job_that_ends_with_75() -> None:
    assert documents("")["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    (definition,) = [json.loads(block.text) for block in blocks(PAGE) if block.language == "json"]
    rules = definition["retryStrategy"]["evaluateOnExit"]
    assert rules[0] == {"onExitCode": "75", "action": "RETRY"}
    assert len(rules) <= 5  # AWS Batch API reference, RetryStrategy


def test_each_scheduler_of_the_table_has_its_section_or_page() -> None:
    rows = re.findall(r"^\| \[([\w ]+)\]\(([^)]+)\)", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 14
    below = {target for _, target in rows if target.startswith("#")}
    headings = {
        f"#{each.lower().replace(' ', '-')}"
        for each in re.findall("^## (.*)$", PAGE.read_text(), re.MULTILINE)
    }
    assert below == headings


def test_the_code_of_grid_engine_is_the_one_that_the_table_names() -> None:
    assert "--exit-code 99 " in section(PAGE, "## Grid Engine")
    assert "| exit code 99 | `--exit-code 99` |" in PAGE.read_text()
