"""Words that the cases share."""

from pathlib import Path
from typing import Any

from tests.e2e.service import JOBS, Client, Json, alive, all_pids, job, proc_file, until


def profile(root: Path, name: str, **config: Any) -> Json:
    """A subprocess profile that works below the folder of the service."""
    work = {"working_directory": str(root / "work"), "graceful_shutdown_timeout_seconds": 1}
    return {"provider": "subprocess", "profile": name, "backend": "subprocess", "config": work | config}


def create(
    client: Client, name: str, *commands: list[str], profile: str = "default", **variables: str
) -> None:
    body = job(name, *commands, environment=[{"name": n, "value": v} for n, v in variables.items()])
    for step in body["platform_spec"]["steps"]:
        step["executor"]["profile"] = profile
    answer = client.post(JOBS, body)
    assert answer.status == 201, answer


def script(client: Client, name: str, *texts: str, **more: str) -> None:
    """A job with one bash script a step."""
    create(client, name, *(["bash", "-c", text] for text in texts), **more)


def cancel(client: Client, name: str) -> Json:
    answer = client.post(f"{JOBS}/{name}/cancel")
    assert answer.status == 200, answer
    return answer.json


def first_line(client: Client, name: str) -> None:
    until(lambda: client.messages(name), 20, lambda: f"{name} printed nothing: {client.status(name)}")


def tail(client: Client, name: str, count: int) -> list[str]:
    return [line["message"] for line in client.get(f"{JOBS}/{name}/logs?tail={count}").json["data"]]


def marked(mark: str) -> list[int]:
    """Living processes with the mark in their environment."""
    return [pid for pid in all_pids() if mark.encode() in proc_file(pid, "environ") and alive(pid)]


def step_of(client: Client, name: str) -> Json:
    return client.status(name)["steps"][-1]
