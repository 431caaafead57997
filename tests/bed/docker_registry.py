"""A private image registry on a loopback port, with a login, and a proxy before it for faults."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.bed.docker import DockerServer
from tests.bed.proxy import Proxy
from tests.e2e.service import free_port

USER, PASSWORD = "puller", "pull-and-push"
_HASH = "$2b$04$3C1yBRKvOuc0BiB8VCYRMOtwT9Cl2BDD/cHYrqViitqGghpymE11q"  # of that password
OTHER_PASSWORD = "pull-no-more"
_OTHER_HASH = "$2b$04$mePxpUevzqUDE0JbYnqblerHLlIRrd0t1Z0Rz9LJiRyZJYYMAcU5u"

_CONFIG = """version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {folder}/images}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
{auth}
"""


class Registry:
    """A running registry. Engines reach it through `proxy`, whose faults tests may set."""

    def __init__(self, *, login: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nemo-jobs-registry-"))
        self.login = login
        self._port = free_port()
        accounts = self.folder / "accounts"
        accounts.write_text(f"{USER}:{_HASH}\n")
        auth = f"auth: {{htpasswd: {{realm: bed, path: {accounts}}}}}" if login else ""
        config = self.folder / "config.yml"
        config.write_text(_CONFIG.format(folder=self.folder, port=self._port, auth=auth))
        self._log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            ["docker-registry", "serve", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.proxy = Proxy(("127.0.0.1", self._port))
        self._wait_until_it_answers()

    @property
    def address(self) -> str:
        """Host and port, as in the name of an image."""
        return f"127.0.0.1:{self.proxy.port}"

    def auth(self, password: str = PASSWORD) -> str:
        """The value of the header X-Registry-Auth."""
        account = {"username": USER, "password": password, "serveraddress": self.address}
        return base64.urlsafe_b64encode(json.dumps(account).encode()).decode()

    def push(self, engine: DockerServer, image: str, name: str) -> str:
        """Put an image of the engine into the registry, and take its new name from the engine again."""
        repository, _, tag = name.rpartition(":")
        full = f"{self.address}/{repository}"
        engine.api.post(f"/images/{image}/tag", repo=full, tag=tag)
        headers = {"X-Registry-Auth": self.auth()}
        for last in (False, False, True):  # a push that was cut by a busy machine goes on where it was
            said = list(engine.api.lines("POST", f"/images/{full}/push", query={"tag": tag}, headers=headers))
            if not (errors := [line for line in said if "error" in line]):
                break
            assert not last, errors
        engine.api.delete(f"/images/{full}:{tag}")
        return f"{full}:{tag}"

    def change_password(self) -> None:
        """From now on only `OTHER_PASSWORD` is right."""
        (self.folder / "accounts").write_text(f"{USER}:{_OTHER_HASH}\n")

    def destroy(self) -> None:
        self.proxy.close()
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5)
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/v2/", timeout=2).close()
                return
            except urllib.error.HTTPError as error:
                if error.code == 401:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"the registry does not answer: {(self.folder / 'log').read_text()[-2000:]}")
