"""Logins for registries, looked up anew for each pull: a renewed one counts at once.

Values never leave this module but for the header of a pull; what is told to people is where a login
came from.
"""

import asyncio
import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nemo_jobs.backends.docker import contexts, programs
from nemo_jobs.backends.docker.errors import one_line
from nemo_jobs.backends.docker.registry import DEFAULT, DEFAULT_LOGIN, host_of

_PROGRAM_SECONDS = 20.0
_MOST_OUTPUT = 256 << 10  # bytes of what a program answers
_VARIABLE = "NEMO_JOBS_IMAGE_REGISTRY"
_OURS = ("NEMO_", "NHX_")  # variables that no program is given
_NO_LOGIN = "credentials not found in native keychain"
_TOKEN_USER = "<token>"  # noqa: S105  # says that the secret is an identity token


@dataclass(frozen=True, slots=True)
class Login:
    """`header` is the value of X-Registry-Auth, empty without a login. `source` says where the login
    comes from, `trouble` what went wrong while it was looked for; neither holds any of it."""

    header: str = field(default="", repr=False)
    source: str = ""
    trouble: str = ""


class Logins:
    """The logins of this service: its own variables first, then those of the docker command."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    async def find(self, registry: str) -> Login:
        """The login for a registry (host with port). Never raises: what goes wrong is told in
        `trouble`, and the pull goes on without a login, as many images need none."""
        if (login := self._of_variables(registry)) is not None:
            return login
        folder = contexts.settings_folder(self._environ)
        try:
            settings = await asyncio.to_thread(contexts.settings, folder)
        except ValueError as error:
            return Login(trouble=one_line(str(error)))
        path = os.path.join(folder, "config.json")
        program = _program(settings, registry)
        if program:
            login = await self._of_program(program, registry)
            if login.header or login.trouble:
                return login
        return _of_file(settings, registry, path)

    def _of_variables(self, registry: str) -> Login | None:
        host = self._environ.get(_VARIABLE, "")
        user = self._environ.get(f"{_VARIABLE}_USER_NAME", "")
        password = self._environ.get(f"{_VARIABLE}_PASSWORD", "")
        if not (user and password) or host_of(host or DEFAULT) != registry.lower():
            return None
        return _login(registry, {"username": user, "password": password}, f"{_VARIABLE}_USER_NAME")

    async def _of_program(self, program: str, registry: str) -> Login:
        name = f"docker-credential-{program}"
        if os.sep in program or program in (".", ".."):
            return Login(trouble=f"{program!r} is no name of a login program")
        server = DEFAULT_LOGIN if registry == DEFAULT else registry
        try:
            code, output = await self._run(name, server)
        except FileNotFoundError:
            return Login(trouble=f"the login program {name} isn't on the PATH")
        except OSError as error:
            why = error.strerror or f"it did not answer within {_PROGRAM_SECONDS:g} s"
            return Login(trouble=f"the login program {name} fails: {why}")
        if code:
            text = one_line(output.decode(errors="replace"), 200)
            if _NO_LOGIN in text.lower():
                return Login()
            return Login(trouble=f"the login program {name} fails: {text or f'it ended with code {code}'}")
        return _answered(registry, name, output)

    async def _run(self, name: str, server: str) -> tuple[int, bytes]:
        """Ask a login program; raises OSError, also when it takes too long."""
        environ = {key: value for key, value in self._environ.items() if not key.startswith(_OURS)}
        process = await programs.start(
            [name, "get"],
            environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # it may say anything there
        )
        try:
            async with asyncio.timeout(_PROGRAM_SECONDS):
                output = await _talk(process, server.encode())
                return await process.wait(), output
        finally:
            await programs.end(process)


async def _talk(process: asyncio.subprocess.Process, words: bytes) -> bytes:
    """Give a program its input and take its output, of which there may be only so much."""
    if process.stdin is not None:
        process.stdin.write(words)
        process.stdin.close()
    output = b""
    while process.stdout is not None and (piece := await process.stdout.read(_MOST_OUTPUT)):
        output += piece
        if len(output) > _MOST_OUTPUT:
            raise OSError(0, "it answers without end")
    return output


def _program(settings: Mapping[str, Any], registry: str) -> str:
    """The name of the login program for a registry: its own one before the general one."""
    helpers = settings.get("credHelpers")
    for key, program in helpers.items() if isinstance(helpers, dict) else ():
        if host_of(key) == registry and isinstance(program, str):
            return program
    general = settings.get("credsStore")
    return general if isinstance(general, str) else ""


def _answered(registry: str, name: str, output: bytes) -> Login:
    """The login that a program gave."""
    try:
        value = json.loads(output)
        user, secret = value["Username"], value["Secret"]
    except (ValueError, RecursionError, KeyError, TypeError):
        user = secret = None
    if not isinstance(user, str) or not isinstance(secret, str):
        return Login(trouble=f"the login program {name} answers something that is no login")
    if not secret:
        return Login()
    if user == _TOKEN_USER:
        return _login(registry, {"identitytoken": secret}, f"the login program {name}")
    return _login(registry, {"username": user, "password": secret}, f"the login program {name}")


def _of_file(settings: Mapping[str, Any], registry: str, path: str) -> Login:
    """The login that stands in the settings of the docker command."""
    found = settings.get("auths")
    auths = found if isinstance(found, dict) else {}
    names = [DEFAULT_LOGIN] if registry == DEFAULT else [registry, f"https://{registry}"]
    names += [key for key in auths if host_of(key) == registry]
    for name in names:
        entry = auths.get(name)
        if isinstance(entry, dict) and (values := _values(entry)):
            return _login(registry, values, path)
        if isinstance(entry, dict) and entry.get("auth"):
            return Login(trouble=f"the login for {registry} in {path} can't be read")
    return Login()


def _values(entry: Mapping[str, Any]) -> dict[str, str]:
    for key in ("identitytoken", "registrytoken"):
        if isinstance(token := entry.get(key), str) and token:
            return {key: token}
    user, password = entry.get("username"), entry.get("password")
    if isinstance(auth := entry.get("auth"), str) and auth:
        try:
            user, _, password = base64.b64decode(auth).decode().rstrip("\0").partition(":")
        except ValueError:
            return {}
    if isinstance(user, str) and isinstance(password, str) and user and password:
        return {"username": user, "password": password}
    return {}


def _login(registry: str, values: dict[str, str], source: str) -> Login:
    server = DEFAULT_LOGIN if registry == DEFAULT else registry
    text = json.dumps({**values, "serveraddress": server})
    return Login(base64.urlsafe_b64encode(text.encode()).decode(), source)
