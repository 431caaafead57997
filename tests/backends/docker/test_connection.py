"""What an engine, or something between, may do to a connection: each way ends in bounded time with a
sentence, and leaves nothing open."""

import asyncio
import gc
import json
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nemo_jobs.backends.docker import connection, session, stream
from nemo_jobs.backends.docker.calls import DockerEngine
from nemo_jobs.backends.docker.errors import EngineAway, EngineError
from nemo_jobs.backends.docker.pool import Kind
from tests.backends.docker.engine_kit import (
    CHUNKED,
    LAST,
    Asked,
    answer,
    chunk,
    connections,
    says,
    served,
    until,
)


async def test_connections_are_kept_and_used_again(tmp_path: Path) -> None:
    async with served(tmp_path, says(answer(200, b'{"Id":"a"}'))) as (server, engine):
        for _ in range(50):
            assert await engine.inspect("a") == {"Id": "a"}
        assert server.connections == 1


async def test_many_calls_share_a_bounded_number_of_connections(tmp_path: Path) -> None:
    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.005)
        writer.write(answer(200))

    async with served(tmp_path, slow) as (server, engine):
        await asyncio.gather(*(engine.inspect(f"c{number}") for number in range(300)))
        assert server.most_open <= Kind.CALL.value
        assert connections(engine) <= Kind.CALL.value


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"hello, who is there?\r\n\r\n", "isn't an answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n", "isn't an answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "isn't an answer"),
        (CHUNKED + chunk(b"{"), "broke off"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "endless head"),
        (b"", "broke off"),
        (answer(200, b"not json"), "isn't JSON"),
        (answer(200, b"[" * 100_000), "isn't JSON"),
        (answer(200, b"[]"), "isn't an object"),
        (answer(200, b"\xff\xfe"), "isn't JSON"),
    ],
)
async def test_what_is_no_answer_is_told_as_such(tmp_path: Path, said: bytes, words: str) -> None:
    async def once(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    async with served(tmp_path, once) as (server, engine):
        with pytest.raises(EngineAway, match=words) as caught:
            await engine.info()
        assert caught.value.sent
        await until(lambda: server.open <= 1)  # the one that was asked for the version may be kept
        with pytest.raises(EngineAway):
            await engine.version()


async def test_bytes_that_nobody_asked_for_end_a_connection(tmp_path: Path) -> None:
    async with served(tmp_path, says(answer(200, b"{}") + answer(200, b'{"Id":"stolen"}'))) as (_, engine):
        for _ in range(4):
            with pytest.raises(EngineAway, match="two answers to one call"):
                await engine.inspect("a")
        assert connections(engine) == 0


async def test_bytes_that_come_after_an_answer_end_a_connection(tmp_path: Path) -> None:
    late = asyncio.Event()

    async def twice(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(200, b'{"Id":"right"}'))
        await writer.drain()
        await late.wait()
        writer.write(answer(200, b'{"Id":"stolen"}'))

    async with served(tmp_path, twice) as (_, engine):
        assert await engine.inspect("a") == {"Id": "right"}
        late.set()
        await until(lambda: connections(engine) == 0)


async def test_an_interim_answer_is_passed_over(tmp_path: Path) -> None:
    said = b"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\n" + answer(200, b'{"ID":"x"}')
    async with served(tmp_path, says(said)) as (_, engine):
        assert await engine.info() == {"ID": "x"}


async def test_a_body_may_end_with_its_connection(tmp_path: Path) -> None:
    async def old(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.0 200 OK\r\n\r\n{"ID":"old"}')
        await writer.drain()
        writer.close()

    async with served(tmp_path, old) as (_, engine):
        assert await engine.info() == {"ID": "old"}


async def test_a_head_and_a_body_may_come_byte_by_byte(tmp_path: Path) -> None:
    said = CHUNKED + chunk(b'{"ID":') + chunk(b'"slow"}') + LAST
    async with served(tmp_path, says(*(said[at : at + 1] for at in range(len(said))))) as (_, engine):
        assert await engine.info() == {"ID": "slow"}


@pytest.mark.parametrize("size", [20, 70_000, 10_000_000])
async def test_an_error_of_any_length_is_one_line(tmp_path: Path, size: int) -> None:
    body = json.dumps({"message": "it is\nbroken: " + "x" * size}).encode()
    async with served(tmp_path, says(answer(500, body))) as (_, engine):
        with pytest.raises(EngineError) as caught:
            await engine.info()
        assert caught.value.status == 500
        assert len(caught.value.message) <= 1000
        assert "\n" not in caught.value.message
        assert "it is" in caught.value.message


async def test_an_answer_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_ANSWER", 1 << 20)

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(chunk(b" " * 65536))
            await writer.drain()

    async with served(tmp_path, endless) as (server, engine):
        with pytest.raises(EngineAway, match="longer than 1 MiB"):
            await engine.info()
        await until(lambda: server.open <= 1)


async def test_a_call_that_isn_t_answered_ends_in_time(tmp_path: Path) -> None:
    async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with served(tmp_path, silent) as (server, engine):
        with pytest.raises(EngineAway, match=r"did not answer GET /_ping within 0\.1 s") as caught:
            await engine.ping(0.1)
        assert caught.value.sent
        await until(lambda: server.open == 0)
        assert connections(engine) == 0


async def test_a_call_that_waits_for_a_place_ends_in_time_too(tmp_path: Path) -> None:
    async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with served(tmp_path, silent) as (server, engine):
        tries = [engine.ping(0.3) for _ in range(Kind.CALL.value * 3)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert all(isinstance(result, EngineAway) for result in results)
        assert server.most_open <= Kind.CALL.value
        await until(lambda: server.open == 0)


async def test_a_body_that_drips_is_cut_at_the_deadline(tmp_path: Path) -> None:
    async def drip(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with served(tmp_path, drip) as (server, engine):
        with pytest.raises(EngineAway, match="did not answer"):
            await engine.ping(0.2)
        await until(lambda: server.open == 0)


async def test_a_cancelled_call_leaves_no_connection_and_no_place(tmp_path: Path) -> None:
    async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "/json" in asked.line:
            writer.write(answer(200))
        else:
            await asyncio.sleep(60)

    async with served(tmp_path, silent) as (server, engine):
        for _ in range(3):
            tasks = [asyncio.create_task(engine.ping(30)) for _ in range(Kind.CALL.value + 5)]
            await until(lambda: server.open >= Kind.CALL.value)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(lambda: server.open == 0)
        assert connections(engine) == 0
        assert await engine.inspect("a") == {}


async def test_a_call_is_sent_again_when_a_kept_connection_is_dead(tmp_path: Path) -> None:
    answered = 0

    async def one_each(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        if asked.heads.get("x") or answered % 2:
            writer.transport.abort()  # the second call on it finds nobody
            answered += 1
            return
        answered += 1
        writer.write(answer(200, b'{"ID":"x"}'))

    async with served(tmp_path, one_each) as (_, engine):
        for _ in range(5):
            assert await engine.info() == {"ID": "x"}
        with pytest.raises(EngineAway) as caught:
            await engine.kill("a")  # a signal is never sent twice
        assert caught.value.sent


async def test_nobody_there_is_told_as_such(tmp_path: Path) -> None:
    async with await DockerEngine.open(f"unix://{tmp_path}/no.sock") as engine:
        with pytest.raises(EngineAway, match="no such socket file") as caught:
            await engine.ping()
        assert not caught.value.sent
    (tmp_path / "file").touch()
    async with await DockerEngine.open(f"unix://{tmp_path}/file") as engine:
        with pytest.raises(EngineAway, match="nothing listens there"):
            await engine.ping()


async def test_an_engine_that_takes_no_connections_is_told_as_such(tmp_path: Path) -> None:
    """Its queue fills up while it stands still: what is beyond looks connected and isn't."""
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(str(tmp_path / "s"))
        full.listen(0)
        async with await DockerEngine.open(f"unix://{tmp_path}/s") as engine:
            results = await asyncio.gather(*(engine.ping(0.3) for _ in range(20)), return_exceptions=True)
            assert all(isinstance(result, EngineAway) for result in results)
            assert sum("takes no more connections" in str(result) for result in results) > 10
            assert connections(engine) == 0


async def test_a_long_path_of_a_socket_works(tmp_path: Path) -> None:
    folder = tmp_path / ("long-" + "x" * 100)
    folder.mkdir()
    short = tmp_path / "s"
    async with served(tmp_path, says(answer(200, b'{"ID":"x"}'))) as (server, _):
        server.path.rename(folder / "docker.sock")
        async with await DockerEngine.open(f"unix://{folder}/docker.sock") as engine:
            assert await engine.info() == {"ID": "x"}
    assert not short.exists()


async def test_a_closed_client_says_so_and_ends_what_is_read(tmp_path: Path) -> None:
    async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        await writer.drain()
        await asyncio.sleep(60)

    async with served(tmp_path, silent) as (server, engine):
        events = engine.events({})
        reading = asyncio.create_task(events.__anext__())
        await until(lambda: any("/events" in line for line in server.lines))
        await asyncio.sleep(0.05)
        await engine.aclose()
        with pytest.raises(EngineAway):
            await reading
        with pytest.raises(EngineAway, match="was closed"):
            await engine.ping()
        await until(lambda: server.open == 0)


async def test_what_lasts_long_leaves_room_for_looks(tmp_path: Path) -> None:
    async def busy(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.line.startswith("POST"):
            await asyncio.sleep(60)
        writer.write(answer(200))

    async with served(tmp_path, busy) as (server, engine):
        slow = [engine.start("a") for _ in range(Kind.WORK.value + 5)]
        slow += [engine.stop("a", 30) for _ in range(100)]
        tasks = [asyncio.create_task(one) for one in slow]
        await until(lambda: server.open >= Kind.WORK.value + 100)
        assert await engine.inspect("a") == {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: server.open <= 1)


# Streams


async def test_a_cancelled_read_of_a_stream_loses_nothing(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def later(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for number in range(5):
            await go.wait()
            go.clear()
            writer.write(chunk(b"%d" % number))
            await writer.drain()
        writer.write(LAST)

    async with served(tmp_path, later) as (_, engine):
        got = b""
        async with engine.logs("a") as logs:
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await logs.__anext__()
                go.set()
                got += await logs.__anext__()
            with pytest.raises(StopAsyncIteration):
                await logs.__anext__()
            with pytest.raises(StopAsyncIteration):
                await logs.__anext__()
        assert got == b"01234"


async def test_a_stream_that_is_left_early_closes_its_connection(tmp_path: Path) -> None:
    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(chunk(b"x" * 1000))
            await writer.drain()

    async with served(tmp_path, endless) as (server, engine):
        async with engine.logs("a") as logs:
            assert await logs.__anext__()
        await until(lambda: server.open == 0)
        logs = engine.logs("a")
        assert await logs.__anext__()
        await until(lambda: server.open == 1)
        del logs  # let go without a word
        gc.collect()
        await until(lambda: server.open == 0)
        assert connections(engine) == 0


async def test_a_reader_that_is_slow_holds_little(tmp_path: Path) -> None:
    sent = 0

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(CHUNKED)
        while True:
            writer.write(chunk(b"x" * 65536))
            await writer.drain()
            sent += 65536

    async with served(tmp_path, endless) as (_, engine), engine.logs("a") as logs:
        await asyncio.sleep(0.5)
        assert sent < 8 << 20
        before, got = sent, 0
        while got < 32 << 20:
            got += len(await logs.__anext__())
        assert sent > before


async def test_a_stream_that_ends_in_the_middle_is_told_as_such(tmp_path: Path) -> None:
    async def cut(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"some") + b"ff\r\nof it")
        await writer.drain()
        writer.close()

    async with served(tmp_path, cut) as (_, engine):
        got = b""
        with pytest.raises(EngineAway, match="broke off"):
            async for piece in engine.logs("a"):
                got += piece
        assert got == b"someof it"


async def test_a_stream_is_refused_with_the_engine_s_reason(tmp_path: Path) -> None:
    body = json.dumps({"message": "No such container: a"}).encode()
    async with served(tmp_path, says(answer(404, body))) as (_, engine):
        for made in (engine.logs("a"), engine.get_archive("a", "/x"), engine.events({}), engine.wait("a")):
            with pytest.raises(EngineError, match="No such container: a") as caught:
                await made.__anext__()
            assert caught.value.missing
        assert connections(engine) == 1


async def test_an_archive_that_stops_coming_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nemo_jobs.backends.docker.calls_containers.MOVING", 0.1)

    async def stuck(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + chunk(b"begin"))
        await writer.drain()
        await asyncio.sleep(60)

    async with served(tmp_path, stuck) as (server, engine):
        archive = engine.get_archive("a", "/x")
        assert await archive.__anext__() == b"begin"
        with pytest.raises(EngineAway, match="nothing came"):
            await archive.__anext__()
        await until(lambda: server.open <= 1)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b'{"a":1}\nnonsense\n', "isn't a JSON object"),
        (b'{"a":1}\n[1]\n', "isn't a JSON object"),
        (b'{"a":1}\n{"b":', "isn't a JSON object"),
    ],
)
async def test_events_that_are_none_are_told_as_such(tmp_path: Path, said: bytes, words: str) -> None:
    async with served(tmp_path, says(CHUNKED + chunk(said) + LAST)) as (_, engine):
        with pytest.raises(EngineAway, match=words):
            async for _ in engine.events({}):
                pass


async def test_an_event_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_OBJECT", 1 << 20)
    async with served(tmp_path, says(CHUNKED, *([chunk(b"x" * 65536)] * 20))) as (server, engine):
        with pytest.raises(EngineAway, match="more than 1 MiB"):
            await engine.events({}).__anext__()
        await until(lambda: server.open <= 1)


async def test_events_may_be_cut_anywhere(tmp_path: Path) -> None:
    text = b"".join(json.dumps({"n": n, "t": "ü\\n"}).encode() + b"\r\n" for n in range(50))
    said = [CHUNKED, *(chunk(text[at : at + 7]) for at in range(0, len(text), 7)), LAST]
    async with served(tmp_path, says(*said)) as (_, engine):
        assert [event["n"] async for event in engine.events({})] == list(range(50))


# What is sent


async def pieces(number: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield b"x" * 100_000


async def test_a_refused_upload_tells_why_and_sends_no_more(tmp_path: Path) -> None:
    body = json.dumps({"message": "no room"}).encode()

    async def refuse(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(507, body, "Connection: close"))
        await writer.drain()
        for _ in range(100):  # as engines do: read on for a moment, then close
            await asyncio.sleep(0.001)
            await asked.reader.read(100_000)
        writer.close()

    async with served(tmp_path, refuse) as (server, engine):
        taken = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal taken
            async for piece in pieces(1000):
                taken += 1
                yield piece

        with pytest.raises(EngineError, match="no room") as caught:
            await engine.put_archive("a", "/", counted())
        assert caught.value.status == 507
        assert taken < 500
        await until(lambda: server.open <= 1)


async def test_an_upload_that_nobody_takes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_MOVING", 0.1)

    async def deaf(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with served(tmp_path, deaf) as (server, engine):
        with pytest.raises(EngineAway, match="took nothing"):
            await engine.put_archive("a", "/", pieces(100))
        await until(lambda: server.open <= 1)


async def test_a_fault_of_the_one_who_uploads_closes_the_connection(tmp_path: Path) -> None:
    async def deaf(asked: Asked, writer: asyncio.StreamWriter) -> None:
        while await asked.reader.read(65536):
            pass

    async def broken() -> AsyncIterator[bytes]:
        yield b"begin"
        raise OSError("the file is gone")

    async with served(tmp_path, deaf) as (server, engine):
        with pytest.raises(OSError, match="the file is gone"):
            await engine.put_archive("a", "/", broken())
        await until(lambda: server.open <= 1)


# Versions


@pytest.mark.parametrize(
    ("theirs", "spoken"),
    [("1.41", (1, 41)), ("1.44", (1, 44)), ("1.51", (1, 51)), ("1.54", (1, 51)), ("2.3", (1, 51))],
)
async def test_the_lower_of_both_versions_is_spoken(
    tmp_path: Path, theirs: str, spoken: tuple[int, int]
) -> None:
    async with served(tmp_path, says(answer(200))) as (server, engine):
        server.version = json.dumps({"ApiVersion": theirs, "MinAPIVersion": "1.24"}).encode()
        assert await engine.api() == spoken
        await engine.info()
        assert server.lines[-1].startswith(f"GET /v{spoken[0]}.{spoken[1]}/info ")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"ApiVersion": "1.40", "MinAPIVersion": "1.12"},
            "speaks API 1.12 to 1.40, this service 1.41 to 1.51",
        ),
        ({"ApiVersion": "1.60", "MinAPIVersion": "1.52"}, "speaks API 1.52 to 1.60"),
        ({"ApiVersion": "new"}, "no Docker engine"),
        ({}, "no Docker engine"),
        ({"ApiVersion": 7}, "no Docker engine"),
    ],
)
async def test_an_engine_that_is_too_old_or_none_is_told_as_such(
    tmp_path: Path, said: dict[str, object], words: str
) -> None:
    async with served(tmp_path, says(answer(200))) as (server, engine):
        server.version = json.dumps(said).encode()
        with pytest.raises(EngineAway, match=words):
            await engine.info()


async def test_an_older_engine_that_takes_over_is_asked_for_its_version_again(tmp_path: Path) -> None:
    refusal = b'{"message":"client version 1.51 is too new. Maximum supported API version is 1.41"}'

    async def old(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(400, refusal) if "/v1.51/" in asked.line else answer(200, b'{"ID":"x"}'))

    async with served(tmp_path, old) as (server, engine):
        server.version = b'{"ApiVersion":"1.51","MinAPIVersion":"1.24"}'
        assert await engine.api() == (1, 51)
        server.version = b'{"ApiVersion":"1.41","MinAPIVersion":"1.12"}'
        assert await engine.info() == {"ID": "x"}
        assert await engine.api() == (1, 41)


async def test_many_first_calls_ask_for_the_version_once(tmp_path: Path) -> None:
    async with served(tmp_path, says(answer(200))) as (server, engine):
        await asyncio.gather(*(engine.info() for _ in range(40)))
        assert sum(line.startswith("GET /version ") for line in server.lines) == 1


@pytest.mark.parametrize("name", ["a/../b", "a?b=c", "a b", "a\r\nX-Evil: 1", "ü", "%2e%2e", "a#b"])
async def test_names_stay_one_part_of_the_path(tmp_path: Path, name: str) -> None:
    async with served(tmp_path, says(answer(200))) as (server, engine):
        await engine.inspect(name)
        path = server.lines[-1].split(" ")[1]
        assert path.count("/") == 4
        assert path.endswith("/json")
        for no_name in ("", ".", ".."):
            with pytest.raises(ValueError, match="is no name"):
                await engine.inspect(no_name)
        for no_name in ("", "../containers", "a//b", "a/./b", "a/.."):
            with pytest.raises(ValueError, match="is no name of an image"):
                await engine.image(no_name)


# All of it at once


class Moody:
    """Answers in good and in bad ways, by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        mood = self.chance.random()
        await asked.body()
        await asyncio.sleep(self.chance.random() * 0.01)
        if mood < 0.1:
            writer.transport.abort()
        elif mood < 0.2:
            writer.write(CHUNKED + chunk(b'{"half":'))
            await writer.drain()
            writer.close()
        elif mood < 0.3:
            writer.write(answer(500, b'{"message":"moody"}'))
        elif mood < 0.4:
            writer.write(b"nonsense\r\n\r\n")
        elif mood < 0.5:
            writer.write(answer(200, b'{"a":1}\n', "Connection: close"))
            await writer.drain()
            writer.close()
        elif mood < 0.6:
            await asyncio.sleep(0.05)
            writer.write(answer(200, b'{"a":1}\n'))
        else:
            writer.write(CHUNKED + chunk(b'{"a":') + chunk(b"1}\n") + LAST)


@pytest.mark.parametrize("seed", range(4))
async def test_no_mood_and_no_cancellation_costs_a_place_or_a_connection(tmp_path: Path, seed: int) -> None:
    moody, chance, outcomes = Moody(seed), random.Random(seed), set[str]()

    async def one(engine: DockerEngine, number: int) -> None:
        try:
            async with asyncio.timeout(chance.choice([0.001, 0.01, 0.03, 10])):
                match number % 4:
                    case 0:
                        await engine.info()
                    case 1:
                        await engine.put_archive("a", "/", pieces(3))
                    case 2:
                        async for _ in engine.events({}):
                            pass
                    case 3:
                        await engine.ping()
            outcomes.add("well")
        except (EngineAway, EngineError, TimeoutError) as error:
            outcomes.add(type(error).__name__)

    async with served(tmp_path, moody) as (server, engine):
        await asyncio.gather(*(one(engine, number) for number in range(400)))
        assert outcomes == {"well", "EngineAway", "EngineError", "TimeoutError"}
        server.handler = says(answer(200))
        most = [engine.ping(5) for _ in range(Kind.CALL.value)]
        most += [engine.put_archive("a", "/", b"") for _ in range(Kind.TRANSFER.value)]
        await asyncio.gather(*most)
        await until(lambda: server.open == connections(engine) <= Kind.CALL.value)
