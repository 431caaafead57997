"""The command as a process: locales, pipes, terminals, signals, and how fast it starts."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.scripted import Reply, Seen, job, line, page, scripted, tree

NEMO = str(Path(sys.executable).with_name("nemo"))


def environ(url: str, **more: str) -> dict[str, str]:
    kept = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "NHX_BASE_URL": url, "LANG": "C.UTF-8"}
    return kept | more


def run(url: str, *words: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([NEMO, *words], env=environ(url, **more), capture_output=True, timeout=30)


def logs(*messages: str) -> Reply:
    lines = [line(message) for message in messages]
    return Reply(body={"data": lines, "total": len(lines), "next_page": None, "prev_page": None})


LOCALES = [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"LC_ALL": "C"},
    {"PYTHONIOENCODING": "latin-1"},
]


@pytest.mark.parametrize("locale", LOCALES)
def test_c066_any_locale_shows_what_it_can(locale: dict[str, str]) -> None:
    with scripted(logs("█ ö 漢", "after")) as server:
        ran = run(server.url, "jobs", "tail", "x", **locale)
        assert (ran.returncode, ran.stdout.count(b"\n")) == (0, 2)
        assert ran.stdout.endswith(b"after\n")
        ran = run(server.url, "jobs", "get-logs", "x", **locale)
        assert json.loads(ran.stdout.decode("utf-8"))["data"][0]["message"] == "█ ö 漢"
        assert b"Traceback" not in ran.stderr


def test_c066_json_is_ascii_where_the_output_is_not_utf8() -> None:
    with scripted(logs("ö")) as server:
        assert b"\\u00f6" in run(server.url, "jobs", "get-logs", "x", PYTHONIOENCODING="ascii").stdout
        assert "ö".encode() in run(server.url, "jobs", "get-logs", "x").stdout


def test_c048_an_ascii_locale_sends_the_same_bytes() -> None:
    with scripted(Reply(201, job())) as server:
        command = [NEMO, "jobs", "run", "--", "echo", "caf\u00e9"]
        for more in LOCALES:
            subprocess.run(
                command, env=environ(server.url, **more), capture_output=True, timeout=30, check=True
            )
        sent = [request.json["platform_spec"]["steps"][0]["executor"]["command"] for request in server.seen]
        assert sent == [["echo", "café"]] * len(LOCALES)


@pytest.mark.parametrize("words", [("list",), ("get", "x"), ("get-logs", "x"), ("list-execution-profiles",)])
def test_c016_stdout_is_one_json_document_whatever_python_warns_about(words: tuple[str, ...]) -> None:
    def script(seen: Seen) -> Reply:
        if seen.target.endswith("profiles"):
            return Reply(body=[])
        return logs() if "/logs" in seen.target else Reply(body=page([]))

    with scripted(script) as server:
        ran = run(server.url, "-v", "jobs", *words, "-f", "json", PYTHONWARNINGS="always")
        assert ran.returncode == 0
        json.loads(ran.stdout)


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    with scripted(logs(*("x" * 1000 for _ in range(2000)))) as server:
        process = subprocess.Popen(
            [NEMO, "jobs", "get-logs", "x"],
            env=environ(server.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout and process.stderr
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == b""
        process.stderr.close()


def test_a_full_disk_is_an_error() -> None:
    with scripted(logs("a")) as server, Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [NEMO, "jobs", "get-logs", "x"],
            env=environ(server.url),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
        )
        assert ran.returncode == 1
        assert ran.stderr == b"error: output can't be written: No space left on device\n"


def test_closed_streams_do_not_matter() -> None:
    with scripted(Reply(204)) as server:
        command = f"exec {NEMO} jobs delete x >&- 2>&-"
        assert subprocess.run(["sh", "-c", command], env=environ(server.url), timeout=30).returncode == 0


@pytest.mark.parametrize("words", ["jobs create --input-file -", "config set --token-file -"])
def test_a_closed_standard_input_is_wrong_usage(words: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        ["sh", "-c", f"exec {NEMO} {words} <&-"],
        env=environ("http://127.0.0.1:9") | {"XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ran.returncode == 2
    assert "standard input is closed" in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("words", [("tail", "-f", "moth-sorter"), ("watch", "moth-sorter")])
def test_c040_ctrl_c_leaves_the_job_alone_and_says_how_to_return(
    words: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    def script(seen: Seen) -> Reply:
        if seen.target.endswith("/stream"):
            time.sleep(0.2)
            return Reply(body=b": heartbeat\n\n")
        return logs("out") if "/logs" in seen.target else Reply(body=tree("active"))

    with scripted(script) as server:
        process = subprocess.Popen(
            [NEMO, "jobs", *words], env=environ(server.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stderr
        seen = b""
        while b"active" not in seen:
            seen += process.stderr.readline()
        process.send_signal(number)
        _, rest = process.communicate(timeout=20)
        assert process.returncode == code
        assert b"Traceback" not in seen + rest
        command = " ".join(words)
        assert f"the job goes on; come back with: nemo jobs {command}\n".encode() in rest
        assert {request.method for request in server.seen} == {"GET"}


def test_c040_ctrl_c_during_create_says_where_to_look() -> None:
    def slowly(seen: Any) -> Reply:
        time.sleep(5)
        return Reply(201, job())

    with scripted(slowly) as server:
        process = subprocess.Popen(
            [NEMO, "jobs", "run", "--name", "mine", "--", "true"],
            env=environ(server.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        while not server.seen:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (130, b"")
        assert b"the job may have been created; look with: nemo jobs get mine\n" in err
        assert b"Traceback" not in err


def in_terminal(url: str, *words: str, columns: int = 80, **more: str) -> tuple[int, str]:
    """Run on a terminal of its own; what it shows, and the exit code."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [NEMO, *words],
        env=environ(url, TERM="xterm", **more),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:  # Linux says so when the last user of the terminal has gone
                break
            shown += piece
    os.close(master)
    return process.wait(10), shown.decode()


def test_a_list_on_a_terminal_is_a_table_that_fits() -> None:
    rows = [job("one", description="long " * 40), job("two", description="\x1b[2J漢字")]
    with scripted(Reply(body=page(rows))) as server:
        code, shown = in_terminal(server.url, "jobs", "list")
        lines = shown.replace("\r", "").splitlines()
        assert code == 0
        assert lines[0].startswith("\x1b[1mNAME  DESCRIPTION")
        assert "…" in lines[1]
        assert "漢字" in lines[2]
        assert all(len(re.sub(r"\x1b\[\d*m", "", text)) <= 80 for text in lines[:3])
        assert lines[3] == "some values were cut; --no-truncate shows all of them, -f json too"
        code, shown = in_terminal(server.url, "jobs", "list", "--no-truncate", NO_COLOR="1")
        assert "long " * 40 in shown
        assert "\x1b" not in shown


def test_c036_a_terminal_shows_colours_of_the_job_and_no_other_sequence() -> None:
    with scripted(logs("\x1b[31mred\x1b[0m \x1b]0;pwn\x07 \x1b[2J done")) as server:
        code, shown = in_terminal(server.url, "jobs", "tail", "x")
        assert (code, "\x1b[31mred\x1b[0m   done" in shown) == (0, True)
        assert set(re.findall(r"\x1b[^m]*.", shown)) <= {"\x1b[31m", "\x1b[0m"}
        for plain in (
            in_terminal(server.url, "jobs", "tail", "x", NO_COLOR="1"),
            in_terminal(server.url, "jobs", "tail", "x", NHX_COLOR_OUTPUT="false"),
        ):
            assert "\x1b" not in plain[1]


def test_watching_on_a_terminal_has_one_live_line_with_step_state_time_and_progress() -> None:
    looks = iter(range(1000))

    def script(seen: Seen) -> Reply:
        if "/logs" in seen.target:
            return logs("a line of the log")
        done = next(looks) > 2
        details: dict[str, Any] = {"percentage_done": 40, "epoch": 2}
        return Reply(body=tree("completed" if done else "active", status_details=details))

    with scripted(script) as server:
        code, shown = in_terminal(server.url, "jobs", "watch", "moth-sorter", columns=100)
        assert code == 0
        drawn = [part for part in shown.split("\r\x1b[2K") if "moth-sorter/step-0" in part]
        assert drawn
        plain = re.sub(r"\x1b\[[\d;]*m", "", drawn[0])
        assert re.search(r"moth-sorter/step-0 active \d\.\d s .*40% epoch=2", plain)
        assert all("\n" not in part.strip("\r\n") for part in drawn)
        assert shown.count("a line of the log") == 1
        assert "job moth-sorter: completed after" in shown


def test_list_loads_nothing_heavy() -> None:
    with scripted(Reply(body=page([job("one")]))) as server:
        ran = subprocess.run(
            [sys.executable, "-X", "importtime", NEMO, "jobs", "list"],
            env=environ(server.url),
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        loaded = {text.rsplit("|", 1)[1].strip() for text in ran.stderr.splitlines() if "|" in text}
        heavy = {
            "pydantic",
            "sqlalchemy",
            "rich",
            "yaml",
            "http.client",
            "ssl",
            "asyncio",
            "email",
            "pathlib",
        }
        assert not loaded & heavy
        assert json.loads(ran.stdout)["data"][0]["name"] == "one"
