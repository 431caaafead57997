"""Who may ask at all, while there is no authentication."""

import json

import httpx2
import pytest

from nemo_jobs.http.guard import Guard

GUARD = Guard(hosts=["jobs.example"], origins=["https://page.example"])


def check(guard=GUARD, method="GET", path="/status", **headers):
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return guard.check({"method": method, "path": path, "headers": raw})


def status(*args, **kw):
    reply, _extra = check(*args, **kw)
    return None if reply is None else reply.status


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8080",
        "127.0.0.1:1",
        "127.8.9.10",
        "[::1]:80",
        "[::1]",
        "LOCALHOST",
        "a.localhost",
        "jobs.example:80",
    ],
)
def test_loopback_and_configured_hosts_are_answered(host):
    assert status(host=host) is None
    assert status(host=host) is None  # the remembered one as well


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "10.0.0.1",
        "[::2]",
        "",
        "localhost@evil.example",
        "[::1",
        "[::1]x",
        "localhost:8o80",
        "evil.example#localhost",
    ],
)
def test_other_hosts_are_refused_and_told_how_to_allow_them(host):
    reply, _extra = check(host=host)
    assert reply.status == 403
    assert "service.allowed_hosts" in json.loads(reply.body)["detail"]


def test_a_request_without_host_is_refused():
    assert status() == 403


def test_health_is_told_to_any_host():
    assert status(host="10.1.2.3:8080", path="/health/ready") is None


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:1", "https://page.example"]
)
def test_loopback_and_configured_origins_may_read_answers(origin):
    reply, extra = check(host="localhost", origin=origin)
    assert reply is None
    assert (b"access-control-allow-origin", origin.encode()) in extra
    assert (b"vary", b"Origin") in extra


@pytest.mark.parametrize(
    "origin",
    ["null", "https://evil.example", "http://localhost.evil.example", "file://localhost", "localhost"],
)
def test_pages_of_other_origins_are_refused(origin):
    reply, extra = check(host="localhost", origin=origin, method="POST")
    assert reply.status == 403
    assert extra == ()


def test_a_preflight_of_a_good_origin_is_answered():
    reply, extra = check(
        host="localhost",
        origin="http://localhost:3000",
        method="OPTIONS",
        access_control_request_headers="content-type",
    )
    assert reply.status == 200
    assert (b"access-control-allow-headers", b"content-type") in reply.headers
    assert (b"access-control-allow-origin", b"http://localhost:3000") in extra


def test_a_star_allows_everything():
    guard = Guard(hosts=["*"], origins=["*"])
    assert status(guard, host="any.example", origin="https://any.example") is None


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]
)
def test_a_body_that_is_not_declared_as_json_is_415(kind):
    headers = {"content_length": "2"} if kind is None else {"content_length": "2", "content_type": kind}
    assert status(host="localhost", method="POST", **headers) == 415


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/merge-patch+json",
        "Application/JSON",
    ],
)
def test_json_bodies_pass(kind):
    assert status(host="localhost", method="POST", content_length="2", content_type=kind) is None


FILE = "/apis/files/v2/workspaces/default/filesets/data/-/a/b.html"


@pytest.mark.parametrize("kind", ["text/plain", "text/html", "application/x-www-form-urlencoded", ""])
def test_a_file_may_be_put_as_what_it_is_and_by_pages_that_may_anyway(kind):
    body = {"content_length": "2", "content_type": kind}
    assert status(host="localhost", method="PUT", path=FILE, **body) is None
    assert status(host="localhost", method="PUT", path=FILE, transfer_encoding="chunked") is None
    assert status(host="localhost", method="PUT", path=FILE, origin="https://page.example", **body) is None
    for origin in ("https://evil.example", "null"):
        assert status(host="localhost", method="PUT", path=FILE, origin=origin, **body) == 403
        assert status(host="localhost", method="OPTIONS", path=FILE, origin=origin) == 403
    assert status(host="evil.example", method="PUT", path=FILE, **body) == 403
    assert status(host="localhost", method="POST", path=FILE, **body) == 415
    assert status(host="localhost", method="PUT", path="/apis/jobs/v2/x/-/y", **body) == 415


def test_a_post_without_a_body_needs_no_type():
    assert status(host="localhost", method="POST") is None
    assert status(host="localhost", method="POST", content_length="0") is None


def test_a_chunked_body_counts_as_a_body():
    assert status(host="localhost", method="POST", transfer_encoding="chunked") == 415


async def test_two_host_headers_are_refused(service):
    request = service.client.build_request("GET", "/status")
    request.headers = httpx2.Headers([("host", "evil.example"), ("host", "127.0.0.1")])
    answer = await service.client.send(request)
    assert answer.status_code == 400
    assert "more than one Host" in answer.json()["detail"]
