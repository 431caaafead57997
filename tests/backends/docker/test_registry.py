"""Names of images, read as engines read them."""

import pytest

from nemo_jobs.backends.docker.registry import host_of, parse

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("busybox", "docker.io", "library/busybox", "latest", ""),
        ("busybox:1.36", "docker.io", "library/busybox", "1.36", ""),
        ("team/app", "docker.io", "team/app", "latest", ""),
        ("docker.io/busybox", "docker.io", "library/busybox", "latest", ""),
        ("index.docker.io/a/b:x", "docker.io", "a/b", "x", ""),
        ("reg.example/app", "reg.example", "app", "latest", ""),
        ("localhost/app", "localhost", "app", "latest", ""),
        ("localhost:5000", "docker.io", "library/localhost", "5000", ""),
        ("localhost:5000/a/b/c:T_1.0-x", "localhost:5000", "a/b/c", "T_1.0-x", ""),
        ("[::1]:5000/a", "[::1]:5000", "a", "latest", ""),
        (f"a@{DIGEST}", "docker.io", "library/a", "", DIGEST),
        (f"reg.example/a:1@{DIGEST}", "reg.example", "a", "1", DIGEST),
        ("REG/app", "REG", "app", "latest", ""),
        ("a__b/c--d.e", "docker.io", "a__b/c--d.e", "latest", ""),
    ],
)
def test_names(text: str, registry: str, repository: str, tag: str, digest: str) -> None:
    name = parse(text)
    assert (name.registry, name.repository, name.tag, name.digest) == (registry, repository, tag, digest)
    assert name.version == (digest or tag)


def test_an_id_alone_is_no_name() -> None:
    assert parse("ab" * 32).id == "ab" * 32
    assert parse(DIGEST).id == DIGEST


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "A",
        "Team/App",
        "a b",
        "a:",
        "a:b:c",
        "a:-x",
        "a@",
        "a@sha256:short",
        "a//b",
        "/a",
        "a/",
        "-a",
        "a___b",
        "a..b",
        "https://reg.example/a",
        "a\n",
        "ü",
        "a" * 2000,
        "reg.example/",
        "a?b",
        "../a",
    ],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match="name"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("reg.example", "reg.example"),
        ("Reg.Example:5000/team", "reg.example:5000"),
        ("https://user:pw@reg.example/v2/", "reg.example"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("", ""),
    ],
)
def test_hosts_of_registries(text: str, host: str) -> None:
    assert host_of(text) == host
