"""The results as the Markdown table of docs/performance.md."""

from bench.measures import Values

#: measure, row, our key, how it is written, floor's key and name, what is asked.
Row = tuple[str, str, str, str, str, str, str]
_ROWS: tuple[Row, ...] = (
    (
        *("latency", "create → completed of `true`, one at a time, p50", "create_to_completed_p50_ms"),
        *("{:.1f} ms", "floor_task_spooler_p50_ms", "task-spooler", "≤ 8 ms, ≤ 2.5x task-spooler"),
    ),
    ("latency", "", "create_to_completed_p50_ms", "{:.2f} ms", "floor_spawn_wait_p50_ms", "spawn + wait", ""),
    (
        *("throughput", "1,000 `true` jobs, 16 clients", "jobs_per_second", "{:.0f}/s"),
        *("floor_task_spooler_per_second", "task-spooler", "≥ 700/s, ≥ 1.0x task-spooler"),
    ),
    (
        *("creates", "5,000 creates, 64 clients", "creates_per_second", "{:.0f}/s"),
        *("floor_sqlite_group_commits_per_second", "SQLite commits of 64 rows", "≥ 2,000/s, none lost"),
    ),
    (
        *("gets", "GET one job, 16 connections", "gets_per_second", "{:.0f}/s"),
        *("floor_starlette_per_second", "bare Starlette answer", "≥ 5,000/s, ≥ 0.3x"),
    ),
    (
        *("flood", "log of 1,000,000 lines (100 MB)", "log_mb_per_second", "{:.0f} MB/s"),
        *("floor_cat_to_file_mb_per_second", "`cat` to a file", "≥ 150 MB/s, every line"),
    ),
    ("flood", "tail 500 of it, p50", "tail_500_p50_ms", "{:.1f} ms", "", "", "≤ 10 ms"),
    ("flood", "memory during the flood", "memory_peak_mib", "{:.0f} MiB", "", "", "≤ 200 MB"),
    (
        *("otlp", "log records over OTLP, batches of 5,000", "records_per_second", "{:.0f}/s"),
        *("floor_decode_per_second", "decoding alone", "≥ 100,000/s, none lost"),
    ),
    (
        *("files", "upload of a result of 1 GB", "upload_mb_per_second", "{:.0f} MB/s"),
        *("floor_upload_mb_per_second", "bare Starlette route", "≥ 0.5x"),
    ),
    (
        *("files", "download of it", "download_mb_per_second", "{:.0f} MB/s"),
        *("floor_download_mb_per_second", "bare Starlette route", "≥ 0.5x"),
    ),
    ("files", "memory that both took", "transfer_memory_mib", "{:.0f} MiB", "", "", "< 32 MB"),
    (
        *("auth", "GET one job with a token, p50", "get_with_token_ms", "{:.2f} ms"),
        *("floor_get_ms", "without authentication", "adds ≤ 0.3 ms"),
    ),
    ("readable", "a printed line can be read, p50", "line_readable_p50_ms", "{:.1f} ms", "", "", "≤ 20 ms"),
    (
        *("starts", "idle memory with the keeper", "idle_memory_mib", "{:.0f} MiB"),
        *("floor_fastapi_memory_mib", "bare FastAPI app", "≤ 80 MB"),
    ),
    (
        *("starts", "start to ready", "start_to_ready_s", "{:.2f} s"),
        *("floor_fastapi_ready_s", "bare FastAPI app", "≤ 0.7 s"),
    ),
    (
        *("starts", "`nemo jobs list`, p50", "cli_list_p50_ms", "{:.0f} ms"),
        *("floor_python_pass_ms", "`python -c pass`", "≤ 110 ms"),
    ),
    ("memory", "memory with the keeper after 10,000 jobs", "memory_mib", "{:.0f} MiB", "", "", "≤ 80 MB"),
    (
        *("docker", "create → completed of `true` in a container, p50", "container_p50_ms", "{:.0f} ms"),
        *("floor_container_p50_ms", "bare engine", "adds ≤ 15 ms"),
    ),
    ("docker", "what of that is ours", "container_added_ms", "{:.1f} ms", "", "", "≤ 15 ms"),
    (
        *("docker", "200 containers, 4 at a time", "containers_per_second", "{:.1f}/s"),
        *("floor_containers_per_second", "bare engine", "≥ 0.85x"),
    ),
    (
        *("docker", "log of a container, 100 MB", "container_log_mb_per_second", "{:.1f} MB/s"),
        *("floor_container_log_mb_per_second", "following the engine's stream", "≥ 0.8x, every line"),
    ),
    ("docker", "calls to the engine, 100 that run", "idle_calls_per_second", "{:.2f}/s", "", "", "≤ 1/s"),
)


#: Rows of the filters: what is in them, and the key.
FILTERS = (
    ("200,000 jobs by state (5 %), label (2 %) and a day, p50", "all"),
    ("by state, label and a date that most meet", "all_since"),
    ("by state and label", "state_and_label"),
    ("by state", "state"),
    ("by label", "label"),
    ("by a day", "day"),
    ("by a date that most meet", "since"),
)
ROWS = _ROWS + tuple(
    ("filters", name, f"filter_{key}_p50_ms", "{:.1f} ms", "floor_no_filter_p50_ms", "no filter", "≤ 15 ms")
    for name, key in FILTERS
)


def table(machine: dict[str, str], medians: dict[str, Values], rounds: int) -> str:
    where = "; ".join(f"{name} {value}" for name, value in machine.items())
    head = ["| measure | here | floor, same run | here : floor | asked |", "| --- | --- | --- | --- | --- |"]
    rows = [line(medians[row[0]], row) for row in ROWS if row[0] in medians]
    return "\n".join(
        [f"Medians of {rounds} alternating rounds. {where}.", "", *head, *rows, *sizes(medians), ""]
    )


def line(values: Values, row: Row) -> str:
    _, name, key, form, floor, floor_name, asked = row
    ours = form.format(values[key])
    if floor not in values:
        return f"| {name} | {ours} | {'not installed' if floor else '–'} | – | {asked} |"
    ratio = values[key] / values[floor]
    return f"| {name} | {ours} | {form.format(values[floor])} ({floor_name}) | {ratio:.2f} | {asked} |"


def sizes(medians: dict[str, Values]) -> list[str]:
    values = dict(medians.get("lists", {}))
    if not values:
        return []
    ratio = values.pop("largest_to_smallest")
    shown = ", ".join(f"{value:.1f} ms at {key.split('_')[3]}" for key, value in values.items())
    return [
        f"| list of 100, first pages, p50 | {shown} | each other | {ratio:.2f} | ≤ 3 ms, flat within 1.5x |"
    ]
