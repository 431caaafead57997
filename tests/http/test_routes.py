"""Paths are matched segment by segment before they are decoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_jobs.http.app import OPERATIONS
from nemo_jobs.http.errors import Refused
from nemo_jobs.http.routes import Routes

ROUTES = Routes(OPERATIONS)
JOBS = b"/apis/jobs/v2/workspaces/default/jobs"


def found(method, path):
    operation, values = ROUTES.find(method, path)
    return operation.handler.__name__, values


def test_a_path_leads_to_its_handler_with_the_names_of_the_document():
    assert found("GET", JOBS + b"/moth") == ("get_job", {"workspace": "default", "name": "moth"})
    assert found("GET", JOBS + b"/moth/steps/fit/tasks/task-1") == (
        "get_task",
        {"workspace": "default", "job": "moth", "step": "fit", "name": "task-1"},
    )


def test_c059_an_encoded_slash_stays_part_of_the_name():
    assert found("GET", JOBS + b"/moth%2Fcancel") == (
        "get_job",
        {"workspace": "default", "name": "moth/cancel"},
    )
    assert found("POST", JOBS + b"/a%2F..%2Fb/cancel")[1]["name"] == "a/../b"


def test_c059_a_name_is_decoded_once():
    assert found("GET", JOBS + b"/%252e%252e")[1]["name"] == "%2e%2e"


FILES = b"/apis/files/v2/workspaces/default/filesets/data/-/"


def test_the_rest_of_a_path_is_decoded_once_and_slashes_of_both_kinds_are_part_of_it():
    assert found("GET", FILES + b"a/b.txt") == (
        "get_file",
        {"workspace": "default", "name": "data", "path": "a/b.txt"},
    )
    assert found("PUT", FILES + b"a%2Fb//%252e%252e/-/c/")[1]["path"] == "a/b//%2e%2e/-/c/"
    assert found("HEAD", FILES)[1]["path"] == ""
    with pytest.raises(Refused) as refused:
        ROUTES.find("GET", FILES + b"%ff")
    assert refused.value.status == 422
    with pytest.raises(Refused) as refused:
        ROUTES.find("POST", FILES + b"a/b")
    assert refused.value.headers == ((b"allow", b"DELETE, GET, HEAD, PUT"),)


@pytest.mark.parametrize(
    "path", [b"", b"/", b"//", JOBS + b"/", JOBS + b"/a//", b"/nothing", JOBS + b"/%00", JOBS + b"/%ff"]
)
def test_c059_paths_of_nothing_are_404(path):
    with pytest.raises(Refused) as refused:
        ROUTES.find("GET", path)
    assert refused.value.status == 404


def test_a_wrong_method_is_405_and_names_the_right_ones():
    with pytest.raises(Refused) as refused:
        ROUTES.find("PUT", JOBS + b"/moth")
    assert refused.value.status == 405
    assert refused.value.headers == ((b"allow", b"DELETE, GET, PATCH"),)
    assert refused.value.detail.endswith("; DELETE, GET, PATCH do")


@given(path=st.binary(max_size=200), method=st.sampled_from(["GET", "POST", "BREW"]))
def test_any_path_is_found_or_refused(path, method):
    try:
        ROUTES.find(method, path)
    except Refused as refused:
        assert refused.status in (404, 405, 422)
