"""Waiting and watching by asking again: what is printed, when it ends, and with which code."""

from typing import Any

import pytest

from nemo_jobs.cli.watching import LogWalk, Watch, Watcher
from nemo_jobs.client import HttpError, JobsClient, NotFound, Retry
from nemo_jobs.client.follow import Selection
from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, Scripted, Seen, job, line, scripted, tree


class Report:
    """Collects what is told."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.lines: list[str] = []
        self.notes: list[str] = []

    def tree(self, tree: Any) -> None:
        self.states.append(tree["status"])

    def line(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        pass


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now


def watched(server: Scripted, plan: Watch) -> tuple[Any, Report, Time]:
    report, time = Report(), Time()
    with JobsClient(server.url, retry=Retry(repeats=0)) as client:
        watcher = Watcher(
            client, plan, report, lambda item: str(item["message"]), clock=time.clock, sleep=time.sleep
        )
        return watcher.run(), report, time


def logs(*lines: Any, following: str | None = None) -> Reply:
    return Reply(body={"data": list(lines), "total": len(lines), "next_page": following, "prev_page": None})


class Job:
    """A job whose states come one after the other, and whose log grows with them."""

    def __init__(self, states: list[str], pages: list[Reply]) -> None:
        self.states, self.pages = states, pages
        self.looks = self.reads = 0

    def __call__(self, seen: Seen) -> Reply:
        if "/logs" in seen.target:
            self.reads += 1
            return self.pages[min(self.reads, len(self.pages)) - 1]
        self.looks += 1
        return Reply(body=tree(self.states[min(self.looks, len(self.states)) - 1]))


def test_wait_looks_until_the_end_and_reads_no_log() -> None:
    service = Job(["created", "active", "completed"], [])
    with scripted(service) as server:
        tree, report, time = watched(server, Watch("j", logs=False))
        assert (tree["status"], report.states) == ("completed", ["created", "active", "completed"])
        assert service.reads == 0
        assert time.pauses == [pytest.approx(0.1), pytest.approx(0.15)]


def test_pauses_never_grow_beyond_the_poll_interval() -> None:
    with scripted(Job(["active"] * 30 + ["completed"], [])) as server:
        _, _, time = watched(server, Watch("j", logs=False, poll=2))
        assert max(time.pauses) == 2


def test_watch_prints_each_line_once_although_pages_are_read_again() -> None:
    pages = [
        logs(line("a"), line("a")),
        logs(line("a"), line("a"), line("a"), following="c2"),
        logs(line("b")),
        logs(line("b"), line("c", 1)),
    ]
    with scripted(Job(["active", "active", "completed"], pages)) as server:
        _, report, _ = watched(server, Watch("j"))
        assert report.lines == ["a", "a", "a", "b", "c"]
        cursors = [seen.target for seen in server.seen if "page_cursor" in seen.target]
        assert all("page_cursor=c2" in target for target in cursors)


def test_a_cursor_that_repeats_ends_the_walk() -> None:
    pages = [logs(line("a"), following="same"), logs(line("b"), following="same")]
    with scripted(Job(["completed"], pages)) as server:
        _, report, _ = watched(server, Watch("j"))
        assert report.lines == ["a", "b"]


def test_without_history_the_first_walk_is_silent() -> None:
    pages = [logs(line("old")), logs(line("old"), line("new", 1))]
    with scripted(Job(["active", "completed"], pages)) as server:
        _, report, _ = watched(server, Watch("j", history=False))
        assert report.lines == ["new"]


def test_a_bad_cursor_starts_again_without_repeating_lines() -> None:
    bad = Reply(422, {"detail": "Invalid page cursor", "code": "invalid_page_cursor"})
    pages = [logs(line("a"), following="c"), logs(line("b")), bad, logs(line("a"), line("b"), line("d"))]
    with scripted(Job(["active", "completed"], pages)) as server:
        _, report, _ = watched(server, Watch("j"))
        assert report.lines == ["a", "b", "d"]


def test_passing_failures_give_one_warning_and_growing_pauses() -> None:
    replies = [Reply(503, {"detail": "away"}), Reply(502), Reply(drop=True), Reply(429)]
    with scripted(*replies, Reply(body=tree("completed"))) as server:
        _, report, time = watched(server, Watch("j", logs=False, poll=3))
        assert report.notes == ["warning: away; trying again"]
        assert time.pauses == [3, 6, 12, 24]


def test_another_error_of_the_status_ends_the_watch() -> None:
    with scripted(Reply(404, {"detail": "no job"})) as server, pytest.raises(NotFound):
        watched(server, Watch("j"))
    with scripted(Reply(500, {"detail": "broken"})) as server, pytest.raises(HttpError, match="broken"):
        watched(server, Watch("j"))


def test_an_error_of_the_log_only_warns_and_is_tolerated_three_times_after_the_end() -> None:
    service = Job(["completed"], [Reply(500, {"detail": "log away"})])
    with scripted(service) as server:
        tree, report, _ = watched(server, Watch("j"))
        assert (tree["status"], service.reads) == ("completed", 3)
        assert report.notes == ["warning: log away; trying again"]


def test_time_is_up_at_the_deadline() -> None:
    with scripted(Job(["active"], [])) as server:
        tree, _, time = watched(server, Watch("j", logs=False, timeout=10, poll=3))
        assert (tree, time.now) == (None, 10)


def test_a_walk_goes_through_many_pages() -> None:
    pages = [logs(line(str(n)), following=f"c{n}") for n in range(20)] + [logs(line("end"))]
    with scripted(*pages) as server, JobsClient(server.url) as client:
        walk = LogWalk(client, Selection("j"), 1)
        assert [item["message"] for item in walk.lines()] == [*(str(n) for n in range(20)), "end"]


@pytest.mark.parametrize(("state", "code"), [("completed", 0), ("error", 1), ("cancelled", 1), ("paused", 1)])
def test_c025_the_exit_code_of_watch_and_wait_tells_how_the_job_ended(
    nemo: Nemo, state: str, code: int
) -> None:
    details = {"message": "fit ended with code 9", "exit_code": 9} if state == "error" else None
    end = tree(state, error_details=details)
    with scripted(lambda seen: logs(line("out")) if "/logs" in seen.target else Reply(body=end)) as server:
        ran = nemo("--base-url", server.url, "jobs", "watch", "moth-sorter")
        assert ran.code == code
        assert "out" in ran.out
        assert f"job moth-sorter: {state}" in ran.err.splitlines()[-1 if state != "paused" else -2]
        if state == "error":
            assert ran.err.endswith(": fit ended with code 9\n")
    with scripted(lambda seen: Reply(body=end) if seen.method == "GET" else Reply(201, job())) as server:
        spec = ["--source", "s", "--spec", "{}", "--platform-spec", '{"steps": []}']
        ran = nemo("--base-url", server.url, "jobs", "create", "moth-sorter", *spec, "--wait")
        assert ran.code == code


def test_c025_watch_of_a_missing_job_and_a_time_out_exit_with_1(nemo: Nemo) -> None:
    with scripted(Reply(404, {"detail": "no job 'x'"})) as server:
        ran = nemo("--base-url", server.url, "jobs", "watch", "x")
        assert (ran.code, ran.err) == (1, "error: not found (404): no job 'x'\n")
    with scripted(lambda seen: logs() if "/logs" in seen.target else Reply(body=tree("active"))) as server:
        ran = nemo("--base-url", server.url, "jobs", "watch", "x", "--timeout", "1")
        assert ran.code == 1
        assert "hasn't ended within 1 s" in ran.err


def test_at_most_six_details_of_the_task_are_shown(nemo: Nemo) -> None:
    details = {f"k{n}": n for n in range(9)} | {"nested": {"no": 1}}
    end = tree("completed", status_details=details)
    with scripted(lambda seen: logs() if "/logs" in seen.target else Reply(body=end)) as server:
        ran = nemo("--base-url", server.url, "jobs", "watch", "moth-sorter")
        assert "k0=0, k1=1, k2=2, k3=3, k4=4, k5=5\n" in ran.err


def test_the_time_it_took_is_that_of_the_attempt_and_not_of_later_changes() -> None:
    from nemo_jobs.cli.progress import closing

    ended = tree("completed")
    ended["created_at"] = "2027-03-01T09:00:00Z"
    ended["steps"] = [{**step, "created_at": "2027-03-04T09:00:00Z"} for step in ended["steps"]]
    ended["updated_at"] = "2027-03-09T09:00:00Z"
    ended["reason"] = {"code": "finished", "message": "", "since": "2027-03-04T09:00:12Z"}
    assert closing(ended) == f"job {ended['name']}: completed after 12 s"
