"""Labels of jobs: what lists find by them, and through which index."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from nemo_jobs.domain.filters import parse_filter
from nemo_jobs.domain.states import Trigger
from nemo_jobs.store import bulk, jobs, label_search
from nemo_jobs.store.db import off_loop
from nemo_jobs.store.jobs import JobQuery
from nemo_jobs.store.migrate import config_for, engine_for
from nemo_jobs.store.sql import Statement, Tx, prepare_once
from tests.bed.postgres import PostgresServer
from tests.store.kit import SECOND, Store

LABELS: dict[str, dict[str, str]] = {
    "plain": {},
    "moth": {"team": "vision", "env": "prod", "app/x.y": "1"},
    "mole": {"team": "Vision 2", "env": "dev"},
    "newt": {"team": "", "note": "100%_"},
    "wren": {"team": "zoo", "env": "prod"},
}

FILTERS: list[tuple[str, set[str]]] = [
    ('{"labels.team":"vision"}', {"moth"}),
    ('{"labels":{"team":"vision"}}', {"moth"}),
    ('{"labels":{"team":"vision","env":"dev"}}', set()),
    ('{"labels.app/x.y":"1"}', {"moth"}),
    ('labels["app/x.y"]:"1"', {"moth"}),
    ('{"labels.team":["vision","zoo","nobody"]}', {"moth", "wren"}),
    ('{"labels.team":{"$in":["zoo",null]}}', {"plain", "wren"}),
    ('{"labels.team":{"$in":[null]}}', {"plain"}),
    ('{"labels.team":{"$in":[]}}', set()),
    ('{"labels.team":{"$nin":["zoo"]}}', {"moth", "mole", "newt"}),
    ('{"labels.team":{"$nin":["zoo",null]}}', {"moth", "mole", "newt"}),
    ('{"labels.team":null}', {"plain"}),
    ("-labels.team:null", {"moth", "mole", "newt", "wren"}),
    ('-labels.team:"vision"', {"plain", "mole", "newt", "wren"}),
    ('{"$not":{"labels.team":{"$in":["zoo"]}}}', {"plain", "moth", "mole", "newt"}),
    ('{"labels.team":""}', {"newt"}),
    ('{"labels.team":{"$like":"VISION"}}', {"moth", "mole"}),
    ('{"labels.note":{"$like":"%_"}}', {"newt"}),
    ('{"labels.team":{"$startsWith":"V"}}', {"mole"}),
    ('{"labels.team":{"$gt":"vision"}}', {"wren"}),
    ('{"labels":{"$hasKey":"env"}}', {"moth", "mole", "wren"}),
    ('-(labels.env:"prod" OR labels.team:"")', {"plain", "mole"}),
    ('labels.env:"prod" AND -labels.team:"vision"', {"wren"}),
    ('labels.env:"prod" AND labels.team IN ["vision","x"]', {"moth"}),
    ('labels.env:"prod" AND name:"wren"', {"wren"}),
    ('labels.env:"prod" AND status:"created" AND source:"test"', {"moth", "wren"}),
    ('labels.env:"prod" AND status:"error"', set()),
    ('labels.env:"prod" AND created_at>="2020-01-01" AND created_at<"2100-01-01"', {"moth", "wren"}),
    ('labels.env:"prod" AND created_at<"2020-01-01"', set()),
    ('labels.env:"prod" AND (name:"moth" OR labels.team:"zoo")', {"moth", "wren"}),
]


@pytest.fixture
async def zoo(store: Store) -> Store:
    for name, labels in LABELS.items():
        await store.create(name, labels=tuple(sorted(labels.items())))
    await store.create("stranger", workspace="system", labels=(("team", "vision"), ("env", "prod")))
    return store


@pytest.mark.parametrize("way", ["the shorter", "through the labels", "through the jobs"])
async def test_labels_mean_the_same_on_both_databases_and_on_every_way(
    zoo: Store, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "through the labels":
        monkeypatch.setattr(label_search, "_is_shorter", lambda *given: True)
    elif way == "through the jobs":
        monkeypatch.setattr(label_search, "_is_label", lambda term: False)
    wrong = []
    for text, expected in FILTERS:
        where = parse_filter([("filter", text)])
        for sort in ("created_at", "-updated_at", "source"):
            found, total, _ = await zoo.read(jobs.list_jobs, JobQuery("default", where, sort, page_size=100))
            names = {job.name for job in found}
            if names != expected or total != len(expected):
                wrong.append((text, sort, names, total))
        found, total, _ = await zoo.read(jobs.list_jobs, JobQuery(None, where, page_size=100))
        names = {job.name for job in found} - {"stranger"}
        if names != expected or total != len(found):
            wrong.append((text, "anywhere", names, total))
    assert wrong == []


async def test_labels_go_with_their_job(zoo: Store) -> None:
    await zoo.request("moth", Trigger.CANCEL)
    await zoo.write(jobs.delete_job, "default", "moth", zoo.now())
    left = await zoo.read(lambda tx: tx.run(sa.text("SELECT DISTINCT job_id FROM job_label")))
    assert len(left) == 4
    await zoo.create("moth", labels=(("team", "new"),))
    where = parse_filter([("filter", 'labels.team:"new"')])
    assert (await zoo.read(jobs.list_jobs, JobQuery("default", where)))[1] == 1


async def test_pages_of_a_label_are_its_sorted_list(store: Store) -> None:
    for number in range(23):
        await store.create(f"j-{number}", source=f"s{number % 3}", labels=(("n", str(number % 2)),))
    where = parse_filter([("filter", 'labels.n:"1"')])
    for sort in ("created_at", "-created_at", "updated_at", "-updated_at", "source", "-source"):
        walked = []
        for page in (1, 2, 3, 4):
            found, total, _ = await store.read(jobs.list_jobs, JobQuery("default", where, sort, page, 4))
            assert total == 11
            walked += found
        key = sort.removeprefix("-")
        order = [getattr(job, key) for job in walked]
        assert len({job.id for job in walked}) == 11
        assert order == sorted(order, reverse=sort.startswith("-"))


JOBS = 20_000
_NUMBERS = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {JOBS} - 1) "
#: As long as a usual spec: a database weighs pages.
FILLER = "x" * 800
_TIME = "1700000000000000 + CAST(i AS BIGINT) * 60000000"
_FILL = _NUMBERS + (
    "INSERT INTO job (id, workspace, name, attempt_id, source, spec, platform_spec, steps_total, fileset, "
    "auth_context, state, reason, message, since, status_details, created_at, updated_at) "
    "SELECT 'platform-job-' || CAST(1000000 + i AS TEXT), 'default', 'job-' || CAST(i AS TEXT), 'a', "
    f"'bench', '{{}}', '{FILLER}', 1, 'f', '{{}}', CASE WHEN i % 20 = 0 THEN 'error' ELSE 'completed' END, "
    f"'finished', '', 1, '{{}}', {_TIME}, {_TIME} FROM n"
)
_LABEL = _NUMBERS + (
    "INSERT INTO job_label (job_id, key, value, workspace, job_created_at) "
    "SELECT 'platform-job-' || CAST(1000000 + i AS TEXT), 'team', 't' || CAST(i % 40 AS TEXT), 'default', "
    f"{_TIME} FROM n"
)


class Explaining(Tx):
    """Asks for the plan of each statement before it runs it."""

    def __init__(self, tx: Tx) -> None:
        super().__init__(tx._cursor, tx.dialect)
        self.plans: list[str] = []

    def _execute(self, stmt: Any, params: Any) -> None:
        given = params or {}
        if isinstance(stmt, Statement):
            ready = stmt.prepared(self.dialect)
        else:
            ready = prepare_once(stmt, self.dialect, given)
        word = "EXPLAIN QUERY PLAN" if self.dialect == "sqlite" else "EXPLAIN"
        self._cursor.execute(f"{word} {ready.sql}", ready.values(given))
        self.plans.append("\n".join(str(row[-1]) for row in self._cursor.fetchall()))
        super()._execute(stmt, params)


def _explained(tx: Tx, query: JobQuery) -> tuple[int, list[str]]:
    watched = Explaining(tx)
    return jobs.list_jobs(watched, query)[1], watched.plans


@pytest.fixture
async def many(store: Store) -> Store:
    @off_loop
    def fill(tx: Tx) -> None:
        tx.count(sa.text(_FILL))
        tx.count(sa.text(_LABEL))
        tx.tally("default", "error", JOBS // 20)
        tx.tally("default", "completed", JOBS - JOBS // 20)
        if tx.dialect == "postgresql":
            tx.count(sa.text("ANALYZE job"))
            tx.count(sa.text("ANALYZE job_label"))

    await store.write(fill)
    return store


DAY = 24 * 60
#: The rows of a page, whose ids are known by then.
BY_ID = ("sqlite_autoindex_job_1", "job_pkey")
#: Filter, how many match, and the indexes of which one must be used by every statement on jobs.
PLANS = [
    ('status:"error"', 1000, ("job_by_state", "job_created")),
    ('status:"error" AND created_at>="2023-11-20" AND created_at<"2023-11-22"', 144, ("job_by_state",)),
    ('labels.team:"t7"', 500, ("job_label_value",)),
    ('labels.team:"t7" AND created_at>="2023-11-20"', None, ("job_label_value",)),
    ('status:"error" AND labels.team:"t20"', 500, ("job_label_value", "job_by_state")),
    (
        'status:"error" AND labels.team:"t20" AND created_at>="2023-11-20" AND created_at<"2023-11-22"',
        72,
        ("job_label_value", "job_by_state"),
    ),
    ('created_at>="2023-11-20" AND created_at<"2023-11-22"', 2 * DAY, ("job_created",)),
]


async def test_state_label_and_date_are_found_through_indexes(many: Store) -> None:
    for text, expected, indexes in PLANS:
        where = parse_filter([("filter", text)])
        total, plans = await many.read(_explained, JobQuery("default", where))
        assert expected is None or total == expected, text
        of_jobs = [plan for plan in plans if "job " in plan or "job_label" in plan]
        assert len(of_jobs) >= 1, text
        for plan in of_jobs:
            assert any(index in plan for index in (*indexes, *BY_ID)), (text, plan)
            assert "Seq Scan on job" not in plan and "SCAN job\n" not in f"{plan}\n", (text, plan)


async def test_jobs_of_a_label_are_counted_without_a_look_at_the_jobs(many: Store) -> None:
    for since in ("", ' AND created_at>="2023-11-15"'):
        where = parse_filter([("filter", f'status:"error" AND labels.team:"t20"{since}')])
        total, plans = await many.read(_explained, JobQuery("default", where))
        assert 0 < total <= 500
        if many.db.dialect == "postgresql":  # has statistics and chooses by them
            assert all("Seq Scan on job_label" not in plan for plan in plans), plans
            continue
        (both,) = [plan for plan in plans if "SEARCH found" in plan and "SEARCH job" in plan][:1]
        assert "SEARCH job USING COVERING INDEX job_by_state" in both, both


async def test_the_way_begins_where_there_is_less_to_look_through(many: Store) -> None:
    def plan(tx: Tx, text: str) -> str:
        where = parse_filter([("filter", text)])
        found = label_search.search_by_label(tx, where, "default")
        return "jobs" if found is None else "labels"

    def widen(tx: Tx) -> None:
        tx.count(sa.text("UPDATE job_label SET value = 'most' WHERE value NOT IN ('t7', 't8')"))

    await many.write(widen)
    for text, expected in (
        ('status:"completed" AND labels.team:"t7"', "labels"),
        ('status:"completed" AND labels.team:"most"', "jobs"),
        ('status:"error" AND labels.team:"most"', "jobs"),
        ('labels.team:"most"', "labels"),
        ('labels.team:"most" AND name:"job-1"', "jobs"),
        ('labels.team:"most" AND source:"nowhere"', "jobs"),
    ):
        assert await many.read(plan, text) == expected, text


async def test_a_project_is_found_through_its_index(many: Store) -> None:
    def assign(tx: Tx) -> None:
        tx.count(sa.text("UPDATE job SET project = 'apollo' WHERE name LIKE 'job-1__'"))
        if tx.dialect == "postgresql":
            tx.count(sa.text("ANALYZE job"))

    await many.write(assign)
    where = parse_filter([("filter", '{"project":"apollo"}')])
    total, plans = await many.read(_explained, JobQuery("default", where))
    assert total == 100
    assert sum("job_by_project" in plan for plan in plans) == 2, plans


async def test_bulk_calls_walk_all_that_match_by_age(store: Store) -> None:
    order = list(range(30))
    random.Random(4).shuffle(order)
    for number in order:
        store.clock.advance(SECOND / 1e6)
        await store.create(f"j-{number}", labels=(("n", str(number % 2)),))
    for text in ('labels.n:"1"', 'source:"test" AND -labels.n:"0"'):
        where = parse_filter([("filter", text)])
        after, walked, left = None, [], []
        while True:
            found, total = await store.read(bulk.find, "default", where, after, 4)
            left.append(total)
            if not found:
                break
            walked += [job.name for job in found]
            after = (found[-1].created_at, found[-1].id)
        assert walked == [f"j-{number}" for number in order if number % 2]
        assert left == [15, 11, 7, 3, 0]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'old.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


async def test_labels_of_older_jobs_are_found_after_the_migration(empty_url: str, open_store: Any) -> None:
    engine = engine_for(empty_url)
    with engine.begin() as connection:
        command.upgrade(config_for(connection), "0001")
        connection.execute(sa.text("DROP TABLE alembic_version"))
        connection.execute(sa.text("INSERT INTO meta (key, value) VALUES ('schema_version', '1')"))
        connection.execute(
            sa.text("INSERT INTO workspace (name, id, created_at, updated_at) VALUES ('default', 'w', 1, 1)")
        )
        for name, fields in (
            ("moth", {"labels": {"team": "vision"}}),
            ("mole", {"labels": ["no", "map"]}),
            ("newt", {"note": '"labels"'}),
            ("wren", None),
        ):
            connection.execute(
                sa.text(
                    "INSERT INTO job (id, workspace, name, attempt_id, source, spec, platform_spec, "
                    "steps_total, fileset, auth_context, state, reason, message, since, status_details, "
                    "created_at, updated_at, custom_fields) VALUES (:name, 'default', :name, 'a', 's', '{}', "
                    "'{}', 1, 'f', '{}', 'completed', 'finished', '', 1, '{}', 1, 1, :fields)"
                ),
                {"name": name, "fields": None if fields is None else json.dumps(fields)},
            )
    engine.dispose()
    store = await open_store(empty_url)
    where = parse_filter([("filter", '{"labels":{"$hasKey":"team"}}')])
    found, total, _ = await store.read(jobs.list_jobs, JobQuery("default", where))
    assert ([job.name for job in found], total) == (["moth"], 1)
