"""Both clients against a server and a network that misbehave on purpose."""

import asyncio
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.client import (
    AsyncJobsClient,
    BadAnswer,
    BadRequest,
    Conflict,
    ConnectionFailed,
    HttpError,
    JobFailed,
    JobsClient,
    NotFound,
    Retry,
    ServerError,
    TimedOut,
    TooManyRequests,
    WaitExpired,
)
from tests.cli.scripted import Reply, Seen, events, job, line, page, scripted, tree
from tests.client.both import Both
from tests.client.conftest import Connect


@contextmanager
def raw(*answers: bytes, family: int = socket.AF_INET, place: Any = ("127.0.0.1", 0)) -> Iterator[str]:
    """A server that reads one request a connection, sends bytes as they are and closes."""
    with socket.socket(family) as listener:
        listener.bind(place)
        listener.listen(16)

        def serve() -> None:
            for answer in answers:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(65536)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        name = listener.getsockname()
        yield f"unix://{name}" if family == socket.AF_UNIX else f"http://127.0.0.1:{name[1]}"


def test_a_passing_failure_is_repeated_twice_and_told_once(connect: Connect) -> None:
    with scripted(Reply(503, {"detail": "later"})) as server:
        client = connect(server.url)
        with pytest.raises(ServerError, match="later"):
            client.get_job("x")
        assert len(server.seen) == 3
        assert client.warnings == ["the service answered 503: later; trying again"]
        first, second = client.pauses
        assert 0.3 < first <= 0.5
        assert 0.7 < second <= 1.0


def test_the_pause_is_what_the_server_asks(connect: Connect) -> None:
    replies = Reply(429, {"detail": "slow"}, {"retry-after-ms": "250"}), Reply(body=job())
    with scripted(*replies) as server:
        client = connect(server.url)
        client.get_job("x")
        assert client.pauses == [0.25]


@pytest.mark.parametrize(("wish", "requests"), [("false", 1), ("true", 3), (None, 3)])
def test_the_server_decides_whether_a_conflict_is_repeated(
    connect: Connect, wish: str | None, requests: int
) -> None:
    reply = Reply(409, {"detail": "taken"}, {"x-should-retry": wish} if wish else {})
    with scripted(reply) as server:
        with pytest.raises(Conflict):
            connect(server.url).cancel_job("x")
        assert len(server.seen) == requests


def test_too_many_requests_in_the_end(connect: Connect) -> None:
    with scripted(Reply(429, {"detail": "slow"})) as server, pytest.raises(TooManyRequests):
        connect(server.url).list_jobs()


def test_a_kept_connection_that_was_closed_meanwhile_costs_no_pause(connect: Connect) -> None:
    with scripted(Reply(body=job()), Reply(drop=True), Reply(body=job())) as server:
        client = connect(server.url)
        client.get_job("a")
        client.get_job("b")
        assert (len(server.seen), client.pauses, client.warnings) == (3, [0], [])


def test_an_error_of_nonsense_is_still_that_error(connect: Connect) -> None:
    for body in (
        b"[" * 200_000,
        b"\xff\x00",
        b"",
        b'{"detail": 7}',
        b'{"detail": [7, {"loc": 5}]}',
        b'{"detail": {}}',
    ):
        with scripted(Reply(400, body)) as server, pytest.raises(BadRequest) as caught:
            connect(server.url).get_job("x")
        assert str(caught.value)


def test_a_kept_connection_that_fails_is_a_try_too(connect: Connect) -> None:
    """Three requests are the most that a call sends, whatever becomes of them."""
    replies = Reply(body=job()), Reply(drop=True), Reply(503, {"detail": "x"})
    with scripted(*replies) as server:
        client = connect(server.url)
        client.get_job("a")
        with pytest.raises(ServerError):
            client.get_job("b")
        assert len(server.seen) == 4


def test_many_kept_connections_that_a_restart_closed_cost_one_try(kind: str) -> None:
    """After a restart none of them works; a call must not try them one by one until it gives up."""
    together = threading.Barrier(6)

    def script(seen: Seen) -> Reply:
        if seen.target.endswith("/first"):
            together.wait(10)
        return Reply(body=job())

    with scripted(script) as server:
        if kind == "sync":
            client = JobsClient(server.url, retry=Retry(repeats=1))
            threads = [threading.Thread(target=client.get_job, args=("first",)) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert server.connections == 6
            server.hang_up()
            assert client.get_job("x")["name"] == "moth-sorter"
            client.close()
        else:

            async def work() -> None:
                async with AsyncJobsClient(server.url, retry=Retry(repeats=1)) as client:
                    await asyncio.gather(*(client.get_job("first") for _ in range(6)))
                    server.hang_up()
                    assert (await client.get_job("x"))["name"] == "moth-sorter"

            asyncio.run(work())


def test_what_nobody_asked_for_is_not_taken_for_an_answer(connect: Connect) -> None:
    """Some servers say 408 on an idle connection before they close it."""
    first = OK + b'content-length: 15\r\n\r\n{"name": "one"}'
    late = b'HTTP/1.1 408 Request Timeout\r\ncontent-length: 17\r\n\r\n{"name": "late"}'
    second = OK + b'content-length: 15\r\n\r\n{"name": "two"}'
    with raw(first + late, second) as url:
        client = connect(url)
        assert client.get_job("a")["name"] == "one"
        assert client.get_job("b")["name"] == "two"


def test_more_than_was_announced_is_not_taken_for_the_next_answer(connect: Connect) -> None:
    """However it arrives: with the answer, it is in our own buffer already."""
    hold = threading.Event()
    body = b'{"name": "one"}' + OK + b'content-length: 16\r\n\r\n{"name": "evil"}'
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in (OK + b"content-length: 15\r\n\r\n" + body, OK + b"content-length: 2\r\n\r\n{}"):
                peer, _ = listener.accept()
                peers.append(peer)
                peer.recv(65536)
                peer.sendall(answer)
            hold.wait(10)

        peers: list[socket.socket] = []
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert client.get_job("a") == {"name": "one"}
        assert client.get_job("b") == {}
        hold.set()
        thread.join(5)
        for peer in peers:
            peer.close()


def test_a_redirect_is_told_and_not_followed(connect: Connect) -> None:
    """A token must not travel to where an answer points."""
    reply = Reply(307, b"", {"location": "https://elsewhere.example/x"})
    with scripted(reply) as server:
        with pytest.raises(HttpError, match="redirects to https://elsewhere") as caught:
            connect(server.url, token="t").get_job("x")
        assert caught.value.status == 307
        assert len(server.seen) == 1
    with scripted(reply) as server, pytest.raises(HttpError, match="redirects"):
        connect(server.url).download_file("a", fileset="f")


def test_a_forked_process_has_connections_of_its_own() -> None:
    with scripted(Reply(body=job())) as server, JobsClient(server.url) as client:
        client.get_job("x")
        pid = os.fork()
        if pid == 0:
            try:
                client.get_job("child")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        client.get_job("x")
        assert server.connections == 2


def test_one_connection_serves_calls_one_after_the_other(connect: Connect) -> None:
    with scripted(Reply(body=job()), Reply(204), Reply(404, {"detail": "x"}), Reply(body=job())) as server:
        client = connect(server.url)
        client.get_job("a")
        client.delete_job("a")
        with pytest.raises(NotFound):
            client.get_job("a")
        client.get_job("a")
        assert server.connections == 1


def test_a_body_cut_short_is_asked_for_again(connect: Connect) -> None:
    with scripted(Reply(body=job(), cut=20), Reply(body=job())) as server:
        assert connect(server.url).get_job("x")["name"] == "moth-sorter"
        assert len(server.seen) == 2
    with scripted(Reply(body=job(), cut=20)) as server:
        with pytest.raises(ConnectionFailed, match="middle of an answer"):
            connect(server.url).get_job("x")
        assert len(server.seen) == 3


def test_chunked_answers_are_read_whole(connect: Connect) -> None:
    body = b'8\r\n{"name":\r\n6;ext=1\r\n "moth\r\n2\r\n"}\r\n0\r\ntrailer: x\r\n\r\n'
    replies = Reply(200, body, {"transfer-encoding": "chunked"}), Reply(body=job("second"))
    with scripted(*replies) as server:
        client = connect(server.url)
        assert client.get_job("x")["name"] == "moth"
        assert client.get_job("x")["name"] == "second"
        assert server.connections == 1


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "doesn't speak HTTP"),
        (b"HTTP/1.1 abc\r\n\r\n", "doesn't speak HTTP"),
        (OK + b"content-length: -5\r\n\r\n", "has a length of '-5'"),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", "has a length of 'zz'"),
        (OK + b"x: " + b"a" * 70_000 + b"\r\n\r\n", "head is too long"),
        (OK + b"".join(b"x%d: y\r\n" % n for n in range(300)) + b"\r\n", "too many headers"),
        (OK + b"content-length: 3\r\n\r\n{]}", "isn't JSON"),
        (OK + b"content-length: 2\r\n\r\n\xff\xfe", "isn't JSON"),
        (OK + b"content-length: 200000\r\n\r\n" + b"[" * 200_000, "isn't JSON"),
    ],
)
def test_what_is_no_proper_answer_is_told_and_not_repeated(
    connect: Connect, answer: bytes, error: str
) -> None:
    with raw(answer) as url, pytest.raises(BadAnswer, match=error):
        connect(url, repeats=0).get_job("x")


def test_a_server_that_says_nothing_is_a_broken_connection(connect: Connect) -> None:
    with raw(b"", b"", b"") as url, pytest.raises(ConnectionFailed, match="without an answer"):
        connect(url).get_job("x")


def test_informational_answers_are_passed_over(connect: Connect) -> None:
    with raw(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK + b"content-length: 2\r\n\r\n{}") as url:
        assert connect(url).get_job("x") == {}


def test_an_old_server_that_ends_with_the_connection(connect: Connect) -> None:
    with raw(b'HTTP/1.0 200 OK\r\n\r\n{"name": "a"}', b'HTTP/1.0 200 OK\r\n\r\n{"name": "b"}') as url:
        client = connect(url)
        assert [client.get_job("x")["name"] for _ in range(2)] == ["a", "b"]


def test_unix_sockets_work_like_any_address(connect: Connect, tmp_path: Path) -> None:
    answer = OK + b'content-length: 13\r\n\r\n{"name": "x"}'
    with raw(answer, family=socket.AF_UNIX, place=str(tmp_path / "s")) as url:
        assert connect(url).get_job("x") == {"name": "x"}
    with pytest.raises(ConnectionFailed) as caught:
        connect(f"unix://{tmp_path}/none", repeats=0).get_job("x")
    assert caught.value.refused


def test_nobody_at_the_address(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    client = connect(url)
    with pytest.raises(ConnectionFailed) as caught:
        client.get_job("x")
    assert caught.value.refused
    assert len(client.pauses) == 2


def test_silence_ends_with_a_time_out(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimedOut, match=r"didn't answer within 0\.05 s"):
            connect(url, timeout=0.05, repeats=0).get_job("x")


def test_silence_in_the_middle_of_an_answer_too(connect: Connect) -> None:
    release = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(OK + b"content-length: 100\r\n\r\n{")
                release.wait(10)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with pytest.raises(TimedOut):
                connect(url, timeout=0.05, repeats=0).get_job("x")
        finally:
            release.set()
            thread.join(5)


def test_a_slow_answer_in_time_is_an_answer(connect: Connect) -> None:
    def slow(_: object) -> Reply:
        time.sleep(0.2)
        return Reply(body=job())

    with scripted(slow) as server:
        assert connect(server.url, timeout=5).get_job("x")["name"] == "moth-sorter"
        assert len(server.seen) == 1


def test_a_huge_page_arrives_whole(connect: Connect) -> None:
    rows = [{"id": f"j{n}", "name": f"job-{n}", "spec": {"text": "ü鍵" * 200}} for n in range(5000)]
    with scripted(Reply(body=page(rows))) as server:
        assert connect(server.url).list_jobs()["data"] == rows


def test_all_pages_are_walked_and_what_moved_meanwhile_comes_once(connect: Connect) -> None:
    pages = [
        page([job("e"), job("d")], total=5, number=1, size=2),
        page([job("d"), job("c")], total=6, number=2, size=2),  # a new job pushed `d` back
        page([job("b"), job("a")], total=6, number=3, size=2),
    ]
    with scripted(*(Reply(body=item) for item in pages)) as server:
        found = connect(server.url).iter_jobs(page_size=2, filter={"source": "x"})
        assert [item["name"] for item in found] == list("edcba")
        assert [target.partition("?")[2].partition("&filter")[0] for target in server.targets] == [
            f"page={n}&page_size=2" for n in (1, 2, 3)
        ]


def test_a_walk_fetches_only_what_is_read() -> None:
    with scripted(Reply(body=page([job("a")], total=9, size=1))) as server, JobsClient(server.url) as client:
        assert next(client.iter_jobs(page_size=1))["name"] == "a"
        assert len(server.seen) == 1


def test_a_walk_ends_although_the_service_shrinks(connect: Connect) -> None:
    pages = page([job("b")], total=9, number=1, size=1), page([], total=0, number=2, size=1)
    with scripted(*(Reply(body=item) for item in pages)) as server:
        assert len(connect(server.url).iter_jobs(page_size=1)) == 1


def test_a_log_is_walked_along_its_cursors(connect: Connect) -> None:
    def log(text: str, following: str | None) -> Reply:
        return Reply(body={"data": [line(text)], "total": 3, "next_page": following, "prev_page": None})

    with scripted(log("a", "c1"), log("b", "c2"), log("c", "c2")) as server:
        lines = connect(server.url).iter_job_logs("m", limit=1)
        assert [item["message"] for item in lines] == ["a", "b", "c"]
        assert "page_cursor" not in server.targets[0]
        assert server.targets[2].endswith("page_cursor=c2")


def test_an_error_in_a_later_page_is_raised(connect: Connect) -> None:
    replies = Reply(body=page([job("a")], total=2, size=1)), Reply(404, {"detail": "gone"})
    with scripted(*replies) as server, pytest.raises(NotFound):
        connect(server.url).iter_jobs(page_size=1)


def test_a_wait_sits_an_outage_out(connect: Connect) -> None:
    outage = [Reply(503, {"detail": "restart"})] * 4 + [Reply(drop=True)] * 4
    ends = Reply(body=tree("completed")), Reply(body=job(status="completed"))
    with scripted(Reply(body=tree("active")), *outage, *ends) as server:
        client = connect(server.url)
        assert client.wait("moth-sorter", poll=2)["status"] == "completed"
        assert len(server.seen) == 11


def test_a_wait_ends_with_what_does_not_pass(connect: Connect) -> None:
    replies = Reply(body=tree("active")), Reply(404, {"detail": "deleted"})
    with scripted(*replies) as server, pytest.raises(NotFound):
        connect(server.url).wait("moth-sorter")


def test_a_wait_has_an_end(connect: Connect) -> None:
    with scripted(Reply(body=tree("active"))) as server:
        client = connect(server.url)
        now = iter(range(1000))
        client.client.clock = lambda: float(next(now))
        with pytest.raises(WaitExpired, match="'moth-sorter' hasn't ended within 3 s; it goes on"):
            client.wait("moth-sorter", timeout=3)
        assert len(server.seen) < 5


@pytest.mark.parametrize("state", ["error", "cancelled", "paused"])
def test_a_checked_wait_raises_with_the_job(connect: Connect, state: str) -> None:
    ended = job(status=state, error_details={"message": "fit ended with code 9"})
    with scripted(Reply(body=tree(state)), Reply(body=ended)) as server:
        client = connect(server.url)
        with pytest.raises(JobFailed, match=f"'moth-sorter': {state}: fit ended with code 9") as caught:
            client.wait("moth-sorter", check=True)
        assert caught.value.job == ended


def test_a_watched_job_tells_each_change_once(connect: Connect) -> None:
    states = ("created", "created", "active", "active", "completed")
    with scripted(*(Reply(body=tree(state)) for state in states)) as server:
        seen = connect(server.url).watch_job("moth-sorter")
        assert [item["status"] for item in seen] == ["created", "active", "completed"]


def test_a_command_is_run_as_a_job(connect: Connect) -> None:
    replies = (
        Reply(201, job("r-1")),
        Reply(body=tree("completed")),
        Reply(body=job("r-1", status="completed")),
    )
    with scripted(*replies) as server:
        client = connect(server.url)
        ended = client.run(["echo", "a b", "$X"], env={"X": "1"}, labels={"k": "v"}, description="d")
        assert ended["status"] == "completed"
        sent = server.seen[0].json
        assert sent == {
            "source": "python",
            "spec": {},
            "description": "d",
            "custom_fields": {"labels": {"k": "v"}},
            "platform_spec": {
                "steps": [
                    {
                        "name": "run",
                        "executor": {
                            "provider": "subprocess",
                            "profile": "default",
                            "command": ["echo", "a b", "$X"],
                        },
                        "environment": [{"name": "X", "value": "1"}],
                    }
                ]
            },
        }
        assert client.run(["true"], wait=False)["name"] == "r-1"
        with pytest.raises(TypeError, match="list of words"):
            client.run("echo hello")


STREAM = {"content-type": "text/event-stream", "connection": "close"}


def test_a_followed_log_goes_on_behind_the_last_line_after_a_break(connect: Connect) -> None:
    cut = events((0, line("a")), (1, line("b")))
    rest = events((2, line("c")), ("end", {}))
    with scripted(Reply(200, cut, STREAM), Reply(body=tree("active")), Reply(200, rest, STREAM)) as server:
        lines = connect(server.url).follow_logs("moth-sorter", tail=5)
        assert [item["message"] for item in lines] == ["a", "b", "c"]
        streams = [seen for seen in server.seen if "stream" in seen.target]
        assert "tail=5" in streams[0].target
        assert "tail" not in streams[1].target
        assert streams[1].headers["last-event-id"] == "1"


def test_a_followed_log_sits_an_outage_out_with_one_warning(connect: Connect) -> None:
    end = events((0, line("a")), ("end", {}))
    outage = [Reply(503, {"detail": "restart"})] * 3
    with scripted(*outage, Reply(drop=True), Reply(200, end, STREAM)) as server:
        client = connect(server.url)
        told: list[str] = []
        lines = client.follow_logs("moth-sorter", warn=told.append)
        assert [item["message"] for item in lines] == ["a"]
        assert told == ["restart; trying again"]
        assert client.pauses == [1, 2, 4, 8]


def test_a_missing_log_is_told(connect: Connect) -> None:
    with scripted(Reply(404, {"detail": "no job"})) as server, pytest.raises(NotFound):
        connect(server.url).follow_logs("x")


def test_a_stream_of_nonsense_is_told(connect: Connect) -> None:
    reply = Reply(200, b"data: {oops\n\n", STREAM)
    with scripted(reply) as server, pytest.raises(BadAnswer, match="isn't JSON"):
        connect(server.url).follow_logs("x")


def named(seen: Seen) -> Reply:
    """The job that was asked for."""
    return Reply(body=job(seen.target.rpartition("/")[2]))


def test_threads_may_share_a_client() -> None:
    wrong: list[str] = []

    def work(client: JobsClient, number: int) -> None:
        for turn in range(20):
            name = f"t{number}-{turn}"
            if client.get_job(name)["name"] != name:
                wrong.append(name)

    with scripted(named) as server, JobsClient(server.url) as client:
        threads = [threading.Thread(target=work, args=(client, number)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not wrong
        assert len(server.seen) == 160
        assert server.connections <= 16


async def test_tasks_share_a_client_and_a_few_connections() -> None:
    with scripted(named) as server:
        async with AsyncJobsClient(server.url) as client:
            names = [f"j{n}" for n in range(300)]
            found = await asyncio.gather(*(client.get_job(name) for name in names))
            assert [item["name"] for item in found] == names
            await client.get_job("once-more")


async def test_a_cancelled_call_closes_its_connection() -> None:
    hold = threading.Event()

    def slow(_: object) -> Reply:
        hold.wait(10)
        return Reply(body=job("late"))

    with scripted(slow) as server:
        async with AsyncJobsClient(server.url) as client:
            asked = asyncio.create_task(client.get_job("a"))
            while not server.seen:
                await asyncio.sleep(0.01)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            hold.set()
            # The late answer to the cancelled call is not taken for that of the next one.
            server.script = named
            assert (await client.get_job("b"))["name"] == "b"
            assert server.connections == 2


async def test_a_deadline_of_the_caller_ends_a_wait() -> None:
    with scripted(Reply(body=tree("active"))) as server:
        async with AsyncJobsClient(server.url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.wait("moth-sorter")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_survives_its_loop() -> None:
    """The connection of the first loop is lost with it; Python says so when it finds it."""
    with scripted(Reply(body=job())) as server:
        client = AsyncJobsClient(server.url, retry=Retry(repeats=0))
        for _ in range(2):
            assert asyncio.run(client.get_job("x"))["name"] == "moth-sorter"
        assert server.connections == 2
    del client
    gc.collect()


def test_a_walk_that_is_left_early_closes_what_it_had(kind: str) -> None:
    closed: list[str] = []

    def steps() -> Any:
        try:
            yield [1, 2, 3]
        finally:
            closed.append("yes")

    with Both(kind, "http://localhost:1") as both:
        walk = both.client.walk_steps(steps())
        if kind == "sync":
            assert next(walk) == 1
            walk.close()
        else:
            assert both.loop.run_until_complete(anext(walk)) == 1
            both.loop.run_until_complete(walk.aclose())
    assert closed == ["yes"]
