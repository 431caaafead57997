"""The token of a file, exchanged as launchers and clients of the family do it."""

from urllib.parse import urlencode

import pytest

from nemo_jobs.http.exchange import EXCHANGE, FORM, GRANT
from tests.http.kit import body, open_service
from tests.http.tokens_kit import AUTH, bearer, make_task_token, make_token, open_guarded

LAB = "/apis/jobs/v2/workspaces/lab/jobs"


@pytest.fixture
async def guarded(tmp_path):
    async with open_guarded(tmp_path) as running:
        yield running


async def exchange(service, **form):
    said = {
        "grant_type": GRANT,
        "client_id": "nemo-jobs",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        **form,
    }
    content = urlencode({name: value for name, value in said.items() if value is not None})
    return await service.client.post(EXCHANGE, content=content, headers={"content-type": FORM})


async def task_of(service):
    token = await make_token(service, {"lab": ["write"]})
    job = (await service.client.post(LAB, json=body(), headers=bearer(token))).json()
    return job, await make_task_token(service, job)


async def test_the_discovery_leads_to_the_exchange_and_that_to_a_token_that_counts(guarded):
    job, shown = await task_of(guarded)
    told = (await guarded.client.get("/apis/auth/discovery")).json()
    assert told == {
        "auth_enabled": True,
        "oidc": {
            "issuer": "http://localhost",
            "client_id": "nemo-jobs",
            "workload_token_exchange_enabled": True,
            "workload_token_endpoint": f"http://localhost{EXCHANGE}",
            "workload_client_id": "nemo-jobs",
        },
    }
    answer = await exchange(guarded, subject_token=shown)
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    given = answer.json()
    assert given.pop("access_token") == shown
    assert given == {
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "token_type": "Bearer",
        "expires_in": 3600,
    }
    assert (await guarded.client.get(f"{LAB}/{job['name']}", headers=bearer(shown))).status_code == 200


async def test_a_token_with_an_end_is_given_for_no_longer(guarded):
    shown = await make_token(guarded, {"lab": ["read"]}, expires_in=90)
    assert (await exchange(guarded, subject_token=shown)).json()["expires_in"] == 90
    guarded.clock.advance(91)
    answer = await exchange(guarded, subject_token=shown)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


@pytest.mark.parametrize(
    ("form", "error", "says"),
    [
        ({"grant_type": "password"}, "unsupported_grant_type", "token-exchange"),
        ({"grant_type": None}, "unsupported_grant_type", "token-exchange"),
        ({"subject_token": None}, "invalid_request", "subject_token"),
        ({"subject_token": "a.b.c"}, "invalid_request", "subject_token"),
        ({"subject_token": "service:jobs"}, "invalid_request", "subject_token"),
        ({"subject_token": "nemo_" + "0" * 56}, "invalid_grant", "not complete"),
    ],
)
async def test_what_can_not_be_exchanged_is_refused_in_the_words_of_the_standard(guarded, form, error, says):
    _, shown = await task_of(guarded)
    answer = await exchange(guarded, **{"subject_token": shown, **form})
    assert answer.status_code == 400
    told = answer.json()
    assert told["error"] == error
    assert says in told["error_description"] and told["detail"] == told["error_description"]
    assert shown not in answer.text


async def test_a_token_ends_with_its_attempt_for_the_exchange_too(guarded):
    job, shown = await task_of(guarded)
    root = await make_token(guarded, {"*": ["admin"]})
    await guarded.client.post(f"{LAB}/{job['name']}/cancel", headers=bearer(root))
    answer = await exchange(guarded, subject_token=shown)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


async def test_a_body_that_is_no_form_is_refused(guarded):
    for content, kind, status in (
        (b"{}", "application/json", 400),
        (b"\xff\xfe", FORM, 422),
        (b"&".join(b"a%d=b" % n for n in range(100)), FORM, 422),
        (b"a=b", "text/plain", 415),
    ):
        answer = await guarded.client.post(EXCHANGE, content=content, headers={"content-type": kind})
        assert answer.status_code == status, (content, answer.text)


async def test_without_authentication_there_is_nothing_to_exchange(tmp_path):
    async with open_service(tmp_path) as service:
        answer = await exchange(service, subject_token="nemo_x")
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
        assert "no token is needed" in answer.json()["detail"]
        told = await service.client.get("/apis/auth/discovery")
        assert told.json() == {"auth_enabled": False, "oidc": None}


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("jobs.example", "https://jobs.example"),
        ("10.0.0.7:8080", "http://10.0.0.7:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ('evil"/x', "https://jobs.example"),
    ],
)
async def test_the_endpoint_is_where_the_caller_reaches_the_service(tmp_path, host, endpoint):
    config = AUTH.replace("{runtime: none}", '{runtime: none, advertised_base_url: "https://jobs.example/"}')
    async with open_service(tmp_path, config=config) as service:
        told = (await service.client.get("/apis/auth/discovery", headers={"host": host})).json()
        assert told["oidc"]["workload_token_endpoint"] == endpoint + EXCHANGE
