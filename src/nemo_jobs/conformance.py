# ruff: noqa: S101 - tests
"""What every backend must do, as tests: subclass `BackendConformance` with a `harness` fixture.

The harness builds plans from neutral descriptions of work and lets time pass; the suite never
knows which backend it looks at.
"""

import asyncio
import json
from dataclasses import replace

from nemo_jobs.backends.api import ENDED, Counts, Earlier, Handle, Json, Phase, Rejected, Trims, Watches
from nemo_jobs.conformance_harness import FOREVER, Harness, Waiting, Work
from nemo_jobs.conformance_results import ResultConformance

__all__ = ["FOREVER", "BackendConformance", "Harness", "Work"]

_SECRET = "a-secret-value-that-nobody-may-see"  # noqa: S105


class StartConformance(Waiting):
    """Work is started once."""

    async def test_probe_answers_and_never_raises(self, harness: Harness) -> None:
        backend = await harness.backend()
        health = await backend.probe()
        assert health.ok, health.message
        await backend.aclose()
        await backend.probe()

    async def test_render_is_pure_and_shows_no_secret(self, harness: Harness) -> None:
        backend = await harness.backend()
        plan = harness.plan(Work())
        secret = {"name": "TOKEN", "from_secret": {"name": "token"}}
        spec = {**plan.spec, "environment": [*(plan.spec.get("environment") or []), secret]}
        plan = replace(plan, spec=spec, secret_env={"TOKEN": _SECRET})
        first = backend.render(plan)
        assert first == backend.render(plan)
        assert _SECRET not in json.dumps(first)
        assert harness.starts(plan) == 0

    async def test_submit_twice_is_one(self, harness: Harness) -> None:
        backend = await harness.backend()
        plan = harness.plan(Work(seconds=FOREVER))
        first = await backend.submit(plan)
        assert await backend.submit(plan) == first
        await self.settle(harness, backend, first, {Phase.RUNNING})
        assert await self.started(harness, plan) == 1

    async def test_submit_many_times_at_once_is_one(self, harness: Harness) -> None:
        backend, other = await harness.backend(), await harness.backend()
        plan = harness.plan(Work(seconds=FOREVER))
        handles = await asyncio.gather(*(b.submit(plan) for b in (backend, other) * 4))
        assert all(handle == handles[0] for handle in handles)
        await self.settle(harness, backend, handles[0], {Phase.RUNNING})
        assert await self.started(harness, plan) == 1

    async def test_submit_after_crash_adopts(self, harness: Harness) -> None:
        backend = await harness.backend()
        plan = harness.plan(Work(seconds=0.1, code=3))
        first = await backend.submit(plan)
        other = await harness.backend()
        assert await other.submit(plan) == first
        seen = await self.settle(harness, other, first, ENDED)
        assert (seen.phase, seen.tasks[0].exit_code) == (Phase.FAILED, 3)
        assert harness.starts(plan) == 1

    async def test_submit_after_its_end_is_the_same_and_runs_nothing(self, harness: Harness) -> None:
        backend = await harness.backend()
        plan = harness.plan(Work(code=7))
        first = await backend.submit(plan)
        await self.settle(harness, backend, first, ENDED)
        other = await harness.backend()
        assert await other.submit(plan) == first
        assert (await self.look(other, first)).tasks[0].exit_code == 7
        assert harness.starts(plan) == 1

    async def test_rejected_starts_nothing_and_leaves_nothing(self, harness: Harness) -> None:
        backend = await harness.backend()
        plan = harness.plan(Work(refused=True))
        try:
            await backend.submit(plan)
        except Rejected as error:
            assert str(error)
        else:
            raise AssertionError("the plan was not rejected")
        assert plan.key not in [handle.key async for handle in backend.handles()]
        assert harness.starts(plan) == 0
        assert not harness.has_storage(plan)


class ObserveConformance(Waiting):
    """What is true is seen."""

    async def test_observe_unknown_is_lost(self, harness: Harness) -> None:
        backend = await harness.backend()
        known = await backend.submit(harness.plan(Work(seconds=FOREVER)))
        unknown = replace(known, key="nj-0000000000000000000000-0")
        seen = await backend.observe([unknown, known])
        assert seen[unknown.key].phase is Phase.LOST
        assert seen[known.key].phase in (Phase.WAITING, Phase.RUNNING)

    async def test_observe_looks_at_many_at_once(self, harness: Harness) -> None:
        backend = await harness.backend()
        codes = {(await backend.submit(harness.plan(Work(code=code)))).key: code for code in range(12)}
        handles = [handle async for handle in backend.handles() if handle.key in codes]
        for handle in handles:
            await self.settle(harness, backend, handle, ENDED)
        other = await harness.backend()
        seen = await other.observe(handles)
        assert {key: observation.tasks[0].exit_code for key, observation in seen.items()} == codes
        assert await other.observe([]) == {}

    async def test_exit_code(self, harness: Harness) -> None:
        backend = await harness.backend()
        for code, phase in ((0, Phase.SUCCEEDED), (1, Phase.FAILED), (255, Phase.FAILED)):
            handle = await backend.submit(harness.plan(Work(code=code)))
            seen = await self.settle(harness, backend, handle, ENDED)
            task = seen.tasks[0]
            assert (seen.phase, task.phase, task.exit_code, task.signal) == (phase, phase, code, None)
            assert task.started_at is not None
            assert task.ended_at is not None
            assert task.started_at <= task.ended_at
            assert (task.rank, bool(task.name), bool(task.native_id)) == (0, True, True)

    async def test_signal_is_128_plus_its_number_with_its_name(self, harness: Harness) -> None:
        backend = await harness.backend()
        for code, name in ((137, "SIGKILL"), (139, "SIGSEGV")):
            handle = await backend.submit(harness.plan(Work(code=code)))
            seen = await self.settle(harness, backend, handle, ENDED)
            assert seen.phase is Phase.FAILED
            assert (seen.tasks[0].exit_code, seen.tasks[0].signal) == (code, name)

    async def test_running_is_seen_with_its_start(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(seconds=FOREVER)))
        seen = await self.settle(harness, backend, handle, {Phase.RUNNING})
        task = seen.tasks[0]
        assert task.started_at is not None
        assert (task.exit_code, task.ended_at, task.error_stack) == (None, None, None)

    async def test_error_stack_is_there_after_a_failure_only(self, harness: Harness) -> None:
        backend = await harness.backend()
        failed = await backend.submit(harness.plan(Work(code=1, stderr=b"first\nlast words\n")))
        good = await backend.submit(harness.plan(Work(code=0, stderr=b"a warning\n")))
        stack = (await self.settle(harness, backend, failed, ENDED)).tasks[0].error_stack
        assert stack is not None
        assert "last words" in stack
        assert len(stack) <= 2048
        assert (await self.settle(harness, backend, good, ENDED)).tasks[0].error_stack is None


class StopConformance(Waiting):
    """Work ends when it is asked to, and nothing of it stays."""

    async def test_stop_returns_at_once_and_the_end_follows(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(seconds=FOREVER)))
        await self.settle(harness, backend, handle, {Phase.RUNNING})
        await asyncio.wait_for(backend.stop(handle, 60.0), 5.0)
        seen = await self.settle(harness, backend, handle, ENDED)
        assert seen.phase is Phase.STOPPED
        if harness.tells_stop_code:
            assert (seen.tasks[0].exit_code, seen.tasks[0].signal) == (143, "SIGTERM")

    async def test_stop_grace_comes_before_force(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(seconds=FOREVER, ignores_stop=True)))
        await self.settle(harness, backend, handle, {Phase.RUNNING})
        await harness.wait(0.1)
        await backend.stop(handle, 0.5)
        await harness.wait(0.2)
        assert (await self.look(backend, handle)).phase is Phase.RUNNING
        seen = await self.settle(harness, backend, handle, ENDED)
        assert seen.phase is Phase.STOPPED
        if harness.tells_stop_code:
            assert (seen.tasks[0].exit_code, seen.tasks[0].signal) == (137, "SIGKILL")

    async def test_stop_twice_and_after_the_end_and_of_an_unknown_one(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(seconds=FOREVER)))
        await backend.stop(handle, 5.0)
        await backend.stop(handle, 5.0)
        seen = await self.settle(harness, backend, handle, ENDED)
        await backend.stop(handle, 5.0)
        after = await self.look(backend, handle)
        assert (after.phase, after.tasks) == (Phase.STOPPED, seen.tasks)
        await backend.stop(replace(handle, key="nj-0000000000000000000000-1"), 5.0)

    async def test_an_end_before_the_stop_counts_as_such(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(code=5)))
        await self.settle(harness, backend, handle, ENDED)
        await backend.stop(handle, 5.0)
        seen = await self.look(backend, handle)
        assert (seen.phase, seen.tasks[0].exit_code) == (Phase.FAILED, 5)

    async def test_remove_frees_all(self, harness: Harness) -> None:
        backend = await harness.backend()
        plan = harness.plan(Work(stdout=b"text\n"))
        handle = await backend.submit(plan)
        await self.settle(harness, backend, handle, ENDED)
        await backend.remove(handle)
        assert handle not in [each async for each in backend.handles()]
        assert (await self.look(backend, handle)).phase is Phase.LOST
        assert harness.has_storage(plan)
        await backend.remove(handle, wipe_storage=True)
        assert not harness.has_storage(plan)
        await backend.remove(handle, wipe_storage=True)

    async def test_storage_goes_to_the_attempt_that_takes_it_over(self, harness: Harness) -> None:
        backend = await harness.backend()
        old = harness.plan(Work())
        handle = await backend.submit(old)
        await self.settle(harness, backend, handle, ENDED)
        earlier = (Earlier(old.attempt_id, handle),)
        new = replace(harness.plan(Work()), earlier=earlier, needs_storage=True)
        for _ in range(2):
            taken = await backend.submit(new)
        await self.settle(harness, backend, taken, ENDED)
        assert (harness.has_storage(old), harness.has_storage(new)) == (False, True)
        await backend.remove(handle)
        assert harness.has_storage(new)
        await backend.remove(taken, wipe_storage=True)
        assert not harness.has_storage(new)
        try:
            await backend.submit(replace(harness.plan(Work()), earlier=earlier, needs_storage=True))
        except Rejected as error:
            assert "storage" in str(error)
        else:
            raise AssertionError("it started without the storage that it needs")

    async def test_remove_of_a_running_one_ends_it_by_force(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(seconds=FOREVER, ignores_stop=True)))
        await self.settle(harness, backend, handle, {Phase.RUNNING})
        await backend.remove(handle, wipe_storage=True)
        assert (await self.look(backend, handle)).phase is Phase.LOST
        assert handle not in [each async for each in backend.handles()]


class LogConformance(Waiting):
    """Output is read from the first byte to the last."""

    async def test_logs_are_every_byte_of_both_streams(self, harness: Harness) -> None:
        backend = await harness.backend()
        work = Work(stdout=b"one\n\ntwo\r\nno end", stderr=b"\x1b[31mred\n", code=1)
        handle = await backend.submit(harness.plan(work))
        text = await self.read(harness, backend, handle, None)
        assert text == {"stdout": work.stdout, "stderr": work.stderr}
        assert await self.read(harness, backend, handle, None) == text

    async def test_logs_come_while_it_runs(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(seconds=FOREVER, stdout=b"early\n")))
        reader = asyncio.ensure_future(anext(aiter(backend.logs(handle, None))))
        piece = await self.passing(harness, reader)
        assert (piece.stream, piece.data) == ("stdout", b"early\n")
        assert (await self.look(backend, handle)).phase is Phase.RUNNING

    async def test_logs_resume_without_hole(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(seconds=0.5, lines=10, stderr=b"aside\n")))
        cursors: list[tuple[Json | None, bytes]] = [(None, b"")]
        read = b""
        async for piece in self.pieces(harness, backend, handle, None):
            read += piece.data if piece.stream == "stdout" else b""
            cursors.append((json.loads(json.dumps(piece.cursor)), read))
        other = await harness.backend()
        whole = b"".join(b"line %d\n" % number for number in range(10))
        for cursor, before in cursors:
            rest = await self.read(harness, other, handle, cursor)
            assert before + rest["stdout"] == whole

    async def test_logs_split_utf8_is_passed_on_as_bytes(self, harness: Harness) -> None:
        backend = await harness.backend()
        text = "ok\n▁▂▃\n".encode()
        handle = await backend.submit(harness.plan(Work(stdout=text)))
        assert (await self.read(harness, backend, handle, None))["stdout"] == text

    async def test_logs_of_something_unknown_end(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work(stdout=b"text\n")))
        await self.settle(harness, backend, handle, ENDED)
        await backend.remove(handle)
        assert await self.read(harness, backend, handle, None) == {"stdout": b"", "stderr": b""}


class RestConformance(Waiting):
    """Work outlives whoever started it."""

    async def test_survives_aclose(self, harness: Harness) -> None:
        backend = await harness.backend()
        plan = harness.plan(Work(seconds=0.4, code=9, lines=4))
        handle = await backend.submit(plan)
        await backend.aclose()
        await backend.aclose()
        other = await harness.backend()
        assert (await self.look(other, handle)).phase in (Phase.WAITING, Phase.RUNNING)
        seen = await self.settle(harness, other, handle, ENDED)
        assert (seen.phase, seen.tasks[0].exit_code) == (Phase.FAILED, 9)
        text = await self.read(harness, other, handle, None)
        assert text["stdout"] == b"line 0\nline 1\nline 2\nline 3\n"
        assert harness.starts(plan) == 1

    async def test_handles_lists_orphans(self, harness: Harness) -> None:
        backend = await harness.backend()
        running = await backend.submit(harness.plan(Work(seconds=FOREVER)))
        ended = await backend.submit(harness.plan(Work()))
        await self.settle(harness, backend, ended, ENDED)
        other = await harness.backend()
        found = [handle async for handle in other.handles()]
        assert running in found
        assert ended in found

    async def test_handles_are_small_json(self, harness: Harness) -> None:
        backend = await harness.backend()
        handle = await backend.submit(harness.plan(Work()))
        text = json.dumps(handle.to_json())
        assert len(text) < 4096
        assert Handle.from_json(json.loads(text)) == handle
        assert (handle.backend, bool(handle.data)) == (backend.name, True)

    async def test_changes_hint_every_end(self, harness: Harness) -> None:
        backend = await harness.backend()
        if not isinstance(backend, Watches):
            return
        hints = aiter(backend.changes())
        reading = asyncio.ensure_future(anext(hints))
        await asyncio.sleep(0)
        handle = await backend.submit(harness.plan(Work(seconds=0.1)))
        while (await self.look(backend, handle)).phase not in ENDED:
            # Hints of other work may come as well; one of this work must.
            while await self.passing(harness, reading) != handle.key:
                reading = asyncio.ensure_future(anext(hints))
            reading = asyncio.ensure_future(anext(hints))
        reading.cancel()

    async def test_trim_keeps_what_comes_after(self, harness: Harness) -> None:
        backend = await harness.backend()
        if not isinstance(backend, Trims):
            return
        handle = await backend.submit(harness.plan(Work(seconds=0.2, lines=4, stderr=b"aside\n")))
        pieces = [piece async for piece in self.pieces(harness, backend, handle, None)]
        await backend.trim(handle, pieces[0].cursor)
        rest = await self.read(harness, backend, handle, pieces[0].cursor)
        for stream in ("stdout", "stderr"):
            assert rest[stream] == b"".join(piece.data for piece in pieces[1:] if piece.stream == stream)

    async def test_running_counts_what_runs(self, harness: Harness) -> None:
        backend = await harness.backend()
        if not isinstance(backend, Counts):
            return
        assert backend.running() == 0
        handle = await backend.submit(harness.plan(Work(seconds=FOREVER)))
        other = await harness.backend()
        assert isinstance(other, Counts)
        assert (backend.running(), other.running()) == (1, 1)
        await backend.stop(handle, 5.0)
        await self.settle(harness, backend, handle, ENDED)
        assert backend.running() == 0


class BackendConformance(
    StartConformance, ObserveConformance, StopConformance, LogConformance, ResultConformance, RestConformance
):
    """The promises of `nemo_jobs.backends.api`, one test each."""
