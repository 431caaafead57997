"""What the Docker backend does with containers beyond the protocol's promises, on a real engine."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.backends.api import ENDED, Handle, Phase, Plan, Rejected, Unavailable
from nemo_jobs.backends.docker import labels
from nemo_jobs.backends.docker.backend import DockerBackend
from nemo_jobs.testing import Work
from tests.backends.docker_harness import DockerHarness
from tests.backends.host import output, until_ended
from tests.bed.docker import DockerServer
from tests.bed.docker_images import ENTRYPOINT, NO_SHELL, USER, USER_GID, USER_UID

# Engines of busy machines take their time: what hangs is still ended.
pytestmark = pytest.mark.time_limit(180)

TASK_LABEL = f"{labels.TYPE}={labels.JOB_TYPE}"


@pytest.fixture(params=[True, False], ids=["here", "there"])
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, docker: DockerServer
) -> AsyncIterator[DockerHarness]:
    """Both ways to a container's folders: through the disk, and through the engine."""
    harness = DockerHarness(tmp_path, docker, direct=request.param)
    yield harness
    await harness.close()


@pytest.fixture
async def here(tmp_path: Path, docker: DockerServer) -> AsyncIterator[DockerHarness]:
    harness = DockerHarness(tmp_path, docker)
    yield harness
    await harness.close()


async def started(world: DockerHarness) -> DockerBackend:
    backend = await world.backend()
    assert isinstance(backend, DockerBackend)
    return backend


async def text_of(backend: DockerBackend, plan: Plan) -> str:
    """What a plan's work prints; it must end well."""
    handle = await backend.submit(plan)
    seen = await until_ended(backend, handle)
    text = (await output(backend, handle))["stdout"].decode()
    assert seen.phase is Phase.SUCCEEDED, (seen, text)
    return text


def inspected(world: DockerHarness, handle: Handle) -> dict[str, Any]:
    found: dict[str, Any] = world.api.get(f"/containers/{handle.data['container']}/json")
    return found


async def running(backend: DockerBackend, handle: Handle) -> None:
    while (await backend.observe([handle]))[handle.key].phase is not Phase.RUNNING:
        await asyncio.sleep(0.01)


# Folders and users


async def test_folders_belong_to_the_user_of_the_image_alone(world: DockerHarness) -> None:
    backend = await started(world)
    paths = (
        "/var/run/scratch/task /var/run/scratch/config /var/run/scratch/task/.results /var/run/scratch/job"
    )
    show = f"stat -c '%u %g %a' {paths}; cat /var/run/scratch/*/*.json"
    command = ["sh", "-c", f"touch /var/run/scratch/*/mine $NEMO_JOB_RESULTS_PATH/mine; {show}"]
    text = await text_of(backend, world.command(command, image=USER, config={"grüße": 1}))
    assert text == f"{USER_UID} {USER_GID} 700\n" * 4 + '{"grüße": 1}'


async def test_steps_of_different_users_share_the_storage(world: DockerHarness) -> None:
    backend = await started(world)
    first = world.command(["sh", "-c", "echo one > /var/run/scratch/job/one"], image=USER)
    await text_of(backend, first)
    again = replace(
        world.command(["sh", "-c", "cd /var/run/scratch/job; cat one; stat -c %u one; echo > two"]),
        attempt_id=first.attempt_id,
    )
    assert await text_of(backend, again) == f"one\n{USER_UID}\n"


async def test_an_image_without_a_shell(world: DockerHarness) -> None:
    assert await text_of(await started(world), world.command(["echo", "said"], image=NO_SHELL)) == "said\n"


@pytest.mark.parametrize(
    ("entrypoint", "command", "expected"),
    [
        ((), (), "entrypoint: echo image command\nimage command\n"),
        ((), ("echo", "own"), "entrypoint: echo own\nown\n"),
        (("echo", "replaced"), (), "replaced\n"),
    ],
)
async def test_what_a_step_does_not_say_comes_from_the_image(
    here: DockerHarness, entrypoint: tuple[str, ...], command: tuple[str, ...], expected: str
) -> None:
    plan = here.command(command, image=ENTRYPOINT, entrypoint=entrypoint)
    assert await text_of(await started(here), plan) == expected


async def test_a_token_is_a_file_that_can_be_read_and_not_changed(world: DockerHarness) -> None:
    backend = await started(world)
    script = "cat $NHX_WORKLOAD_IDENTITY_TOKEN_FILE; echo; ! echo x > $NHX_WORKLOAD_IDENTITY_TOKEN_FILE"
    plan = replace(world.command(["sh", "-c", script], image=USER), token="the-token")
    assert await text_of(backend, plan) == "the-token\n"
    names = [one["Name"] for one in world.api.volumes(f"{labels.KEY}={plan.key}")]
    assert any(name.startswith("task-workload-identity-") for name in names)


async def test_a_launcher_of_the_service_runs_the_program(here: DockerHarness, tmp_path: Path) -> None:
    tool = tmp_path / "launcher"
    tool.write_text('#!/bin/sh\necho "launched: $*"\nshift 2\nexec "$@"\n')
    profile = {"launcher_tool_path": str(tool)}
    plan = here.command(["echo", "own"], image=ENTRYPOINT, profile=profile)
    expected = "launched: run -- /bin/enter echo own\nentrypoint: echo own\nown\n"
    assert await text_of(await started(here), plan) == expected


# Resources


async def test_limits_reach_the_container(here: DockerHarness) -> None:
    backend = await started(here)
    resources = {"limits": {"cpu": "250m", "memory": "64Mi"}, "shm_size": "32Mi"}
    text = await text_of(backend, here.command(["df", "-k", "/dev/shm"], resources=resources))
    assert " 32768 " in text
    plan = here.command(["true"], resources=resources)
    host = inspected(here, await backend.submit(plan))["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["Init"]) == (250_000_000, 64 << 20, True)


async def test_a_container_sees_the_devices_of_its_plan_alone(here: DockerHarness) -> None:
    backend = await started(here)
    show = ["sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES; df -k /dev/shm | tail -1"]
    asked = {"NVIDIA_VISIBLE_DEVICES": "all"}
    with_two = replace(here.command(show, provider="gpu", env=asked), devices=("0", "2"))
    shown = (await text_of(backend, with_two)).split()
    assert (shown[0], shown[2]) == ("0,2", str(16 << 20))
    assert (await text_of(backend, here.command(show, env=asked))).split()[0] == "void"


async def test_an_engine_without_gpus_says_so_and_keeps_nothing(
    here: DockerHarness, start_docker: Any, tmp_path: Path
) -> None:
    (tmp_path / "bare").mkdir()
    bare = DockerHarness(tmp_path / "bare", start_docker(gpus=False))
    try:
        backend = await started(bare)
        plan = replace(bare.command(["true"], provider="gpu"), devices=("0",))
        with pytest.raises(Rejected, match="no GPU runtime"):
            await backend.submit(plan)
        assert bare.containers() == []
        assert not bare.has_storage(plan)
        assert bare.api.volumes(f"{labels.KEY}={plan.key}") == []
    finally:
        await bare.close()


# Names and owners


async def test_a_foreign_container_of_the_name_is_left_alone_and_told(here: DockerHarness) -> None:
    backend = await started(here)
    plan = here.plan(Work())
    body = {"Image": "busybox:stable", "Cmd": ["sleep", "100"]}
    made = here.api.post("/containers/create", body, name=plan.key)
    try:
        with pytest.raises(Rejected, match=plan.key):
            await backend.submit(plan)
        assert here.api.get(f"/containers/{made['Id']}/json")["State"]["Status"] == "created"
    finally:
        here.api.delete(f"/containers/{made['Id']}", force=True)
    assert here.starts(plan) == 0


async def test_services_of_other_data_directories_do_not_see_each_others(
    here: DockerHarness, tmp_path: Path
) -> None:
    one, other = await started(here), await here.unstarted(tmp_path / "other")
    await other.start()
    try:
        handle = await one.submit(here.plan(Work(seconds=100)))
        assert handle in [each async for each in one.handles()]
        assert handle.key not in [each.key async for each in other.handles()]
        assert [item async for item in other.belongings()] == []
        # With one database it may still be the other's turn to look after it.
        assert (await other.observe([handle]))[handle.key].phase is Phase.RUNNING
    finally:
        await other.aclose()


@pytest.mark.parametrize("name", ["a@b+c", "x.y_z"])
async def test_names_that_engines_do_not_take(world: DockerHarness, name: str) -> None:
    backend = await started(world)
    plan = replace(world.command(["pwd"]), workspace=name, step=name)
    handle = await backend.submit(plan)
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED
    assert inspected(world, handle)["Config"]["Labels"][labels.STEP] == name
    await backend.remove(handle, wipe_storage=True)
    assert world.api.volumes(f"{labels.KEY}={plan.key}") == []


async def test_a_container_that_somebody_renamed_is_still_the_one(here: DockerHarness) -> None:
    backend = await started(here)
    plan = here.plan(Work(seconds=0.5))
    handle = await backend.submit(plan)
    here.api.post(f"/containers/{handle.data['container']}/rename", name=f"by-hand-{plan.key}")
    again = await started(here)
    assert (await again.submit(plan)).data["container"] == handle.data["container"]
    found = await again.find(plan)
    assert found is not None
    assert (found.key, found.data["container"]) == (plan.key, handle.data["container"])
    assert (await until_ended(again, handle)).phase is Phase.SUCCEEDED
    assert here.starts(plan) == 1


# Between create and start


@pytest.mark.parametrize("looks", [True, False])
async def test_what_a_crash_left_created_is_started_once(world: DockerHarness, looks: bool) -> None:
    backend = await started(world)
    plan = world.plan(Work(stdout=b"said\n"))
    await left_created(backend, plan)
    assert world.starts(plan) == 0
    await backend.aclose()
    other = await started(world)
    assert [each async for each in other.handles()] == []
    if looks:  # as a follower does that finds its step half started
        assert await other.find(plan) is None
        assert world.containers() == []
        assert world.api.volumes(f"{labels.KEY}={plan.key}") == []
    assert await text_of(other, plan) == "said\n"
    assert world.starts(plan) == 1
    assert len(world.containers()) == 1


async def test_what_another_service_is_about_to_start_is_waited_for(here: DockerHarness) -> None:
    slow, quick = await started(here), await started(here)
    plan = here.plan(Work())
    start, meanwhile = slow._engine.start, asyncio.Event()

    async def late(container: str) -> bool:
        await meanwhile.wait()
        return await start(container)

    slow._engine.start = late  # type: ignore[method-assign]
    first = asyncio.ensure_future(slow.submit(plan))
    while not any(seen.run.key == plan.key for seen in quick._watcher.table.here()):
        await asyncio.sleep(0.01)
    with pytest.raises(Unavailable, match="about to start"):
        await quick.find(plan)
    second = asyncio.ensure_future(quick.submit(plan))
    await asyncio.sleep(0.3)
    assert not second.done()
    meanwhile.set()
    assert await first == await second
    await until_ended(quick, await second)
    assert here.starts(plan) == 1


async def left_created(backend: DockerBackend, plan: Plan) -> None:
    """A submit that is cut off right before the start."""
    start, reached = backend._engine.start, asyncio.Event()

    async def never(container: str) -> bool:
        reached.set()
        return await asyncio.Event().wait()

    backend._engine.start = never  # type: ignore[method-assign]
    submitting = asyncio.ensure_future(backend.submit(plan))
    await reached.wait()
    for starting in backend._starting.values():
        starting.task.cancel()
    with pytest.raises(Unavailable):
        await submitting
    backend._engine.start = start  # type: ignore[method-assign]


async def test_a_start_that_nobody_wants_any_more_is_taken_back(world: DockerHarness) -> None:
    backend = await started(world)
    plan = world.plan(Work())
    create, reached, go_on = backend._engine.create, asyncio.Event(), asyncio.Event()

    async def slow(name: str, body: Any, **more: Any) -> str:
        made = await create(name, body, **more)
        if name == plan.key:
            reached.set()
            await go_on.wait()
        return made

    backend._engine.create = slow  # type: ignore[method-assign]
    submitting = asyncio.ensure_future(backend.submit(plan))
    await reached.wait()
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    looking = asyncio.ensure_future(backend.find(plan))
    await asyncio.sleep(0.1)
    assert not looking.done()
    go_on.set()
    assert await looking is None
    assert world.containers() == []
    assert world.starts(plan) == 0
    assert not world.has_storage(plan)


# Refusals


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ({"networking": {"job_container_network": "no-such-network"}}, "no network no-such-network"),
        (
            {"storage": {"additional_volume_mounts": [{"volume_name": "no-such", "mount_path": "/x"}]}},
            "no volume no-such",
        ),
        ({"storage": {"volume_name": ""}}, "no storage for jobs"),
    ],
)
async def test_what_can_not_be_is_told_and_leaves_nothing(
    world: DockerHarness, profile: dict[str, Any], words: str
) -> None:
    backend = await started(world)
    plan = world.command(["true"], profile=profile)
    with pytest.raises(Rejected, match=words):
        await backend.submit(plan)
    assert world.containers() == []
    assert world.api.volumes(f"{labels.KEY}={plan.key}") == []
    assert not world.has_storage(plan)


async def test_a_volume_may_be_made_where_the_profile_says_so(here: DockerHarness) -> None:
    backend = await started(here)
    mount = {"volume_name": f"{here.volume}-new", "mount_path": "/new", "allow_create_volume": True}
    plan = here.command(
        ["touch", "/new/file"], profile={"storage": {"additional_volume_mounts": [mount]}}, env={}
    )
    try:
        await text_of(backend, replace(plan, spec={**plan.spec, "environment": []}))
    finally:
        for one in here.containers():
            here.api.delete(f"/containers/{one['Id']}", force=True)
        here.api.delete(f"/volumes/{here.volume}-new")


async def test_secrets_are_nowhere_but_in_the_environment(here: DockerHarness) -> None:
    backend = await started(here)
    plan = here.command(["sh", "-c", "test ${#TOKEN} = 9"])
    variable = {"name": "TOKEN", "from_secret": {"name": "token"}, "value": None}
    spec = {**plan.spec, "environment": [*plan.spec["environment"], variable]}
    plan = replace(plan, spec=spec, secret_env={"TOKEN": "the-value"})
    handle = await backend.submit(plan)
    assert (await until_ended(backend, handle)).phase is Phase.SUCCEEDED
    found = inspected(here, handle)
    found["Config"].pop("Env")
    assert "the-value" not in repr(found)
    assert "the-value" not in repr(handle)


# Resume


async def paused(backend: DockerBackend, plan: Plan) -> tuple[Handle, Plan]:
    """A run that was stopped, and the plan of the run after it."""
    before = await backend.submit(plan)
    await running(backend, before)
    await asyncio.sleep(0.2)
    await backend.stop(before, 1)
    await until_ended(backend, before)
    key = plan.key.removesuffix("-0") + "-1"
    return before, replace(plan, key=key, task="task-" + "f" * 32, resumes=before)


COUNTING = (
    "n=$(cat /n 2>/dev/null || echo 0); echo run $n; echo $((n+1)) > /n; "
    "[ $n = 0 ] && exec sleep 100; exit $n"
)


async def test_a_resumed_run_goes_on_in_its_container(world: DockerHarness) -> None:
    backend = await started(world)
    before, plan = await paused(backend, world.command(["sh", "-c", COUNTING]))
    after = await backend.submit(plan)
    assert (after.key, after.data["container"]) == (plan.key, before.data["container"])
    seen = await until_ended(backend, after)
    assert (seen.phase, seen.tasks[0].exit_code) == (Phase.FAILED, 1)
    assert await output(backend, after) == {"stdout": b"run 1\n", "stderr": b""}
    assert seen.tasks[0].error_stack == "run 1"
    assert await backend.submit(plan) == after
    other = await started(world)
    assert [each.key async for each in other.handles()] == [plan.key]
    assert await other.find(plan) == after
    assert (await other.observe([after]))[after.key].tasks[0].exit_code == 1
    # What is left to be removed of the run before is not the container of this one.
    await backend.remove(before)
    assert (await backend.observe([after]))[after.key].phase is Phase.FAILED
    await backend.remove(after)
    assert world.containers() == []
    assert world.api.volumes(f"{labels.KEY}={before.key}") == []


async def test_the_grace_of_a_pause_ends_nothing_of_the_run_after_it(here: DockerHarness) -> None:
    backend = await started(here)
    text = "[ -f /second ] && exec sleep 2; touch /second; exec sleep 100"
    _, plan = await paused(backend, here.command(["sh", "-c", text]))  # with a grace of 1 s
    after = await backend.submit(plan)
    assert (await until_ended(backend, after)).phase is Phase.SUCCEEDED


async def test_a_resume_that_a_crash_cut_off_is_taken_up(here: DockerHarness) -> None:
    backend = await started(here)
    _, plan = await paused(backend, here.command(["sh", "-c", COUNTING]))
    await left_created(backend, plan)  # renamed, not started
    await backend.aclose()
    other = await started(here)
    assert await other.find(plan) is None
    assert [each async for each in other.handles()] == []
    after = await other.submit(plan)
    assert await other.find(plan) == after
    assert (await until_ended(other, after)).tasks[0].exit_code == 1
    assert (await output(other, after))["stdout"] == b"run 1\n"


async def test_a_resume_without_its_container_or_with_other_devices_begins_anew(here: DockerHarness) -> None:
    backend = await started(here)
    before, plan = await paused(backend, here.command(["sh", "-c", COUNTING]))
    other_devices = replace(plan, devices=("1",))
    after = await backend.submit(other_devices)
    assert after.data["container"] != before.data["container"]
    await running(backend, after)
    assert "other GPUs" in (await backend.observe([after]))[after.key].message
    assert [one["Id"] for one in here.containers()] == [after.data["container"]]
    assert (await output_until_line(backend, after)) == b"run 0\n"
    await backend.remove(after)
    anew = await backend.submit(plan)
    await running(backend, anew)
    assert "is gone" in (await backend.observe([anew]))[anew.key].message
    assert (await output_until_line(backend, anew)) == b"run 0\n"


async def output_until_line(backend: DockerBackend, handle: Handle) -> bytes:
    async for piece in backend.logs(handle, None):
        return piece.data
    return b""


# Stopping, removing, sweeping


async def test_a_container_that_somebody_froze_can_be_stopped(here: DockerHarness) -> None:
    backend = await started(here)
    handle = await backend.submit(here.plan(Work(seconds=100)))
    await running(backend, handle)
    here.api.post(f"/containers/{handle.data['container']}/pause")
    while (await backend.observe([handle]))[handle.key].reason != "suspended":
        await asyncio.sleep(0.01)
    await backend.stop(handle, 2)
    assert (await until_ended(backend, handle)).phase is Phase.STOPPED


@pytest.mark.parametrize(
    ("how", "phase"), [("remove", Phase.LOST), ("kill", Phase.FAILED), ("stop", Phase.FAILED)]
)
async def test_what_others_did_to_a_container_is_told(here: DockerHarness, how: str, phase: Phase) -> None:
    backend = await started(here)
    handle = await backend.submit(here.plan(Work(seconds=100, stdout=b"so far\n")))
    await running(backend, handle)
    await output_until_line(backend, handle)
    path = f"/containers/{handle.data['container']}"
    if how == "remove":
        here.api.delete(path, force=True)
    else:
        here.api.post(f"{path}/{how}")
    seen = await until_ended(backend, handle)
    assert (seen.phase, bool(seen.message)) == (phase, True)
    assert "somebody" in seen.message


async def test_a_container_that_somebody_restarted_goes_on(here: DockerHarness) -> None:
    backend = await started(here)
    plan = here.command(["sh", "-c", COUNTING])
    handle = await backend.submit(plan)
    await running(backend, handle)
    await output_until_line(backend, handle)
    here.api.post(f"/containers/{handle.data['container']}/restart", t=0)
    seen = await until_ended(backend, handle)
    assert (seen.phase, seen.tasks[0].exit_code) == (Phase.FAILED, 1)
    assert (await output(backend, handle))["stdout"] == b"run 0\nrun 1\n"


async def test_all_that_is_ours_is_told_and_can_be_discarded(world: DockerHarness) -> None:
    backend = await started(world)
    handle = await backend.submit(world.plan(Work(seconds=100)))
    found = [item async for item in backend.belongings()]
    assert {item.key for item in found} == {handle.key}
    assert sorted({item.kind for item in found}) == ["container", "volume"]
    assert all(item.made_at for item in found)
    for item in sorted(found, key=lambda each: each.kind):
        await backend.discard(item)
        await backend.discard(item)
    assert [item async for item in backend.belongings()] == []
    assert (await backend.observe([handle]))[handle.key].phase is Phase.LOST


async def test_no_helper_stays_behind(world: DockerHarness) -> None:
    backend = await started(world)
    plan = replace(world.plan(Work()), token="t")
    handle = await backend.submit(plan)
    await until_ended(backend, handle)
    assert len(world.containers()) == 1
    await backend.remove(handle, wipe_storage=True)
    assert world.containers() == []
    assert not world.has_storage(plan)
    assert [item async for item in backend.belongings()] == []


async def test_the_storage_that_a_newer_attempt_took_over_is_not_wiped(world: DockerHarness) -> None:
    """And one that was to be wiped is not found by an attempt that starts without it."""
    backend = await started(world)
    old = world.command(["touch", "/var/run/scratch/job/old"])
    handle = await backend.submit(old)
    await until_ended(backend, handle)
    fresh = world.command(["ls", "/var/run/scratch/job"])
    assert await text_of(backend, fresh) == ""
    await backend.remove(handle, wipe_storage=True)
    assert (world.has_storage(old), world.has_storage(fresh)) == (False, True)


async def test_many_that_fail_at_once_all_tell_their_code(here: DockerHarness) -> None:
    backend = await started(here)
    many = 24
    commands = [["sh", "-c", f"echo boom {number} >&2; exit 7"] for number in range(many)]
    plans = [here.command(command, attempt_id="attempt") for command in commands]
    handles = await asyncio.gather(*map(backend.submit, plans))
    for number, handle in enumerate(handles):
        seen = await until_ended(backend, handle, 60)
        assert (seen.phase, seen.tasks[0].exit_code) == (Phase.FAILED, 7)
        assert (await output(backend, handle))["stderr"] == f"boom {number}\n".encode()


async def test_ends_are_told_by_one_that_came_later(here: DockerHarness) -> None:
    backend = await started(here)
    handles = [await backend.submit(here.plan(Work(code=code))) for code in (0, 3)]
    for handle in handles:
        await until_ended(backend, handle)
    other = await started(here)
    seen = await other.observe(handles)
    assert [seen[handle.key].tasks[0].exit_code for handle in handles] == [0, 3]
    assert all(seen[handle.key].phase in ENDED for handle in handles)
