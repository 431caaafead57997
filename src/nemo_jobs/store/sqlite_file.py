"""The SQLite file itself: opening, locking, copying, and what its errors mean."""

import fcntl
import os
import sqlite3
from pathlib import Path

from nemo_jobs.domain.model import Conflict, Unavailable
from nemo_jobs.store.driver import Locked

_NETWORK_FILESYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "fuse.sshfs",
    "9p",
    "lustre",
    "ceph",
    "glusterfs",
)
OLDEST = (3, 35, 0)  # RETURNING
_OUT_OF_ORDER = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the data directory is read-only",
    sqlite3.SQLITE_IOERR: "the disk can't be written or read",
    sqlite3.SQLITE_CANTOPEN: "the database file can't be opened",
    sqlite3.SQLITE_BUSY: "another program holds the database",
    sqlite3.SQLITE_LOCKED: "another program holds the database",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_CORRUPT: "the database file is damaged",
    sqlite3.SQLITE_NOTADB: "the file is not a database",
}


def connect(path: Path, reader: bool = False) -> sqlite3.Connection:
    # The writer never waits inside SQLite: it runs on the loop and tries again by itself.
    connection = sqlite3.connect(
        path, timeout=2.0 if reader else 0, isolation_level=None, check_same_thread=False
    )
    try:
        _set_up(connection, reader)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection, reader: bool) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    if reader:
        connection.execute("PRAGMA query_only = ON")
        # Five connections with SQLite's 2 MB each would be a seventh of the service's memory; what
        # they miss lies in the system's cache.
        connection.execute("PRAGMA cache_size = -250")
    else:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -500")
        # A page that many groups change is copied back once for all of them.
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA journal_size_limit = 67108864")


def check_library() -> None:
    """Raise Unavailable when Python's SQLite is too old for our statements."""
    if sqlite3.sqlite_version_info < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise Unavailable(f"this Python has SQLite {sqlite3.sqlite_version}; {wanted} or later is needed")


def lock(path: Path) -> int:
    file = path.with_name(path.name + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(handle, 20, 0).decode(errors="replace").strip()
        os.close(handle)
        who = f"another service (process {owner})" if owner else "another service"
        raise Locked(f"{who} uses {path.parent}; stop it or choose another --data-dir") from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle


def backup(source: Path, target: Path) -> None:
    """Write a complete copy of the database to `target`, also while a service uses it."""
    if target.exists():
        raise Conflict(f"{target} exists already; choose another name")
    if not source.exists():
        raise Unavailable(f"there is no database at {source}")
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    connection = sqlite3.connect(f"file:{source}?mode=rw", uri=True, timeout=10, isolation_level=None)
    try:
        os.close(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        connection.execute("VACUUM INTO ?", (str(part),))
        with part.open("rb") as copy:
            os.fsync(copy.fileno())
        part.rename(target)
    except (sqlite3.Error, OSError) as error:
        part.unlink(missing_ok=True)
        raise Unavailable(f"the backup to {target} failed: {error}") from error
    finally:
        connection.close()


def code(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def translate(error: BaseException) -> Exception:
    """What a caller can act on, for an error of the driver; any other error as it is."""
    if isinstance(error, sqlite3.IntegrityError):
        return Conflict(f"the record was changed or removed meanwhile; read it again ({error})")
    if isinstance(error, sqlite3.DatabaseError):
        why = _OUT_OF_ORDER.get(code(error))
        if why is not None:
            return Unavailable(f"the database can't be used now: {why} ({error})")
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


def filesystem_warnings(path: Path) -> tuple[str, ...]:
    kind = _filesystem(path.parent)
    if kind not in _NETWORK_FILESYSTEMS:
        return ()
    return (
        f"{path.parent} is on a network file system ({kind}), where SQLite can lose data; "
        "put the data directory on a local disk or use PostgreSQL",
    )


def _filesystem(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    where = str(directory.absolute())
    for line in lines:
        _, point, this, *_ = line.split(" ")
        inside = where == point or where.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, this
    return kind
