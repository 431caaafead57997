"""Logins: where they come from, in which order, and that they are told to nobody but the engine."""

import asyncio
import base64
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nemo_jobs.backends.docker import auth
from nemo_jobs.backends.docker.auth import Login, Logins
from tests.backends.docker.engine_kit import until

HUB = "docker.io"


def opened(login: Login) -> dict[str, str]:
    found = json.loads(base64.urlsafe_b64decode(login.header))
    assert isinstance(found, dict)
    return found


def encoded(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


class Home:
    """A folder with settings of the docker command, and programs on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"DOCKER_CONFIG": str(folder), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

    def settings(self, **values: Any) -> None:
        (self.folder / "config.json").write_text(json.dumps(values))

    def program(self, name: str, text: str) -> None:
        path = self.folder / f"docker-credential-{name}"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    async def find(self, registry: str) -> Login:
        return await Logins(self.environ).find(registry)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


async def test_without_any_login_nothing_is_sent(home: Home) -> None:
    assert await home.find("reg.example:5000") == Login()
    home.settings(auths={"other.example": {"auth": encoded("a", "b")}, "reg.example:5000": {}})
    assert await home.find("reg.example:5000") == Login()


async def test_the_service_s_own_variables_go_first_and_for_their_registry_alone(home: Home) -> None:
    home.settings(auths={"reg.example:5000": {"auth": encoded("file", "b")}})
    home.environ |= {
        "NEMO_JOBS_IMAGE_REGISTRY": "reg.example:5000/team",
        "NEMO_JOBS_IMAGE_REGISTRY_USER_NAME": "me",
        "NEMO_JOBS_IMAGE_REGISTRY_PASSWORD": "pa:ss",
    }
    login = await home.find("reg.example:5000")
    assert opened(login) == {"username": "me", "password": "pa:ss", "serveraddress": "reg.example:5000"}
    assert login.source == "NEMO_JOBS_IMAGE_REGISTRY_USER_NAME"
    assert await home.find("reg.example") == Login()
    assert await home.find(HUB) == Login()
    del home.environ["NEMO_JOBS_IMAGE_REGISTRY_PASSWORD"]
    assert opened(await home.find("reg.example:5000"))["username"] == "file"


async def test_a_login_without_a_registry_is_for_the_default_one(home: Home) -> None:
    home.environ |= {
        "NEMO_JOBS_IMAGE_REGISTRY_USER_NAME": "me",
        "NEMO_JOBS_IMAGE_REGISTRY_PASSWORD": "p",
    }
    assert opened(await home.find(HUB))["serveraddress"] == "https://index.docker.io/v1/"
    assert await home.find("reg.example") == Login()


@pytest.mark.parametrize(
    ("key", "registry"),
    [
        ("reg.example:5000", "reg.example:5000"),
        ("https://reg.example:5000", "reg.example:5000"),
        ("http://reg.example:5000/v2/", "reg.example:5000"),
        ("https://index.docker.io/v1/", HUB),
        ("docker.io", HUB),
        ("registry-1.docker.io", HUB),
    ],
)
async def test_logins_of_the_settings_file(home: Home, key: str, registry: str) -> None:
    home.settings(auths={key: {"auth": encoded("me", "p:w")}})
    login = await home.find(registry)
    assert opened(login)["username"] == "me"
    assert opened(login)["password"] == "p:w"
    assert login.source == str(home.folder / "config.json")


async def test_the_exact_name_goes_before_others_of_the_same_host(home: Home) -> None:
    home.settings(
        auths={
            "https://reg.example/v1/": {"auth": encoded("old", "x")},
            "reg.example": {"auth": encoded("exact", "x")},
        }
    )
    assert opened(await home.find("reg.example"))["username"] == "exact"


async def test_forms_of_a_login(home: Home) -> None:
    for entry, wanted in (
        ({"username": "u", "password": "p"}, {"username": "u", "password": "p"}),
        ({"auth": encoded("u", "p\0\0")}, {"username": "u", "password": "p"}),
        ({"auth": encoded("u", "x"), "identitytoken": "t"}, {"identitytoken": "t"}),
        ({"registrytoken": "t"}, {"registrytoken": "t"}),
    ):
        home.settings(auths={"reg.example": entry})
        found = opened(await home.find("reg.example"))
        del found["serveraddress"]
        assert found == wanted


@pytest.mark.parametrize("text", ["!", encoded("u", ""), base64.b64encode(b"\xff\xff").decode(), "dXNlcg=="])
async def test_a_login_that_cannot_be_read_is_told(home: Home, text: str) -> None:
    home.settings(auths={"reg.example": {"auth": text}})
    login = await home.find("reg.example")
    assert login.header == ""
    assert "can't be read" in login.trouble
    assert text not in login.trouble


@pytest.mark.parametrize("settings", ["{", "[]", '{"auths": [], "credHelpers": 7, "credsStore": {}}'])
async def test_settings_of_a_wrong_form_do_no_harm(home: Home, settings: str) -> None:
    (home.folder / "config.json").write_text(settings)
    login = await home.find("reg.example")
    assert login.header == ""


async def test_a_renewed_login_counts_at_once(home: Home) -> None:
    logins = Logins(home.environ)
    for password in ("first", "second"):
        home.settings(auths={"reg.example": {"auth": encoded("u", password)}})
        assert opened(await logins.find("reg.example"))["password"] == password


# Programs


ANSWER = '{"ServerURL":"x","Username":"of-program","Secret":"s3"}'


async def test_a_login_program_is_asked_by_its_input(home: Home) -> None:
    home.settings(credsStore="some", auths={"reg.example": {}})
    home.program("some", f"echo $# $1 > {home.folder}/words; cat > {home.folder}/given; echo '{ANSWER}'")
    login = await home.find("reg.example")
    assert opened(login) == {"username": "of-program", "password": "s3", "serveraddress": "reg.example"}
    assert login.source == "the login program docker-credential-some"
    assert (home.folder / "given").read_text() == "reg.example"
    assert (home.folder / "words").read_text() == "1 get\n"
    await home.find(HUB)
    assert (home.folder / "given").read_text() == "https://index.docker.io/v1/"


async def test_the_program_of_one_registry_goes_before_the_general_one(home: Home) -> None:
    home.settings(credsStore="general", credHelpers={"reg.example": "own"})
    home.program("own", """echo '{"Username":"<token>","Secret":"t"}'""")
    home.program("general", f"echo '{ANSWER}'")
    assert opened(await home.find("reg.example"))["identitytoken"] == "t"
    assert opened(await home.find("other.example"))["username"] == "of-program"


async def test_a_program_without_a_login_leaves_it_to_the_file(home: Home) -> None:
    home.settings(credsStore="empty", auths={"reg.example": {"auth": encoded("file", "p")}})
    home.program("empty", "echo 'credentials not found in native keychain'; exit 1")
    assert opened(await home.find("reg.example"))["username"] == "file"
    assert await home.find("other.example") == Login()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'the agent is\nlocked'; exit 1", "fails: the agent is locked"),
        ("exit 3", "fails: it ended with code 3"),
        ("kill -9 $$", "fails: it ended with code -9"),
        ("echo nonsense", "answers something that is no login"),
        ("echo '[]'", "answers something that is no login"),
        ('echo \'{"Username":7,"Secret":"hidden-word"}\'', "answers something that is no login"),
        ("yes hidden-word", "it answers without end"),
        ("exec sleep 60", "did not answer within 0.3 s"),
        ("sleep 60 & exec >/dev/null; wait", "did not answer within 0.3 s"),
    ],
)
async def test_a_program_that_fails_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(auth, "_PROGRAM_SECONDS", 0.3 if "sleep" in text else 20.0)
    home.settings(credsStore="bad")
    home.program("bad", text)
    began = time.monotonic()
    login = await home.find("reg.example")
    assert time.monotonic() - began < 10
    assert login.header == ""
    assert words in login.trouble
    assert "docker-credential-bad" in login.trouble
    assert "hidden-word" not in login.trouble


async def test_a_program_that_is_not_there(home: Home) -> None:
    home.settings(credsStore="absent")
    assert "docker-credential-absent isn't on the PATH" in (await home.find("reg.example")).trouble
    home.settings(credsStore="../../bin/sh")
    assert "is no name of a login program" in (await home.find("reg.example")).trouble
    (home.folder / "docker-credential-plain").write_text("no program")
    home.settings(credsStore="plain")
    assert "docker-credential-plain" in (await home.find("reg.example")).trouble


async def test_a_cancelled_look_up_ends_the_program_and_its_children(home: Home) -> None:
    home.settings(credsStore="slow")
    home.program(
        "slow", f"{sys.executable} -c 'import time; time.sleep(60)' & echo $! > {home.folder}/pid; wait"
    )
    task = asyncio.create_task(home.find("reg.example"))
    pid = home.folder / "pid"
    await until(lambda: pid.exists() and bool(pid.read_text()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not _alive(int(pid.read_text())))


async def test_programs_see_no_secret_of_ours(home: Home) -> None:
    home.environ |= {
        "NEMO_JOBS_IMAGE_REGISTRY_PASSWORD": "hidden-word",
        "NHX_X": "hidden-word",
        "AWS_REGION": "eu",
    }
    home.settings(credsStore="some")
    home.program("some", f"set > {home.folder}/seen; echo '{ANSWER}'")
    await home.find("reg.example")
    seen = (home.folder / "seen").read_text()
    assert "AWS_REGION" in seen
    assert "hidden-word" not in seen


def test_a_login_never_shows_itself() -> None:
    assert "hidden-word" not in repr(Login("hidden-word", "here"))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
