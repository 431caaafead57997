"""Who is let in: tokens, scopes, what is shown to whom, and what is not given away."""

import asyncio
import json

import pytest

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.domain.model import Unavailable
from nemo_jobs.domain.states import Trigger
from nemo_jobs.http import access
from nemo_jobs.store import tokens
from tests.http.kit import JOBS, body, open_service, served
from tests.http.tokens_kit import AUTH, bearer, make_task_token, make_token, open_guarded

LAB = "/apis/jobs/v2/workspaces/lab/jobs"
OTHER = "/apis/jobs/v2/workspaces/other/jobs"
ANYWHERE = "/apis/jobs/v2/workspaces/-/jobs"
WORKSPACES = "/apis/entities/v2/workspaces"
TOKENS = "/apis/auth/v2/tokens"


@pytest.fixture
async def guarded(tmp_path):
    async with open_guarded(tmp_path, clock=ManualClock()) as service:
        yield service


async def create(service, token, path=LAB, **over):
    answer = await service.client.post(path, json=body(**over), headers=bearer(token))
    assert answer.status_code == 201, answer.text
    return answer.json()


async def ask(service, token, method, path, **given):
    return await service.client.request(method, path, headers=bearer(token), **given)


async def test_without_a_token_everything_but_health_and_discovery_is_closed(guarded):
    answer = await guarded.client.get(LAB)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="nemo-jobs"'
    assert "Authorization: Bearer" in answer.json()["detail"]
    for path in ("/health/live", "/health/ready", "/cluster-info", "/openapi.json"):
        assert (await guarded.client.get(path)).status_code == 200, path
    assert (await guarded.client.get("/apis/auth/discovery")).json()["auth_enabled"] is True
    assert (await guarded.client.get("/metrics")).status_code == 401


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("Basic YTpi", "must be 'Bearer <token>'"),
        ("Bearer", "must be 'Bearer <token>'"),
        ("Bearer " + "x" * 20_000, "must be 'Bearer <token>'"),
        ("Bearer service:jobs", "none of this service's"),
        ("Bearer a.b.c", "none of this service's"),
        ("Bearer nemo_123", "not complete"),
        ("Bearer nemo_" + "0" * 56, "not complete"),
    ],
)
async def test_what_is_no_token_is_refused_without_a_look_up(guarded, monkeypatch, header, says):
    async def never(*args, **given):
        raise AssertionError("looked at the database")

    monkeypatch.setattr(guarded.db, "read", never)
    answer = await guarded.client.get(LAB, headers={"authorization": header})
    assert (answer.status_code, says in answer.json()["detail"]) == (401, True), answer.text
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def test_two_authorization_headers_are_refused(guarded):
    token = await make_token(guarded, {"*": ["admin"]})
    headers = [("authorization", f"Bearer {token}"), ("authorization", "Bearer other")]
    answer = await guarded.client.get(LAB, headers=headers)
    assert (answer.status_code, "more than one" in answer.json()["detail"]) == (401, True)


async def test_an_unknown_an_expired_and_a_revoked_token_say_what_they_are(guarded):
    unknown = tokens.new_token()
    assert "not known" in (await ask(guarded, unknown, "GET", LAB)).json()["detail"]
    short = await make_token(guarded, {"lab": ["read"]}, expires_in=10)
    assert (await ask(guarded, short, "GET", LAB)).status_code == 200
    guarded.clock.advance(9.9)
    assert (await ask(guarded, short, "GET", LAB)).status_code == 200
    guarded.clock.advance(0.1)
    answer = await ask(guarded, short, "GET", LAB)
    assert (answer.status_code, "expired" in answer.json()["detail"]) == (401, True)


async def test_scopes_are_ordered_and_hold_in_their_workspace_alone(guarded):
    read = await make_token(guarded, {"lab": ["read"]})
    write = await make_token(guarded, {"lab": ["write"]})
    assert (await ask(guarded, read, "GET", LAB)).status_code == 200
    answer = await ask(guarded, read, "POST", LAB, json=body())
    assert answer.status_code == 403
    assert answer.json()["detail"] == "this needs scope 'write' in workspace 'lab'; the token has read there"
    await create(guarded, write)
    assert (await ask(guarded, write, "GET", f"{LAB}/moth")).status_code == 200
    answer = await ask(guarded, write, "POST", OTHER, json=body())
    assert answer.json()["detail"].endswith("in workspace 'other'; the token has none there")
    assert (await ask(guarded, write, "DELETE", f"{WORKSPACES}/lab")).status_code == 403


async def test_existing_and_missing_things_look_the_same_from_outside(guarded):
    root = await make_token(guarded, {"*": ["admin"]})
    job = await create(guarded, root, OTHER)
    outsider = await make_token(guarded, {"lab": ["admin"]})
    for method, there, missing in (
        ("GET", f"{OTHER}/moth", f"{OTHER}/none"),
        ("GET", f"{OTHER}/{job['id']}", f"{OTHER}/platform-job-x"),
        ("GET", f"{OTHER}/moth/logs", f"{OTHER}/none/logs"),
        ("GET", f"{OTHER}/moth/logs/stream", f"{OTHER}/none/logs/stream"),
        ("POST", f"{OTHER}/moth/cancel", f"{OTHER}/none/cancel"),
        ("DELETE", f"{OTHER}/moth", f"{OTHER}/none"),
    ):
        one, two = await ask(guarded, outsider, method, there), await ask(guarded, outsider, method, missing)
        assert (one.status_code, one.text) == (two.status_code, two.text) == (403, one.text)
    for method in ("GET", "PUT", "DELETE"):
        one = await ask(guarded, outsider, method, f"{WORKSPACES}/other", json={})
        two = await ask(guarded, outsider, method, f"{WORKSPACES}/nowhere", json={})
        assert one.status_code == two.status_code == 403
        assert one.text.replace("other", "nowhere") == two.text
    # An id serves in its own workspace alone.
    assert (await ask(guarded, root, "GET", f"{LAB}/{job['id']}")).status_code == 404


async def test_lists_over_all_workspaces_hold_what_the_caller_may_read(guarded):
    root = await make_token(guarded, {"*": ["admin"]})
    for path, name in ((LAB, "one"), (OTHER, "two"), (JOBS, "three")):
        await create(guarded, root, path, name=name, custom_fields={"labels": {"team": "a"}})
    some = await make_token(guarded, {"lab": ["read"], "default": ["write"]})

    async def names(token, path, **params):
        answer = await guarded.client.get(path, params=params, headers=bearer(token))
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert page["pagination"]["total_results"] == len(page["data"])
        return sorted(item.get("job") or item["name"] for item in page["data"]), page

    assert (await names(some, ANYWHERE))[0] == ["one", "three"]
    assert (await names(root, ANYWHERE))[0] == ["one", "three", "two"]
    found, page = await names(some, ANYWHERE, filter='{"status":["created"]}')
    assert (found, page["filter"]) == (["one", "three"], {"status": {"$in": ["created"]}})
    assert (await names(some, ANYWHERE, filter='{"workspace":"other"}'))[0] == []
    assert (await names(some, ANYWHERE, filter='-(name:"none")'))[0] == ["one", "three"]
    assert (await names(some, ANYWHERE, filter='{"labels.team":"a"}'))[0] == ["one", "three"]
    assert (await names(some, ANYWHERE, filter='{"$or":[{"labels.team":"a"},{"name":"two"}]}'))[0] == [
        "one",
        "three",
    ]
    assert (await names(root, ANYWHERE, filter='{"labels.team":"a"}'))[0] == ["one", "three", "two"]
    assert (await names(some, f"{ANYWHERE}/-/steps"))[0] == ["one", "three"]
    assert (await names(some, f"{ANYWHERE}/two/steps"))[0] == []
    assert (await names(some, WORKSPACES))[0] == ["default", "lab"]
    assert (await names(root, WORKSPACES))[0] == ["default", "lab", "other", "system"]
    # Nowhere else does `-` mean all.
    assert (await ask(guarded, some, "GET", f"{ANYWHERE}/one")).status_code == 403
    assert (await ask(guarded, root, "GET", f"{ANYWHERE}/one")).status_code == 404


async def test_identity_headers_count_for_services_alone(guarded):
    claimed = {"x-nhx-principal-id": "service:jobs", "x-nhx-principal-email": "x@y.example"}
    person = await make_token(guarded, {"lab": ["write"]}, principal="ann")
    answer = await guarded.client.post(LAB, json=body(name="one"), headers=bearer(person, **claimed))
    assert answer.status_code == 201
    service = await make_token(guarded, {"*": ["service"]}, principal="service:jobs")
    listed = await guarded.client.get(f"{ANYWHERE}/-/steps", headers=bearer(service))
    (step,) = listed.json()["data"]
    assert step["auth_context"] == {
        "principal_id": "ann",
        "principal_authz_aliases": [],
        "principal_groups": [],
        "principal_on_behalf_of_authz_aliases": [],
    }
    claimed["x-nhx-principal-id"] = "service:ui"
    claimed["x-nhx-principal-on-behalf-of"] = "bob"
    await guarded.client.post(LAB, json=body(name="two"), headers=bearer(service, **claimed))
    listed = await guarded.client.get(f"{ANYWHERE}/two/steps", headers=bearer(service))
    context = listed.json()["data"][0]["auth_context"]
    assert (context["principal_id"], context["principal_on_behalf_of"], context["principal_email"]) == (
        "service:ui",
        "bob",
        "x@y.example",
    )


async def test_auth_context_is_shown_to_services_alone(guarded):
    write = await make_token(guarded, {"lab": ["write"], "other": ["service"]})
    await create(guarded, write)
    await create(guarded, write, OTHER)
    listed = (await ask(guarded, write, "GET", f"{ANYWHERE}/-/steps")).json()["data"]
    assert {step["workspace"]: "auth_context" in step for step in listed} == {"lab": False, "other": True}


async def test_a_service_may_not_do_what_takes_an_admin(guarded):
    service = await make_token(guarded, {"*": ["service"]}, principal="service:jobs")
    assert (await ask(guarded, service, "GET", TOKENS)).status_code == 403
    assert (await ask(guarded, service, "POST", WORKSPACES, json={"name": "more"})).status_code == 403


async def test_status_tells_names_to_those_who_read_everything(guarded):
    guarded.engine.troubles = ["the output of moth/work can't be read"]
    some = await make_token(guarded, {"lab": ["admin"]})
    callers: list[dict] = [{}, bearer("nemo_bad"), bearer(some)]
    for headers in callers:
        status = await guarded.client.get("/status", headers=headers)
        assert status.status_code == 200
        assert set(status.json()) == {"status", "services", "controllers"}
        assert status.json()["status"] == "degraded"
    reader = await make_token(guarded, {"*": ["read"]})
    status = await guarded.client.get("/status", headers=bearer(reader))
    assert status.json()["problems"] == ["the output of moth/work can't be read"]
    assert (await ask(guarded, reader, "GET", "/metrics")).status_code == 200
    assert (await ask(guarded, some, "GET", "/metrics")).status_code == 403


async def test_health_does_not_wait_for_tokens_to_be_looked_up(guarded, monkeypatch):
    async def away(*args, **given):
        raise Unavailable("the database is away", 1)

    token = await make_token(guarded, {"lab": ["read"]})
    monkeypatch.setattr(guarded.db, "read", away)
    assert (await ask(guarded, token, "GET", "/health/live")).status_code == 200
    assert (await ask(guarded, token, "GET", "/status")).status_code == 200
    assert (await ask(guarded, token, "GET", LAB)).status_code == 503


async def test_a_revocation_counts_at_once_and_elsewhere_within_seconds(guarded, monkeypatch):
    root = await make_token(guarded, {"*": ["admin"]})
    token = await make_token(guarded, {"lab": ["read"]}, principal="bob")
    (listed,) = [
        item
        for item in (await ask(guarded, root, "GET", TOKENS)).json()["data"]
        if item["principal"] == "bob"
    ]
    assert (await ask(guarded, token, "GET", LAB)).status_code == 200
    gone = await ask(guarded, root, "DELETE", f"{TOKENS}/{listed['id']}")
    assert gone.json()["revoked_at"]
    answer = await ask(guarded, token, "GET", LAB)
    assert (answer.status_code, "revoked" in answer.json()["detail"]) == (401, True)
    again = await ask(guarded, root, "DELETE", f"{TOKENS}/{listed['id']}")
    assert again.json() == gone.json()
    # The same when the message that would tell of it is lost.
    token = await make_token(guarded, {"lab": ["read"]}, principal="carl")
    assert (await ask(guarded, token, "GET", LAB)).status_code == 200
    found = await guarded.db.read(tokens.find, tokens.hash_of(token))
    monkeypatch.setattr(guarded.app._gate, "_on_wake", lambda topic, key: None)
    guarded.app._gate.close()
    await guarded.db.write(tokens.revoke, found.record.id, None, guarded.clock.now())
    guarded.clock.advance(access.BELIEVED)
    assert (await ask(guarded, token, "GET", LAB)).status_code == 401


async def test_who_follows_a_log_is_cut_off_by_a_revocation(guarded):
    token = await make_token(guarded, {"lab": ["write"]})
    await create(guarded, token)
    await guarded.start(lines=[("stdout", "hello")])
    found = await guarded.db.read(tokens.find, tokens.hash_of(token))
    async with served(guarded.app) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"GET {LAB}/moth/logs/stream HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
        )
        writer.write(head.encode())
        assert b"hello" in await reader.readuntil(b"hello")
        await guarded.db.write(tokens.revoke, found.record.id, None, guarded.clock.now())
        rest = await reader.read()
        assert b"event: end" not in rest
        writer.close()


async def test_a_token_is_looked_up_once_in_a_while(guarded, monkeypatch):
    token = await make_token(guarded, {"lab": ["read"]})
    looked = []
    read = guarded.db.read

    async def counting(fn, *args, **given):
        looked.append(fn)
        return await read(fn, *args, **given)

    monkeypatch.setattr(guarded.db, "read", counting)
    for _ in range(5):
        assert (await ask(guarded, token, "GET", LAB)).status_code == 200
    assert looked.count(tokens.find) == 1
    monkeypatch.setattr(access, "REMEMBERED", 2)
    for _ in range(4):
        other = await make_token(guarded, {"lab": ["read"]})
        await ask(guarded, other, "GET", LAB)
    assert len(guarded.app._gate._known) <= 3


async def test_a_task_token_serves_its_own_job_while_its_attempt_lives(guarded):
    root = await make_token(guarded, {"*": ["admin"]})
    job = await create(guarded, root, LAB)
    token = await make_task_token(guarded, job)
    step = await guarded.start()
    await create(guarded, root, LAB, name="bee")
    assert (await ask(guarded, token, "GET", f"{LAB}/moth")).json()["id"] == job["id"]
    assert (await ask(guarded, token, "GET", f"{LAB}/{job['id']}")).status_code == 200
    report = {"status": "active", "status_details": {"epoch": 3}}
    put = await ask(guarded, token, "PUT", f"{LAB}/moth/steps/work/tasks/task-more", json=report)
    assert (put.status_code, put.json()["updated_by"]) == (200, "task:moth")
    for method, path in (
        ("GET", f"{LAB}/bee"),
        ("GET", f"{LAB}/none"),
        ("GET", LAB),
        ("POST", LAB),
        ("DELETE", f"{LAB}/moth"),
        ("POST", f"{LAB}/moth/cancel"),
        ("GET", f"{OTHER}/moth"),
        ("PUT", f"{LAB}/bee/steps/work/tasks/task-more"),
        ("GET", TOKENS),
        ("GET", WORKSPACES),
        ("GET", "/metrics"),
    ):
        answer = await ask(guarded, token, method, path, json={})
        assert answer.status_code == 403, (method, path, answer.text)
        assert "job 'moth' in workspace 'lab'" in answer.json()["detail"]
    await guarded.finish(step)
    ended = await ask(guarded, token, "GET", f"{LAB}/moth")
    assert (ended.status_code, "has ended with the run" in ended.json()["detail"]) == (401, True)
    assert await guarded.db.write(tokens.purge, guarded.clock.now()) == 1
    assert "not known" in (await ask(guarded, token, "GET", f"{LAB}/moth")).json()["detail"]


async def test_a_later_attempt_has_nothing_of_the_token_of_an_earlier_one(guarded):
    root = await make_token(guarded, {"*": ["admin"]})
    first = await create(guarded, root, LAB)
    early = await make_task_token(guarded, first)
    await guarded.finish(await guarded.start(), Trigger.FAILED)
    again = await ask(guarded, root, "POST", f"{LAB}/moth/rerun")
    assert again.status_code == 200, again.text
    second = again.json()
    assert second["attempt_id"] != first["attempt_id"]
    late = await make_task_token(guarded, second)
    for path in ("", "/attempts/current", f"/attempts/{first['attempt_id']}", "/status"):
        assert (await ask(guarded, early, "GET", f"{LAB}/moth{path}")).status_code == 401
    put = await ask(guarded, early, "PUT", f"{LAB}/moth/steps/work/tasks/task-more", json={})
    assert put.status_code == 401
    for attempt, status in ((second["attempt_id"], 200), ("current", 200), (first["attempt_id"], 403)):
        answer = await ask(guarded, late, "GET", f"{LAB}/moth/attempts/{attempt}")
        assert answer.status_code == status, (attempt, answer.text)
        answer = await ask(
            guarded, late, "PATCH", f"{LAB}/moth/attempts/{attempt}/status-details", json={"a": 1}
        )
        assert answer.status_code == status, (attempt, answer.text)


async def test_a_task_speaks_with_the_names_it_claims(guarded):
    root = await make_token(guarded, {"*": ["admin"]})
    job = await create(guarded, root, LAB)
    token = await make_task_token(guarded, job)
    await guarded.start()
    answer = await guarded.client.put(
        f"{LAB}/moth/steps/work/tasks/task-more",
        json={"status": "active"},
        headers=bearer(token, **{"x-nhx-principal-id": "service:jobs"}),
    )
    assert answer.json()["updated_by"] == "service:jobs"


async def test_nobody_gives_what_they_do_not_have(guarded):
    lab = await make_token(guarded, {"lab": ["admin"], "other": ["write"]})

    async def make(grants, **more):
        return await ask(guarded, lab, "POST", TOKENS, json={"principal": "dora", "grants": grants, **more})

    made = await make({"lab": ["write", "read", "write"]}, description="for dora")
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    shown = made.json()
    assert shown["grants"] == {"lab": ["read", "write"]}
    assert (shown["created_by"], shown["expires_at"], shown["revoked_at"]) == ("ann", None, None)
    assert (await ask(guarded, shown["token"], "GET", LAB)).status_code == 200
    for grants in ({"other": ["read"]}, {"*": ["read"]}, {"lab": ["read"], "nowhere": ["read"]}):
        assert (await make(grants)).status_code == 403
    assert "scope service" in (await make({"lab": ["service"]})).json()["detail"]
    # Nor do they see or revoke it.
    listed = (await ask(guarded, lab, "GET", TOKENS)).json()
    assert [item["principal"] for item in listed["data"]] == ["dora"]
    assert "token" not in listed["data"][0]
    root = await make_token(guarded, {"*": ["admin"]}, principal="root")
    everyone = (await ask(guarded, root, "GET", TOKENS)).json()
    assert everyone["pagination"]["total_results"] == 4
    (mine,) = [item for item in everyone["data"] if item["grants"] == {"*": ["admin"]}][:1]
    one = await ask(guarded, lab, "DELETE", f"{TOKENS}/{mine['id']}")
    two = await ask(guarded, lab, "DELETE", f"{TOKENS}/token-none")
    assert (one.status_code, two.status_code) == (404, 404)
    assert one.text.replace(mine["id"], "token-none") == two.text


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"principal": ""}, 422, "at least 1 character"),
        ({"principal": "a\nb"}, 422, "printable"),
        ({"principal": "x" * 257}, 422, "at most 256"),
        ({"principal": "service:me"}, 422, "needs scope service"),
        ({"grants": {}}, 422, "at least 1"),
        ({"grants": {"lab": []}}, 422, "has no scope"),
        ({"grants": {"lab": ["root"]}}, 422, "admin"),
        ({"grants": {"../x": ["read"]}}, 422, "no workspace"),
        ({"grants": {"nowhere": ["read"]}}, 422, "create it first"),
        ({"grants": {f"w-{n:03}": ["read"] for n in range(101)}}, 422, "at most 100"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, 422, "would have expired"),
        ({"expires_at": "2999-01-01T00:00:00"}, 422, "timezone"),
        ({"expires_in_seconds": 0}, 422, "greater than 0"),
        ({"expires_in_seconds": 60, "expires_at": "2999-01-01T00:00:00Z"}, 422, "not both"),
    ],
)
async def test_a_token_that_can_not_be_is_refused(guarded, change, status, says):
    root = await make_token(guarded, {"*": ["admin"]})
    asked = {"principal": "eve", "grants": {"lab": ["read"]}, **change}
    answer = await ask(guarded, root, "POST", TOKENS, json=asked)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text


async def test_the_token_itself_is_nowhere_in_the_database(guarded, tmp_path):
    root = await make_token(guarded, {"*": ["admin"]})
    made = await ask(guarded, root, "POST", TOKENS, json={"principal": "ann", "grants": {"lab": ["read"]}})
    shown = made.json()["token"]
    await guarded.db.aclose()
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert shown.encode() not in stored
    assert shown[5:30].encode() not in stored
    assert tokens.hash_of(shown).encode() in stored


async def test_tokens_of_a_deleted_workspace_do_not_hold_in_a_later_one(guarded):
    root = await make_token(guarded, {"*": ["admin"]})
    lab = await make_token(guarded, {"lab": ["write"]}, principal="one")
    both = await make_token(guarded, {"lab": ["write"], "other": ["read"]}, principal="two")
    assert (await ask(guarded, lab, "GET", LAB)).status_code == 200
    assert (await ask(guarded, both, "GET", LAB)).status_code == 200
    assert (await ask(guarded, root, "DELETE", f"{WORKSPACES}/lab")).status_code == 200
    await ask(guarded, root, "POST", WORKSPACES, json={"name": "lab"})
    assert (await ask(guarded, lab, "GET", LAB)).status_code == 401
    assert (await ask(guarded, both, "GET", LAB)).status_code == 403
    assert (await ask(guarded, both, "GET", OTHER)).status_code == 200


async def test_without_authentication_no_tokens_are_made_and_none_is_looked_at(service):
    for method, path in (("GET", TOKENS), ("POST", TOKENS), ("DELETE", f"{TOKENS}/x")):
        answer = await service.client.request(method, path, json={})
        assert (answer.status_code, "authentication is off" in answer.json()["detail"]) == (403, True)
    assert service.app._gate is None
    answer = await service.client.get(JOBS, headers=bearer("nemo_whatever"))
    assert answer.status_code == 200


async def test_without_authentication_a_service_may_name_itself_as_a_bearer(service):
    headers = {"authorization": "Bearer service:jobs"}
    await service.client.post(JOBS, json=body(), headers=headers)
    step = (await service.client.get(f"{JOBS}/moth/steps")).json()["data"][0]
    assert step["auth_context"]["principal_id"] == "service:jobs"


async def test_any_host_name_serves_where_tokens_are_asked_for(tmp_path):
    async with open_service(tmp_path, config=AUTH) as service:
        answer = await service.client.get("/health/ready", headers={"host": "nemo.example:8080"})
        assert answer.status_code == 200
        answer = await service.client.get(LAB, headers={"host": "nemo.example:8080"})
        assert answer.status_code == 401


def test_only_whole_tokens_are_well_formed():
    for prefix in (tokens.PREFIX, tokens.TASK_PREFIX):
        made = tokens.new_token(prefix)
        assert tokens.well_formed(made)
        assert made not in {tokens.new_token(prefix) for _ in range(50)}
        for broken in (made[:-1], made + "0", made.swapcase(), made.replace("_", "-"), made[:20] + "é"):
            assert not tokens.well_formed(broken)
        flipped = made[:15] + ("0" if made[15] != "0" else "1") + made[16:]
        assert not tokens.well_formed(flipped)


async def test_the_document_says_which_routes_ask_for_a_token(service):
    document = (await service.client.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert "401" in document["paths"][TOKENS]["get"]["responses"]
    assert "security" not in document["paths"]["/health/live"]["get"]
    assert json.dumps(document)
