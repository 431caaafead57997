"""What is around jobs: workspaces, projects, secrets, and the service itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nemo_jobs.client.ask import Ask, Call, Steps, Walk
from nemo_jobs.client.calls import Calls, given
from nemo_jobs.client.connection import quote
from nemo_jobs.client.paging import by_number

if TYPE_CHECKING:
    from nemo_jobs.client.types import (
        Json,
        Project,
        ProjectPage,
        Secret,
        SecretPage,
        Workspace,
        WorkspacePage,
    )

ENTITIES = "/apis/entities/v2"
_WORKSPACES = f"{ENTITIES}/workspaces"
_SECRETS = "/apis/secrets/v2"


def _paging(page: int | None, page_size: int | None, sort: str | None) -> list[tuple[str, int | str | None]]:
    return [("page", page), ("page_size", page_size), ("sort", sort)]


class WorkspaceCalls(Calls):
    """Workspaces: names of jobs are unique within one."""

    @Call
    def list_workspaces(
        self, *, page: int | None = None, page_size: int | None = None, sort: str | None = None
    ) -> Ask[WorkspacePage]:
        """One page of workspaces."""
        return Ask("GET", _WORKSPACES, query=_paging(page, page_size, sort))

    @Walk
    def iter_workspaces(self, *, page_size: int = 100, sort: str | None = None) -> Steps[Workspace]:
        """All workspaces."""
        return by_number(_WORKSPACES, [("page_size", page_size), ("sort", sort)])

    @Call
    def get_workspace(self, name: str) -> Ask[Workspace]:
        """One workspace."""
        return Ask("GET", _workspace(name))

    @Call
    def create_workspace(self, name: str, *, description: str | None = None) -> Ask[Workspace]:
        """Create a workspace."""
        return Ask("POST", _WORKSPACES, body=given({"name": name, "description": description}))

    @Call
    def update_workspace(self, name: str, *, description: str | None) -> Ask[Workspace]:
        """Change the description of a workspace."""
        return Ask("PUT", _workspace(name), body={"description": description})

    @Call
    def delete_workspace(self, name: str) -> Ask[Json]:
        """Delete a workspace that holds nothing."""
        return Ask("DELETE", _workspace(name))


class ProjectCalls(Calls):
    """Projects: labels for jobs that belong together, within a workspace."""

    @Call
    def list_projects(
        self,
        *,
        workspace: str | None = None,
        page: int | None = None,
        page_size: int | None = None,
        sort: str | None = None,
    ) -> Ask[ProjectPage]:
        """One page of projects."""
        path = self._in(ENTITIES, workspace, "projects")
        return Ask("GET", path, query=_paging(page, page_size, sort))

    @Walk
    def iter_projects(self, *, workspace: str | None = None, page_size: int = 100) -> Steps[Project]:
        """All projects of a workspace."""
        return by_number(self._in(ENTITIES, workspace, "projects"), [("page_size", page_size)])

    @Call
    def get_project(self, name: str, *, workspace: str | None = None) -> Ask[Project]:
        """One project."""
        return Ask("GET", self._in(ENTITIES, workspace, "projects", name))

    @Call
    def create_project(
        self, name: str, *, description: str | None = None, workspace: str | None = None
    ) -> Ask[Project]:
        """Create a project."""
        body = given({"name": name, "description": description})
        return Ask("POST", self._in(ENTITIES, workspace, "projects"), body=body)

    @Call
    def update_project(
        self, name: str, *, description: str | None, workspace: str | None = None
    ) -> Ask[Project]:
        """Set a project's description; None removes it."""
        path = self._in(ENTITIES, workspace, "projects", name)
        return Ask("PATCH", path, body={"description": description})

    @Call
    def delete_project(self, name: str, *, workspace: str | None = None) -> Ask[None]:
        """Delete a project."""
        return Ask("DELETE", self._in(ENTITIES, workspace, "projects", name), kind=None)


class SecretCalls(Calls):
    """Secrets: values that steps may use and nobody can read back."""

    @Call
    def list_secrets(
        self,
        *,
        workspace: str | None = None,
        page: int | None = None,
        page_size: int | None = None,
        sort: str | None = None,
    ) -> Ask[SecretPage]:
        """One page of secrets, without their values."""
        path = self._in(_SECRETS, workspace, "secrets")
        return Ask("GET", path, query=_paging(page, page_size, sort))

    @Walk
    def iter_secrets(self, *, workspace: str | None = None, page_size: int = 100) -> Steps[Secret]:
        """All secrets of a workspace, without their values."""
        path = self._in(_SECRETS, workspace, "secrets")
        return by_number(path, [("page_size", page_size)], key="name")

    @Call
    def get_secret(self, name: str, *, workspace: str | None = None) -> Ask[Secret]:
        """One secret, without its value."""
        return Ask("GET", self._in(_SECRETS, workspace, "secrets", name))

    @Call
    def create_secret(
        self, name: str, value: str, *, description: str | None = None, workspace: str | None = None
    ) -> Ask[Secret]:
        """Store a secret. Raises `Conflict` when the name is taken."""
        body = given({"name": name, "value": value, "description": description})
        return Ask("POST", self._in(_SECRETS, workspace, "secrets"), body=body)

    @Call
    def update_secret(
        self,
        name: str,
        *,
        value: str | None = None,
        description: str | None = None,
        workspace: str | None = None,
    ) -> Ask[Secret]:
        """Give a secret another value or description."""
        body = given({"value": value, "description": description})
        return Ask("PATCH", self._in(_SECRETS, workspace, "secrets", name), body=body)

    @Call
    def delete_secret(self, name: str, *, workspace: str | None = None) -> Ask[None]:
        """Delete a secret."""
        return Ask("DELETE", self._in(_SECRETS, workspace, "secrets", name), kind=None)

    @Call
    def access_secret(self, name: str, *, workspace: str | None = None) -> Ask[Json]:
        """The value of a secret, for those that hand it to a task: other callers are refused."""
        return Ask("GET", self._in(_SECRETS, workspace, "secrets", name, "access"))

    @Call
    def rotate_secrets_key(self, *, hand_over: bool | None = None) -> Ask[Json]:
        """Encrypt all secrets with a new key; for administrators. Call it until `finished`."""
        return Ask("POST", f"{_SECRETS}/rotate-key", body=given({"hand_over": hand_over}))


class ServiceCalls(Calls):
    """The service as a whole."""

    @Call
    def get_service_status(self) -> Ask[Json]:
        """Which parts of the service are ready and healthy."""
        return Ask("GET", "/status")

    @Call
    def sweep(self, *, dry_run: bool = False) -> Ask[Json]:
        """Remove what the service made at a backend and nobody owns; with `dry_run` only tell."""
        return Ask("POST", "/apis/jobs/v2/sweep", body={"dry_run": dry_run})

    @Call
    def get_cluster_info(self) -> Ask[Json]:
        """The version of the service."""
        return Ask("GET", "/cluster-info")


def _workspace(name: str) -> str:
    if not name:
        raise ValueError("a name is empty")
    return f"{_WORKSPACES}/{quote(name)}"
