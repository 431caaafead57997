"""Lists of any length, a page at a time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from nemo_jobs.client.ask import Ask, Query, Step

#: Pages whose items are remembered, so that one which has moved to a later page comes once.
_REMEMBERED = 3


def by_number(path: str, query: Query, *, key: str = "id") -> Generator[Step, Any, Any]:
    """The items of all pages. Items added or moved meanwhile come at most once."""
    number, earlier = 1, list[set[Any]]()
    while True:
        answer = yield Ask("GET", path, query=[("page", number), *query])
        items = answer.get("data") or []
        fresh = [item for item in items if all(item.get(key) not in ids for ids in earlier)]
        if fresh:
            yield fresh
        pages = (answer.get("pagination") or {}).get("total_pages", 1)
        if number >= pages or not items:
            return
        earlier = [*earlier[1 - _REMEMBERED :], {item[key] for item in items if item.get(key) is not None}]
        number += 1


def by_cursor(path: str, query: Query) -> Generator[Step, Any, Any]:
    """The items of all pages along `next_page`; a cursor that repeats ends the walk."""
    cursor: str | None = None
    while True:
        answer = yield Ask("GET", path, query=[*query, ("page_cursor", cursor)])
        if answer["data"]:
            yield answer["data"]
        if answer["next_page"] in (None, cursor):
            return
        cursor = answer["next_page"]


def whole(path: str, query: Query = ()) -> Generator[Step, Any, Any]:
    """The items of a list that has no pages."""
    answer = yield Ask("GET", path, query=query)
    if answer["data"]:
        yield answer["data"]
