"""What engines' reasons mean, in the words of engines of several years."""

import pytest

from nemo_jobs.backends.docker.refusals import PERMANENT, Meaning, meaning
from nemo_jobs.backends.docker.registry import parse

SAID = [
    (404, "manifest for reg.example/a:2 not found: manifest unknown: manifest unknown", Meaning.MISSING),
    (404, "name unknown: repository name not known to registry", Meaning.MISSING),
    (
        404,
        "pull access denied for a, repository does not exist or may require 'docker login': denied: "
        "requested access to the resource is denied",
        Meaning.DENIED,
    ),
    (500, 'Head "http://reg.example/v2/a/manifests/1": no basic auth credentials', Meaning.DENIED),
    (500, 'Get "https://reg.example/v2/": unauthorized: incorrect username or password', Meaning.DENIED),
    (500, "unauthorized: authentication required", Meaning.DENIED),
    (0, "denied: Your authorization token has expired. Reauthenticate and try again.", Meaning.DENIED),
    (500, "error parsing HTTP 403 response body: invalid character '<'", Meaning.DENIED),
    (500, "toomanyrequests: You have reached your pull rate limit. You may increase it", Meaning.LIMITED),
    (0, "received unexpected HTTP status: 429 Too Many Requests", Meaning.LIMITED),
    (
        500,
        'Head "https://registry-1.docker.io/v2/library/a/manifests/1": toomanyrequests: You have reached '
        "your unauthenticated pull rate limit. authentication required",
        Meaning.LIMITED,
    ),
    (0, "no matching manifest for linux/arm64/v8 in the manifest list entries", Meaning.PLATFORM),
    (0, "no match for platform in manifest: not found", Meaning.PLATFORM),
    (
        0,
        "image with reference a was found but does not match the specified platform: wanted linux/arm64, "
        "actual: linux/amd64",
        Meaning.PLATFORM,
    ),
    (
        0,
        "failed to register layer: ApplyLayer exit status 1 stdout: stderr: write /x: no space left on "
        "device",
        Meaning.SPACE,
    ),
    (0, "write /var/lib/docker/tmp/GetImageBlob1: disk quota exceeded", Meaning.SPACE),
    (500, 'Get "https://reg.invalid/v2/": dial tcp: lookup reg.invalid on 10.0.0.1:53: no such host', None),
    (500, 'Get "https://r/v2/": dial tcp 127.0.0.1:1: connect: connection refused', Meaning.UNREACHABLE),
    (500, 'Get "https://r/v2/": dial tcp: lookup r: Temporary failure in name resolution', None),
    (500, 'Get "https://r/v2/": dial tcp: lookup r on 10.0.0.1:53: read udp: i/o timeout', None),
    (500, 'Get "https://r/v2/": dial tcp 10.9.9.9:443: connect: no route to host', Meaning.UNREACHABLE),
    (500, 'Get "https://r/v2/": x509: certificate signed by unknown authority', Meaning.DISTRUST),
    (500, 'Get "https://r/v2/": http: server gave HTTP response to HTTPS client', Meaning.DISTRUST),
    (500, 'Get "https://r/v2/": net/http: TLS handshake timeout', Meaning.FAILING),
    (500, 'Get "https://r/v2/": context deadline exceeded (Client.Timeout exceeded)', Meaning.FAILING),
    (500, "received unexpected HTTP status: 503 Service Unavailable", Meaning.FAILING),
    (0, "unexpected EOF", Meaning.FAILING),
    (500, 'Get "http://r/v2/": EOF', Meaning.FAILING),
    (0, "read tcp 10.0.0.1:1->10.0.0.2:443: read: connection reset by peer", Meaning.FAILING),
    (0, "filesystem layer verification failed for digest sha256:00", Meaning.FAILING),
    (400, "invalid reference format", Meaning.INVALID),
    (400, "something new", Meaning.INVALID),
    (404, "something new", Meaning.MISSING),
    (500, "something new", Meaning.OTHER),
]


@pytest.mark.parametrize(("status", "text", "wanted"), SAID)
def test_reasons(status: int, text: str, wanted: Meaning | None) -> None:
    assert meaning(status, text, parse("reg.example/a:1")) is (wanted or Meaning.UNREACHABLE)


@pytest.mark.parametrize(
    "name", ["timeout/denied", "reg.example/no-such-host/eof", "unknown", "429.example/x"]
)
def test_words_of_the_image_s_own_name_mean_nothing(name: str) -> None:
    image = parse(name)
    text = f"Get https://{image.registry}/v2/{image.repository}: dial tcp 10.0.0.1:5000: connection refused"
    assert meaning(500, text, image) is Meaning.UNREACHABLE
    assert meaning(500, f"{image.source}: something new", image) is Meaning.OTHER


def test_a_short_name_that_is_a_word_of_the_reason_is_told_apart() -> None:
    text = "pull access denied for denied, repository does not exist or may require 'docker login'"
    assert meaning(404, text, parse("denied")) is Meaning.DENIED
    assert meaning(404, "manifest for timeout:1 not found", parse("timeout:1")) is Meaning.MISSING


def test_what_can_pass_by_itself_is_tried_again() -> None:
    passing = {Meaning.LIMITED, Meaning.UNREACHABLE, Meaning.FAILING, Meaning.OTHER}
    assert set(Meaning) - PERMANENT == passing
