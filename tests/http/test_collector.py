"""Nobody stands still for the collector of cycles while large JSON is read."""

import contextlib
import gc
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from nemo_jobs.http import otlp
from nemo_jobs.http.collector import uncollected
from nemo_jobs.http.request import LARGE_BODY, Request
from nemo_jobs.otlp import payload


@contextlib.contextmanager
def seen_of_it():
    seen = []
    gc.callbacks.append(lambda phase, told: seen.append((phase, told)))
    try:
        yield seen
    finally:
        gc.callbacks.pop()


async def test_large_bodies_are_read_without_it():
    raw = b"[%s]" % b",".join([b"[]"] * 300_000)
    assert len(raw) > LARGE_BODY
    adapter = TypeAdapter(list)
    seen = []

    class Watched:
        @staticmethod
        def validate_json(given):
            with seen_of_it() as during:
                found = adapter.validate_json(given)
            seen.append(list(during))
            return found

    nothing: Any = None
    found: Any = await Request({}, nothing, nothing, {}).validated(raw, cast(Any, Watched()))
    assert (len(found), seen) == (300_000, [[]])
    assert gc.isenabled()


@pytest.mark.parametrize(
    "body",
    [
        b'{"other":[%s]}' % b",".join([b"[]"] * 300_000),
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"attributes":[%s]}]}]}]}'
        % b",".join([b"{}"] * 300_000),
    ],
)
def test_nobody_stands_still_for_it_while_log_records_are_read(body):
    gc.collect()
    before = len(gc.get_objects())
    # It would be on again at the end of the reading, and then look at the rest once.
    with seen_of_it() as seen, contextlib.suppress(payload.BadPayload), uncollected():
        otlp._decode(body, False, payload.Form.JSON, 1, lambda source: None)
    assert seen == []
    assert gc.isenabled()
    assert len(gc.get_objects()) - before < 10_000  # nothing of it is kept


def test_the_collector_is_on_again_when_the_last_reader_has_ended():
    with uncollected():
        with pytest.raises(ZeroDivisionError), uncollected():
            raise ZeroDivisionError
        assert not gc.isenabled()
    assert gc.isenabled()
