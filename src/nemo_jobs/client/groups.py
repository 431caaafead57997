"""The older spelling: calls grouped by what they are about, such as `client.results.list(job)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from nemo_jobs.client.ask import Ask, Async, Sync
from nemo_jobs.client.ask import Steps as Course
from nemo_jobs.client.calls_platform import ProjectCalls, SecretCalls, WorkspaceCalls
from nemo_jobs.client.calls_results import FileCalls, ResultCalls
from nemo_jobs.client.calls_steps import AttemptCalls, StepCalls

if TYPE_CHECKING:
    from nemo_jobs.client.aio_transfer import AsyncDownload
    from nemo_jobs.client.transfer import Download

T = TypeVar("T")


class _Results(ResultCalls):
    create = ResultCalls.create_job_result
    list = ResultCalls.list_job_results
    retrieve = ResultCalls.get_job_result
    download = ResultCalls.download_job_result
    upload = ResultCalls.upload_job_result


class _Steps(StepCalls):
    list = StepCalls.list_steps
    retrieve = StepCalls.get_job_step
    update_status = StepCalls.update_job_step_status


class _Tasks(StepCalls):
    list = StepCalls.list_job_step_tasks
    retrieve = StepCalls.get_job_step_task
    create_or_update = StepCalls.update_job_step_task


class _Attempts(AttemptCalls):
    list = AttemptCalls.list_job_attempts
    retrieve = AttemptCalls.get_job_attempt
    update_status_details = AttemptCalls.update_job_attempt_status_details


class _Workspaces(WorkspaceCalls):
    create = WorkspaceCalls.create_workspace
    list = WorkspaceCalls.list_workspaces
    retrieve = WorkspaceCalls.get_workspace
    update = WorkspaceCalls.update_workspace
    delete = WorkspaceCalls.delete_workspace


class _Projects(ProjectCalls):
    create = ProjectCalls.create_project
    list = ProjectCalls.list_projects
    retrieve = ProjectCalls.get_project
    delete = ProjectCalls.delete_project


class _Secrets(SecretCalls):
    create = SecretCalls.create_secret
    list = SecretCalls.list_secrets
    retrieve = SecretCalls.get_secret
    update = SecretCalls.update_secret
    delete = SecretCalls.delete_secret


class _Filesets(FileCalls):
    create = FileCalls.create_fileset
    list = FileCalls.list_filesets
    retrieve = FileCalls.get_fileset
    update = FileCalls.update_fileset
    delete = FileCalls.delete_fileset


class SyncGroup(Sync):
    """Sends through the client that it belongs to."""

    def __init__(self, client: Sync, workspace: str) -> None:
        self._client = client
        self.workspace = workspace

    def send(self, ask: Ask[T]) -> T:
        return self._client.send(ask)

    def run_steps(self, steps: Course[T]) -> T:
        return self._client.run_steps(steps)

    def walk_steps(self, steps: Course[Any]) -> Iterator[Any]:
        return self._client.walk_steps(steps)

    def fetch(self, ask: Ask[Any]) -> Download:
        return self._client.fetch(ask)


class AsyncGroup(Async):
    """Sends through the async client that it belongs to."""

    def __init__(self, client: Async, workspace: str) -> None:
        self._client = client
        self.workspace = workspace

    async def send(self, ask: Ask[T]) -> T:
        return await self._client.send(ask)

    async def run_steps(self, steps: Course[T]) -> T:
        return await self._client.run_steps(steps)

    def walk_steps(self, steps: Course[Any]) -> AsyncIterator[Any]:
        return self._client.walk_steps(steps)

    async def fetch(self, ask: Ask[Any]) -> AsyncDownload:
        return await self._client.fetch(ask)


class Results(SyncGroup, _Results):
    pass


class AsyncResults(AsyncGroup, _Results):
    pass


class Steps(SyncGroup, _Steps):
    pass


class AsyncSteps(AsyncGroup, _Steps):
    pass


class Tasks(SyncGroup, _Tasks):
    pass


class AsyncTasks(AsyncGroup, _Tasks):
    pass


class Attempts(SyncGroup, _Attempts):
    pass


class AsyncAttempts(AsyncGroup, _Attempts):
    pass


class Workspaces(SyncGroup, _Workspaces):
    pass


class AsyncWorkspaces(AsyncGroup, _Workspaces):
    pass


class Projects(SyncGroup, _Projects):
    pass


class AsyncProjects(AsyncGroup, _Projects):
    pass


class Secrets(SyncGroup, _Secrets):
    pass


class AsyncSecrets(AsyncGroup, _Secrets):
    pass


class Filesets(SyncGroup, _Filesets):
    pass


class AsyncFilesets(AsyncGroup, _Filesets):
    pass
