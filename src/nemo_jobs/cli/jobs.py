"""`nemo jobs`: the group; each command is in a module of its own kind."""

import signal
from typing import Any

import click

from nemo_jobs.cli.lazy import LazyGroup
from nemo_jobs.cli.options import global_options
from nemo_jobs.cli.session import Terminated

_HERE = "nemo_jobs.cli"


@click.group(
    cls=LazyGroup,
    lazy={
        "create": f"{_HERE}.jobs_create:create",
        "run": f"{_HERE}.jobs_run:run",
        "list": f"{_HERE}.jobs_list:list_jobs",
        "get": f"{_HERE}.jobs_act:get",
        "get-status": f"{_HERE}.jobs_act:get_status",
        "cancel": f"{_HERE}.jobs_act:cancel",
        "pause": f"{_HERE}.jobs_act:pause",
        "resume": f"{_HERE}.jobs_act:resume",
        "rerun": f"{_HERE}.jobs_rerun:rerun",
        "update": f"{_HERE}.jobs_update:update",
        "delete": f"{_HERE}.jobs_act:delete",
        "get-logs": f"{_HERE}.jobs_logs:get_logs",
        "tail": f"{_HERE}.jobs_tail:tail",
        "watch": f"{_HERE}.jobs_watch:watch",
        "list-execution-profiles": f"{_HERE}.jobs_list:list_execution_profiles",
        "update-status-details": f"{_HERE}.jobs_act:update_status_details",
        "attempts": f"{_HERE}.jobs_attempts:attempts",
        "steps": f"{_HERE}.jobs_steps:steps",
        "tasks": f"{_HERE}.jobs_steps:tasks",
        "results": f"{_HERE}.jobs_results:results",
        "prune": f"{_HERE}.jobs_prune:prune",
    },
)
@global_options()
def jobs() -> None:
    """Create jobs, look at them, stop them, read their logs."""

    def stop(signum: int, frame: Any) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
