"""Following a log through breaks, without a line lost or doubled."""

from typing import Any

import pytest

from nemo_jobs.client import JobsClient, NotFound, Retry
from nemo_jobs.client.follow import Backoff, Selection, follow_logs, parse_events
from tests.cli.scripted import Reply, Scripted, Seen, events, line, scripted, tree


def messages(server: Scripted, **options: Any) -> tuple[list[str], list[str], list[float]]:
    """What a follower prints, warns and waits."""
    warnings: list[str] = []
    pauses: list[float] = []
    with JobsClient(server.url, retry=Retry(repeats=0)) as client:
        which = Selection("moth-sorter", step_id=options.pop("step_id", None))
        lines = follow_logs(client, which, warn=warnings.append, sleep=pauses.append, **options)
        return [item["message"] for item in lines], warnings, pauses


def test_the_stream_is_read_to_its_end_event() -> None:
    body = b": heartbeat\n\n" + events(("status", {"status": "active"}), (0, line("a")), (1, line("b")))
    with scripted(Reply(body=body + events(("end", {"status": "completed"})))) as server:
        assert messages(server)[0] == ["a", "b"]
        assert server.targets == ["GET /apis/jobs/v2/workspaces/default/jobs/moth-sorter/logs/stream"]


def test_c019_a_broken_stream_goes_on_behind_the_last_line() -> None:
    first = Reply(body=events((0, line("a")), (1, line("b"))))
    rest = Reply(body=events((2, line("c")), ("end", {})))
    with scripted(first, Reply(body=tree("active")), rest) as server:
        assert messages(server, tail=5)[0] == ["a", "b", "c"]
        assert server.seen[0].target.endswith("?tail=5")
        assert "last-event-id" not in server.seen[0].headers
        assert server.seen[2].headers["last-event-id"] == "1"
        assert "tail" not in server.seen[2].target


def test_an_outage_is_warned_about_once_and_waited_out() -> None:
    with scripted(
        Reply(503, {"detail": "the service is stopping"}),
        Reply(502),
        Reply(drop=True),
        Reply(body=events((0, line("a")), ("end", {}))),
    ) as server:
        found, warnings, pauses = messages(server)
        assert found == ["a"]
        assert warnings == ["the service is stopping; trying again"]
        assert pauses == [1, 2, 4]


def test_a_missing_job_is_told() -> None:
    with scripted(Reply(404, {"detail": "no job"})) as server, pytest.raises(NotFound):
        messages(server)


def test_c067_a_stream_without_an_end_event_ends_with_the_job() -> None:
    def script(seen: Seen) -> Reply:
        if seen.target.endswith("/status"):
            return Reply(body=tree("completed"))
        return Reply(body=b"" if "last-event-id" in seen.headers else events((0, line("a"))))

    with scripted(script) as server:
        assert messages(server)[0] == ["a"]


def test_a_service_that_ends_streams_at_once_is_not_asked_in_a_busy_loop() -> None:
    states = iter(["active", "active", "active", "completed"])

    def script(seen: Seen) -> Reply:
        return Reply(body=tree(next(states)) if seen.target.endswith("/status") else b"")

    with scripted(script) as server:
        assert messages(server)[2] == [1, 2, 4, 8]


def test_filters_travel_with_the_stream() -> None:
    with scripted(Reply(body=events(("end", {})))) as server:
        messages(server, step_id="fit")
        assert server.seen[0].target.endswith("?step_id=fit")


def test_events_may_have_several_data_lines_and_comments() -> None:
    lines = [": hello", "id: 3", "data: {", "data: }", "", "event: end", "data: x", "", "retry: 5", ""]
    found = [(event.kind, event.id, event.data) for event in parse_events(lines)]
    assert found == [("message", "3", "{\n}"), ("end", None, "x")]


def test_pauses_double_up_to_half_a_minute() -> None:
    backoff = Backoff(first=3)
    assert [backoff.grow() for _ in range(6)] == [3, 6, 12, 24, 30, 30]
    backoff.reset()
    assert backoff.grow() == 3
