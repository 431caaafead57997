"""Objects and lists in the formats that people and programs ask for."""

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from nemo_jobs.cli.session import Session, is_utf8, stdout
from nemo_jobs.cli.text import clean, cut, pad, width

Row = dict[str, Any]
_TIMES = frozenset({"created_at", "updated_at", "expires_at", "revoked_at", "timestamp"})
_NARROWEST = 8


def show_object(session: Session, value: Any) -> None:
    """One object. Tables make no sense here: asked for they are refused, preferred they are not."""
    chosen = session.flags.output_format
    if chosen in ("table", "markdown", "csv"):
        raise click.UsageError(f"'{chosen}' is for lists; a single object has json, yaml, raw, code")
    preferred = session.settings.output_format
    chosen = chosen or (preferred if preferred in ("json", "yaml", "raw") else "json")
    if chosen == "yaml":
        session.data(_yaml(value))
    else:
        session.json(value, compact=chosen == "raw")


def list_format(session: Session) -> str:
    """The format of a list: what was asked for, what is preferred, or what fits the output."""
    chosen = session.flags.output_format or session.settings.output_format
    if chosen and chosen != "code":
        return chosen
    return "table" if stdout().isatty() else "json"


def show_list(
    session: Session,
    answer: Any,
    *,
    columns: str,
    default: Sequence[str],
    keys: Sequence[str] = (),
    stream: bool = False,
) -> None:
    """A list: `answer` is the page as the service gave it, `keys` what each item has, in order."""
    form = list_format(session)
    if stream and form not in ("json", "raw"):
        raise click.UsageError("--stream goes with the formats json and raw")
    items = answer["data"] if isinstance(answer, dict) else answer
    rows: list[Row] = [_complete(item, keys) for item in items]
    if stream:
        for row in rows:
            session.json(row, compact=True)
    elif form in ("json", "yaml", "raw"):
        whole = {**answer, "data": rows} if isinstance(answer, dict) else rows
        if form == "yaml":
            session.data(_yaml(whole))
        else:
            session.json(whole, compact=form == "raw")
    else:
        _grid(session, rows, _chosen(columns, default, keys, rows), form)


def note_pages(session: Session, answer: Any, *, noun: str) -> None:
    """Say on stderr that there is more than was shown."""
    pages = answer.get("pagination", {})
    shown, total = pages.get("current_page_size", 0), pages.get("total_results", 0)
    if shown < total and shown:
        session.note(f"showing {shown} of {total} {noun}; --all-pages shows all, --page N another page")


def _complete(item: Row, keys: Sequence[str]) -> Row:
    row = {key: item.get(key) for key in keys}
    row.update(item)
    return row


def _chosen(columns: str, default: Sequence[str], keys: Sequence[str], rows: Sequence[Row]) -> list[str]:
    known = list(dict.fromkeys([*keys, *default, *(key for row in rows for key in row)]))
    if columns == "default":
        return list(default)
    if columns == "all":
        return known
    wanted = [name.strip() for name in columns.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise click.UsageError(f"no column '{', '.join(unknown)}'; there are: {', '.join(known)}")
    return wanted


def _grid(session: Session, rows: Sequence[Row], columns: Sequence[str], form: str) -> None:
    times = session.settings.timestamp_format
    if times is None:
        times = "relative" if form == "table" and "timestamp" not in columns else "iso8601"
    cells = [[_cell(row.get(name), name, times) for name in columns] for row in rows]
    if form == "csv":
        _csv(session, columns, cells)
    elif form == "markdown":
        _markdown(session, columns, cells)
    else:
        _table(session, columns, cells)


def _cell(value: Any, column: str, times: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    elif column in _TIMES and times == "relative":
        value = relative(str(value))
    return clean(str(value), colours=False)


def relative(timestamp: str, now: float | None = None) -> str:
    """A time as its distance from now: `12s ago`, `5m ago`, `3h ago`, `2d ago`."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return timestamp
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    current = datetime.now(UTC).timestamp() if now is None else now
    seconds = current - moment.timestamp()
    size = abs(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if size >= length or unit == "s":
            text = f"{int(size // length)}{unit}"
            break
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def _table(session: Session, columns: Sequence[str], cells: list[list[str]]) -> None:
    grid = [[name.upper() for name in columns], *cells]
    widths = [max(width(row[index]) for row in grid) for index in range(len(columns))]
    shortened = False
    if session.settings.truncate and stdout().isatty():
        room = os.get_terminal_size(stdout().fileno()).columns - 2 * (len(columns) - 1)
        fitted = fit(widths, room)
        shortened, widths = fitted != widths, fitted
    ellipsis = "…" if is_utf8(stdout()) else "~"
    for number, row in enumerate(grid):
        parts = [pad(cut(cell, size, ellipsis), size) for cell, size in zip(row, widths, strict=True)]
        line = "  ".join(parts).rstrip()
        bold = number == 0 and session.settings.colour and stdout().isatty()
        session.data(f"\x1b[1m{line}\x1b[0m" if bold else line)
    if shortened:
        session.note("some values were cut; --no-truncate shows all of them, -f json too")


def fit(widths: Sequence[int], room: int) -> list[int]:
    """Column widths that add up to at most `room`: the widest columns give way, down to a
    width that still shows something."""
    if sum(widths) <= room:
        return list(widths)
    cap = max(min(max(widths), room), _NARROWEST)
    while cap > _NARROWEST and sum(min(size, cap) for size in widths) > room:
        cap -= 1
    return [min(size, cap) for size in widths]


def _markdown(session: Session, columns: Sequence[str], cells: list[list[str]]) -> None:
    for row in ([*columns], ["---"] * len(columns), *cells):
        session.data("| " + " | ".join(cell.replace("\\", "\\\\").replace("|", "\\|") for cell in row) + " |")


def _csv(session: Session, columns: Sequence[str], cells: list[list[str]]) -> None:
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(cells)
    session.data(buffer.getvalue().removesuffix("\n"))


def _yaml(value: Any) -> str:
    import yaml

    utf8 = is_utf8(stdout())
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=utf8)
    return text.removesuffix("\n")
