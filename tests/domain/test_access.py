"""Scopes: their order, where they hold, and what is no grant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.domain.access import NOTHING, Scope, check_principal, grants_of, plain
from nemo_jobs.domain.addresses import is_loopback
from nemo_jobs.domain.model import Invalid

WORKSPACES = st.sampled_from(["*", "lab", "other", "third"])
GIVEN = st.dictionaries(WORKSPACES, st.lists(st.sampled_from(list(Scope)), min_size=1), min_size=1)


@given(GIVEN, st.sampled_from(["lab", "other", "nowhere"]))
def test_a_higher_scope_allows_what_a_lower_one_does(given, workspace):
    grants = grants_of(given)
    order = (Scope.READ, Scope.WRITE, Scope.ADMIN)
    allowed = [grants.allows(workspace, scope) for scope in order]
    assert allowed == sorted(allowed, reverse=True)
    held = [*given.get(workspace, ()), *given.get("*", ())]
    assert grants.allows(workspace, Scope.READ) is bool(held)
    assert grants.allows(workspace, Scope.ADMIN) is (Scope.ADMIN in held)
    assert grants.allows(workspace, Scope.SERVICE) is (Scope.SERVICE in held)
    assert grants.allows(workspace, Scope.WRITE) is bool(
        {Scope.WRITE, Scope.ADMIN, Scope.SERVICE} & set(held)
    )


@given(GIVEN)
def test_what_is_stored_says_the_same_and_where_agrees_with_allows(given):
    grants = grants_of(given)
    assert grants_of(plain(given)) == grants
    for scope in (Scope.READ, Scope.WRITE, Scope.ADMIN):
        where = grants.where(scope)
        assert grants.allows("*", scope) is (where is None)
        assert grants.allows_somewhere(scope) is (where is None or bool(where))
        for name in ("lab", "other", "nowhere"):
            assert grants.allows(name, scope) is (where is None or name in where)


def test_nothing_allows_nothing():
    assert not any(NOTHING.allows(name, scope) for name in ("*", "lab") for scope in Scope)
    assert not any(NOTHING.allows_somewhere(scope) for scope in Scope)
    assert NOTHING.where(Scope.READ) == frozenset()


@pytest.mark.parametrize("given", [{}, {"lab": []}, {"": ["read"]}, {"LAB": ["read"]}, {"lab": ["all"]}])
def test_what_is_no_grant_is_refused(given):
    with pytest.raises(Invalid):
        grants_of(given)


def test_names_of_the_service_are_for_services():
    check_principal("service:jobs", grants_of({"lab": ["service"]}))
    for name in ("service:jobs", "", " ", "a\nb", "x" * 257, "\x00"):
        with pytest.raises(Invalid):
            check_principal(name, grants_of({"*": ["admin"]}))


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *((host, True) for host in ("localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9")),
        *((host, True) for host in ("::1", "[::1]")),
        *((host, False) for host in ("0.0.0.0", "::", "192.0.2.1", "localhost.example", "127.1", "", "x")),
        *((host, False) for host in ("::ffff:127.0.0.1", "0177.0.0.1", "2130706433")),
    ],
)
def test_only_what_is_surely_this_machine_counts_as_it(host, own):
    assert is_loopback(host) is own
