"""Requests, repeats and errors of the client, against a server that misbehaves on purpose."""

import socket
import threading
from pathlib import Path

import pytest

from nemo_jobs.client import (
    BadAddress,
    BadAnswer,
    Conflict,
    ConnectionFailed,
    JobsClient,
    NotFound,
    Retry,
    ServerError,
    TimedOut,
    Unprocessable,
)
from nemo_jobs.client.connection import parse_address, quote
from nemo_jobs.client.transport import encode_query, pause
from tests.cli.scripted import Reply, job, page, scripted


class Pauses(list[float]):
    """A sleep that takes no time."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def client(url: str, pauses: Pauses | None = None, **settings: object) -> JobsClient:
    return JobsClient(url, retry=Retry(sleep=pauses if pauses is not None else Pauses()), **settings)  # type: ignore[arg-type]


def test_one_connection_serves_all_calls() -> None:
    with scripted(Reply(body=job())) as server, client(server.url) as jobs:
        for _ in range(5):
            assert jobs.get_job("moth-sorter")["name"] == "moth-sorter"
        assert (len(server.seen), server.connections) == (5, 1)


def test_a_connection_that_the_server_closed_meanwhile_is_opened_again_without_a_pause() -> None:
    pauses = Pauses()
    with (
        scripted(Reply(body=job()), Reply(drop=True), Reply(body=job())) as server,
        client(server.url, pauses) as jobs,
    ):
        jobs.get_job("a")
        jobs.get_job("b")
        assert (len(server.seen), pauses) == (3, [0])


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_passing_failure_is_repeated_twice_and_then_told(status: int) -> None:
    pauses = Pauses()
    with scripted(Reply(status, {"detail": "later"})) as server, client(server.url, pauses) as jobs:
        with pytest.raises(Exception, match="later") as caught:
            jobs.get_job("moth-sorter")
        assert len(server.seen) == 3
        assert caught.value.tries == 3  # type: ignore[attr-defined]
        assert len(pauses) == 2
        assert 0.3 < pauses[0] <= 0.5
        assert 0.7 < pauses[1] <= 1.0


def test_a_repeat_is_told_once() -> None:
    told: list[str] = []
    retry = Retry(sleep=Pauses(), warn=told.append)
    with scripted(Reply(503, {"detail": "the disk is full"})) as server:
        with JobsClient(server.url, retry=retry) as jobs, pytest.raises(Exception, match="full"):
            jobs.get_job("moth-sorter")
        assert told == ["the service answered 503: the disk is full; trying again"]
    told.clear()
    with scripted(Reply(body=job()), Reply(drop=True), Reply(body=job())) as server:
        with JobsClient(server.url, retry=retry) as jobs:
            jobs.get_job("moth-sorter")
            jobs.get_job("moth-sorter")
        assert told == []  # a kept connection that was closed means nothing


def test_a_post_is_repeated_too() -> None:
    with scripted(Reply(drop=True), Reply(201, job())) as server, client(server.url) as jobs:
        jobs.create_job(name="moth-sorter", source="s", spec={}, platform_spec={"steps": []})
        assert [request.json["name"] for request in server.seen] == ["moth-sorter", "moth-sorter"]


def test_the_server_decides_whether_a_conflict_is_repeated() -> None:
    for headers, requests in (({"x-should-retry": "false"}, 1), ({}, 3), ({"x-should-retry": "true"}, 3)):
        reply = Reply(409, {"detail": "taken"}, headers)
        with scripted(reply) as server, client(server.url) as jobs:
            with pytest.raises(Conflict, match="taken"):
                jobs.cancel_job("x")
            assert len(server.seen) == requests


def test_the_server_can_ask_for_a_repeat_of_anything() -> None:
    replies = Reply(404, {"detail": "not yet"}, {"x-should-retry": "true"}), Reply(body=job())
    with scripted(*replies) as server, client(server.url) as jobs:
        assert jobs.get_job("x")["name"] == "moth-sorter"


def test_not_found_is_told_at_once() -> None:
    reply = Reply(404, {"detail": "no job 'x' in workspace 'default'"})
    with scripted(reply) as server, client(server.url) as jobs:
        with pytest.raises(NotFound, match="no job 'x' in workspace 'default'"):
            jobs.get_job("x")
        assert len(server.seen) == 1


def test_the_pause_is_what_the_server_asks_up_to_a_minute() -> None:
    assert pause({"retry-after": "7"}, 1) == 7
    assert pause({"retry-after-ms": "250", "retry-after": "7"}, 1) == 0.25
    assert pause({"retry-after": "61"}, 1) <= 0.5
    assert pause({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 2) <= 1.0


def test_a_server_that_is_not_there_is_told_at_once_when_asked_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    pauses = Pauses()
    with pytest.raises(ConnectionFailed) as caught:
        JobsClient(url, retry=Retry(refused=False, sleep=pauses)).get_job("x")
    assert caught.value.refused
    assert pauses == []
    with pytest.raises(ConnectionFailed):
        JobsClient(url, retry=Retry(sleep=pauses)).get_job("x")
    assert len(pauses) == 2


def test_silence_ends_with_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        jobs = JobsClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05, retry=Retry(repeats=0))
        with pytest.raises(TimedOut, match=r"didn't answer within 0\.05 s"):
            jobs.get_job("x")


def test_validation_errors_name_each_field() -> None:
    detail = [
        {"type": "missing", "loc": ["body", "source"], "msg": "Field required"},
        {"type": "x", "loc": ["body", "platform_spec", "steps", 0, "name"], "msg": "Value error, wrong"},
    ]
    with scripted(Reply(422, {"detail": detail})) as server, client(server.url) as jobs:
        with pytest.raises(Unprocessable) as caught:
            jobs.get_job("x")
        assert str(caught.value) == "body.source: Field required\nbody.platform_spec.steps[0].name: wrong"


@pytest.mark.parametrize(
    "body",
    [{"detail": "d", "code": "c"}, {"detail": {"code": "c"}}, {"error": {"code": "c"}}],
)
def test_an_error_code_is_found_in_each_place(body: object) -> None:
    with scripted(Reply(422, body)) as server, client(server.url) as jobs:
        with pytest.raises(Unprocessable) as caught:
            jobs.get_job("x")
        assert caught.value.code == "c"


@pytest.mark.parametrize("body", [b"<html>oops</html>", b"[1, 2]", b'"text"'])
def test_an_answer_of_another_kind_is_not_taken_for_a_job(body: bytes) -> None:
    with scripted(Reply(200, body)) as server, client(server.url) as jobs, pytest.raises(BadAnswer):
        jobs.get_job("x")


def test_an_error_that_is_not_json_is_still_told() -> None:
    with (
        scripted(Reply(502, b"bad gateway")) as server,
        client(server.url) as jobs,
        pytest.raises(ServerError, match="bad gateway"),
    ):
        jobs.get_job("x")


def test_chunked_answers_are_read_whole() -> None:
    body = b'8\r\n{"name":\r\n6;ext=1\r\n "moth\r\n2\r\n"}\r\n0\r\ntrailer: x\r\n\r\n'
    replies = Reply(200, body, {"transfer-encoding": "chunked"}), Reply(body=job("second"))
    with scripted(*replies) as server, client(server.url) as jobs:
        assert jobs.get_job("x")["name"] == "moth"
        assert jobs.get_job("x")["name"] == "second"
        assert server.connections == 1


def test_a_body_cut_short_is_a_broken_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(3):
                peer, _ = listener.accept()
                peer.recv(65536)
                peer.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"name"')
                peer.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ConnectionFailed, match="middle of an answer"):
            client(f"http://127.0.0.1:{listener.getsockname()[1]}").get_job("x")


def test_another_protocol_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            peer.recv(65536)
            peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
            peer.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(BadAnswer, match="doesn't speak HTTP"):
            client(f"http://127.0.0.1:{listener.getsockname()[1]}").get_job("x")


def test_a_unix_socket_works_like_any_address(tmp_path: Path) -> None:
    path = tmp_path / "nemo.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            asked.append(peer.recv(65536).decode())
            peer.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"name": "x"}')
            peer.close()

        asked: list[str] = []
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with client(f"unix://{path}") as jobs:
            assert jobs.get_job("x")["name"] == "x"
        thread.join(5)
        assert "host: localhost" in asked[0]
    with pytest.raises(ConnectionFailed) as caught:
        JobsClient(f"unix://{tmp_path}/none", retry=Retry(refused=False)).get_job("x")
    assert caught.value.refused


def test_addresses_are_read_strictly() -> None:
    assert str(parse_address("http://[::1]:8080/prefix/")) == "http://[::1]:8080/prefix"
    assert parse_address("https://host.example").port == 443
    assert parse_address("unix:///run/x.sock").path == "/run/x.sock"
    wrongs = ("localhost:8080", "ftp://x", "http://", "http://u:p@h", "http://h:99999", "unix://rel", "")
    for wrong in wrongs:
        with pytest.raises(BadAddress):
            parse_address(wrong)


def test_c059_a_name_never_leaves_its_place_in_the_path() -> None:
    names = ["a/b", "naïve", "..", ".", "a?b#c", "a b", "%2e", "x" * 300, "A", "é\udcff"]
    with scripted(Reply(body=job())) as server, client(server.url) as jobs:
        for name in names:
            jobs.get_job(name)
        for request in server.seen:
            head, _, last = request.target.rpartition("/")
            assert head == "/apis/jobs/v2/workspaces/default/jobs"
            assert last not in ("", ".", "..")
        assert len({request.target for request in server.seen}) == len(names)
        with pytest.raises(ValueError, match="empty"):
            jobs.get_job("")


def test_queries_leave_out_what_is_unset_and_encode_objects() -> None:
    assert encode_query([("page", None), ("tail", 3), ("filter", {"a": ["ö"]}), ("x", True)]) == (
        "?tail=3&filter=%7B%22a%22%3A%5B%22%C3%B6%22%5D%7D&x=true"
    )
    assert encode_query([("page", None)]) == ""
    assert quote("a+b@c") == "a%2Bb%40c"


def test_the_token_goes_with_every_request_and_unset_fields_stay_out_of_bodies() -> None:
    with scripted(Reply(201, job())) as server, client(server.url, token="t0ken") as jobs:
        jobs.create_job(source="s", spec={}, platform_spec={}, description=None)
        (request,) = server.seen
        assert request.headers["authorization"] == "Bearer t0ken"
        assert request.json == {"source": "s", "spec": {}, "platform_spec": {}}


def test_a_204_has_no_body_to_wait_for() -> None:
    with scripted(Reply(204), Reply(body=page([]))) as server, client(server.url) as jobs:
        jobs.delete_job("x")
        assert jobs.list_jobs()["data"] == []
        assert server.connections == 1
