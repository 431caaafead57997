"""`nemo secrets`: values from standard input, a file or a prompt, and never in what is printed."""

import asyncio
import io
import json
import sys
from pathlib import Path

import pytest

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.secrets import Reference, Sealed
from nemo_jobs.secret_store import open_secrets
from nemo_jobs.store import secrets as store_secrets
from nemo_jobs.store import workspaces
from nemo_jobs.store.db import Database
from nemo_jobs.vault.keyring import WrongKey
from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, page, scripted

CLEAR = "hunter22-in-clear"
SECRET = {
    "name": "token",
    "workspace": "default",
    "description": None,
    "created_at": "2027-03-04T09:15:27.104233Z",
    "updated_at": "2027-03-04T09:15:27.104233Z",
}
PATH = "/apis/secrets/v2/workspaces/default/secrets"


class Given(io.TextIOWrapper):
    """Standard input with these bytes."""

    def __init__(self, data: bytes, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch):
    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", Given(data))

    return give


@pytest.mark.parametrize(
    ("data", "options", "value"),
    [
        (CLEAR.encode(), (), CLEAR),
        (f"{CLEAR}\n".encode(), (), CLEAR),
        (f"{CLEAR}\r\n".encode(), (), CLEAR),
        (f"{CLEAR}\n\n".encode(), (), f"{CLEAR}\n"),
        (f"{CLEAR}\n".encode(), ("--keep-newline",), f"{CLEAR}\n"),
        (f"{CLEAR}\n".encode(), ("--from-file", "-"), CLEAR),
        ("ü☃".encode(), (), "ü☃"),
    ],
)
def test_a_value_is_read_from_standard_input(nemo: Nemo, stdin, data: bytes, options, value: str) -> None:
    stdin(data)
    with scripted(Reply(201, SECRET)) as server:
        ran = nemo("secrets", "create", "token", *options, "--base-url", server.url, "-v", "-v")
    assert ran.code == 0, ran.err
    assert server.targets == [f"POST {PATH}"]
    assert server.seen[0].json == {"name": "token", "value": value}
    assert CLEAR not in ran.out + ran.err
    assert json.loads(ran.out) == SECRET


def test_a_value_is_read_from_a_file(nemo: Nemo, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_text(f"{CLEAR}\nsecond line\n")
    with scripted(Reply(201, SECRET)) as server:
        ran = nemo(
            *("secrets", "create", "token", "--from-file", str(file), "--description", "of the mirror"),
            *("-w", "lab", "--base-url", server.url),
        )
    assert ran.code == 0, ran.err
    assert server.targets == [f"POST {PATH.replace('default', 'lab')}"]
    assert server.seen[0].json == {
        "name": "token",
        "value": f"{CLEAR}\nsecond line",
        "description": "of the mirror",
    }


def test_a_value_in_an_argument_is_refused_with_the_reason(nemo: Nemo) -> None:
    ran = nemo("secrets", "create", "token", "--value", CLEAR, "--base-url", "http://127.0.0.1:1")
    assert ran.code == 2
    assert "shell's history" in ran.err
    assert CLEAR not in ran.out + ran.err
    assert "--value" not in nemo("secrets", "create", "--help").out


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"", "holds no value"), (b"\n", "holds no value"), (b"\xff\xfe", "UTF-8"), (b"x" * 65600, "64 KiB")],
)
def test_what_is_no_value_is_refused_before_anything_is_sent(
    nemo: Nemo, stdin, data: bytes, told: str
) -> None:
    stdin(data)
    ran = nemo("secrets", "create", "token", "--base-url", "http://127.0.0.1:1")
    assert ran.code == 2
    assert told in ran.err


def test_a_missing_file_is_told_of(nemo: Nemo) -> None:
    ran = nemo("secrets", "create", "token", "--from-file", "/nowhere/at/all")
    assert ran.code == 2
    assert "No such file" in ran.err


def test_a_remark_of_the_service_is_shown(nemo: Nemo, stdin) -> None:
    stdin(b"abc")
    with scripted(Reply(201, {**SECRET, "notes": ["it will not be masked"]})) as server:
        ran = nemo("secrets", "create", "token", "--base-url", server.url)
    assert "note: it will not be masked" in ran.err
    assert json.loads(ran.out)["notes"]


def test_the_code_that_is_shown_holds_no_value(nemo: Nemo, stdin) -> None:
    stdin(CLEAR.encode())
    ran = nemo("secrets", "create", "token", "-f", "code")
    assert ran.code == 0
    assert "client.create_secret('token', 'the value')" in ran.out
    assert CLEAR not in ran.out
    ran = nemo("secrets", "update", "token", "-f", "code")
    assert "client.update_secret('token', value='the value')" in ran.out


def test_an_update_changes_what_is_given(nemo: Nemo, stdin) -> None:
    stdin(CLEAR.encode())
    with scripted(Reply(200, SECRET)) as server:
        assert nemo("secrets", "update", "token", "--base-url", server.url).code == 0
        stdin(b"other")
        assert nemo("secrets", "update", "token", "--description", "d", "--base-url", server.url).code == 0
        both = ("--description", "d", "--from-file", "-")
        assert nemo("secrets", "update", "token", *both, "--base-url", server.url).code == 0
    assert [seen.json for seen in server.seen] == [
        {"value": CLEAR},
        {"description": "d"},
        {"value": "other", "description": "d"},
    ]
    assert {seen.method for seen in server.seen} == {"PATCH"}


def test_list_get_and_delete(nemo: Nemo) -> None:
    with scripted(Reply(200, page([SECRET])), Reply(200, SECRET), Reply(204)) as server:
        listed = nemo("secrets", "list", "--sort", "-name", "--page-size", "5", "--base-url", server.url)
        assert json.loads(listed.out)["data"] == [SECRET]
        assert json.loads(nemo("secrets", "get", "token", "--base-url", server.url).out) == SECRET
        assert "deleted secret 'token'" in nemo("secrets", "delete", "token", "--base-url", server.url).err
    assert server.targets == [
        f"GET {PATH}?page_size=5&sort=-name",
        f"GET {PATH}/token",
        f"DELETE {PATH}/token",
    ]


def _rotation(changed: int, left: int, *unreadable: str) -> Reply:
    key = {"key_id": "k2", "finished": left == 0, "unreadable": list(unreadable)}
    return Reply(200, {**key, "changed": changed, "left": left})


def test_a_change_of_the_key_is_asked_for_until_it_is_finished(nemo: Nemo) -> None:
    with scripted(_rotation(500, 100), _rotation(100, 0)) as server:
        ran = nemo("secrets", "rotate-key", "--base-url", server.url)
    assert ran.code == 0, ran.err
    assert "500 changed, 100 left" in ran.err
    assert json.loads(ran.out)["changed"] == 600
    assert server.targets == ["POST /apis/secrets/v2/rotate-key"] * 2
    with scripted(_rotation(5, 0)) as server:
        nemo("secrets", "rotate-key", "--old-key-leaked", "--base-url", server.url)
    assert server.seen[0].json == {"hand_over": False}


def test_values_that_cannot_be_decrypted_are_named_and_nothing_is_asked_for_ever(nemo: Nemo) -> None:
    with scripted(_rotation(5, 1, "default/bad"), _rotation(0, 1, "default/bad")) as server:
        ran = nemo("secrets", "rotate-key", "--base-url", server.url)
    assert ran.code == 1
    assert "default/bad" in ran.err
    assert len(server.seen) == 2


def _database(folder: Path) -> str:
    """A database with one secret, whose service has gone."""
    url = f"sqlite:///{folder}/nemo-jobs.db"

    async def make() -> None:
        db = Database.open(url)
        await db.write(workspaces.ensure_defaults, 1)
        vault = await open_secrets(folder, db, ManualClock(), {})
        at = Reference("default", "token")

        async def store(sealed: Sealed) -> object:
            return await db.write(store_secrets.create_secret, at, None, sealed, 1, "me")

        await vault.storing(("secret", *at), CLEAR, store)
        await vault.aclose()
        await db.aclose()

    asyncio.run(make())
    return url


def test_a_service_whose_key_is_lost_starts_again_after_its_secrets_are_forgotten(
    nemo: Nemo, stdin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = _database(tmp_path)
    (tmp_path / "secrets.key").unlink()

    async def start() -> None:
        db = Database.open(url)
        try:
            await open_secrets(tmp_path, db, ManualClock(), {})
        finally:
            await db.aclose()

    with pytest.raises(WrongKey, match="nemo db forget-secrets"):
        asyncio.run(start())
    ran = nemo("db", "forget-secrets", "--data-dir", str(tmp_path))
    assert (ran.code, "nobody can be asked here: add --yes" in ran.err) == (2, True)
    with monkeypatch.context() as patched:
        patched.setattr("nemo_jobs.cli.db.can_ask", lambda: True)
        stdin(b"n\n")
        ran = nemo("db", "forget-secrets", "--data-dir", str(tmp_path))
        assert (ran.code, "nothing was done" in ran.err) == (1, True)
    ran = nemo("db", "forget-secrets", "--data-dir", str(tmp_path), "--yes")
    assert ran.code == 0, ran.err
    assert "deleted 1 secret;" in ran.err
    asyncio.run(start())
    missing = nemo("db", "forget-secrets", "--data-dir", str(tmp_path / "nowhere"), "--yes")
    assert missing.code == 1
    assert "there is no database" in missing.err
    assert not (tmp_path / "nowhere").exists()
