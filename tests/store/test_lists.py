import json
from typing import Any

import pytest

from nemo_jobs.domain.filters import parse_filter
from nemo_jobs.domain.model import NotFound
from nemo_jobs.domain.states import State, Trigger
from nemo_jobs.store import jobs, projects
from nemo_jobs.store.jobs import JobQuery, StepQuery
from tests.store.kit import Store

SPECS: dict[str, Any] = {
    "plain": {},
    "moth": {"input": {"kind": "csv", "rows": 3}, "tags": ["a", "b"], "ok": True, "ratio": 1.5},
    "mole": {"input": {"kind": "CSV file"}, "tags": ["b", 3, None], "ok": False, "ratio": "1.5"},
    "newt": {"input": None, "tags": "a", "ok": 1, "ratio": -2, "odd key": {"x.y": "z"}},
    "wren": {
        "runs": [{"n": 1, "s": "x"}, {"n": 5, "s": "yy"}],
        "nul": "a\0b",
        "big": 10**30,
        "deep": {"a": {"b": None}},
    },
    "hare": {"pct": "100%_", "quote": 'say "hi"', "uni": "žluť", "empty": [], "runs": [{"n": 9}], "e": 1e300},
}
SOURCES = {
    "plain": "nightly",
    "moth": "nightly",
    "mole": "manual",
    "newt": "Nightly",
    "wren": "a_b",
    "hare": "50%",
}
PROJECTS = {"moth": "p1", "mole": "p2"}

MANY = ",".join(f'{n},"t{n}"' for n in range(900))

FILTERS: list[tuple[str, set[str]]] = [
    (f'{{"spec.input.rows":{{"$in":[{MANY}]}}}}', {"moth"}),
    (f'{{"spec.input.kind":{{"$nin":[{MANY},"csv"]}}}}', {"mole"}),
    (f'{{"spec.runs":{{"$elemMatch":{{"n":{{"$in":[{MANY}]}},"s":"yy"}}}}}}', {"wren"}),
    ('{"spec.ok":{"$in":[true,1,"x"]}}', {"moth", "newt"}),
    ('{"spec.ok":{"$nin":[true,null]}}', {"mole", "newt"}),
    (f'{{"name":{{"$like":"{"%" * 10_000}"}}}}', set()),
    (f'{{"name":{{"$like":"{"ž" * 10_000}"}}}}', set()),
    (f'{{"spec.{".".join("a" * 49)}":1}}', set()),
    ('{"name":"moth"}', {"moth"}),
    ('{"name":{"$like":"O"}}', {"moth", "mole"}),
    ('{"name":{"$in":["moth","wren","none"]}}', {"moth", "wren"}),
    ('{"name":{"$nin":["moth","wren"]}}', {"plain", "mole", "newt", "hare"}),
    ('{"project":null}', {"plain", "newt", "wren", "hare"}),
    ('{"project":{"$in":[null,"p1"]}}', {"plain", "moth", "newt", "wren", "hare"}),
    ('{"project":{"$nin":["p1"]}}', {"mole"}),
    ('{"$not":{"project":"p1"}}', {"plain", "mole", "newt", "wren", "hare"}),
    ('{"$not":{"project":{"$gt":"p1"}}}', {"plain", "moth", "newt", "wren", "hare"}),
    ('{"$or":[{"source":"nightly"},{"source":"manual"}]}', {"plain", "moth", "mole"}),
    ('{"source":{"$like":"_"}}', {"wren"}),
    ('{"source":{"$like":"%"}}', {"hare"}),
    ('{"source":{"$startsWith":"N"}}', {"newt"}),
    ('{"source":{"$endsWith":"ly"}}', {"plain", "moth", "newt"}),
    ('{"source":{"$lt":"a"}}', {"newt", "hare"}),
    ('-(name:"moth" OR project:null)', {"mole"}),
    ('name~"mo" AND status:"created"', {"moth", "mole"}),
    ('{"status":"error"}', set()),
    ('{"status":"nonsense"}', set()),
    ('{"status":["created"]}', set(SPECS)),
    ('{"workspace":"default"}', set(SPECS)),
    ('{"entity_type":"platform-job"}', set(SPECS)),
    ('{"data.nothing":null}', set(SPECS)),
    ('{"data.nothing":"x"}', set()),
    ('{"created_at":{"$gte":"2020-01-01"}}', set(SPECS)),
    ('{"created_at":{"$lt":"2020-01-01"}}', set()),
    ('{"spec.input.kind":"csv"}', {"moth"}),
    ('{"data.spec.input.kind":"csv"}', {"moth"}),
    ('{"spec":{"input":{"kind":"csv"}}}', {"moth"}),
    ('{"spec.input.kind":{"$like":"csv"}}', {"moth", "mole"}),
    ('{"spec.input.kind":{"$startsWith":"CSV"}}', {"mole"}),
    ('{"spec.input.kind":{"$endsWith":"file"}}', {"mole"}),
    ('{"spec.input":null}', {"plain", "newt", "wren", "hare"}),
    ('{"spec.input.rows":3}', {"moth"}),
    ('{"spec.input.rows":"3"}', set()),
    ('{"spec.input.rows":{"$in":[2,3]}}', {"moth"}),
    ('{"spec.input.rows":{"$nin":[2]}}', {"moth"}),
    ('{"spec.input.rows":{"$nin":[3]}}', set()),
    ('{"spec.ok":true}', {"moth"}),
    ('{"spec.ok":1}', {"newt"}),
    ('{"spec.ok":{"$in":[false,1]}}', {"mole", "newt"}),
    ('{"$not":{"spec.ok":true}}', {"plain", "mole", "newt", "wren", "hare"}),
    ('{"spec.ratio":1.5}', {"moth"}),
    ('{"spec.ratio":"1.5"}', {"mole"}),
    ('{"spec.ratio":{"$gte":-2}}', {"moth", "newt"}),
    ('{"spec.ratio":{"$lt":0.5}}', {"newt"}),
    ('{"spec.ratio":{"$gt":"1"}}', {"mole"}),
    ('{"spec.big":{"$gt":1000}}', {"wren"}),
    ('{"spec.e":{"$gt":1.5}}', {"hare"}),
    ('{"spec.tags":{"$contains":"a"}}', {"moth"}),
    ('{"spec.tags":{"$contains":"b"}}', {"moth", "mole"}),
    ('{"spec.tags":{"$contains":3}}', {"mole"}),
    ('{"spec.tags":{"$contains":"3"}}', set()),
    ('{"spec.tags":{"$contains":null}}', {"mole"}),
    ('{"spec.tags":{"$elemMatch":{"$like":"B"}}}', {"moth", "mole"}),
    ('{"spec.tags":{"$elemMatch":{"$gt":2}}}', {"mole"}),
    ('{"spec.tags":{"$elemMatch":{"$in":["a",3]}}}', {"moth", "mole"}),
    ('{"spec.runs":{"$elemMatch":{"n":{"$gt":2,"$lt":7}}}}', {"wren"}),
    ('{"spec.runs":{"$elemMatch":{"n":1,"s":"yy"}}}', set()),
    ('{"spec.runs":{"$elemMatch":{"n":5,"s":"yy"}}}', {"wren"}),
    ('{"spec.runs":{"$elemMatch":{"n":9}}}', {"hare"}),
    ('{"spec.empty":{"$elemMatch":{"n":9}}}', set()),
    ('{"spec":{"$hasKey":"tags"}}', {"moth", "mole", "newt"}),
    ('{"spec":{"$hasKey":"input"}}', {"moth", "mole"}),
    ('{"spec.deep.a":{"$hasKey":"b"}}', set()),
    ('{"spec.tags":{"$hasKey":"a"}}', set()),
    ('{"spec":{"odd key":{"$hasKey":"x.y"}}}', {"newt"}),
    ('spec["quote"]:"say \\"hi\\""', {"hare"}),
    ('{"spec.pct":{"$like":"%_"}}', {"hare"}),
    ('{"spec.uni":"žluť"}', {"hare"}),
    ('{"spec.nul":{"$like":"a"}}', {"wren"}),
]


@pytest.fixture
async def zoo(store: Store) -> Store:
    for project in ("p1", "p2"):
        await store.write(projects.create_project, "default", project, None, store.now(), "tester")
    for name, spec in SPECS.items():
        text = json.dumps(spec, ensure_ascii=False)
        await store.create(name, spec=text, source=SOURCES[name], project=PROJECTS.get(name))
    return store


async def test_filters_mean_the_same_on_both_databases(zoo: Store) -> None:
    wrong = []
    for text, expected in FILTERS:
        where = parse_filter([("filter", text)])
        for workspace in ("default", None):
            found, total, _ = await zoo.read(jobs.list_jobs, JobQuery(workspace, where, page_size=100))
            names = {job.name for job in found}
            if names != expected or total != len(expected):
                wrong.append((text, workspace, names, total))
    assert wrong == []


async def test_totals_are_exact_whatever_narrows_the_list(store: Store) -> None:
    for number in range(12):
        await store.create(f"j-{number}", workspace="system" if number % 4 == 0 else "default")
    for number in (1, 2, 3):
        await store.request(f"j-{number}", Trigger.CANCEL)
    cases = [
        (None, None, 12),
        ("default", None, 9),
        ("system", None, 3),
        ("default", '{"status":"cancelled"}', 3),
        (None, '{"status":["cancelled","created"]}', 12),
        ("default", '{"status":["cancelled","completed"]}', 3),
        ("system", '{"status":"cancelled"}', 0),
        ("default", '{"status":"cancelled","name":"j-1"}', 1),
    ]
    for workspace, text, expected in cases:
        where = parse_filter([("filter", text)] if text else [])
        found, total, _ = await store.read(jobs.list_jobs, JobQuery(workspace, where, page_size=100))
        assert (len(found), total) == (expected, expected), (workspace, text)


@pytest.mark.parametrize(
    "sort", ["created_at", "-created_at", "updated_at", "-updated_at", "source", "-source"]
)
async def test_pages_together_are_the_sorted_list(store: Store, sort: str) -> None:
    for number in range(23):
        await store.create(f"j-{number}", source=f"s{number % 3}")
    for number in (5, 2, 9):
        await store.request(f"j-{number}", Trigger.CANCEL)
    for where in (None, parse_filter([("filter", '{"name":{"$like":"j"}}')])):
        for workspace in ("default", None):
            walked = []
            for page in range(1, 8):
                found, total, _ = await store.read(jobs.list_jobs, JobQuery(workspace, where, sort, page, 5))
                assert total == 23 and len(found) == (5 if page < 5 else 3 if page == 5 else 0)
                walked += found
            key = sort.removeprefix("-")
            assert len({job.id for job in walked}) == 23
            order = [getattr(job, key) for job in walked]
            assert order == sorted(order, reverse=sort.startswith("-"))


async def test_an_unknown_workspace_is_named(store: Store) -> None:
    with pytest.raises(NotFound, match="no workspace 'nowhere'"):
        await store.read(jobs.list_jobs, JobQuery("nowhere"))
    with pytest.raises(NotFound):
        await store.read(jobs.list_jobs, JobQuery("no\0where"))


async def test_steps_are_narrowed_by_job_state_and_source(store: Store) -> None:
    await store.create("a-1", source="x")
    await store.create("b-1", source="y", workspace="system")
    await store.running("c-1", "one", "two")

    async def names(**given: Any) -> set[str]:
        found, total = await store.read(jobs.list_steps, StepQuery(**given))
        assert total == len(found)
        return {f"{step.workspace}/{step.job}/{step.name}" for step in found}

    everything = {"default/a-1/main", "system/b-1/main", "default/c-1/one"}
    assert await names() == everything
    assert await names(workspace="default") == {"default/a-1/main", "default/c-1/one"}
    assert await names(job="c-1") == {"default/c-1/one"}
    assert await names(job=(await store.job("c-1")).id) == {"default/c-1/one"}
    assert await names(job="unknown") == set()
    assert await names(states=(State.ACTIVE,)) == {"default/c-1/one"}
    assert await names(states=(State.CREATED, State.COMPLETED)) == everything - {"default/c-1/one"}
    assert await names(states=()) == set()
    assert await names(source="y") == {"system/b-1/main"}
    assert await names(cleanup_pending=True) == set()
    assert await names(cleanup_pending=False) == everything


async def test_a_walk_over_steps_misses_none_while_states_change(store: Store) -> None:
    made = [await store.create(f"j-{number}") for number in range(9)]
    seen: list[str] = []
    after = None
    while True:
        query = StepQuery(states=(State.CREATED,), page_size=2, after=after)
        found, _ = await store.read(jobs.list_steps, query)
        if not found:
            break
        seen += [step.job for step in found]
        after = (found[-1].created_at, found[-1].id)
        await store.request(found[0].job, Trigger.CANCEL)
    assert seen == [job.name for job in made]


async def test_sorting_and_pages_of_steps(store: Store) -> None:
    for number in range(5):
        await store.create(f"j-{number}")
    for sort in ("created_at", "-created_at", "updated_at", "-updated_at"):
        walked = []
        for page in (1, 2, 3, 4):
            found, total = await store.read(jobs.list_steps, StepQuery(sort=sort, page=page, page_size=2))
            assert total == 5
            walked += [getattr(step, sort.removeprefix("-")) for step in found]
        assert walked == sorted(walked, reverse=sort.startswith("-")) and len(walked) == 5


async def test_the_list_uses_an_index_for_its_order(sqlite_url: str, open_store: Any) -> None:
    import sqlalchemy as sa

    store: Store = await open_store(sqlite_url)
    for sort, index in (("created_at", "job_created"), ("updated_at", "job_updated")):
        for order in ("", " DESC"):
            plan = await store.read(
                lambda tx, by=f"{sort}{order}, id{order}": tx.run(
                    sa.text(
                        f"EXPLAIN QUERY PLAN SELECT * FROM job WHERE workspace = 'x' ORDER BY {by} LIMIT 9"
                    )
                )
            )
            assert index in str(plan) and "TEMP B-TREE" not in str(plan)
