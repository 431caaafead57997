"""`nemo config`: contexts, tokens and preferences in the settings file."""

import os
import stat
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Nemo
from tests.cli.scripted import Reply, job, page, scripted


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings.yaml"
    monkeypatch.setenv("NHX_CONFIG_FILE", str(path))
    return path


def content(file: Path) -> dict:
    return yaml.safe_load(file.read_text())


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_two_contexts_with_their_own_clusters_and_workspaces(nemo: Nemo, file: Path) -> None:
    assert nemo("config", "set", "--base-url", "http://one:1", "--workspace", "moths").code == 0
    far = ("config", "set", "--context", "far", "--base-url", "http://two:2", "--workspace", "bees")
    assert nemo(*far).code == 0
    assert content(file)["current_context"] == "default"
    shown = yaml.safe_load(nemo("config", "show", "-f", "yaml").out)
    assert (shown["base_url"], shown["workspace"], shown["context"]) == ("http://one:1", "moths", "default")
    assert nemo("config", "use-context", "far").code == 0
    shown = yaml.safe_load(nemo("config", "show", "-f", "yaml").out)
    assert (shown["base_url"], shown["workspace"], shown["context"]) == ("http://two:2", "bees", "far")
    listed = nemo("config", "get-contexts", "-f", "csv").out.splitlines()
    assert listed == [
        "name,current,base_url,workspace,user",
        "default,false,http://one:1,moths,anonymous",
        "far,true,http://two:2,bees,anonymous",
    ]
    assert nemo("config", "delete-context", "far").code == 0
    left = content(file)
    assert [item["name"] for item in left["contexts"]] == ["default"]
    assert [item["name"] for item in left["clusters"]] == ["default"]
    assert [item["name"] for item in left["users"]] == ["anonymous"]
    assert "current_context" not in left


def test_activate_makes_the_context_current(nemo: Nemo, file: Path) -> None:
    nemo("config", "set", "--base-url", "http://one:1")
    nemo("config", "set", "--context", "b", "--base-url", "http://two:2", "--activate")
    assert content(file)["current_context"] == "b"


def test_a_token_is_read_from_a_file_kept_private_sent_and_never_shown(
    nemo: Nemo, file: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret-t0ken\nsecond line\n")
    with scripted(Reply(body=page([job("one")]))) as server:
        assert nemo("config", "set", "--base-url", server.url, "--token-file", str(secret)).code == 0
        assert mode(file) == 0o600
        (user,) = (item for item in content(file)["users"] if item["name"] == "default")
        assert user == {"name": "default", "type": "token", "token": "s3cret-t0ken"}
        for words in (("config", "view"), ("config", "show"), ("-vv", "jobs", "list")):
            ran = nemo(*words)
            assert ran.code == 0
            assert "s3cret" not in ran.out + ran.err
        assert server.seen[-1].headers["authorization"] == "Bearer s3cret-t0ken"
        assert nemo("config", "set", "--no-auth").code == 0
        assert "s3cret" not in file.read_text()
        nemo("jobs", "list")
        assert "authorization" not in server.seen[-1].headers


def test_a_file_that_others_may_read_becomes_private_when_it_is_written(nemo: Nemo, file: Path) -> None:
    file.write_text("users:\n  - {name: me, type: oauth, token: t}\n")
    file.chmod(0o644)
    nemo("config", "set", "--base-url", "http://one:1")
    assert mode(file) == 0o600
    assert content(file)["users"][0] == {"name": "me", "type": "oauth", "token": "t"}


@pytest.mark.parametrize(
    ("user", "sent"),
    [
        ("{name: me, type: oauth, token: abc}", "Bearer abc"),
        ("{name: me, type: oauth, access_token: abc}", "Bearer abc"),
        ("{name: me, type: token, token: abc}", "Bearer abc"),
        ("{name: me, token: abc}", "Bearer abc"),
        ("{name: me, type: no-auth, token: abc}", None),
        ("{name: me, type: no-auth}", None),
    ],
)
def test_the_users_type_decides_about_the_token(nemo: Nemo, file: Path, user: str, sent: str | None) -> None:
    with scripted(Reply(body=page([]))) as server:
        file.write_text(
            f"current_context: a\nclusters: [{{name: c, base_url: '{server.url}'}}]\nusers: [{user}]\n"
            "contexts: [{name: a, cluster: c, user: me}]\n"
        )
        assert nemo("jobs", "list").code == 0
        assert server.seen[0].headers.get("authorization") == sent
        # Nothing else goes out before the call itself.
        assert [request.target.partition("?")[0] for request in server.seen] == [
            "/apis/jobs/v2/workspaces/default/jobs"
        ]


def test_the_environment_goes_before_the_tokens_of_the_file(
    nemo: Nemo, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NHX_ACCESS_TOKEN", "from-env")
    with scripted(Reply(body=page([]))) as server:
        file.write_text(
            f"current_context: a\nclusters: [{{name: c, base_url: '{server.url}'}}]\n"
            "users: [{name: me, type: oauth, token: abc}]\ncontexts: [{name: a, cluster: c, user: me}]\n"
        )
        nemo("jobs", "list")
        assert server.seen[0].headers["authorization"] == "Bearer from-env"


def test_preferences_are_kept_and_used(nemo: Nemo, file: Path) -> None:
    with scripted(Reply(body=page([job("one")]))) as server:
        ran = nemo(
            *("config", "set", "--base-url", server.url, "--output-format", "yaml"),
            *("--timestamp-format", "iso8601", "--truncate", "false", "--color-output", "false"),
        )
        assert ran.code == 0
        assert content(file)["contexts"][0]["preferences"] == {
            "output_format": "yaml",
            "timestamp_format": "iso8601",
            "truncate": False,
            "color_output": False,
        }
        assert yaml.safe_load(nemo("jobs", "list").out)["data"][0]["name"] == "one"
        assert nemo("jobs", "list", "-f", "csv").out.startswith("name,")


def test_what_a_newer_version_wrote_stays(nemo: Nemo, file: Path) -> None:
    file.write_text("future: {a: 1}\nclusters: [{name: c, base_url: 'http://x:1', extra: true}]\n")
    nemo("config", "set", "--context", "n", "--base-url", "http://y:2")
    assert content(file)["future"] == {"a": 1}
    assert content(file)["clusters"][0] == {"name": "c", "base_url": "http://x:1", "extra": True}


def test_a_link_to_the_file_stays_a_link(nemo: Nemo, file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.yaml"
    real.write_text("{}")
    file.symlink_to(real)
    assert nemo("config", "set", "--base-url", "http://one:1").code == 0
    assert file.is_symlink()
    assert content(real)["clusters"][0]["base_url"] == "http://one:1"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("set",), "nothing to set"),
        (("set", "--base-url", "localhost:8080"), "is not a base URL"),
        (("set", "--workspace", " "), "is empty"),
        (("set", "--token-file", "/nonexistent"), "can't be read"),
        (("set", "--token-file", "/dev/null"), "no token"),
        (("use-context", "lub"), "contexts has no 'lub'; known: none"),
        (("delete-context", "lub"), "contexts has no 'lub'"),
        (("set", "--truncate", "maybe"), "not a valid boolean"),
    ],
)
def test_wrong_usage_writes_nothing(nemo: Nemo, file: Path, words: tuple[str, ...], says: str) -> None:
    ran = nemo("config", *words)
    assert ran.code == 2
    assert says in ran.err
    assert not file.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("current_context: a\ncontexts: 5", "contexts must be a list"),
        ("current_context: a\ncontexts: [lab]", "contexts must be a list of objects"),
        (
            "current_context: a\ncontexts: [{name: a, cluster: c}]\nclusters: [{name: c, base_url: 5}]",
            "base_url",
        ),
        ("current_context: a\ncontexts: [{name: a, workspace: 5}]", "workspace must be text"),
        (
            "current_context: a\ncontexts: [{name: a, user: u}]\nusers: [{name: u, token: 1}]",
            "token must be text",
        ),
        ("current_context: a\ncontexts: [{name: a, user: u}]", "users has no 'u'"),
    ],
)
def test_a_damaged_file_is_told_with_its_place(nemo: Nemo, file: Path, text: str, says: str) -> None:
    file.write_text(text)
    ran = nemo("jobs", "list")
    assert ran.code == 2
    assert str(file) in ran.err
    assert says in ran.err


def test_a_file_that_cannot_be_written_is_an_error(nemo: Nemo, file: Path) -> None:
    file.mkdir()
    ran = nemo("config", "set", "--base-url", "http://one:1")
    assert ran.code in (1, 2)
    assert "can't be" in ran.err
    assert not [name for name in os.listdir(file.parent) if name.endswith(".part")]


def test_a_401_says_what_to_do(nemo: Nemo, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = Reply(401, {"detail": "a token is needed"})
    with scripted(reply) as server:
        monkeypatch.setenv("NHX_BASE_URL", server.url)
        ran = nemo("jobs", "list")
        assert ran.code == 3
        assert ran.err.splitlines() == [
            "error: not signed in (401): a token is needed",
            "no token was sent; set NHX_ACCESS_TOKEN, or keep one: nemo config set --token-file FILE",
        ]
        monkeypatch.setenv("NHX_ACCESS_TOKEN", "old")
        assert "isn't valid here" in nemo("jobs", "list").err
