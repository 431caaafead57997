"""What a token allows: scopes for workspaces. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nemo_jobs.domain.model import Invalid
from nemo_jobs.domain.names import NAME_RULE, is_name

#: In place of a workspace's name: all workspaces, also those of later.
EVERYWHERE = "*"
MAX_WORKSPACES = 100
MAX_PRINCIPAL = 256
#: Names of the service's own parts; only a token of scope `service` may carry or claim one.
SERVICE_PREFIX = "service:"


class Scope(StrEnum):
    """READ < WRITE < ADMIN. SERVICE is WRITE, and speaks for others: identity headers count,
    and `auth_context` and secret values are shown."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    SERVICE = "service"


_LEVELS = {Scope.READ: 1, Scope.WRITE: 2, Scope.ADMIN: 3, Scope.SERVICE: 2}
_NAMES = {1: "read", 2: "write", 3: "admin"}


@dataclass(frozen=True, slots=True)
class Grants:
    """The highest level by workspace (or `*`), and where scope `service` holds."""

    levels: Mapping[str, int]
    services: frozenset[str]

    def level(self, workspace: str) -> int:
        """0 for nothing; comparable with the levels of scopes."""
        return max(self.levels.get(workspace, 0), self.levels.get(EVERYWHERE, 0))

    def allows(self, workspace: str, scope: Scope) -> bool:
        """Whether `scope` holds in a workspace; `*` asks whether it holds in all of them."""
        if scope is Scope.SERVICE:
            return self.is_service(workspace)
        return self.level(workspace) >= _LEVELS[scope]

    def allows_somewhere(self, scope: Scope) -> bool:
        if scope is Scope.SERVICE:
            return bool(self.services)
        return any(level >= _LEVELS[scope] for level in self.levels.values())

    def is_service(self, workspace: str) -> bool:
        return bool(self.services) and (workspace in self.services or EVERYWHERE in self.services)

    def where(self, scope: Scope) -> frozenset[str] | None:
        """The workspaces in which a scope other than SERVICE holds; None for all."""
        if self.levels.get(EVERYWHERE, 0) >= _LEVELS[scope]:
            return None
        return frozenset(name for name, level in self.levels.items() if level >= _LEVELS[scope])

    def named(self, workspace: str) -> str:
        """The highest scope in a workspace, in words."""
        return _NAMES.get(self.level(workspace), "none")


NOTHING = Grants({}, frozenset())


def grants_of(given: Mapping[str, Iterable[str]]) -> Grants:
    """Grants from workspaces to scopes. Raises Invalid, naming what is wrong."""
    if not given:
        raise Invalid("grants must name at least one workspace, or * for all")
    if len(given) > MAX_WORKSPACES:
        raise Invalid(f"grants name {len(given)} workspaces; at most {MAX_WORKSPACES} are allowed")
    levels: dict[str, int] = {}
    services = set()
    for workspace, scopes in given.items():
        if workspace != EVERYWHERE and not is_name(workspace):
            raise Invalid(f"grants: {workspace[:80]!r} is no workspace; it is *, or a name of {NAME_RULE}")
        for scope in scopes:
            known = _scope(scope)
            levels[workspace] = max(levels.get(workspace, 0), _LEVELS[known])
            if known is Scope.SERVICE:
                services.add(workspace)
        if workspace not in levels:
            raise Invalid(f"grants: workspace {workspace!r} has no scope; {_SCOPES} are known")
    return Grants(levels, frozenset(services))


def plain(given: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Grants as they are stored and shown: each scope once, the lowest first."""
    order = [scope.value for scope in Scope]
    return {name: sorted(set(scopes), key=order.index) for name, scopes in sorted(given.items())}


def check_principal(name: str, grants: Grants) -> None:
    """Raise Invalid for a name that a token with these grants can't carry."""
    if not name.strip() or len(name) > MAX_PRINCIPAL or not name.isprintable():
        raise Invalid(
            f"principal must be 1 to {MAX_PRINCIPAL} printable characters; it is the name that records show"
        )
    if name.startswith(SERVICE_PREFIX) and not grants.services:
        raise Invalid(f"principal {name!r} is a name of the service's own; it needs scope service")


def _scope(text: Any) -> Scope:
    try:
        return Scope(text)
    except ValueError:
        raise Invalid(f"grants: {str(text)[:80]!r} is no scope; {_SCOPES} are known") from None


_SCOPES = ", ".join(scope.value for scope in Scope)
