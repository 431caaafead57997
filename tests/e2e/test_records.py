"""Log records that were answered with 200 survive a kill of the service, batch by batch."""

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import JOBS, Service

BATCH, SENDERS, KILLS = 200, 4, 3
LOGS = "/apis/files/v2/workspaces/default/filesets/job-fileset-talker/otlp/v1/logs"


def batch(job: Any, name: str) -> Any:
    told = {
        "job": "talker",
        "job_attempt": job["attempt_id"],
        "job_step": "step-1",
        "job_task": "task-of-mine",
    }
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in told.items()]
    records = [{"timeUnixNano": "1700000000000000000", "body": {"stringValue": name}} for _ in range(BATCH)]
    return {
        "resourceLogs": [{"resource": {"attributes": attributes}, "scopeLogs": [{"logRecords": records}]}]
    }


@pytest.mark.time_limit(180)
def test_what_was_answered_is_there_and_the_rest_whole_or_not_at_all(tmp_path: Path) -> None:
    with Service(tmp_path) as service:
        client = service.client()
        assert client.create("talker", ["true"]).status == 201
        job = client.wait("talker")
        answered: set[str] = set()
        done = threading.Event()

        def send(sender: int) -> None:
            number = 0
            while not done.is_set():
                number += 1
                name = f"batch-{sender}-{number}"
                try:
                    if service.client(5).post(LOGS, batch(job, name)).status == 200:
                        answered.add(name)
                except OSError:
                    time.sleep(0.02)  # it is away; nobody knows what became of this one

        senders = [threading.Thread(target=send, args=(n,), daemon=True) for n in range(SENDERS)]
        for sender in senders:
            sender.start()
        for kill in range(1, KILLS + 1):
            deadline = time.monotonic() + 20
            while len(answered) < 10 * kill and time.monotonic() < deadline:
                time.sleep(0.01)
            service.kill()
            service.start(60)
        done.set()
        for sender in senders:
            sender.join(30)
        found = Counter(service.client().messages("talker"))
        page = service.client().get(f"{JOBS}/talker/logs?tail=1").json
    assert len(answered) >= 10 * KILLS
    assert {name: found[name] for name in answered} == dict.fromkeys(answered, BATCH)
    assert set(found.values()) == {BATCH}
    assert page["total"] == sum(found.values()), json.dumps(page)
