import hashlib
import re

import pytest

from nemo_jobs.backends.docker import labels
from nemo_jobs.backends.docker.labels import Run
from nemo_jobs.domain.names import task_name
from tests.backends.docker.plans import KEY, make_plan

LATER = KEY.removesuffix("-1") + "-2"
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")


def test_the_instance_is_the_configured_one_or_a_digest_of_the_data_directory() -> None:
    assert labels.instance_id("/data", "mine") == "mine"
    digest = hashlib.sha256(b"nhx-data-dir:/data").hexdigest()
    assert labels.instance_id("/data", None) == digest[:32]
    assert labels.instance_id("/data", None) != labels.instance_id("/other", None)


@pytest.mark.parametrize("since", [0, 1, 35, 36, 1_796_100_889_256_358])
def test_a_name_tells_the_run(since: int) -> None:
    run = Run(LATER, since)
    name = labels.name_of(run)
    assert NAME.fullmatch(name)
    assert labels.run_of(name, {labels.KEY: KEY}) == run


@pytest.mark.parametrize("name", ["", "other", "nj-another-1", f"{KEY}.", f"{KEY}.A B", f"{KEY}x", "x" + KEY])
def test_a_name_that_somebody_else_gave_does_not_count(name: str) -> None:
    assert labels.run_of(name, {labels.KEY: KEY}) == Run(KEY)


def test_the_task_of_a_later_run_is_its_own() -> None:
    marks = {labels.KEY: KEY, labels.TASK: task_name(KEY)}
    assert labels.task_of(Run(KEY), marks) == task_name(KEY)
    assert labels.task_of(Run(LATER, 5), marks) == task_name(LATER)


@pytest.mark.parametrize("name", ["plain", "with@at+plus", "a" + "@" * 62, "a" + "+" * 62, "a.b_c-d"])
def test_names_of_volumes_are_legal_whatever_the_names_of_jobs_are(name: str) -> None:
    found = labels.task_volumes(name, name, task_name(KEY))
    assert len(set(found.all)) == 3
    for volume in found.all:
        assert NAME.fullmatch(volume)
        assert len(volume) <= 255
        assert volume.endswith(task_name(KEY))


def test_names_of_volumes_read_like_their_job() -> None:
    found = labels.task_volumes("default", "train@v1+2", "task-1")
    assert found.storage == "task-storage-default-train_at_v1_plus_2-task-1"
    assert found.config == "task-config-default-train_at_v1_plus_2-task-1"
    assert found.token == "task-workload-identity-default-train_at_v1_plus_2-task-1"


def test_labels_name_the_work_and_whose_it_is() -> None:
    plan = make_plan(job="a-job@1+2")
    marks = labels.container_labels(plan, "me", "host:creator")
    assert labels.ours(marks)
    prefix = "nhx.nvidia.com/"
    assert {name.removeprefix(prefix): value for name, value in marks.items() if name.startswith(prefix)} == {
        "managed_by": "jobs-controller",
        "jobs_controller_instance_id": "me",
        "job_execution_backend": "docker",
        "job_execution_profile": "default",
        "job_workspace_id": "space",
        "job_id": "a-job@1+2",
        "job_attempt_id": plan.attempt_id,
        "job_step_name": "a-step",
        "job_step_id": plan.step_id,
        "job_task_id": plan.task,
        "job_type": "job",
        "uses_persistent_storage": "false",
    }


def test_what_carries_half_of_our_labels_is_not_ours() -> None:
    whole = {**labels.OURS, labels.KEY: KEY}
    assert labels.ours(whole)
    for name in whole:
        assert not labels.ours({**whole, name: "other"}) or name == labels.KEY
        assert not labels.ours({key: value for key, value in whole.items() if key != name})
