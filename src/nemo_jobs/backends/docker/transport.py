"""Ways to an engine: a socket file, TCP plain or with TLS, and the engine's own helper over SSH."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for TLS: who may be trusted, and who we are. `ca` None: what the system trusts."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine is. `text` is what was asked for, without a password; `origin` who said so."""

    scheme: str  # "unix", "tcp" or "ssh"
    path: str = ""  # of the socket file
    host: str = ""
    port: int = 0
    user: str = ""
    tls: Tls | None = None
    origin: str = ""

    @property
    def local(self) -> bool:
        return self.scheme == "unix"

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{self.scheme}://{user}{host}" + (f":{self.port}" if self.port else "")
