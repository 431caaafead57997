"""Bytes as answers: whole files, parts of them, folders; never more in memory than a few pieces.

Nothing is compressed but folders, which are archives anyway: clients read the bytes as they are.
"""

import asyncio
import logging
import mimetypes
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import quote

from nemo_jobs.domain.model import NotFound, Unavailable
from nemo_jobs.files.archive import Member, tar_stream
from nemo_jobs.files.objects import ObjectMissing, ObjectStore
from nemo_jobs.http.errors import refuse
from nemo_jobs.http.request import Request
from nemo_jobs.http.wire import Header, Reply
from nemo_jobs.store import files
from nemo_jobs.store.db import Database
from nemo_jobs.store.files import FileRecord

log = logging.getLogger(__name__)

#: A reader that takes no piece for so long is dropped, in seconds; sooner while there is a crowd.
PATIENCE, CROWDED_PATIENCE = 300.0, 30.0
#: Downloads at once from which on there is a crowd, and at most: each holds a few pieces while its
#: reader is slow.
CROWD, MOST = 100, 500
#: What the buffers of a connection take at once is no download that lasts, in bytes.
SMALL = 64 * 1024
#: Files read from the database at a time.
FILES_A_PAGE = 500
BINARY = "application/octet-stream"
_under_way = 0
_RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.IGNORECASE)
_TAG = re.compile(r'(?:W/)?"[^"]*"')
_PLAIN = re.compile(r"[^A-Za-z0-9!#$&+.^_`|~@ -]")


@dataclass(frozen=True, slots=True)
class Download:
    """A file and how it is called at the other end; `what` names it in errors."""

    record: FileRecord
    filename: str
    what: str


@dataclass(frozen=True, slots=True)
class Archive:
    """A folder of a fileset as `<name>.tar.gz` with the one directory `name` in it."""

    fileset_id: str
    folder: str
    name: str
    at: int


async def send_file(objects: ObjectStore, request: Request, download: Download) -> Reply | None:
    """The file, or the part of it that is asked for; also for HEAD. Raises NotFound when the bytes
    are missing, before anything is sent."""
    record = download.record
    headers = _headers(record, download.filename)
    early = _unchanged(request, record, headers)
    if early is not None:
        return early
    span = _asked_span(request, record)
    start, end = span or (0, record.size)
    if span is not None and start >= end:
        told: Header = (b"content-range", f"bytes */{record.size}".encode())
        asked = request.header(b"range")
        return refuse(416, f"range {asked!r} lies outside of {download.what}: {record.size} bytes", told)
    status = 206 if span is not None else 200
    if span is not None:
        headers.append((b"content-range", f"bytes {start}-{end - 1}/{record.size}".encode()))
    headers.append((b"content-length", str(end - start).encode()))
    if request.scope["method"] == "HEAD":
        return _bare(status, headers)
    pieces = _exactly(objects, record.object, start, end)
    try:
        with nullcontext() if end - start <= SMALL else _one_more():
            await stream_out(request, status, headers, pieces)
    except ObjectMissing:
        raise NotFound(f"the bytes of {download.what} are missing in the file store") from None
    return None


async def send_archive(
    objects: ObjectStore, db: Database, request: Request, archive: Archive
) -> Reply | None:
    """The folder as an archive that is made on the way. Raises NotFound when the bytes of its
    first files are missing, before anything is sent."""
    headers: list[Header] = [
        (b"content-type", b"application/x-tar"),
        (b"content-disposition", _disposition(f"{archive.name}.tar.gz")),
        (b"x-content-type-options", b"nosniff"),
    ]
    if request.scope["method"] == "HEAD":
        return _bare(200, headers)
    members = _members(db, archive.fileset_id, archive.folder)
    with _one_more():
        await stream_out(request, 200, headers, tar_stream(objects, archive.name, members, archive.at))
    return None


@contextmanager
def _one_more() -> Iterator[None]:
    """A download while it lasts. Raises Unavailable when there are too many."""
    global _under_way
    if _under_way >= MOST:
        raise Unavailable(f"{MOST} downloads are under way, which is the most; try again later", 5)
    _under_way += 1
    try:
        yield
    finally:
        _under_way -= 1


async def stream_out(
    request: Request, status: int, headers: Iterable[Header], pieces: AsyncIterator[bytes]
) -> None:
    """Answer with what comes out of `pieces`; what it raises before its first piece is raised as if
    nothing had begun. Ends early when the client is gone or takes nothing for long."""
    gone = asyncio.create_task(_until_gone(request))
    try:
        async with aclosing(pieces) as left:  # type: ignore[type-var]
            piece = await anext(left, b"")
            start = {"type": "http.response.start", "status": status}
            await request.send({**start, "headers": [*headers, *request.extra_headers]})
            while piece:
                if not await _taken(request, piece) or gone.done():
                    return
                piece = await anext(left, b"")
            await request.send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        gone.cancel()


async def _taken(request: Request, piece: bytes) -> bool:
    """Send a piece; False when the client did not take it in time."""
    patience = CROWDED_PATIENCE if _under_way > CROWD else PATIENCE
    try:
        async with asyncio.timeout(patience):
            await request.send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        log.warning("a download was dropped: its reader took too little for %g s", patience)
        return False
    return True


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _exactly(objects: ObjectStore, key: str, start: int, end: int) -> AsyncIterator[bytes]:
    """As many bytes as were promised, or an error."""
    left = end - start
    if not left:
        return
    async with aclosing(objects.read(key, start, end)) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            left -= len(piece)
            yield piece
    if left:
        raise ObjectMissing("its bytes are not all in the file store")


async def _members(db: Database, fileset_id: str, folder: str) -> AsyncIterator[Member]:
    """The files of a folder with their paths in it, read in pages."""
    after, begin = "", len(folder) + 1 if folder else 0
    while True:
        found = await db.read(files.list_files, fileset_id, folder, after, FILES_A_PAGE)
        for record in found:
            yield Member(record.path[begin:], record.size, record.created_at, record.object)
        if len(found) < FILES_A_PAGE:
            return
        after = found[-1].path


def _headers(record: FileRecord, filename: str) -> list[Header]:
    return [
        (b"content-type", media_type(filename).encode()),
        (b"content-disposition", _disposition(filename)),
        # What a user stored must not run as a page of this service.
        (b"x-content-type-options", b"nosniff"),
        (b"accept-ranges", b"bytes"),
        (b"cache-control", b"private, no-cache"),
        (b"etag", _etag(record).encode()),
        (b"last-modified", formatdate(record.created_at // 1_000_000, usegmt=True).encode()),
    ]


def media_type(filename: str) -> str:
    """The type that a name suggests; of what is compressed only that it is bytes."""
    kind, encoding = mimetypes.guess_type(filename, strict=False)
    return kind if kind and not encoding else BINARY


def _disposition(filename: str) -> bytes:
    plain = _PLAIN.sub("_", filename)
    exact = "" if plain == filename else f"; filename*=UTF-8''{quote(filename, safe='')}"
    return f'attachment; filename="{plain}"{exact}'.encode()


def _etag(record: FileRecord) -> str:
    return f'"{record.digest}"'


def _bare(status: int, headers: list[Header]) -> Reply:
    """An answer without a body whose headers are as if it had one."""
    reply = Reply(b"", status, ())
    reply.headers = headers
    return reply


def _unchanged(request: Request, record: FileRecord, headers: list[Header]) -> Reply | None:
    """The answer when the request's own conditions don't ask for bytes."""
    match, none_match = request.header(b"if-match"), request.header(b"if-none-match")
    if match is not None and not _has_tag(match, record, weak=False):
        return refuse(412, "the file is not the one that If-Match asks for; get its etag again")
    if none_match is not None:
        same = _has_tag(none_match, record, weak=True)
    else:
        since = _when(request.header(b"if-modified-since"))
        same = since is not None and record.created_at // 1_000_000 <= since
    if not same:
        return None
    kept = (b"etag", b"last-modified", b"cache-control")
    return _bare(304, [header for header in headers if header[0] in kept])


def _has_tag(text: str, record: FileRecord, weak: bool) -> bool:
    if text.strip() == "*":
        return True
    tags = _TAG.findall(text)
    return _etag(record) in ([tag.removeprefix("W/") for tag in tags] if weak else tags)


def _when(text: str | None) -> float | None:
    """Seconds since 1970 of a date in a header; None for what is no date."""
    if text is None:
        return None
    try:
        found = parsedate_to_datetime(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _asked_span(request: Request, record: FileRecord) -> tuple[int, int] | None:
    """Begin and end (exclusive) of the part that is asked for, empty when it lies outside. None for
    all of the file: also when several parts are asked for, or one of another file than this."""
    given = request.header(b"range")
    found = _RANGE.fullmatch(given.strip()) if given and request.scope["method"] == "GET" else None
    if found is None or found[1] + found[2] == "" or not _range_counts(request, record):
        return None
    first, last = found[1], found[2]
    if not first:
        return max(0, record.size - int(last)), record.size
    if last and int(last) < int(first):
        return None
    return int(first), min(record.size, int(last) + 1 if last else record.size)


def _range_counts(request: Request, record: FileRecord) -> bool:
    condition = request.header(b"if-range")
    if condition is None or condition.strip() == _etag(record):
        return True
    return _when(condition) == record.created_at // 1_000_000
