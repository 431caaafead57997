"""`nemo auth`: over the API, and in the database of this machine."""

import asyncio
import contextlib
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs import local_tokens
from nemo_jobs.store import tokens, workspaces
from nemo_jobs.store.db import Database
from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, Seen, scripted

TOKEN = {
    "id": "token-1",
    "principal": "ci",
    "description": None,
    "grants": {"lab": ["write"]},
    "created_at": "2027-01-01T00:00:00.000000Z",
    "created_by": "root",
    "expires_at": None,
    "revoked_at": None,
}
PAGE = {
    "data": [TOKEN],
    "sort": "-created_at",
    "pagination": {"total_results": 1, "total_pages": 1, "page_size": 100, "page": 1, "current_page_size": 1},
}


def answers(request: Seen) -> Reply:
    if request.method == "POST":
        return Reply(201, {**TOKEN, "token": "nemo_once"})
    return Reply(200, PAGE if request.method == "GET" else {**TOKEN, "revoked_at": TOKEN["created_at"]})


def test_tokens_over_the_api(nemo: Nemo, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(answers) as server:
        monkeypatch.setenv("NHX_ACCESS_TOKEN", "nemo_admin")
        monkeypatch.setenv("NHX_BASE_URL", server.url)
        words = ("--grant", "lab=write", "--grant", "lab=read", "--grant", "*=read,admin", "--expires", "2d")
        made = nemo("auth", "tokens", "create", "ci", *words, "--description", "d")
        assert (made.code, json.loads(made.out)["token"]) == (0, "nemo_once")
        assert "not shown again" in made.err
        listed = nemo("auth", "tokens", "list", "-f", "csv")
        assert listed.out.splitlines()[1].startswith("token-1,ci,")
        assert json.loads(nemo("auth", "tokens", "revoke", "token-1").out)["revoked_at"]
        assert server.targets == [
            "POST /apis/auth/v2/tokens",
            "GET /apis/auth/v2/tokens?page=1&page_size=100",
            "DELETE /apis/auth/v2/tokens/token-1",
        ]
        assert server.seen[0].json == {
            "principal": "ci",
            "grants": {"lab": ["write", "read"], "*": ["read", "admin"]},
            "description": "d",
            "expires_in_seconds": 172800,
        }
        assert {request.headers["authorization"] for request in server.seen} == {"Bearer nemo_admin"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "ci"), "at least one --grant"),
        (("create", "ci", "--grant", "lab"), "must be WORKSPACE=SCOPE"),
        (("create", "ci", "--grant", "=read"), "must be WORKSPACE=SCOPE"),
        (("create", "", "--grant", "lab=read"), "is empty"),
        (("create", "ci", "--grant", "lab=read", "--expires", "soon"), "is not an age"),
        (("list", "--data-dir", "x", "--database-url", "y"), "give one"),
        (("list", "--data-dir", "x", "-f", "code"), "-f code shows calls of the API"),
    ],
)
def test_wrong_words_are_told(nemo: Nemo, words: tuple[str, ...], says: str) -> None:
    ran = nemo("auth", "tokens", *words)
    assert (ran.code, says in ran.err, ran.out) == (2, True, "")


def test_the_first_token_is_made_on_this_machine(nemo: Nemo, tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path / "data"))
    made: Any = json.loads(nemo("auth", "tokens", "create", "root", *place).out)
    assert (made["grants"], made["created_by"]) == ({"*": ["admin"]}, "local")
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    less = nemo("auth", "tokens", "create", "ci", "--grant", "default=read", "--expires", "1h", *place)
    assert json.loads(less.out)["expires_at"]
    listed = json.loads(nemo("auth", "tokens", "list", *place).out)["data"]
    assert [item["principal"] for item in listed] == ["ci", "root"]
    assert made["token"] not in json.dumps(listed)
    gone = json.loads(nemo("auth", "tokens", "revoke", made["id"], *place).out)
    assert gone["revoked_at"]
    missing = nemo("auth", "tokens", "revoke", "token-none", *place)
    assert (missing.code, "no token 'token-none'" in missing.err) == (1, True)
    unknown = nemo("auth", "tokens", "create", "x", "--grant", "nowhere=read", *place)
    assert (unknown.code, "create it first" in unknown.err) == (2, True)


def test_beside_a_service_it_works_as_well(nemo: Nemo, tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path / "data"))
    assert nemo("auth", "tokens", "create", "root", *place).code == 0
    url = f"sqlite:///{tmp_path}/data/nemo-jobs.db"

    async def beside() -> None:
        service = Database.open(url)
        await service.start()
        try:
            made = await asyncio.to_thread(nemo, "auth", "tokens", "create", "more", *place)
            assert made.code == 0, made
            assert await service.read(tokens.find, tokens.hash_of(json.loads(made.out)["token"]))
            assert await service.read(tokens.count) == 2
            await service.write(workspaces.create_workspace, "lab", None, 1, "test")
            refused = await asyncio.to_thread(
                nemo, "auth", "tokens", "create", "x", "--grant", "no-such=read", *place
            )
            assert refused.code == 2
            assert await service.read(tokens.count) == 2
        finally:
            await service.aclose()

    asyncio.run(beside())


def test_a_service_that_does_not_let_go_or_is_of_another_version_is_told(
    nemo: Nemo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("--data-dir", str(tmp_path / "data"))
    assert nemo("auth", "tokens", "create", "root", *place).code == 0
    path = tmp_path / "data" / "nemo-jobs.db"
    holder = Database.open(f"sqlite:///{path}")
    monkeypatch.setattr(local_tokens, "_PATIENCE", 0.05)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        ran = nemo("auth", "tokens", "create", "root", *place)
        assert (ran.code, "keeps its database busy" in ran.err) == (1, True)
        other.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
        other.execute("COMMIT")
    ran = nemo("auth", "tokens", "list", *place)
    assert (ran.code, "schema version 99" in ran.err) == (1, True)
    asyncio.run(holder.aclose())


def test_odd_places_are_told(nemo: Nemo, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("auth: {enabeld: true}")
    ran = nemo("auth", "tokens", "list", "--config", str(bad))
    assert (ran.code, "did you mean enabled?" in ran.err) == (2, True)
    ran = nemo("auth", "tokens", "list", "--database-url", "mysql://x")
    assert ran.code == 2
    assert "mysql" in ran.err
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    (open_to_all / "file").touch()
    os.chmod(open_to_all, 0o755)
    ran = nemo("auth", "tokens", "list", "--data-dir", str(open_to_all))
    assert (ran.code, "must have 0700" in ran.err) == (1, True)


def test_a_task_sends_the_token_of_its_file(
    nemo: Nemo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("nemo_task_1\n")
    with scripted(answers) as server:
        monkeypatch.setenv("NHX_BASE_URL", server.url)
        monkeypatch.setenv("NHX_WORKLOAD_IDENTITY_TOKEN_FILE", str(file))
        nemo("auth", "tokens", "list")
        monkeypatch.setenv("NHX_ACCESS_TOKEN", "nemo_own")
        nemo("auth", "tokens", "list")
        sent = [request.headers["authorization"] for request in server.seen]
        assert sent == ["Bearer nemo_task_1", "Bearer nemo_own"]
    monkeypatch.delenv("NHX_ACCESS_TOKEN")
    file.unlink()
    ran = nemo("auth", "tokens", "list")
    assert (ran.code, "NHX_WORKLOAD_IDENTITY_TOKEN_FILE" in ran.err) == (2, True)


def test_the_end_of_a_token_is_told_as_every_time_in_a_table(nemo: Nemo) -> None:
    ended = {**TOKEN, "expires_at": "2120-01-01T00:00:00Z", "revoked_at": "2020-01-01T00:00:00Z"}
    with scripted(Reply(200, {**PAGE, "data": [ended]})) as server:
        row = nemo("--base-url", server.url, "auth", "tokens", "list", "-f", "table").out.splitlines()[1]
        assert re.search(r"  in \d+d +\d+d ago$", row)
