"""What a token costs: the same GET on a service that asks for tokens and on one that doesn't."""

import json
import statistics
import subprocess

from bench.load import request, send_all
from bench.measures import Bench, Values
from tests.e2e.service import JOBS, NEMO, Service, job

REQUESTS, PARTS = 2_000, 5


def auth(bench: Bench) -> Values:
    """GET one job on one connection, by turns on both services; the difference of the medians."""
    service = Service(bench.root / "guarded", settings={"auth": {"enabled": True}})
    token = first_token(service)
    with service:
        message = request("POST", JOBS, job("moth", ["true"]))
        guarded = with_token(request("GET", f"{JOBS}/moth"), token)
        made = send_all(service.port, iter([with_token(message, token)]), 1)
        assert set(made.statuses) == {201}, made.statuses
        (name,) = bench.names(1)
        bench.client().create(name, ["true"])
        free = request("GET", f"{JOBS}/{name}")
        asked: list[float] = []
        unasked: list[float] = []
        for _ in range(PARTS):
            count = bench.count(REQUESTS) // PARTS
            for seconds, port, one in ((asked, service.port, guarded), (unasked, bench.service.port, free)):
                result = send_all(port, iter([one] * count), 1)
                assert set(result.statuses) == {200}, result.statuses
                seconds += result.seconds
    with_ms, without_ms = (statistics.median(seconds) * 1000 for seconds in (asked, unasked))
    return {"auth_adds_ms": with_ms - without_ms, "get_with_token_ms": with_ms, "floor_get_ms": without_ms}


def first_token(service: Service) -> str:
    command = [str(NEMO), "auth", "tokens", "create", "bench", "--data-dir", str(service.data_dir)]
    done = subprocess.run(command, capture_output=True, check=True, env=service.environ)
    token: str = json.loads(done.stdout)["token"]
    return token


def with_token(message: bytes, token: str) -> bytes:
    """The request with an Authorization header behind its first line."""
    line, _, rest = message.partition(b"\r\n")
    return line + b"\r\nauthorization: Bearer " + token.encode() + b"\r\n" + rest
