"""Every route of the API document with every kind of caller: who gets in, and who leaves no trace.

`RULES` says what each route asks for. A new route without a rule fails the first test here.
"""

import json
import sqlite3

import pytest
import sqlalchemy as sa

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.http import access
from nemo_jobs.http.rules import rule_of
from nemo_jobs.store import results, tokens
from nemo_jobs.store.tokens import TaskOf
from tests.http.kit import body
from tests.http.tokens_kit import bearer, make_task_token, make_token, open_guarded

J = "/apis/jobs/v2/workspaces/{workspace}/jobs"
A = J + "/{job}/attempts/{attempt}"
W = "/apis/entities/v2/workspaces"
F = "/apis/files/v2/workspaces/{workspace}/filesets"
S = "/apis/secrets/v2/workspaces/{workspace}/secrets"
T = "/apis/auth/v2/tokens"
G = "/apis/jobs/v2/gpus"

#: What a route asks for: a scope in its workspace, or `somewhere`, or `everywhere`. With ` task`
#: behind it the token of a task may use it for its own job.
RULES = {
    f"POST {J}": "write",
    f"GET {J}": "read",
    f"GET {J}/{{name}}": "read task",
    f"DELETE {J}/{{name}}": "write",
    f"PATCH {J}/{{name}}": "write",
    f"PATCH {J}/{{name}}/control": "write",
    f"POST {J}/{{name}}/cancel": "write",
    f"POST {J}/{{name}}/pause": "write",
    f"POST {J}/{{name}}/resume": "write",
    f"POST {J}/{{name}}/rerun": "write",
    f"POST {J}:cancel": "write",
    f"POST {J}:delete": "write",
    f"POST {J}:rerun": "write",
    f"GET {J}/{{name}}/status": "read task",
    f"PATCH {J}/{{name}}/status-details": "write task",
    f"GET {J}/{{name}}/logs": "read",
    f"GET {J}/{{name}}/logs/stream": "read",
    f"GET {J}/{{name}}/steps": "read",
    f"GET {J}/{{job}}/steps/{{name}}": "read task",
    f"PATCH {J}/{{job}}/steps/{{name}}/status": "write task",
    f"GET {J}/{{job}}/steps/{{name}}/tasks": "read task",
    f"GET {J}/{{job}}/steps/{{step}}/tasks/{{name}}": "read task",
    f"PUT {J}/{{job}}/steps/{{step}}/tasks/{{name}}": "write task",
    f"GET {J}/{{name}}/attempts": "read",
    f"GET {J}/{{job}}/attempts/{{name}}": "read task",
    f"PATCH {J}/{{job}}/attempts/{{name}}/status-details": "write task",
    f"GET {J}/{{job}}/attempts/{{name}}/steps": "read",
    f"GET {A}/steps/{{name}}": "read task",
    f"PATCH {A}/steps/{{name}}/status": "write task",
    f"GET {A}/steps/{{name}}/tasks": "read task",
    f"GET {A}/steps/{{step}}/tasks/{{name}}": "read task",
    f"PUT {A}/steps/{{step}}/tasks/{{name}}": "write task",
    f"GET {J}/{{name}}/results": "read task",
    f"GET {J}/{{job}}/results/{{name}}": "read task",
    f"GET {J}/{{job}}/results/{{name}}/download": "read task",
    f"POST {J}/{{job}}/results/{{name}}": "write task",
    f"GET {W}": "read somewhere",
    f"POST {W}": "admin everywhere",
    f"GET {W}/{{name}}": "read",
    f"PUT {W}/{{name}}": "admin",
    f"DELETE {W}/{{name}}": "admin",
    f"GET {W}/{{workspace}}/projects": "read",
    f"POST {W}/{{workspace}}/projects": "write",
    f"GET {W}/{{workspace}}/projects/{{name}}": "read",
    f"PUT {W}/{{workspace}}/projects/{{name}}": "write",
    f"PATCH {W}/{{workspace}}/projects/{{name}}": "write",
    f"DELETE {W}/{{workspace}}/projects/{{name}}": "write",
    f"GET {F}": "read",
    f"POST {F}": "write",
    f"GET {F}/{{name}}": "read task",
    f"PATCH {F}/{{name}}": "write",
    f"DELETE {F}/{{name}}": "write",
    f"GET {F}/{{name}}/files": "read task",
    f"GET {F}/{{name}}/-/{{path}}": "read task",
    f"HEAD {F}/{{name}}/-/{{path}}": "read task",
    f"PUT {F}/{{name}}/-/{{path}}": "write task",
    f"DELETE {F}/{{name}}/-/{{path}}": "write task",
    f"POST {F}/{{name}}/otlp/v1/logs": "write task",
    f"POST {F}/{{name}}/otlp/v1/logs/query": "read",
    f"GET {S}": "read",
    f"POST {S}": "write",
    f"GET {S}/{{name}}": "read",
    f"PATCH {S}/{{name}}": "write",
    f"DELETE {S}/{{name}}": "write",
    f"GET {S}/{{name}}/access": "service task",
    "POST /apis/secrets/v2/rotate-key": "admin everywhere",
    f"POST {T}": "admin somewhere",
    f"GET {T}": "admin somewhere",
    f"DELETE {T}/{{name}}": "admin somewhere",
    "GET /apis/jobs/v2/execution-profiles": "read somewhere",
    "POST /apis/jobs/v2/sweep": "admin everywhere",
    f"GET {G}": "read somewhere",
    f"POST {G}/reservations": "admin everywhere",
    f"GET {G}/reservations/{{name}}": "read somewhere",
    f"DELETE {G}/reservations/{{name}}": "admin everywhere",
    "GET /metrics": "read everywhere",
    "GET /status": "open",
    "GET /health/live": "open",
    "GET /health/ready": "open",
    "GET /cluster-info": "open",
    "GET /apis/auth/discovery": "open",
    "POST /apis/auth/v2/exchange": "open",
    "GET /openapi.json": "open",
}
LEVELS = {"read": 1, "write": 2, "service": 2, "admin": 3}
GRANTS = {
    "read of other": {"other": ["read"]},
    "write of other": {"other": ["write"]},
    "admin of other": {"other": ["admin"]},
    "service of other": {"other": ["service"]},
    "read of lab": {"lab": ["read"]},
    "read of all": {"*": ["read"]},
    "write of lab": {"lab": ["write"]},
    "service of lab": {"lab": ["service"]},
    "service of all": {"*": ["service"]},
    "admin of lab": {"lab": ["admin"]},
    "admin of all": {"*": ["admin"]},
}
STRANGERS = ("none", "bad", "expired", "revoked", "task of an ended attempt")
TASKS = ("task of this attempt", "task of another job")


def may(caller, rule):
    """Whether a caller gets in, as the rules say it in words."""
    if rule == "open":
        return True
    scope, *rest = rule.split()
    if caller in STRANGERS or caller == "task of another job":
        return False
    if caller == "task of this attempt":
        return rest == ["task"]
    ((workspace, (held,)),) = GRANTS[caller].items()
    enough = held == "service" if scope == "service" else LEVELS[held] >= LEVELS[scope]
    return enough and (
        workspace == "*" or rest == ["somewhere"] or (workspace == "lab" and rest != ["everywhere"])
    )


class Walk:
    """A service with something behind every route, and a token of every kind."""

    def __init__(self, service):
        self.service = service
        self.tokens = {}
        self.values = {}

    async def prepare(self):
        service = self.service
        root = await make_token(service, {"*": ["admin"]}, principal="root")
        self.tokens = {caller: await make_token(service, grants) for caller, grants in GRANTS.items()}
        expired = await make_token(service, {"*": ["admin"]}, expires_in=1)
        service.clock.advance(1)
        revoked = await make_token(service, {"*": ["admin"]})
        found = await service.db.read(tokens.find, tokens.hash_of(revoked))
        await service.db.write(tokens.revoke, found.record.id, None, service.clock.now())
        self.tokens |= {"none": None, "bad": tokens.new_token(), "expired": expired, "revoked": revoked}

        async def create(name, **over):
            service.clock.advance(0.01)
            made = await service.client.post(
                J.format(workspace="lab"), json=body(name=name, **over), headers=bearer(root)
            )
            assert made.status_code == 201, made.text
            return made.json()

        done = await create("done")
        self.tokens["task of an ended attempt"] = await make_task_token(service, done)
        await service.finish(await service.start())
        await self.secret("key")
        variable = {"name": "KEY", "from_secret": {"name": "key"}}
        spec = body()["platform_spec"]
        spec["steps"][0]["environment"] = [variable]
        moth = await create("moth", platform_spec=spec)
        self.tokens["task of this attempt"] = await make_task_token(service, moth)
        await service.start()
        bee = await create("bee")
        self.tokens["task of another job"] = await make_task_token(service, bee)
        await service.db.write(
            results.add_result, "lab", "moth", "model", "job-fileset-moth#a/b", None, service.clock.now()
        )
        await service.client.post(W + "/lab/projects", json={"name": "garden"}, headers=bearer(root))
        self.values = {
            "workspace": "lab",
            "job": "moth",
            "attempt": moth["attempt_id"],
            "step": "work",
            "path": "a/b",
        }

    async def secret(self, name):
        def put(tx):
            tx.count(
                sa.text(
                    "INSERT INTO secret (workspace, name, value, key_id, created_at, updated_at) "
                    f"VALUES ('lab', '{name}', 'x', 'k', 1, 1)"
                )
            )

        await self.service.db.write(put)

    def target(self, route, **over):
        """The address of a route, of things that are there."""
        _method, path = route.split()
        kinds = {
            W + "/{name}": "lab",
            W + "/{workspace}/projects/{name}": "garden",
            S: "key",
            F: "job-fileset-moth",
            A + "/steps/{name}": "work",
            J + "/{job}/steps/{name}": "work",
            J + "/{job}/attempts/{name}": self.values["attempt"],
            J + "/{job}/results/{name}": "model",
            T: "token-none",
        }
        name = next((value for start, value in kinds.items() if path.startswith(start)), "moth")
        if path.endswith("/tasks/{name}"):
            name = "task-0123456789abcdef0123456789abcdef"
        if path.endswith("/logs/stream"):
            name = "done"  # its stream ends by itself
        return path.format(**{**self.values, "name": name, **over})

    async def ask(self, caller, route, **over):
        token = self.tokens[caller]
        headers = {} if token is None else bearer(token)
        method = route.split()[0]
        given: dict = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
        return await self.service.client.request(method, self.target(route, **over), headers=headers, **given)


@pytest.fixture
async def walk(tmp_path):
    async with open_guarded(tmp_path, clock=ManualClock()) as service:
        walk = Walk(service)
        await walk.prepare()
        yield walk


async def test_every_route_of_the_document_has_a_rule_here(walk):
    paths = (await walk.service.client.get("/openapi.json")).json()["paths"]
    document = {f"{method.upper()} {path}" for path, item in paths.items() for method in item}
    assert document == set(RULES)


async def test_who_may_not_is_told_so_and_changes_nothing(walk, tmp_path):
    before = everything(tmp_path)
    refused = 0
    for route, rule in RULES.items():
        for caller in (*STRANGERS, *GRANTS, *TASKS):
            if may(caller, rule):
                continue
            answer = await walk.ask(caller, route)
            expected = 401 if caller in STRANGERS else 403
            assert answer.status_code == expected, (caller, route, answer.text)
            if expected == 401:
                assert answer.headers["www-authenticate"].startswith("Bearer")
            if answer.content:
                assert isinstance(answer.json()["detail"], str)
            refused += 1
    assert refused > 700
    assert everything(tmp_path) == before


async def test_who_may_not_learns_nothing_of_what_is_there(walk):
    for route, rule in RULES.items():
        if "{workspace}" not in route and f"{W}/{{name}}" not in route:
            continue
        nothing = {"name": "nothing", "job": "nothing", "step": "nothing", "attempt": "nothing"}
        nothing["path"] = "no/thing"
        for caller in ("none", "admin of other", "service of other", "task of another job"):
            assert not may(caller, rule)
            there = await walk.ask(caller, route)
            missing = await walk.ask(caller, route, **nothing)
            nowhere = await walk.ask(caller, route, **nothing, workspace="nowhere")
            assert there.status_code == missing.status_code == nowhere.status_code, (caller, route)
            if "{workspace}" in route:
                assert there.content == missing.content, (caller, route)
            assert b"moth" not in there.content.replace(b"'bee'", b"")
            assert [key for key in there.headers if key != "content-length"] == [
                key for key in nowhere.headers if key != "content-length"
            ]


async def test_who_may_gets_in(walk):
    # Looking and tasks first: what follows ends the job.
    order = sorted(RULES, key=lambda route: (not route.startswith(("GET", "HEAD")), "DELETE" in route))
    for caller in (*TASKS, *GRANTS):
        for route in order:
            if may(caller, RULES[route]):
                answer = await walk.ask(caller, route)
                assert answer.status_code not in (401, 403), (caller, route, answer.text)
                assert answer.status_code < 500 or answer.status_code == 503, (caller, route, answer.text)


async def test_a_task_reaches_its_own_job_by_every_name_and_no_other(walk):
    own = "task of this attempt"
    service = walk.service
    job = (await walk.ask(own, f"GET {J}/{{name}}")).json()
    for name, status in ((job["id"], 200), ("bee", 403), ("done", 403), ("nothing", 403), ("-", 403)):
        answer = await walk.ask(own, f"GET {J}/{{name}}", name=name)
        assert answer.status_code == status, name
    for attempt, status in ((job["attempt_id"], 200), ("current", 200), ("0", 403), ("nothing", 403)):
        answer = await walk.ask(own, f"GET {J}/{{job}}/attempts/{{name}}", name=attempt)
        assert answer.status_code == status, attempt
    for name, status in (("key", 503), ("other", 403), ("nothing", 403)):
        answer = await walk.ask(own, f"GET {S}/{{name}}/access", name=name)
        assert answer.status_code == status, (name, answer.text)
    assert (await walk.ask(own, f"GET {S}/{{name}}/access", workspace="other")).status_code == 403
    for name in ("job-fileset-bee", "job-fileset-done", "nothing"):
        for route in (f"GET {F}/{{name}}/files", f"PUT {F}/{{name}}/-/{{path}}", f"GET {F}/{{name}}"):
            assert (await walk.ask(own, route, name=name)).status_code == 403, (name, route)
    assert (await walk.ask(own, f"GET {F}/{{name}}", workspace="other")).status_code == 403
    encoded = await service.client.get(
        J.format(workspace="lab") + "/moth%2F..%2Fbee", headers=bearer(walk.tokens[own])
    )
    assert encoded.status_code == 403


async def test_a_task_with_an_output_location_stays_in_its_own_part(walk):
    operations = {(o.method, o.path.replace("...", "")): o for o in walk.service.app._api.operations}
    task = TaskOf("attempt", "id", "moth", "lab", "shared", "shared")
    rules = {key: rule_of(operation).task for key, operation in operations.items()}
    put, listed = rules["PUT", F + "/{name}/-/{path}"], rules["GET", F + "/{name}/files"]
    got = rules["GET", F + "/{name}"]
    assert put and listed and got
    for path, allowed in (
        ("jobs/moth/results/x", True),
        ("jobs/moth", False),
        ("jobs/moths/x", False),
        ("jobs/bee/x", False),
        ("x", False),
    ):
        assert put(task, ["lab", "shared", path]) is allowed, path
    assert listed(task, ["lab", "shared"]) is False
    assert got(task, ["lab", "shared"]) is True


def test_the_time_in_which_a_revocation_counts_is_short():
    assert access.BELIEVED <= 5


def everything(folder):
    """All that is stored, as text."""
    connection = sqlite3.connect(f"file:{folder}/jobs.db?mode=ro", uri=True)
    try:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        rows = {
            name: connection.execute(f'SELECT * FROM "{name}"').fetchall()
            for name in names
            if not name.startswith("sqlite_")
        }
        return json.dumps(rows, sort_keys=True, default=repr)
    finally:
        connection.close()
