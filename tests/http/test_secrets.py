"""Secrets over HTTP, the same on both databases: values go in and come out for tasks alone."""

import asyncio
import base64

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.model import Unavailable
from nemo_jobs.domain.secrets import Reference
from nemo_jobs.http import otlp
from tests.bed.postgres import Missing, PostgresServer
from tests.http.kit import JOBS, body, open_service

SECRETS = "/apis/secrets/v2/workspaces/default/secrets"
ROTATE = "/apis/secrets/v2/rotate-key"
CLEAR = "hunter22-in-clear"


@pytest.fixture(scope="module")
def server():
    try:
        server = PostgresServer.start()
    except Missing as error:
        pytest.skip(str(error))
    yield server
    server.destroy()


@pytest.fixture(params=["sqlite", "postgresql"])
async def service(request, tmp_path):
    url = None if request.param == "sqlite" else request.getfixturevalue("server").new_database()
    async with open_service(tmp_path, url=url) as running:
        yield running


async def put(service, name="token", value=CLEAR, **more):
    answer = await service.client.post(SECRETS, json={"name": name, "value": value, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def with_secret(*names, **over):
    variables = [{"name": f"V{n}", "from_secret": {"name": name}} for n, name in enumerate(names)]
    step = {
        "name": "work",
        "executor": {"provider": "subprocess", "command": ["true"]},
        "environment": variables,
    }
    return body(**{"platform_spec": {"steps": [step]}, **over})


async def test_a_secret_is_stored_shown_changed_and_deleted_and_its_value_shown_at_one_place(service):
    client = service.client
    made = await put(service, description="for the mirror")
    assert set(made) == {"name", "workspace", "description", "created_at", "updated_at"}
    answers = [
        await client.get(f"{SECRETS}/token"),
        await client.get(SECRETS),
        await client.patch(f"{SECRETS}/token", json={"value": "another-value-of-it"}),
        await client.patch(f"{SECRETS}/token", json={"description": None}),
        await client.patch(f"{SECRETS}/token", json={}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert CLEAR not in answer.text
        assert "another-value" not in answer.text
    assert answers[0].json() == made
    assert answers[1].json()["data"] == [made]
    assert answers[1].json()["pagination"]["page_size"] == 10
    assert answers[2].json()["description"] == "for the mirror"
    assert answers[3].json()["description"] is None
    shown = await client.get(f"{SECRETS}/token/access")
    assert shown.json() == {"name": "token", "workspace": "default", "value": "another-value-of-it"}
    assert shown.headers["cache-control"] == "no-store"
    assert (await client.delete(f"{SECRETS}/token")).status_code == 204
    assert (await client.delete(f"{SECRETS}/token")).status_code == 404
    for path in ("", "/access"):
        missing = await client.get(f"{SECRETS}/token{path}")
        assert (missing.status_code, missing.json()) == (
            404,
            {"detail": "no secret 'token' in workspace 'default'"},
        )


async def test_a_list_has_pages_and_orders(service):
    for n in range(12):
        service.clock.advance(1)
        await put(service, f"token-{n:02d}")
    page = (await service.client.get(SECRETS, params={"sort": "-name", "page": 2})).json()
    assert [secret["name"] for secret in page["data"]] == ["token-01", "token-00"]
    assert page["pagination"]["total_results"] == 12
    assert (await service.client.get(SECRETS, params={"sort": "value"})).status_code == 422
    assert (await service.client.get(SECRETS, params={"page_size": 1001})).status_code == 422


async def test_what_is_wrong_is_told_and_no_value_comes_back_in_it(service):
    client = service.client
    await put(service)
    for wrong, status in (
        ({"name": "token", "value": CLEAR}, 409),
        ({"value": CLEAR}, 422),
        ({"name": "Not A Name", "value": CLEAR}, 422),
        ({"name": "a\n", "value": CLEAR}, 422),
        ({"name": "other", "value": ""}, 422),
        ({"name": "other", "value": None}, 422),
        ({"name": "other", "value": [CLEAR]}, 422),
        ({"name": "other", "value": f"{CLEAR}\0"}, 422),
        ({"name": "other", "value": CLEAR * 5000}, 422),
        ({"name": "other", "value": CLEAR, "description": 5}, 422),
        ([CLEAR], 422),
        (CLEAR, 422),
    ):
        answer = await client.post(SECRETS, json=wrong)
        assert answer.status_code == status, answer.text
        assert CLEAR not in answer.text
    for raw in (
        b'{"name": "other", "value": "\\ud800hunter22"}',
        b'{"name": "other", "value": "hunter22',
        b"",
    ):
        answer = await client.post(SECRETS, content=raw, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert "hunter22" not in answer.text
    assert (
        await client.post(SECRETS.replace("default", "nowhere"), json={"name": "a-b", "value": "x"})
    ).json() == {"detail": "no workspace 'nowhere'; create it first"}
    assert (await client.get(SECRETS.replace("default", "nowhere"))).status_code == 404
    assert (await client.patch(f"{SECRETS}/other", json={"value": "x"})).status_code == 404


async def test_a_value_that_will_not_be_masked_is_taken_and_told_of(service):
    for value, told in (("abc", True), ("abcd", False), ("äöü", True)):
        made = await put(service, f"token-{value.encode().hex()}", value)
        assert ("will not be masked" in "".join(made.get("notes", ()))) == told
    answer = await service.client.patch(f"{SECRETS}/token-{b'abcd'.hex()}", json={"value": "x"})
    assert "will not be masked" in answer.json()["notes"][0]


@pytest.mark.parametrize("value", ["x" * 65536, "ü" * 32768, "line\nline\n", " ", "☃", '"\\\x01'])
async def test_every_text_up_to_64_kib_comes_back_as_it_was(service, value):
    await put(service, value=value)
    assert (await service.client.get(f"{SECRETS}/token/access")).json()["value"] == value


async def test_a_job_with_a_secret_that_cannot_be_read_is_refused_by_name(service):
    client = service.client
    await put(service)
    await client.post("/apis/entities/v2/workspaces", json={"name": "lab"})
    await client.post(SECRETS.replace("default", "lab"), json={"name": "other", "value": CLEAR})
    for name, shown in (
        ("nope", "default/nope"),
        ("lab/nope", "lab/nope"),
        ("nowhere/token", "nowhere/token"),
        ("a/b/c", "a/b/c"),
        ("", "default/"),
        ("/", "/"),
    ):
        answer = await client.post(JOBS, json=with_secret("token", name))
        assert answer.status_code == 422
        assert answer.json()["detail"] == (
            f"step 'work': secret {shown!r} of variable 'V1' can't be read; it is missing or closed to you"
        )
        assert (await client.get(f"{JOBS}/moth")).status_code == 404  # nothing is left of it
    answer = await client.post(JOBS, json=with_secret("token", "default/token", "lab/other"))
    assert answer.status_code == 201
    assert CLEAR not in answer.text
    # The name is looked at before the secrets.
    assert (await client.post(JOBS, json=with_secret("nope"))).status_code == 409
    changed = {"spec": {}, "platform_spec": with_secret("nope")["platform_spec"]}
    assert (await client.patch(f"{JOBS}/moth", json=changed)).status_code == 422
    assert (
        await client.post(f"{JOBS}?dry_run=true", json=with_secret("nope", name="dry"))
    ).status_code == 422
    many = await client.post(JOBS, json=with_secret(*["token"] * 101, name="many"))
    assert "at most 100" in many.json()["detail"]


async def test_a_value_beside_the_name_of_a_secret_is_not_repeated(service):
    await put(service)
    both = {"name": "V", "value": CLEAR, "from_secret": {"name": "token"}}
    step = {
        "name": "work",
        "executor": {"provider": "subprocess", "command": ["true"]},
        "environment": [both],
    }
    for wrong in (
        body(platform_spec={"steps": [step]}),
        {"platform_spec": {"steps": [step]}},
        body(platform_spec={"steps": [{**step, "name": "Not A Name"}]}),
    ):
        answer = await service.client.post(JOBS, json=wrong)
        assert answer.status_code == 422
        assert CLEAR not in answer.text
    assert (
        "exactly one of value and from_secret"
        in (await service.client.post(JOBS, json=body(platform_spec={"steps": [step]}))).text
    )


async def test_values_in_the_list_secrets_of_a_spec_are_in_no_answer(service):
    secrets = [{"name": "token", "value": CLEAR, "ref_id": "x"}, {"name": "more", "value": CLEAR}]
    spec = body()["platform_spec"]
    made = await service.client.post(JOBS, json=body(platform_spec={**spec, "secrets": secrets}))
    assert made.status_code == 201
    for answer in (made, await service.client.get(f"{JOBS}/moth"), await service.client.get(JOBS)):
        assert CLEAR not in answer.text
    for wrong in (
        {"platform_spec": {**spec, "secrets": secrets}},
        body(platform_spec={"secrets": secrets}),
        body(platform_spec={**spec, "secrets": [{"value": CLEAR}]}),
        body(platform_spec={**spec, "secrets": {"value": CLEAR}}),
        body(platform_spec={**spec, "secrets": [CLEAR]}),
        body(platform_spec={**spec, "secrets": CLEAR}),
    ):
        answer = await service.client.post(JOBS, json=wrong)
        assert answer.status_code == 422
        assert CLEAR not in answer.text, answer.text
    rows = await service.db.read(lambda tx: tx.run(sa.text("SELECT * FROM job")))
    assert CLEAR not in repr(rows)


async def test_the_key_is_changed_over_http(service):
    assert (await service.client.post(ROTATE)).status_code == 409
    await put(service)
    requests: tuple[dict, ...] = ({}, {"json": {}}, {"json": {"hand_over": False}})
    for given in requests:
        answer = await service.client.post(ROTATE, **given)
        assert answer.status_code == 200, answer.text
        assert answer.json()["finished"]
        assert answer.json()["changed"] == 1
    assert (await service.client.get(f"{SECRETS}/token/access")).json()["value"] == CLEAR
    assert (await service.client.post(ROTATE, json={"hand_over": "perhaps"})).status_code == 422


async def test_a_workspace_with_secrets_is_not_deleted(service):
    await service.client.post("/apis/entities/v2/workspaces", json={"name": "lab"})
    await service.client.post(SECRETS.replace("default", "lab"), json={"name": "token", "value": CLEAR})
    answer = await service.client.delete("/apis/entities/v2/workspaces/lab")
    assert answer.status_code == 409
    assert "1 secret" in answer.json()["detail"]
    await service.client.delete(SECRETS.replace("default", "lab") + "/token")
    assert (await service.client.delete("/apis/entities/v2/workspaces/lab")).status_code == 200


async def test_the_same_name_at_once_is_stored_once(service):
    answers = await asyncio.gather(
        *(service.client.post(SECRETS, json={"name": "token", "value": f"value-{n}"}) for n in range(8))
    )
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7
    first = next(n for n, answer in enumerate(answers) if answer.status_code == 201)
    assert (await service.client.get(f"{SECRETS}/token/access")).json()["value"] == f"value-{first}"


async def test_a_key_file_that_others_can_read_is_told_of_with_503(service, tmp_path):
    await put(service, "before")
    (tmp_path / "secrets.key").chmod(0o644)
    # What is known goes on; a service that has to read the file again says why it can't.
    assert (await service.client.get(f"{SECRETS}/before/access")).status_code == 200
    answer = await service.client.post(ROTATE)
    assert answer.status_code == 503
    assert "chmod 600" in answer.json()["detail"]


def records_of(step, *records):
    """Log records as OTLP JSON; each is a text, or a text and attributes."""
    said = []
    for one in records:
        text, attributes = one if isinstance(one, tuple) else (one, {})
        pairs = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
        said.append({"timeUnixNano": "1", "body": {"stringValue": text}, "attributes": pairs})
    source = {"job": step.job, "job_attempt": step.attempt_id, "job_step": step.name, "job_task": "task-1"}
    resource = {"attributes": [{"key": k, "value": {"stringValue": v}} for k, v in source.items()]}
    return {"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": said}]}]}


async def send(service, step, *records):
    path = f"/apis/files/v2/workspaces/default/filesets/job-fileset-{step.job}/otlp/v1/logs"
    return await service.client.post(path, json=records_of(step, *records))


async def lines(service, name="moth"):
    found = (await service.client.get(f"{JOBS}/{name}/logs?limit=10000")).json()
    return [line["message"] for line in found["data"]]


async def given_to(service, step, *names):
    """What the engine does before it starts a run."""
    vault = service.app._api.parts.secrets
    wanted = {f"V{n}": Reference("default", name) for n, name in enumerate(names)}
    await vault.resolve(step.key, step.id, wanted)
    return vault


async def test_records_that_tasks_send_are_masked_by_what_their_run_was_given(service):
    await put(service)
    await put(service, "other", "not-of-this-job")
    await service.client.post(JOBS, json=with_secret("token"))
    step = await service.start()
    vault = await given_to(service, step, "token")
    await service.client.patch(f"{SECRETS}/token", json={"value": "changed-meanwhile"})
    encoded = base64.b64encode(CLEAR.encode()).decode()
    sent = (f"is {CLEAR}", f"and {encoded}", ("plain", {f"k {CLEAR}": CLEAR}), "changed-meanwhile")
    assert (await send(service, step, *sent)).json() == {"partialSuccess": None}
    assert (await send(service, step, f"{CLEAR}\n{CLEAR}", "not-of-this-job")).status_code == 200
    wanted = ["is ***", "and ***", "plain", "changed-meanwhile", "***", "***", "not-of-this-job"]
    assert await lines(service) == wanted
    asked = {"filters": {"job": "moth", "job_attempt": step.attempt_id}}
    path = "/apis/files/v2/workspaces/default/filesets/job-fileset-moth/otlp/v1/logs/query"
    answer = await service.client.post(path, json=asked)
    assert answer.json()["data"][2]["attributes"] == {"k ***": "***"}
    assert CLEAR not in answer.text
    await vault.rotate()
    await send(service, step, CLEAR)
    assert (await lines(service))[-1] == "***"


async def test_records_that_come_late_are_masked_by_what_the_secrets_are_then(service):
    await put(service)
    await service.client.post(JOBS, json=with_secret("token"))
    step = await service.start()
    vault = await given_to(service, step, "token")
    await service.finish(step)
    await vault.forget(step.id)
    await send(service, step, f"late {CLEAR}")
    await service.client.delete(f"{SECRETS}/token")
    await send(service, step, (f"later {CLEAR}", {"k": CLEAR}))
    shown = await lines(service)
    assert shown[0] == "late ***"
    assert "withheld" in shown[1] and CLEAR not in shown[1]


async def test_records_of_steps_without_secrets_are_stored_as_they_are(service):
    await service.create()
    step = await service.start()
    await send(service, step, CLEAR)
    await put(service)
    await send(service, step, f"again {CLEAR}")
    assert await lines(service) == [CLEAR, f"again {CLEAR}"]


async def test_records_wait_outside_while_their_secrets_can_not_be_read(service, monkeypatch):
    await put(service)
    await service.client.post(JOBS, json=with_secret("token"))
    step = await service.start()
    vault = await given_to(service, step, "token")

    async def away(*_):
        raise Unavailable("the database is away", 1.0)

    monkeypatch.setattr(vault.covers, "_values", away)
    assert (await send(service, step, CLEAR)).status_code == 503

    async def hang(*_):
        await asyncio.sleep(3600)

    monkeypatch.setattr(vault.covers, "_values", hang)
    monkeypatch.setattr(otlp, "MASK_SECONDS", 0.05)
    answer = await send(service, step, CLEAR)
    assert answer.status_code == 503 and "later" in answer.json()["detail"]
    assert await lines(service) == []
