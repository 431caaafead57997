"""Secrets with real processes: the task has them, and nothing else on the machine shows them."""

import base64
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.bed.postgres import Missing, PostgresServer
from tests.e2e.service import JOBS, NEMO, Client, Service, all_pids, proc_file, until

SECRETS = "/apis/secrets/v2/workspaces/default/secrets"
ROTATE = "/apis/secrets/v2/rotate-key"
pytestmark = pytest.mark.time_limit(180)
CANARY = "canary-4711-Zx/+?ü-in-clear"


@pytest.fixture(scope="module")
def server():
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    yield server
    server.destroy()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request):
    return None if request.param == "sqlite" else request.getfixturevalue("server").new_database()


def from_secret(*names: str) -> list[dict]:
    return [{"name": name.upper(), "from_secret": {"name": name}} for name in names]


def forms(value: str) -> list[bytes]:
    """The value and the part of its base64 that is the same in every longer text, by position."""
    data = value.encode()
    found = [data]
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data)
        inner = encoded[4 if before else 0 : len(encoded) - 4]
        found += [inner, inner.translate(bytes.maketrans(b"+/", b"-_"))]
    return found


def shown_in(folder: Path, value: str = CANARY) -> list[str]:
    """The files below `folder` in which the value stands, in clear or in base64."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        found += [str(path.relative_to(folder)) for form in forms(value) if form in data][:1]
    return found


def rows_of(url: str) -> bytes:
    """Everything that the tables of a PostgreSQL database hold."""
    import psycopg

    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        found = []
        for (table,) in tables:
            query = psycopg.sql.SQL("SELECT t::text FROM {} t").format(psycopg.sql.Identifier(table))
            found += [row[0] for row in connection.execute(query).fetchall()]
    assert len(found) > 20
    return "\n".join(found).encode()


def put(client: Client, name: str = "canary", value: str = CANARY) -> None:
    answer = client.post(SECRETS, {"name": name, "value": value})
    assert answer.status == 201, answer


def test_c030_a_value_is_in_no_file_answer_or_log_of_the_service(
    tmp_path: Path, database_url: str | None
) -> None:
    settings = {"service": {"log_level": "DEBUG"}}
    with Service(tmp_path / "place", database_url=database_url, settings=settings) as service:
        client = service.client()
        put(client)
        scripts = {
            "works": "test ${#CANARY} -gt 20; echo out $CANARY; printf %s $CANARY | base64; "
            "echo err $CANARY >&2; printf 'no end %s' $CANARY",
            "fails": "echo last words $CANARY >&2; exit 3",
            "dies": "echo $CANARY; kill -9 $$",
            "stays": "printf 'half %.12s' $CANARY; sleep 60",
        }
        for name, script in scripts.items():
            created = client.create(name, ["sh", "-c", script], environment=from_secret("canary"))
            assert created.status == 201, created
        refused = client.create("none", [f"/no/such/{'x' * 10}"], environment=from_secret("canary"))
        assert refused.status == 201
        for name in ("works", "fails", "dies", "none"):
            client.wait(name)
        client.wait("stays", "active")
        until(
            lambda: b"half" in b"".join(p.read_bytes() for p in (service.data_dir / "keeper").rglob("*.out"))
        )
        # Between the two streams the order is that of arrival.
        assert sorted(client.messages("works")) == ["***", "[stderr] err ***", "no end ***", "out ***"]
        assert client.job("none")["status"] == "error"
        answers = [client.get("/status"), client.get("/metrics"), client.get(SECRETS), client.get(JOBS)]
        for name in (*scripts, "none"):
            answers += [client.get(f"{JOBS}/{name}{path}") for path in ("", "/status", "/steps", "/logs")]
        for answer in answers:
            assert all(form not in answer.body for form in forms(CANARY)), answer
        assert client.status("fails")["steps"][0]["tasks"][0]["error_stack"] == "last words ***"
        client.post(f"{JOBS}/stays/cancel")
        client.wait("stays")
        # Also what the tasks wrote is gone from their output files, once it is stored.
        until(lambda: not shown_in(tmp_path / "place"))
        service.stop()
        assert shown_in(tmp_path / "place") == []
        assert (service.data_dir / "secrets.key").stat().st_mode & 0o777 == 0o600
    if database_url:
        assert all(form not in rows_of(database_url) for form in forms(CANARY))


def test_c053_a_value_is_in_no_command_line_and_only_in_the_environment_of_its_task(tmp_path: Path) -> None:
    with Service(tmp_path / "place") as service:
        client = service.client()
        put(client)
        put(client, "other", "another-canary-value")
        lines: set[bytes] = set()
        done = threading.Event()

        def sample() -> None:
            while not done.is_set():
                for pid in all_pids():
                    lines.add(proc_file(pid, "cmdline"))
                time.sleep(0.005)

        sampling = threading.Thread(target=sample)
        sampling.start()
        try:
            ran = subprocess.run(
                [NEMO, "secrets", "create", "by-hand", "--base-url", service.url],
                input=CANARY.encode() + b"\n",
                capture_output=True,
                timeout=30,
                check=False,
                env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            )
            assert ran.returncode == 0, ran.stderr
            assert CANARY.encode() not in ran.stdout + ran.stderr
            for n in range(5):
                client.create(f"moth-{n}", ["sh", "-c", "sleep 0.2"], environment=from_secret("canary"))
            client.create("stays", ["sleep", "60"], environment=from_secret("canary"))
            client.create("plain", ["sleep", "60"])
            client.wait("stays", "active")
            client.wait("plain", "active")
            for n in range(5):
                client.wait(f"moth-{n}")
        finally:
            done.set()
            sampling.join()
        assert not [line for line in lines if CANARY.encode() in line]
        (own,) = [p for p in service.processes() if CANARY.encode() in proc_file(p, "environ")]
        assert proc_file(own, "cmdline").startswith(b"sleep\0")
        assert b"another-canary-value" not in proc_file(own, "environ")
        value = client.get(f"{SECRETS}/by-hand/access").json["value"]
        assert value == CANARY


def test_c044_the_keys_of_the_service_reach_no_task(tmp_path: Path) -> None:
    key = base64.b64encode(os.urandom(32)).decode()
    with Service(tmp_path / "place", environ={"NHX_SECRETS_KEY": key}) as service:
        client = service.client()
        put(client)
        client.create("moth", ["sh", "-c", "env; cat /proc/$PPID/environ"], environment=from_secret("canary"))
        client.wait("moth")
        text = "\n".join(client.messages("moth"))
        assert "NHX_SECRETS_KEY" not in text
        assert key not in text
        assert not (service.data_dir / "secrets.key").exists()
        assert "NEMO_JOB_SECRETS=CANARY=default/canary" in text
        assert "CANARY=***" in text.replace("NEMO_JOB_SECRETS=CANARY", "")
        service.stop()
        assert shown_in(tmp_path / "place", key) == []


def test_after_a_kill_in_the_middle_of_a_value_it_is_masked(tmp_path: Path, database_url: str | None) -> None:
    go = tmp_path / "go"
    script = (
        f"printf 'one %s\\ntwo %.9s' $CANARY $CANARY; while ! test -e {go}; do sleep 0.05; done; "
        "printf '%s three\\n' ${CANARY#?????????}; echo $CANARY"
    )
    with Service(tmp_path / "place", database_url=database_url) as service:
        client = service.client()
        put(client, "canary", "plain-canary-4711")
        client.create("moth", ["bash", "-c", script], environment=from_secret("canary"))
        until(lambda: client.messages("moth") == ["one ***"])
        client.call("DELETE", f"{SECRETS}/canary")
        service.kill()
        go.touch()
        service.start()
        client = service.client()
        client.wait("moth", "completed")
        assert client.messages("moth") == ["one ***", "two *** three", "***"]
        service.stop()
        assert shown_in(tmp_path / "place", "plain-canary-4711") == []


def test_c064_a_secret_that_is_deleted_while_its_step_waits_ends_it_by_name(tmp_path: Path) -> None:
    with Service(tmp_path / "place", subprocess_config={"max_concurrent": 1}) as service:
        client = service.client()
        put(client)
        client.create("first", ["sleep", "60"])
        client.wait("first", "active")
        client.create("second", ["sh", "-c", "echo started"], environment=from_secret("canary"))
        assert client.call("DELETE", f"{SECRETS}/canary").status == 204
        client.post(f"{JOBS}/first/cancel")
        job = client.wait("second")
        assert job["status"] == "error"
        assert "default/canary" in job["error_details"]["message"]
        assert client.messages("second") == []
        answer = client.create("third", ["true"], environment=from_secret("canary"))
        assert answer.status == 422
        assert "default/canary" in answer.json["detail"]
        assert "CANARY" in answer.json["detail"]


def test_a_service_with_another_key_or_none_refuses_to_start(
    tmp_path: Path, database_url: str | None
) -> None:
    with Service(tmp_path / "place", database_url=database_url) as service:
        put(service.client())
        service.stop()
        file = service.data_dir / "secrets.key"
        kept = file.read_bytes()
        for change in (file.unlink, lambda: _write(file, base64.b64encode(os.urandom(32)))):
            change()
            assert service.spawn().wait(20) == 2
            assert "which this service does not have" in service.diagnosis(3)
            assert "NHX_SECRETS_KEY" in service.diagnosis(3)
        _write(file, kept, 0o644)
        assert service.spawn().wait(20) == 2
        assert "chmod 600" in service.diagnosis(3)
        _write(file, b"nonsense")
        assert service.spawn().wait(20) == 2
        assert "nonsense" not in service.diagnosis(3)
        _write(file, kept)
        service.start()
        assert service.client().get(f"{SECRETS}/canary/access").json["value"] == CANARY


def _write(file: Path, data: bytes, mode: int = 0o600) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_bytes(data)
    file.chmod(mode)


def test_the_key_is_changed_by_command_while_steps_wait_and_run(tmp_path: Path) -> None:
    with Service(tmp_path / "place", subprocess_config={"max_concurrent": 1}) as service:
        client = service.client()
        put(client)
        client.create("runs", ["sh", "-c", "read x; echo $CANARY"], environment=from_secret("canary"))
        go = tmp_path / "go"
        client.create(
            "stays",
            ["sh", "-c", f"while ! test -e {go}; do sleep 0.05; done; echo $CANARY"],
            environment=from_secret("canary"),
        )
        client.create("waits", ["sh", "-c", "echo $CANARY"], environment=from_secret("canary"))
        client.wait("stays", "active")
        before = (service.data_dir / "secrets.key").read_text()
        ran = subprocess.run(
            [NEMO, "secrets", "rotate-key", "--base-url", service.url],
            capture_output=True,
            timeout=30,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        )
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["finished"]
        assert (service.data_dir / "secrets.key").read_text() != before
        service.kill()
        service.start()
        go.touch()
        client = service.client()
        for name in ("stays", "waits"):
            client.wait(name, "completed")
            assert client.messages(name) == ["***"]


def test_two_services_of_one_database_learn_a_new_key_from_each_other(tmp_path: Path, server) -> None:
    url, files = server.new_database(), {"files": {"storage": {"url": f"file://{tmp_path}/shared"}}}
    with Service(tmp_path / "place", database_url=url, name="one", settings=files) as one:
        put(one.client())
        two = Service(tmp_path / "place", database_url=url, name="two", settings=files)
        assert two.spawn().wait(20) == 2
        two.data_dir.joinpath("secrets.key").write_bytes(one.data_dir.joinpath("secrets.key").read_bytes())
        two.data_dir.joinpath("secrets.key").chmod(0o600)
        with two:
            answer = one.client().post(ROTATE)
            assert answer.json["finished"], answer
            new = one.data_dir.joinpath("secrets.key").read_text()
            until(lambda: two.data_dir.joinpath("secrets.key").read_text() == new, 10)
            assert two.client().get(f"{SECRETS}/canary/access").json["value"] == CANARY
            put(two.client(), "more", "another-value")
            assert one.client().get(f"{SECRETS}/more/access").json["value"] == "another-value"
            two.kill()
            assert one.client().post(ROTATE).json["finished"]
            two.start()
            assert two.client().get(f"{SECRETS}/more/access").json["value"] == "another-value"


def test_kills_during_changes_of_the_key_lose_nothing(tmp_path: Path, database_url: str | None) -> None:
    with Service(tmp_path / "place", database_url=database_url) as service:
        client = service.client()
        values = {f"token-{n:03d}": f"value-{n}-{os.urandom(8).hex()}" for n in range(150)}
        for name, value in values.items():
            put(client, name, value)
        for delay in (0.0, 0.004, 0.012, 0.03, 0.06):

            def rotate() -> None:
                try:
                    service.client().post(ROTATE)
                except OSError:
                    pass  # the service was killed: that is the point

            asking = threading.Thread(target=rotate)
            asking.start()
            time.sleep(delay)
            assert service.process is not None
            service.process.send_signal(signal.SIGKILL)
            service.process.wait()
            asking.join()
            service.start()
        client = service.client()
        for name, value in values.items():
            assert client.get(f"{SECRETS}/{name}/access").json["value"] == value
        answer = client.post(ROTATE)
        while not answer.json["finished"]:
            answer = client.post(ROTATE)
        for name, value in values.items():
            assert client.get(f"{SECRETS}/{name}/access").json["value"] == value
