"""`nemo gpus`: which there are, who has them, and reservations for work that is no job."""

import time
from typing import Any

import click

from nemo_jobs.cli.options import columns_option, global_options, name_argument, pass_session
from nemo_jobs.cli.render import list_format, show_list, show_object
from nemo_jobs.cli.session import CommandError, Session

_KEYS = (
    *("id", "host", "model", "health", "holder", "since", "use_percent", "memory", "problem"),
    *("memory_used_bytes", "memory_total_bytes", "uuid", "pool"),
)
_COLUMNS = ("id", "host", "model", "health", "holder", "since", "use", "memory", "problem")
#: Seconds between two looks at a reservation that waits.
_POLL = 2.0


@click.group(invoke_without_command=True)
@columns_option
@global_options(context_letter=False)
@click.pass_context
def gpus(context: click.Context, columns: str) -> None:
    """GPUs: each with its health, who has it and since when; who waits is said below."""
    if context.invoked_subcommand is None:
        _show(context.obj, columns)


def _show(session: Session, columns: str) -> None:
    answer = session.ask("get_gpus")
    if list_format(session) in ("json", "yaml", "raw"):
        show_list(session, answer, columns=columns, default=_COLUMNS)
        return
    shown = {**answer, "data": [_row(item) for item in answer["data"]]}
    show_list(session, shown, columns=columns, default=_COLUMNS, keys=_KEYS)
    for pool in answer["pools"]:
        session.note(_said(pool))
    for one in answer["waiting"]:
        session.note(f"{_holder(one['holder'])} {one['message']}")


def _row(item: dict[str, Any]) -> dict[str, Any]:
    used, total, percent = item["memory_used_bytes"], item["memory_total_bytes"], item["use_percent"]
    return {
        **item,
        "holder": "" if item["holder"] is None else _holder(item["holder"]),
        "use": "" if percent is None else f"{percent} %",
        "memory": "" if used is None or total is None else f"{used / 2**30:.1f} of {total / 2**30:.1f} GiB",
    }


def _holder(holder: dict[str, Any]) -> str:
    if holder["kind"] == "reservation":
        return f"reservation {holder['name']}"
    if holder["job"] is None:
        return "a step of another workspace"
    return f"{holder['workspace']}/{holder['job']}/{holder['step']}"


def _said(pool: dict[str, Any]) -> str:
    text = f"{pool['host']}: {pool['free']} of {pool['total']} free"
    if pool["unusable"]:
        text += f", {pool['unusable']} can't be given out"
    if pool["waiting"]:
        text += f", {pool['waiting']} waiting"
    if not pool["serving"]:
        text += "; no service gives them out now"
    return "; ".join([text, *pool["notes"]])


@gpus.command()
@click.option("--count", type=click.IntRange(1, 1024), required=True, metavar="N", help="How many.")
@click.option("--for", "name", required=True, metavar="NAME", help="Name of the reservation.")
@click.option("--pool", metavar="HOST", help="Which pool, where there are several: its host or its key.")
@click.option("--wait", is_flag=True, help="Wait for its turn instead of failing when too few are free.")
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up waiting, and the place, after."
)
@click.option("--ids", is_flag=True, help="Print only the ids, as CUDA_VISIBLE_DEVICES takes them.")
@global_options()
@pass_session
def reserve(
    session: Session,
    count: int,
    name: str,
    pool: str | None,
    wait: bool,
    timeout: float | None,
    ids: bool,
) -> None:
    """Take GPUs for work that is no job, until they are released.

    CUDA_VISIBLE_DEVICES=$(nemo gpus reserve --count 2 --for llama --wait --ids)
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout goes with --wait")
    made = session.ask("reserve_gpus", name, count, pool=pool, wait=wait or None)
    if not made["devices"]:
        made = _wait(session, name, timeout)
    if ids:
        session.data(",".join(made["devices"]))
    else:
        show_object(session, made)


def _wait(session: Session, name: str, timeout: float | None) -> Any:
    """Until the reservation has its devices. Who gives up gives the place in the queue back."""
    session.note(f"reservation {name} waits for its turn; 'nemo gpus' shows who has them")
    session.hint = f"reservation {name} keeps its place; 'nemo gpus release {name}' gives it back"
    until = None if timeout is None else time.monotonic() + timeout
    while not (found := session.ask("get_gpu_reservation", name))["devices"]:
        if until is not None and time.monotonic() >= until:
            session.ask("release_gpus", name)
            session.hint = ""
            raise CommandError(f"reservation {name} did not get its GPUs within {timeout:g} s")
        left = _POLL if until is None else until - time.monotonic()
        time.sleep(max(0.0, min(_POLL, left)))
    session.hint = ""
    return found


@gpus.command()
@name_argument()
@global_options()
@pass_session
def release(session: Session, name: str) -> None:
    """Give back the GPUs of a reservation, or its place in the queue."""
    session.ask("release_gpus", name)
    session.note(f"released reservation '{name}'")
