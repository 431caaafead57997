import asyncio
from typing import Any

import pytest

from nemo_jobs.domain.filters import parse_filter
from nemo_jobs.domain.model import Conflict, Invalid, NotFound
from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import idempotency, jobs, projects, workspaces
from nemo_jobs.store.jobs import JobQuery
from tests.store.kit import Store, new_job


async def make(store: Store, name: str = "apollo", workspace: str = "default") -> projects.ProjectRecord:
    made: projects.ProjectRecord = await store.write(
        projects.create_project, workspace, name, "to the moon", store.now(), "ada"
    )
    return made


async def test_a_project_is_made_changed_and_deleted(store: Store) -> None:
    made = await make(store)
    assert (made.workspace, made.name, made.description, made.created_by) == (
        "default",
        "apollo",
        "to the moon",
        "ada",
    )
    assert made.id.startswith("project-")
    assert await store.read(projects.get_project, "default", "apollo") == made
    with pytest.raises(Conflict, match="project 'apollo' exists already in workspace 'default'"):
        await make(store)
    assert (await make(store, workspace="system")).id != made.id
    same = await store.write(projects.update_project, "default", "apollo", {}, store.now(), "bob")
    assert (same.description, same.updated_by) == ("to the moon", "bob")
    change = {"description": None}
    changed = await store.write(projects.update_project, "default", "apollo", change, store.now(), "bob")
    assert changed.description is None
    assert changed.updated_at > made.updated_at
    assert await store.write(projects.delete_project, "default", "apollo") == changed
    for call in (projects.get_project, projects.delete_project):
        with pytest.raises(NotFound, match="no project 'apollo' in workspace 'default'"):
            await store.write(call, "default", "apollo")
    with pytest.raises(NotFound):
        await store.write(projects.update_project, "default", "apollo", {}, store.now(), "bob")
    with pytest.raises(NotFound, match="no workspace 'nowhere'"):
        await make(store, workspace="nowhere")


async def test_projects_are_listed_by_page(store: Store) -> None:
    for name in ("c3", "a1", "b2"):
        await make(store, name)
    await make(store, "elsewhere", "system")
    for sort, order in (("name", ["a1", "b2", "c3"]), ("-created_at", ["b2", "a1", "c3"])):
        found = []
        for page in (1, 2, 3):
            items, total = await store.read(projects.list_projects, "default", sort, page, 2)
            assert total == 3
            found += [item.name for item in items]
        assert found == order
    with pytest.raises(NotFound):
        await store.read(projects.list_projects, "nowhere")


async def test_a_jobs_project_must_exist_and_stays_as_long_as_the_job(store: Store) -> None:
    with pytest.raises(Invalid, match="project 'apollo' does not exist in workspace 'default'"):
        await store.create("moth", project="apollo")
    await make(store)
    await store.create("moth", project="apollo")
    await store.create("mole", project="apollo")
    with pytest.raises(Conflict, match="'moth' is taken"):
        await store.create("moth", project="none")
    with pytest.raises(Conflict, match="still has 2 jobs"):
        await store.write(projects.delete_project, "default", "apollo")
    where = parse_filter([("filter", 'project:"apollo"')])
    found, total, _ = await store.read(jobs.list_jobs, JobQuery("default", where))
    assert ({job.name for job in found}, total) == ({"moth", "mole"}, 2)
    for name in ("moth", "mole"):
        await store.request(name, Trigger.CANCEL)
        await store.write(jobs.delete_job, "default", name, store.now())
    await store.write(projects.delete_project, "default", "apollo")


async def test_a_project_that_is_being_deleted_gets_no_job(store: Store) -> None:
    """Whichever comes first: never a job whose project is gone."""
    for number in range(10):
        name = f"p-{number}"
        await make(store, name)
        calls = [
            store.create(f"job-{number}", project=name),
            store.write(projects.delete_project, "default", name),
        ]
        created, deleted = await asyncio.gather(*calls[:: 1 if number % 2 else -1], return_exceptions=True)
        if not number % 2:
            created, deleted = deleted, created
        assert isinstance(created, Invalid) != isinstance(deleted, Conflict), (created, deleted)


async def test_a_workspace_says_what_keeps_it(store: Store) -> None:
    await store.write(workspaces.create_workspace, "lab", None, store.now(), "ada")
    await make(store, workspace="lab")
    for name in ("moth", "mole"):
        await store.create(name, workspace="lab", project="apollo")
    with pytest.raises(Conflict, match="workspace 'lab' still has 2 jobs, 1 project; delete them first"):
        await store.write(workspaces.delete_workspace, "lab")
    for name in ("moth", "mole"):
        await store.write(jobs.request, "lab", name, Trigger.CANCEL, store.now(), "ada")
        await store.write(jobs.delete_job, "lab", name, store.now())
    with pytest.raises(Conflict, match="still has 1 project; delete"):
        await store.write(workspaces.delete_workspace, "lab")
    await store.write(projects.delete_project, "lab", "apollo")
    await store.write(workspaces.delete_workspace, "lab")
    for name in workspaces.DEFAULTS:
        with pytest.raises(Conflict, match="always there"):
            await store.write(workspaces.delete_workspace, name)


async def test_a_workspace_made_anew_remembers_no_keys(store: Store) -> None:
    once = idempotency.Once("lab", "ada", "key", "digest")

    async def send() -> Any:
        return await store.write(
            idempotency.create_once,
            new_job("moth", workspace="lab"),
            once,
            lambda job: job.id,
            None,
            store.now(),
            "ada",
        )

    await store.write(workspaces.create_workspace, "lab", None, store.now(), "ada")
    first, _ = await send()
    await store.write(jobs.request, "lab", "moth", Trigger.CANCEL, store.now(), "ada")
    await store.write(jobs.delete_job, "lab", "moth", store.now())
    await store.write(workspaces.delete_workspace, "lab")
    await store.write(workspaces.create_workspace, "lab", None, store.now(), "ada")
    assert (await send())[0] != first
