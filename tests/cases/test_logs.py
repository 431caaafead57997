"""What a job prints, from the program to the API."""

import sys
import time
from pathlib import Path

from tests.cases.kit import cancel, create, marked, script, tail
from tests.e2e.service import ENDED, JOBS, Client, Service, in_threads, until

BAR = (
    "import sys, time\n"
    "for i in range(300): sys.stdout.write('\\r%4d/300' % i); sys.stdout.flush(); time.sleep(.01)\n"
    "print('\\nEND')"
)


def test_c001_a_progress_bar_is_seen_while_it_is_drawn_and_stays_small(client: Client) -> None:
    create(client, "c001", [sys.executable, "-u", "-c", BAR])
    first = until(lambda: tail(client, "c001", 5))
    until(lambda: tail(client, "c001", 5)[-1] not in (first[-1], "END"), 5)
    assert client.job("c001")["status"] == "active"
    client.wait("c001")
    lines = client.messages("c001")
    assert lines[-2:] == [" 299/300", "END"]
    assert len(lines) < 30
    assert all(line.endswith("/300") for line in lines[:-1])


def test_c005_lines_are_there_while_it_runs_and_after_a_cancel(client: Client, shared: Service) -> None:
    side = shared.root / "side"
    code = "import time\nwhile 1: print('x'); f.write('x\\n'); f.flush(); time.sleep(.05)"
    code = f"f = open('{side}', 'a')\n{code}"
    create(client, "c005", ["python3", "-c", code])
    until(lambda: len(client.messages("c005")) > 3)
    cancel(client, "c005")
    client.wait("c005", "cancelled")
    assert abs(len(client.messages("c005")) - len(side.read_text().split())) <= 1


def test_c006_bad_bytes_and_split_characters_reach_the_reader_as_text(client: Client) -> None:
    script(client, "c006", r"printf 'ok1\nbad\377\376byte\n\xe2'; sleep .1; printf '\x96\x88\nok2\n'")
    assert client.wait("c006")["status"] == "completed"
    assert client.messages("c006") == ["ok1", "bad\ufffd\ufffdbyte", "█", "ok2"]


def test_c049_a_nul_byte_spoils_neither_its_line_nor_its_neighbours(client: Client) -> None:
    script(client, "c049", r"echo before; printf 'a\000b\n'; echo next")
    client.wait("c049")
    assert client.messages("c049") == ["before", "a\ufffdb", "next"]


def test_c008_at_the_first_sight_of_the_end_the_whole_log_is_there(shared: Service) -> None:
    def one(number: int) -> None:
        client, name = shared.client(), f"c008-{number}"
        script(client, name, "seq 1 5000; printf 'final without newline'; exit 1")
        while client.job(name)["status"] not in ENDED:
            time.sleep(0.005)
        assert client.messages(name) == [*map(str, range(1, 5001)), "final without newline"]

    in_threads(one, 8)


def test_c019_each_line_is_there_once_however_often_the_service_is_killed(tmp_path: Path) -> None:
    service = Service(tmp_path)
    try:
        client = service.start().client()
        script(client, "moth", "for i in $(seq 1 150); do echo $i; echo same; echo same; sleep .02; done")
        for _ in range(2):
            grows(client, "moth")
            service.kill()
            client = service.start().client()
        client.wait("moth", "completed")
        expected = [text for i in range(1, 151) for text in (str(i), "same", "same")]
        assert client.messages("moth") == expected
    finally:
        service.close()


def grows(client: Client, name: str) -> None:
    """Wait until the log is longer than it is now."""
    before = len(client.messages(name))
    until(lambda: len(client.messages(name)) > before)


def test_c031_each_stream_is_in_order_and_every_reading_gives_the_same_order(client: Client) -> None:
    script(client, "c031", "for i in $(seq 1 500); do echo o$i; echo e$i >&2; done")
    client.wait("c031")
    lines = list(client.logs("c031"))
    texts = [line["message"] for line in lines]
    out = [text for text in texts if not text.startswith("[stderr] ")]
    assert out == [f"o{i}" for i in range(1, 501)]
    assert [text for text in texts if text not in out] == [f"[stderr] e{i}" for i in range(1, 501)]
    assert lines == list(client.logs("c031")) == list(client.logs("c031", limit=7))
    assert all(line["timestamp"].endswith("Z") for line in lines)


def test_c027_cursors_keep_their_lines_while_the_log_grows(client: Client) -> None:
    script(client, "c027", "for i in $(seq 1 200); do echo $i; echo e$i >&2; sleep .005; done")
    client.wait("c027", "active")
    issued, cursor = [], ""
    while True:
        running = client.job("c027")["status"] not in ENDED
        page = client.get(f"{JOBS}/c027/logs?limit=7{cursor}").json
        issued.append((cursor, page["data"]))
        if page["next_page"]:
            cursor = f"&page_cursor={page['next_page']}"
        elif running:
            time.sleep(0.02)
        else:
            break
    whole = list(client.logs("c027"))
    assert len(whole) == 400
    walk = dict(issued)  # of a page that was read more than once the last reading
    assert [line for lines in walk.values() for line in lines] == whole
    for cursor, lines in issued:
        again = client.get(f"{JOBS}/c027/logs?limit=7{cursor}").json["data"]
        assert again[: len(lines)] == lines


def test_c056_a_loud_job_is_cut_with_a_marker_and_completes(client: Client) -> None:
    script(client, "c056", "yes 0123456789012345678901234567890123456789 | head -c 20000010")
    script(client, "c056-other", "echo quiet")
    assert client.wait("c056")["status"] == "completed"
    assert client.wait("c056-other")["status"] == "completed"
    marker = "[nemo-jobs] log limit of 3000000 bytes reached; later output is discarded"
    lines = client.messages("c056")
    assert lines[-1] == marker
    assert lines.count(marker) == 1
    assert len(lines) < 400_000


def test_c092_short_jobs_keep_their_first_line_and_long_ones_every_line(shared: Service) -> None:
    def one(number: int) -> None:
        client, name = shared.client(), f"c092-{number}"
        create(client, name, ["seq", "1", "100000" if number == 0 else "1"])
        client.wait(name, "completed")
        last = 100_000 if number == 0 else 1
        assert client.messages(name) == [str(i) for i in range(1, last + 1)]

    in_threads(one, 8)


def test_c067_a_silent_job_stays_active_and_its_late_words_are_there(client: Client) -> None:
    script(client, "c067", "sleep 2.5; echo done", MARK="c067-mark")
    client.wait("c067", "active")
    time.sleep(1.5)
    assert client.job("c067")["status"] == "active"
    assert client.messages("c067") == []
    assert client.wait("c067")["status"] == "completed"
    assert client.messages("c067") == ["done"]
    assert marked("c067-mark") == []


def test_c036_a_log_keeps_escape_sequences_for_those_who_want_them(client: Client) -> None:
    script(client, "c036", r"printf '\033[31mred\033[0m \033]0;pwn\007 \033[2J done\n'; echo after")
    client.wait("c036")
    assert client.messages("c036") == ["\x1b[31mred\x1b[0m \x1b]0;pwn\x07 \x1b[2J done", "after"]


def test_c083_no_filter_is_ignored(client: Client) -> None:
    script(client, "c083", "echo one", "echo two")
    client.wait("c083")
    task = client.status("c083")["steps"][0]["tasks"][0]["name"]

    def read(query: str) -> tuple[int, list[str]]:
        answer = client.get(f"{JOBS}/c083/logs?{query}")
        return answer.status, [line["message"] for line in answer.json.get("data", [])]

    assert read("step_id=step-2") == (200, ["two"])
    assert read(f"task_id={task}&attempt_id=0&step_id=step-1") == (200, ["one"])
    for nothing in ("step_id=none", "task_id=task-none", "attempt_id=7"):
        assert read(nothing) == (404, [])
    assert read("attempt_id=none-such") == (422, [])
