"""Access tokens of an issuer: a real one, with an HTTP server and keys of its own."""

import base64
import hashlib
import hmac
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from nemo_jobs.domain.clock import ManualClock
from nemo_jobs.http import oidc
from tests.http.issuer import packed, running_issuer, unsigned
from tests.http.kit import body, open_service
from tests.http.tokens_kit import bearer, make_token

LAB = "/apis/jobs/v2/workspaces/lab/jobs"
ANYWHERE = "/apis/jobs/v2/workspaces/-/jobs"


@pytest.fixture
def issuer():
    with running_issuer() as running:
        running.add_key("one")
        yield running


def config(issuer, **more):
    said = {
        "issuer": issuer.url,
        "audience": "nemo",
        "grants": [
            {"value": "labbers", "workspaces": ["lab"], "scopes": ["write"]},
            {"value": "ops", "workspaces": ["*"], "scopes": ["admin"]},
            {"claim": "realm_access.roles", "value": "watcher", "workspaces": ["other"], "scopes": ["read"]},
            {"claim": "scope", "value": "nemo.service", "workspaces": ["*"], "scopes": ["service"]},
        ],
        **more,
    }
    return json.dumps({"platform": {"runtime": "none"}, "auth": {"enabled": True, "oidc": said}})


@pytest.fixture
async def guarded(tmp_path, issuer):
    async with open_service(tmp_path, config=config(issuer), clock=ManualClock()) as service:
        await prepare(service)
        yield service


async def prepare(service):
    root = await make_token(service, {"*": ["admin"]}, principal="root")
    for name in ("lab", "other"):
        await service.client.post("/apis/entities/v2/workspaces", json={"name": name}, headers=bearer(root))


def now(service):
    return service.clock.now() / 1e6


async def ask(service, token, path=LAB, method="GET", **given):
    return await service.client.request(method, path, headers=bearer(token), **given)


async def status(service, token, path=LAB):
    return (await ask(service, token, path)).status_code


async def detail(service, token):
    answer = await ask(service, token)
    assert answer.status_code == 401, answer.text
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    return answer.json()["detail"]


async def test_claims_give_scopes_and_identity(guarded, issuer):
    token = issuer.token(now(guarded), groups=["labbers", "more"], email="ann@x.example")
    made = await ask(guarded, token, method="POST", json=body())
    assert made.status_code == 201, made.text
    assert await status(guarded, token, "/apis/jobs/v2/workspaces/other/jobs") == 403
    service = issuer.token(now(guarded), sub="service:jobs", scope="openid nemo.service")
    listed = await ask(guarded, service, f"{ANYWHERE}/-/steps")
    (step,) = listed.json()["data"]
    assert step["auth_context"] == {
        "principal_id": "ann",
        "principal_email": "ann@x.example",
        "principal_groups": ["labbers", "more"],
        "principal_authz_aliases": [],
        "principal_on_behalf_of_authz_aliases": [],
    }
    watcher = issuer.token(now(guarded), realm_access={"roles": ["watcher"]})
    assert await status(guarded, watcher, "/apis/jobs/v2/workspaces/other/jobs") == 200
    assert await status(guarded, watcher) == 403
    assert await status(guarded, issuer.token(now(guarded), groups=["ops"]), "/metrics") == 200
    nobody = issuer.token(now(guarded))
    assert await status(guarded, nobody) == 403
    assert await status(guarded, nobody, ANYWHERE) == 403


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_each_kind_of_key_works(guarded, issuer, algorithm):
    issuer.add_key("two", algorithm)
    assert await status(guarded, issuer.token(now(guarded), "two", groups=["labbers"])) == 200


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"iss": "https://other.example"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"aud": "others"}, "udience"),
        ({"aud": ["others", "more"]}, "udience"),
        ({"aud": None}, "aud"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "exp"),
        ({"exp": True}, "exp is no time"),
        ({"exp": 1e300}, "exp is no time"),
        ({"sub": None}, "no claim 'sub'"),
        ({"sub": ""}, "principal must be"),
        ({"sub": "a\nb"}, "principal must be"),
        ({"sub": "x" * 5000}, "principal must be"),
        ({"sub": "service:jobs"}, "needs scope service"),
    ],
)
async def test_a_token_that_is_not_for_us_does_not_count(guarded, issuer, claims, says):
    text = await detail(guarded, issuer.token(now(guarded), groups=["labbers"], **claims))
    assert says in text


async def test_an_audience_may_be_one_of_several(guarded, issuer):
    token = issuer.token(now(guarded), groups=["labbers"], aud=["others", "nemo"])
    assert await status(guarded, token) == 200


async def test_times_are_those_of_the_service_with_some_leeway(guarded, issuer):
    at = int(now(guarded))
    late = issuer.token(at, groups=["labbers"], exp=at - 29)
    assert await status(guarded, late) == 200
    guarded.clock.advance(1.5)
    assert await status(guarded, late) == 401  # also one whose signature was found good before
    assert "expired" in await detail(guarded, issuer.token(at, groups=["labbers"], exp=at - 31))
    assert "not valid yet" in await detail(guarded, issuer.token(at, groups=["labbers"], nbf=at + 60))
    assert "not valid yet" in await detail(guarded, issuer.token(at, groups=["labbers"], iat=at + 60))
    assert await status(guarded, issuer.token(at, groups=["labbers"], nbf=at + 20)) == 200


async def test_signatures_that_prove_nothing_are_refused(guarded, issuer):
    at = now(guarded)
    good = issuer.token(at, groups=["ops"])
    claims = json.loads(base64.urlsafe_b64decode(good.split(".")[1] + "=="))
    assert "not accepted" in await detail(guarded, unsigned(claims))
    assert "not accepted" in await detail(guarded, unsigned(claims, kid="one"))
    # The public key used as a shared secret, as if the algorithm were HS256.
    public = issuer.keys["one"].public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head = f"{packed({'alg': 'HS256', 'kid': 'one'})}.{packed(claims)}"
    made = base64.urlsafe_b64encode(hmac.new(pem, head.encode(), hashlib.sha256).digest()).rstrip(b"=")
    assert "not accepted" in await detail(guarded, f"{head}.{made.decode()}")
    # Another's key under the same id; a changed claim; a signature cut off; another algorithm.
    stranger = rsa.generate_private_key(65537, 2048)
    assert "signature is wrong" in await detail(guarded, issuer.token(at, key=stranger, groups=["ops"]))
    one, two, three = good.split(".")
    assert "signature is wrong" in await detail(guarded, f"{one}.{packed({**claims, 'sub': 'root'})}.{three}")
    assert await status(guarded, f"{one}.{two}.") == 401
    assert "not accepted" in await detail(guarded, issuer.token(at, algorithm="RS384", groups=["ops"]))
    assert "xtension" in await detail(guarded, issuer.token(at, headers={"crit": ["b64"]}))
    for broken in ("a.b.c", "..", f"{one}.{two}", f"{one}.{two}.{three}.x", "é.b.c"):
        answer = await guarded.client.get(LAB, headers={"authorization": f"Bearer {broken}".encode()})
        assert answer.status_code == 401, broken


async def test_a_key_serves_its_own_algorithm_alone(guarded, issuer):
    listed = issuer.jwks()
    listed["keys"][0]["alg"] = "PS256"
    issuer.answers["/keys"] = json.dumps(listed).encode()
    assert "no key" in await detail(guarded, issuer.token(now(guarded), groups=["ops"]))


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_keys_that_are_weak_odd_or_for_encryption_are_not_used(guarded, issuer):
    issuer.add_key("weak", key=rsa.generate_private_key(65537, 1024))
    listed = issuer.jwks()["keys"]
    (good,) = [key for key in listed if key["kid"] == "one"]
    odd: list = [
        *([], None, "key", {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}, {"kty": "RSA"}),
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "bad"},
        {**good, "kid": "secret", "use": "enc"},
    ]
    issuer.answers["/keys"] = json.dumps({"keys": [*odd, *listed]}).encode()
    at = now(guarded)
    assert await status(guarded, issuer.token(at, groups=["ops"])) == 200
    assert "no key" in await detail(guarded, issuer.token(at, "weak", groups=["ops"]))
    issuer.keys["secret"], issuer.algorithms["secret"] = issuer.keys["one"], "RS256"
    assert "no key" in await detail(guarded, issuer.token(at, "secret", groups=["ops"]))


async def test_a_new_key_is_fetched_when_it_is_used_and_not_more_often_than_that(guarded, issuer):
    at = now(guarded)
    assert await status(guarded, issuer.token(at, groups=["labbers"])) == 200
    assert issuer.asked.count("/keys") == 1
    assert await status(guarded, issuer.token(at, groups=["labbers"], jti="2")) == 200
    assert issuer.asked.count("/keys") == 1
    issuer.add_key("two")
    token = issuer.token(at, "two", groups=["labbers"])
    guarded.clock.advance(oidc.ASK_AGAIN)
    assert await status(guarded, token) == 200
    assert issuer.asked.count("/keys") == 2
    stranger = rsa.generate_private_key(65537, 2048)
    for number in range(5):
        made = issuer.token(at, f"made-up-{number}", key=stranger, algorithm="RS256")
        assert "no key" in await detail(guarded, made)
    assert issuer.asked.count("/keys") == 2
    guarded.clock.advance(oidc.ASK_AGAIN)
    assert "no key" in await detail(guarded, issuer.token(at, "x", key=stranger, algorithm="RS256"))
    assert issuer.asked.count("/keys") == 3


async def test_a_key_that_is_withdrawn_stops_to_count(guarded, issuer):
    at = now(guarded)
    issuer.add_key("two")
    token = issuer.token(at, groups=["labbers"], exp=int(at) + 5000)
    assert await status(guarded, token) == 200
    del issuer.keys["one"]
    assert await status(guarded, token) == 200
    guarded.clock.advance(301)
    assert await status(guarded, token) == 401


async def test_while_the_issuer_is_away_its_keys_serve_on_for_an_hour(guarded, issuer):
    at = now(guarded)
    assert await status(guarded, issuer.token(at, groups=["labbers"])) == 200
    issuer.broken = True
    token = issuer.token(at, groups=["labbers"], exp=int(at) + 20_000)
    guarded.clock.advance(400)
    assert await status(guarded, token) == 200
    asked = len(issuer.asked)
    other = issuer.token(at, groups=["labbers"], exp=int(at) + 20_000, jti="2")
    assert await status(guarded, other) == 200
    assert len(issuer.asked) == asked  # it was asked a moment ago
    guarded.clock.advance(oidc.STALE)
    answer = await ask(guarded, token)
    assert (answer.status_code, "issuer" in answer.json()["detail"]) == (503, True)
    assert answer.headers["retry-after"]
    asked = len(issuer.asked)
    assert await status(guarded, other) == 503
    assert len(issuer.asked) == asked
    issuer.broken = False
    guarded.clock.advance(oidc.ASK_AGAIN)
    assert await status(guarded, token) == 200


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "https://other.example"},
        {"jwks_uri": None},
        {"jwks_uri": "http://192.0.2.1/keys"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "elsewhere"},
        {"jwks_uri": ["x"]},
    ],
)
async def test_an_issuer_that_says_odd_things_is_not_believed(guarded, issuer, change):
    issuer.description |= change
    if change.get("jwks_uri") == "elsewhere":
        issuer.description["jwks_uri"] = f"{issuer.url}/elsewhere"  # redirects are not followed
    assert await status(guarded, issuer.token(now(guarded), groups=["labbers"])) == 503


@pytest.mark.parametrize(
    "answer", [b"[]", b"{", b'{"keys": 5}', b'{"keys": []}', b"x" * (oidc.MAX_ANSWER + 5)]
)
async def test_answers_that_are_no_keys_are_told_as_such(guarded, issuer, answer):
    issuer.answers["/keys"] = answer
    assert await status(guarded, issuer.token(now(guarded), groups=["labbers"])) == 503


async def test_an_issuer_that_was_never_there_is_503_and_own_tokens_work_on(tmp_path, issuer):
    issuer.broken = True
    async with open_service(tmp_path, config=config(issuer), clock=ManualClock()) as service:
        await prepare(service)
        assert await status(service, issuer.token(now(service), groups=["labbers"])) == 503
        token = await make_token(service, {"lab": ["read"]})
        assert await status(service, token) == 200
        told = (await service.client.get("/apis/auth/discovery")).json()
        assert (told["auth_enabled"], told["oidc"]["issuer"]) == (True, issuer.url)
        assert told["oidc"]["token_endpoint"] is None


async def test_the_discovery_tells_where_to_log_in(guarded, issuer):
    told = (await guarded.client.get("/apis/auth/discovery")).json()
    assert told == {
        "auth_enabled": True,
        "oidc": {
            "issuer": issuer.url,
            "client_id": None,
            "audience": "nemo",
            "workload": {"client_id": None},
            "authorization_endpoint": f"{issuer.url}/authorize",
            "token_endpoint": f"{issuer.url}/token",
            "workload_token_exchange_enabled": True,
            "workload_token_endpoint": "http://localhost/apis/auth/v2/exchange",
            "workload_client_id": "nemo-jobs",
            "device_authorization_endpoint": None,
        },
    }


async def test_a_token_is_verified_once_in_a_while_and_few_are_remembered(guarded, issuer, monkeypatch):
    verified = []
    gate = guarded.app._gate
    claims = gate.issuer._claims

    async def counting(shown):
        verified.append(shown)
        return await claims(shown)

    monkeypatch.setattr(gate.issuer, "_claims", counting)
    monkeypatch.setattr(oidc, "REMEMBERED", 2)
    token = issuer.token(now(guarded), groups=["labbers"])
    for _ in range(3):
        assert await status(guarded, token) == 200
    assert len(verified) == 1
    for number in range(4):
        await status(guarded, issuer.token(now(guarded), groups=["labbers"], jti=str(number)))
    assert len(gate.issuer._good) <= 2


async def test_other_claims_can_carry_name_and_groups(tmp_path, issuer):
    names = {
        "principal_claim": "preferred_username",
        "email_claim": "https://x.example/mail",
        "groups_claim": "who.teams",
        "grants": [
            {"claim": "https://x.example/admin", "value": "true", "workspaces": ["*"], "scopes": ["write"]}
        ],
    }
    async with open_service(tmp_path, config=config(issuer, **names), clock=ManualClock()) as service:
        await prepare(service)
        token = issuer.token(
            now(service),
            preferred_username="ann.b",
            who={"teams": ["one", 5, "x" * 300]},
            **{"https://x.example/mail": "a@b.example", "https://x.example/admin": True},
        )
        assert (await ask(service, token, method="POST", json=body())).status_code == 201
        root = await make_token(service, {"*": ["service"]})
        (step,) = (await ask(service, root, f"{LAB}/moth/steps")).json()["data"]
        context = step["auth_context"]
        assert (context["principal_id"], context["principal_email"], context["principal_groups"]) == (
            "ann.b",
            "a@b.example",
            ["one"],
        )
