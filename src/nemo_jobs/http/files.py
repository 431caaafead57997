"""Files of a fileset: put, get, list, delete. Their bytes flow through and are never held."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import quote

from pydantic import BaseModel

from nemo_jobs.domain.model import Json, Unavailable
from nemo_jobs.domain.paths import checked_path
from nemo_jobs.files.objects import ObjectStore, TooLarge
from nemo_jobs.http import errors
from nemo_jobs.http.downloads import Download, send_file, stream_out
from nemo_jobs.http.errors import ClientGone, Refused
from nemo_jobs.http.filesets import FILESET
from nemo_jobs.http.identity import caller
from nemo_jobs.http.parts import Api
from nemo_jobs.http.request import CLOSE, Request
from nemo_jobs.http.routes import Operation
from nemo_jobs.http.wire import JSON_TYPE, Reply, dumps, json_reply
from nemo_jobs.store import files as store
from nemo_jobs.store import filesets
from nemo_jobs.store.db import Tx
from nemo_jobs.store.files import FileRecord
from nemo_jobs.store.filesets import FilesetRecord
from nemo_jobs.uploads import Place, upload

FILES = FILESET + "/files"
FILE = FILESET + "/-/{path...}"
#: An upload from which nothing comes for so long is given up, in seconds.
IDLE_SECONDS = 60.0
#: Of a body that nobody wants so much is taken, so that its sender reads why: bytes and seconds.
UNWANTED, UNWANTED_SECONDS = 8 * 1024 * 1024, 5.0
FILES_A_PAGE = 1000


class FileListQuery(BaseModel):
    path: str = ""
    include_cache_status: bool = False


class _Body:
    """The body of an upload, as it arrives."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.done = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Raises Refused (408) when nothing comes for long, ClientGone when its sender is gone."""
        while not self.done:
            chunk = await self._next()
            if chunk:
                yield chunk

    async def drop(self) -> None:
        """Take what is left, within bounds."""
        left = UNWANTED
        try:
            async with asyncio.timeout(UNWANTED_SECONDS):
                while not self.done and left > 0:
                    left -= len(await self._next())
        except (TimeoutError, Refused):
            pass  # then the connection is closed instead

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                message = await self._request.receive()
        except TimeoutError:
            text = f"the upload was given up: nothing came for {IDLE_SECONDS:g} s; send it again"
            raise Refused(408, text, CLOSE) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.done = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk


async def put_file(api: Api, request: Request) -> Reply:
    """The file, once all of it is stored. What fails says why, and leaves nothing."""
    body = _Body(request)
    try:
        return await _put(api, request, body)
    except ClientGone:
        raise
    except Exception as error:
        reply = errors.answer(error, "an upload")
        if request.header(b"expect") is None:
            await body.drop()
        if not body.done:
            reply.headers.append(CLOSE)
        return reply


async def _put(api: Api, request: Request, body: _Body) -> Reply:
    path, parts = request.path, api.parts
    place = Place(path["workspace"], path["name"], checked_path(path["path"]))
    limit = parts.settings.files.max_upload_bytes
    size = _announced(request, limit)
    try:
        made = await upload(
            *(parts.db, _store_of(api), parts.clock, place, body.chunks()),
            actor=caller(request).actor,
            limit=limit,
            size=size,
        )
    except TooLarge:
        raise _too_large(limit) from None
    return json_reply(file_json(place.workspace, place.fileset, made))


def _announced(request: Request, limit: int) -> int | None:
    """How many bytes are to come, if that was said. Raises Refused for what can't be stored as it is."""
    encoding = request.header(b"content-encoding")
    if encoding is not None and encoding.strip().lower() not in ("", "identity"):
        raise Refused(415, f"content-encoding {encoding[:80]!r} is not taken; send the bytes as they are")
    if request.header(b"content-range") is not None:
        raise Refused(400, "a part of a file can't be put; send all of it, without Content-Range")
    length = request.header(b"content-length")
    if length is not None and int(length) > limit:
        raise _too_large(limit)
    return None if length is None else int(length)


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the file is larger than {limit} bytes, which files.max_upload_bytes allows")


async def get_file(api: Api, request: Request) -> Reply | None:
    record = await _found(api, request)
    where = f"file {record.path!r} of fileset {request.path['name']!r}"
    return await send_file(_store_of(api), request, Download(record, record.path.rpartition("/")[2], where))


async def head_file(api: Api, request: Request) -> Reply | None:
    return await get_file(api, request)


async def _found(api: Api, request: Request) -> FileRecord:
    path = request.path
    return await api.parts.db.read(
        store.get_file, path["workspace"], path["name"], checked_path(path["path"]), point=True
    )


async def delete_file(api: Api, request: Request) -> Reply:
    path, parts = request.path, api.parts
    gone = await parts.db.write(
        store.delete_file, path["workspace"], path["name"], checked_path(path["path"]), parts.clock.now()
    )
    return json_reply(file_json(path["workspace"], path["name"], gone))


async def list_files(api: Api, request: Request) -> Reply | None:
    """All files, or those of a folder; many of them in pieces, as they are read."""
    query, path = request.query(FileListQuery), request.path
    below = query.path.rstrip("/")
    if below:
        checked_path(below)
    place, found = await api.parts.db.read(_first_page, path["workspace"], path["name"], below)
    if len(found) < FILES_A_PAGE:
        return json_reply({"data": [file_json(place.workspace, place.name, record) for record in found]})
    await stream_out(request, 200, [JSON_TYPE], _pages(api, place, below, found))
    return None


def _first_page(tx: Tx, workspace: str, name: str, below: str) -> tuple[FilesetRecord, list[FileRecord]]:
    place = filesets.get_fileset(tx, workspace, name)
    return place, store.list_files(tx, place.id, below, "", FILES_A_PAGE)


async def _pages(api: Api, place: FilesetRecord, below: str, found: list[FileRecord]) -> AsyncIterator[bytes]:
    before = '{"data":['
    while found:
        texts = ",".join(dumps(file_json(place.workspace, place.name, record)) for record in found)
        yield f"{before}{texts}".encode()
        before = ","
        found = await api.parts.db.read(store.list_files, place.id, below, found[-1].path, FILES_A_PAGE)
    yield b"]}"


def _store_of(api: Api) -> ObjectStore:
    if api.parts.objects is None:
        raise Unavailable("this service has no file store")
    return api.parts.objects


def file_json(workspace: str, fileset: str, record: FileRecord) -> Json:
    """A file as contract 14 shows it."""
    base = FILESET.format(workspace=workspace, name=quote(fileset, safe="@+"))
    return {
        "file_ref": f"{workspace}/{fileset}#{record.path}",
        "file_url": f"{base}/-/{quote(record.path)}",
        "path": record.path,
        "size": record.size,
        "cache_status": None,
    }


_WHERE = (404, 422)
_BYTES = "application/octet-stream"
OPERATIONS = (
    Operation(
        "GET",
        FILES,
        list_files,
        "List the files of a fileset",
        "FileList",
        query="FileListQuery",
        errors=_WHERE,
    ),
    Operation(
        "GET",
        FILE,
        get_file,
        "Get a file, or a part of it",
        "Bytes",
        errors=(304, 404, 412, 416, 422, 503),
        also=(206, "Bytes"),
        media=_BYTES,
    ),
    Operation("HEAD", FILE, head_file, "What is known of a file", errors=(304, *_WHERE)),
    Operation(
        "PUT",
        FILE,
        put_file,
        "Store a file, also over one that is there",
        "File",
        body="Bytes",
        body_media=(_BYTES,),
        errors=(400, 404, 408, 409, 413, 415, 422, 503),
    ),
    Operation("DELETE", FILE, delete_file, "Delete a file", "File", errors=_WHERE),
)
