"""Following a log over a real connection."""

import asyncio
import contextlib
import json
import socket

import httpx2
import pytest

from tests.http.kit import JOBS, limits, open_service, served, steps_named

STREAM = f"{JOBS}/moth/logs/stream"
TASK = "task-" + "a" * 32


class Reader:
    """Reads server-sent events of one connection."""

    def __init__(self, answer):
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def event(self, seconds=5):
        """The next event as (name, id, data), or (None, None, None) at the end."""
        async with asyncio.timeout(seconds):
            name, ident, data = "message", None, []
            async for line in self._lines:
                if line.startswith(":"):
                    return "comment", None, line[1:].strip()
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("id: "):
                    ident = int(line[4:])
                elif line.startswith("data: "):
                    data.append(line[6:])
                elif not line and data:
                    return name, ident, json.loads("\n".join(data))
            return None, None, None

    async def events(self):
        found = []
        while (event := await self.event())[0] is not None:
            found.append(event)
        return found


@contextlib.asynccontextmanager
async def follow(port, path=STREAM, headers=None, **params):
    address = f"http://127.0.0.1:{port}"
    async with (
        httpx2.AsyncClient(base_url=address, timeout=10) as client,
        client.stream("GET", path, params=params, headers=headers or {}) as answer,
    ):
        yield Reader(answer)


@pytest.fixture
async def running(tmp_path):
    async with open_service(tmp_path) as service, served(service.app) as port:
        service.port = port
        yield service


def lines(events):
    return [(ident, data["message"]) for name, ident, data in events if name == "message"]


async def test_a_finished_log_is_sent_whole_and_ends_with_the_status(running):
    await running.create()
    step = await running.start(lines=[("stdout", str(n)) for n in range(2500)], task=TASK)
    await running.finish(step)
    async with follow(running.port) as reader:
        assert reader.answer.headers["content-type"].startswith("text/event-stream")
        events = await reader.events()
    assert lines(events) == [(n, str(n)) for n in range(2500)]
    name, _ident, data = events[-1]
    assert (name, data["status"], data["reason"]["code"]) == ("end", "completed", "finished")
    assert set(events[1][2]) == {"timestamp", "job", "job_step", "job_task", "message"}


async def test_lines_come_as_they_are_stored_and_changes_of_state_are_told(running):
    await running.create()
    async with follow(running.port) as reader:
        assert (await reader.event())[2]["status"] == "created"
        step = await running.start(lines=[("stdout", "one")], task=TASK)
        told = [await reader.event(), await reader.event()]
        assert [(name, ident) for name, ident, _ in told] == [("status", None), ("message", 0)]
        assert told[0][2]["status"] == "active"
        await running.apply(step, lines=[("stderr", "two")], task=TASK)
        name, ident, data = await reader.event()
        assert (name, ident, data["message"]) == ("message", 1, "[stderr] two")
        await running.finish(step)
        rest = await reader.events()
        assert [name for name, _, _ in rest] == ["status", "end"]


@pytest.mark.parametrize(
    ("headers", "params", "first"),
    [
        ({}, {"after": 2}, 3),
        ({"last-event-id": "2"}, {}, 3),
        ({"last-event-id": "3"}, {"after": 0}, 4),
        ({"last-event-id": "3"}, {"tail": 5}, 4),
        ({}, {"tail": 2}, 8),
        ({}, {"tail": 100}, 0),
        ({}, {"after": 10**9}, None),
    ],
)
async def test_a_reader_goes_on_behind_the_last_line_it_got(running, headers, params, first):
    await running.create()
    step = await running.start(lines=[("stdout", str(n)) for n in range(10)], task=TASK)
    await running.finish(step)
    async with follow(running.port, headers=headers, **params) as reader:
        found = lines(await reader.events())
    assert found == ([] if first is None else [(n, str(n)) for n in range(first, 10)])


async def test_a_step_is_followed_alone(running):
    await running.create(platform_spec=steps_named("one", "two"))
    for task in ("task-one", "task-two"):
        step = await running.start(lines=[("stdout", task)], task=task)
        await running.finish(step)
    async with follow(running.port, step_id="two") as reader:
        assert lines(await reader.events()) == [(1, "task-two")]


@pytest.mark.parametrize(
    ("headers", "params", "status"),
    [
        ({"last-event-id": "x"}, {}, 422),
        ({"last-event-id": "-1"}, {}, 422),
        ({"last-event-id": "9" * 30}, {}, 422),
        ({}, {"after": "-1"}, 422),
        ({}, {"after": 1, "tail": 1}, 400),
        ({}, {"tail": 0}, 422),
        ({}, {"step_id": "nope"}, 404),
        ({}, {"attempt_id": "9"}, 404),
        ({}, {"attempt_id": "x"}, 422),
    ],
)
async def test_what_does_not_fit_is_told_before_the_stream_begins(running, headers, params, status):
    await running.create()
    async with follow(running.port, headers=headers, **params) as reader:
        assert reader.answer.status_code == status
        assert "detail" in json.loads(await reader.answer.aread())


async def test_the_stream_of_a_missing_job_is_404(running):
    async with follow(running.port, f"{JOBS}/mole/logs/stream") as reader:
        assert reader.answer.status_code == 404


async def test_a_deleted_job_ends_the_stream(running):
    await running.create()
    async with follow(running.port) as reader:
        await reader.event()
        await running.client.post(f"{JOBS}/moth/cancel")
        assert (await reader.event())[2]["status"] == "cancelled"
        assert (await reader.event())[0] == "end"


async def test_a_silent_log_has_a_heartbeat(tmp_path):
    from nemo_jobs.clock import SystemClock

    quick = limits(heartbeat=0.05)
    async with (
        open_service(tmp_path, limits=quick, clock=SystemClock()) as service,
        served(service.app) as port,
    ):
        await service.create()
        async with follow(port) as reader:
            assert (await reader.event())[0] == "status"
            for _ in range(3):
                assert await reader.event() == ("comment", None, "heartbeat")


async def test_too_many_followers_are_told_to_come_later(tmp_path):
    async with open_service(tmp_path, limits=limits(followers=2)) as service, served(service.app) as port:
        await service.create()
        async with follow(port) as one, follow(port) as two:
            await one.event()
            await two.event()
            async with follow(port) as three:
                assert three.answer.status_code == 503
                assert "retry-after" in three.answer.headers
                assert "2 clients" in json.loads(await three.answer.aread())["detail"]
        async with asyncio.timeout(5):
            while len(service.app._streams):
                await asyncio.sleep(0.01)
        async with follow(port) as again:
            assert (await again.event())[0] == "status"


async def test_a_reader_that_stops_reading_is_dropped_and_can_go_on(tmp_path):
    """Nothing is kept for it but what the connection holds."""
    async with open_service(tmp_path, limits=limits(patience=0.2)) as service, served(service.app) as port:
        await service.create()
        text = "x" * 1000
        step = await service.start(lines=[("stdout", text)] * 4000, task=TASK)
        await service.finish(step)
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        narrow.connect(("127.0.0.1", port))
        narrow.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=narrow, limit=1 << 14)
        writer.write(f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        async with asyncio.timeout(10):
            while not len(service.app._streams):
                await asyncio.sleep(0.01)
            while len(service.app._streams):
                await asyncio.sleep(0.01)
        got = (await asyncio.wait_for(reader.read(-1), 10)).decode()
        writer.close()
        last = int(got.rpartition("\nid: ")[2].partition("\n")[0])
        assert "event: end" not in got
        whole = got.count('"message"') - (0 if got.endswith("\n\n") else 1)
        async with follow(port, after=whole - 1) as again:
            rest = lines(await again.events())
        assert whole <= last + 1
        assert [ident for ident, _ in rest] == list(range(whole, 4000))


async def test_a_client_that_leaves_frees_its_place(running):
    await running.create()
    async with follow(running.port) as reader:
        await reader.event()
        assert len(running.app._streams) == 1
    async with asyncio.timeout(5):
        while len(running.app._streams):
            await asyncio.sleep(0.01)


async def test_stopping_ends_streams_without_an_end_event(running):
    await running.create()
    async with follow(running.port) as reader:
        await reader.event()
        running.app.stop()
        assert await reader.events() == []


async def test_twenty_followers_see_the_same(running):
    await running.create()

    async def one():
        async with follow(running.port) as reader:
            return lines(await reader.events())

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(one()) for _ in range(20)]
        async with asyncio.timeout(10):
            while len(running.app._streams) < 20:
                await asyncio.sleep(0.01)
        step = await running.start(lines=[("stdout", "0")], task=TASK)
        for number in range(1, 50):
            await running.apply(step, lines=[("stdout", str(number))], task=TASK)
        await running.finish(step)
    assert [reader.result() for reader in readers] == [[(n, str(n)) for n in range(50)]] * 20
