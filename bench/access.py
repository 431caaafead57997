"""What a token costs: the same GET on a service that asks for tokens and on one that doesn't."""

import json
import statistics
import subprocess
from contextlib import ExitStack

from bench.load import by_turns, request, send_all
from bench.measures import Bench, Values
from tests.e2e.service import ENDED, JOBS, NEMO, Service, job, until

REQUESTS, WARM = 10_000, 500


def auth(bench: Bench) -> Values:
    """GET one job, request by request in turns on two fresh services; the difference of the medians.

    Turns of single requests, since what the machine does meanwhile then falls on both alike: that
    varies by more than a token costs.
    """
    round_ = next(bench.serial)
    guarded = Service(bench.root / f"guarded-{round_}", settings={"auth": {"enabled": True}})
    free = Service(bench.root / f"free-{round_}")
    token = first_token(guarded)
    with ExitStack() as stack:
        targets = []
        for service, given in ((guarded, token), (free, None)):
            stack.enter_context(service)
            targets.append((service.port, with_token(request("GET", f"{JOBS}/moth"), given)))
            run_one_job(service, given)
        by_turns(targets, WARM)
        asked, unasked = by_turns(targets, bench.count(REQUESTS))
    with_ms, without_ms = (statistics.median(seconds) * 1000 for seconds in (asked, unasked))
    return {"auth_adds_ms": with_ms - without_ms, "get_with_token_ms": with_ms, "floor_get_ms": without_ms}


def first_token(service: Service) -> str:
    command = [str(NEMO), "auth", "tokens", "create", "bench", "--data-dir", str(service.data_dir)]
    done = subprocess.run(command, capture_output=True, check=True, env=service.environ)
    token: str = json.loads(done.stdout)["token"]
    return token


def run_one_job(service: Service, token: str | None) -> None:
    """The job that is asked for, at its end: its answer no longer changes."""
    made = send_all(service.port, iter([with_token(request("POST", JOBS, job("moth", ["true"])), token)]), 1)
    assert set(made.statuses) == {201}, made.statuses
    given = {"authorization": f"Bearer {token}"} if token else {}
    client = service.client()
    until(lambda: client.call("GET", f"{JOBS}/moth", headers=given).json["status"] in ENDED)


def with_token(message: bytes, token: str | None) -> bytes:
    """The request, with an Authorization header behind its first line if there is a token."""
    if token is None:
        return message
    line, _, rest = message.partition(b"\r\n")
    return line + b"\r\nauthorization: Bearer " + token.encode() + b"\r\n" + rest
