"""Fixtures of the client's tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.client.both import KINDS, Both

Connect = Callable[..., Both]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(kind: str) -> Iterator[Connect]:
    """Make a client of the kind under test; it is closed at the end."""
    with ExitStack() as stack:
        yield lambda url, **settings: stack.enter_context(Both(kind, url, **settings))
