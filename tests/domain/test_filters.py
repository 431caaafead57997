"""Job filters in their three forms."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_jobs.domain.filters import (
    And,
    Compare,
    ElemMatch,
    FilterError,
    Node,
    Not,
    Op,
    Or,
    echo,
    parse_filter,
)

Json = dict[str, Any]
DAY = 1_803_859_200_000_000  # 2027-03-01 00:00 UTC in microseconds


def parse(value: str | Json) -> Node:
    text = value if isinstance(value, str) else json.dumps(value)
    node = parse_filter([("filter", text)])
    assert node is not None
    return node


def brackets(*pairs: tuple[str, str]) -> Json:
    node = parse_filter(pairs)
    assert node is not None
    return echo(node)


def refusal(*pairs: tuple[str, str]) -> str:
    with pytest.raises(FilterError) as caught:
        parse_filter(pairs)
    return str(caught.value)


def refused(value: str | Json) -> str:
    return refusal(("filter", value if isinstance(value, str) else json.dumps(value)))


@pytest.mark.parametrize(
    "value",
    [
        {"name": {"$like": "x" * 10_001}},
        {"spec." + ".".join("a" * 50): 1},
        {"spec.a": {"$elemMatch": {".".join("a" * 51): 1}}},
    ],
)
def test_what_a_database_could_not_be_asked_is_refused(value: Json) -> None:
    assert "at most" in refused(value)


def test_no_filter_is_none() -> None:
    assert parse_filter([("page", "1"), ("sort", "source")]) is None


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ({"status": "error"}, {"status": {"$eq": "error"}}),
        ({"status": ["error"]}, {"status": {"$in": ["error"]}}),
        ({"project": None}, {"project": {"$eq": None}}),
        ({"name": {"$like": "moth"}}, {"name": {"$like": "moth"}}),
        (
            {"$or": [{"source": "nightly"}, {"source": "manual"}]},
            {"$or": [{"source": {"$eq": "nightly"}}, {"source": {"$eq": "manual"}}]},
        ),
        (
            {"updated_at": {"gte": "2027-03-01"}, "spec.input.kind": "csv"},
            {"$and": [{"updated_at": {"$gte": "2027-03-01"}}, {"data.spec.input.kind": {"$eq": "csv"}}]},
        ),
        ({"$not": {"source": "x"}}, {"$not": {"source": {"$eq": "x"}}}),
        ({"name": {"$not": {"$like": "x"}}}, {"$not": {"name": {"$like": "x"}}}),
        ({"name": {"$in": "a, b"}}, {"name": {"$in": ["a", "b"]}}),
        ({"spec": {"a": {"b": {"$gt": 3}}}}, {"data.spec.a.b": {"$gt": 3}}),
        ({"data.source": "x"}, {"source": {"$eq": "x"}}),
        ({"data.other.x": "x"}, {"data.other.x": {"$eq": "x"}}),
        (
            {"name": {"$or": [{"$like": "a"}, {"$startsWith": "b"}]}},
            {"$or": [{"name": {"$like": "a"}}, {"name": {"$startsWith": "b"}}]},
        ),
        (
            {"spec.tags": {"$elemMatch": {"kind": "csv", "size": {"$gt": 3}}}},
            {"data.spec.tags": {"$elemMatch": {"kind": {"$eq": "csv"}, "size": {"$gt": 3}}}},
        ),
        (
            'source~"night" AND status IN ["error","paused"]',
            {"$and": [{"source": {"$like": "night"}}, {"status": {"$in": ["error", "paused"]}}]},
        ),
        (
            '-(name:"moth-sorter" OR project:null)',
            {"$not": {"$or": [{"name": {"$eq": "moth-sorter"}}, {"project": {"$eq": None}}]}},
        ),
        (
            'name:"a" name:"b" or -source~"q"',
            {
                "$or": [
                    {"$and": [{"name": {"$eq": "a"}}, {"name": {"$eq": "b"}}]},
                    {"$not": {"source": {"$like": "q"}}},
                ]
            },
        ),
        ('status not in ["a"]', {"status": {"$nin": ["a"]}}),
        ('spec["a.b"]>=5', {'data.spec["a.b"]': {"$gte": 5}}),
        ('spec.note:"say \\"hi\\"\\n"', {"data.spec.note": {"$eq": 'say "hi"\n'}}),
        ("spec.rate<-1.5e3", {"data.spec.rate": {"$lt": -1500.0}}),
    ],
)
def test_the_echo_is_the_normal_form(given_: str | Json, shown: Json) -> None:
    assert echo(parse(given_)) == shown


def test_brackets_are_the_third_form() -> None:
    assert brackets(("filter[name][like]", "moth")) == {"name": {"$like": "moth"}}
    assert brackets(("filter[name][$like]", "a,b")) == {"name": {"$like": "a,b"}}
    assert brackets(("filter[status]", "a,b")) == {"status": {"$in": ["a", "b"]}}
    assert brackets(("filter[status]", "a"), ("filter[status]", "b")) == {"status": {"$in": ["a", "b"]}}
    assert brackets(("filter[status][in]", "a")) == {"status": {"$in": ["a"]}}
    assert brackets(("filter[project]", "")) == {"project": {"$eq": None}}
    assert brackets(("filter[name][not]", "x")) == {"$not": {"name": {"$eq": "x"}}}
    assert brackets(("filter[status]", '["a"]')) == {"status": {"$in": ["a"]}}
    assert brackets(("filter[name]", '{"$like":"a"}')) == {"name": {"$like": "a"}}
    assert brackets(("filter[spec.epochs][gt]", "5")) == {"data.spec.epochs": {"$gt": 5}}
    assert brackets(("filter[spec.epochs]", "5")) == {"data.spec.epochs": {"$in": ["5", 5]}}
    assert brackets(("filter[source]", "5")) == {"source": {"$eq": "5"}}


@pytest.mark.parametrize(
    "text",
    [
        "2027-03-01",
        "2027-03-01T00:00:00",
        "2027-03-01T00:00:00Z",
        "2027-03-01T05:30:00+05:30",
        "2027-03-01T05:30:00 05:30",  # a plus sign that a URL made a blank
        "2027-02-28T19:00:00.000-05:00",
        "1803859200",
        "1803859200.0",
    ],
)
def test_c081_every_form_of_a_date_in_every_form_of_a_filter(text: str) -> None:
    filters: list[list[tuple[str, str]]] = [
        [("filter", json.dumps({"created_at": {"$gte": text}}))],
        [("filter", json.dumps({"created_at": {"gte": text}}))],
        [("filter", f'created_at>="{text}"')],
        [("filter[created_at][gte]", text)],
        [("filter[created_at][$gte]", text)],
    ]
    for query in filters:
        assert parse_filter(query) == Compare("created_at", Op.GTE, DAY, shown=text)
    assert parse({"created_at": {"$gte": 1803859200}}) == Compare("created_at", Op.GTE, DAY, shown=1803859200)


def test_a_tree_says_field_path_and_value() -> None:
    assert parse({"spec.a.b": 1}) == Compare("spec", Op.EQ, 1, ("a", "b"), shown=1)
    assert parse({"spec": {"$hasKey": "a"}}) == Compare("spec", Op.HAS_KEY, "a", (), shown="a")
    assert parse({"spec.x": {"$elemMatch": {"$like": "a"}}}) == ElemMatch(
        "spec", ("x",), (Compare("", Op.LIKE, "a", shown="a"),)
    )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "empty"),
        ("{}", "empty"),
        ("oops", "fields: name, workspace, project, status"),
        ({"colour": "red"}, "fields: name, workspace, project, status"),
        ({"name": {}}, "empty"),
        ({"$or": [], "x": 1}, "found: $or, x"),
        ({"name": {"$not": {"$like": "a"}, "$like": "b"}}, "found: $not, $like"),
        ({"$and": []}, "list"),
        ({"$and": "x"}, "list"),
        ({"name": {"$exists": True}}, "not available"),
        ({"name": {"$regex": "x"}}, "operators: $eq"),
        ({"name": {"$contains": "x"}}, "spec"),
        ({"name": 5}, "text"),
        ({"name": {"$eq": ["a"]}}, "single"),
        ({"name": {"$startsWith": ""}}, "not empty"),
        ({"spec.x": {"$gt": None}}, "number"),
        ({"spec.x": {"$hasKey": 'a"b'}}, "double quote"),
        ({"spec.x": {"$elemMatch": {"$contains": 1}}}, "allowed: $eq"),
        ({"created_at": "yesterday"}, "2027-03-01"),
        ({"created_at": {"$like": "2027"}}, "dates"),
        ({"spec.x": 10**30}, "too large"),
        ('{"spec.x": NaN}', "NaN"),
        ('{"name": "\\u0000"}', "NUL"),
        ('{"name": "\\ud800"}', "surrogate"),
        ('{"name": "a", "name": "b"}', "twice"),
        ('{"name"', "position 8"),
        ('name:"x', "position 6"),
        ("name:error", "position 6"),
        ('NOT name:"x"', "position 1"),
        ('name:"x" AND', "position 13"),
        ('(name:"x"', "position 10"),
        ('name IN ["a" "b"]', "position 14"),
        ('spec.a["b"]:"x"', "position 1"),
        ('name:"x")', "position 9"),
        ("(" * 100 + 'name:"x"', "nested"),
        ('{"$not":' * 100 + "{}" + "}" * 100, "nested"),
        ('{"$not":' * 30 + '{"name":"x"}' + "}" * 30, "too large"),
        ('{"a":' * 100_000, "too long"),
        ("-" * 60_000, "nested"),
        (" OR ".join(['name:"x"'] * 300), "too large"),
    ],
)
def test_a_wrong_filter_says_what_is_wrong(value: str | Json, says: str) -> None:
    assert says in refused(value)


def test_wrong_brackets_say_what_is_wrong() -> None:
    assert "not available" in refusal(("filter[name][exists]", "1"))
    assert "filter[field]" in refusal(("filter[name", "x"))
    assert "fields:" in refusal(("filter[colour]", "x"))
    assert "operators:" in refusal(("filter[name][regex]", "x"))


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
PATHS = st.lists(TEXT, min_size=1, max_size=3).map(tuple)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
NUMBERS = st.integers(-(2**62), 2**62) | TEXT


def compares(field: str, paths: st.SearchStrategy[tuple[str, ...]]) -> st.SearchStrategy[Compare]:
    def one(op: Op, path: tuple[str, ...], value: Any) -> Compare:
        shown = value
        return Compare(field, op, tuple(value) if isinstance(value, list) else value, path, shown=shown)

    return st.one_of(
        st.builds(one, st.just(Op.EQ), paths, SCALARS),
        st.builds(one, st.sampled_from([Op.IN, Op.NIN]), paths, st.lists(SCALARS, max_size=3)),
        st.builds(one, st.sampled_from([Op.GT, Op.LTE]), paths, NUMBERS),
        st.builds(one, st.sampled_from([Op.STARTS, Op.ENDS]), paths, TEXT.filter(bool)),
        st.builds(one, st.just(Op.LIKE), paths, TEXT),
    )


LEAVES = compares("spec", PATHS) | st.builds(
    lambda path, node: ElemMatch("spec", path, (node,)), PATHS, compares("", st.just(()))
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda nodes: And(tuple(nodes))),
        st.lists(inner, min_size=2, max_size=3).map(lambda nodes: Or(tuple(nodes))),
        inner.map(Not),
    ),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is slow
@given(TREES)
def test_the_echo_reads_back_as_the_same_tree(tree: Node) -> None:
    assert parse(echo(tree)) == tree


@given(st.text(alphabet='name:~"[]()-<>=, \\ANDORINspec.1{}$', max_size=30) | st.text(max_size=30))
def test_any_text_is_a_tree_or_a_refusal(text: str) -> None:
    try:
        tree = parse_filter([("filter", text)])
    except FilterError:
        return
    assert tree is not None
    assert parse(echo(tree)) == tree
