"""The keys that secrets are encrypted with: where they come from and who may see them.

They are the variable `NHX_SECRETS_KEY`, then the file `secrets.key` of the data directory. The
first one is the one to encrypt with; the others open what was encrypted before.
"""

import base64
import binascii
import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nemo_jobs.domain.model import Unavailable

KEY_BYTES = 32
FILE_NAME = "secrets.key"
VARIABLE = "NHX_SECRETS_KEY"
#: So many keys a file keeps: those of before open what comes back with a backup.
MAX_KEYS = 8
_LARGEST_FILE = 64 << 10
_HEAD = (
    "# The keys of this service's secrets: whoever has them can read all secrets.\n"
    "# The first one encrypts; the others open what was encrypted before. Keep a copy apart from\n"
    "# the database and its backups.\n"
)


class KeyProblem(Unavailable):
    """The keys can't be used; the text says why and what to do, and shows no key."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `id` tells keys apart and proves that a key is the same; it opens nothing."""

    raw: bytes = field(repr=False)
    id: str

    @classmethod
    def of(cls, raw: bytes) -> "Key":
        proof = hmac.digest(raw, b"nemo-jobs secrets: id of this key", hashlib.sha256)
        return cls(raw, proof.hex()[:32])

    @classmethod
    def new(cls) -> "Key":
        return cls.of(secrets.token_bytes(KEY_BYTES))

    def text(self) -> str:
        return base64.b64encode(self.raw).decode()


def parse_keys(text: str, where: str) -> tuple[Key, ...]:
    """The keys of a text, separated by commas or white space. Raises KeyProblem."""
    found: dict[str, Key] = {}
    for number, word in enumerate(text.replace(",", " ").split(), 1):
        try:
            raw = base64.b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != KEY_BYTES:
            raise KeyProblem(
                f"{where}: key {number} is not {KEY_BYTES} bytes in base64; "
                "make one with: openssl rand -base64 32"
            )
        key = Key.of(raw)
        found.setdefault(key.id, key)
    return tuple(found.values())


class Keys:
    """The keys of one service. Reading and writing touch files: call them in a thread."""

    def __init__(self, path: Path, given: str | None = None) -> None:
        self.path = path
        self._given = parse_keys(given, f"environment variable {VARIABLE}") if given else ()

    @property
    def fixed(self) -> bool:
        """True when the key to encrypt with comes from the environment, which can't be written."""
        return bool(self._given)

    def load(self) -> tuple[Key, ...]:
        """All keys, the one to encrypt with first; empty when there is none yet. Raises KeyProblem."""
        found = {key.id: key for key in (*self._given, *self._read())}
        return tuple(found.values())

    def first(self) -> tuple[Key, bool]:
        """The key to encrypt with, made if there is none; and whether it was made just now."""
        if self._given:
            return self._given[0], False
        with self._locked():
            known = self._read()
            if known:
                return known[0], False
            key = Key.new()
            self._write((key,))
            return key, True

    def put_first(self, key: Key) -> None:
        """Keep `key` in the file, in front of the others."""
        with self._locked():
            others = [known for known in self._read() if known.id != key.id]
            self._write((key, *others[: MAX_KEYS - 1]))

    def take_back(self, key: Key) -> None:
        """Forget a key that nothing was encrypted with."""
        with self._locked():
            left = [known for known in self._read() if known.id != key.id]
            if left:
                self._write(left)
            else:
                self.path.unlink(missing_ok=True)

    def _read(self) -> tuple[Key, ...]:
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise KeyProblem(f"the key file {self.path} can't be read: {error.strerror}") from error
        try:
            _check(self.path, os.fstat(file))
            data = os.read(file, _LARGEST_FILE + 1)
        except OSError as error:
            raise KeyProblem(f"the key file {self.path} can't be read: {error.strerror}") from error
        finally:
            os.close(file)
        lines = data.decode("utf-8", "replace").splitlines()
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        keys = parse_keys(text, f"the key file {self.path}")
        if len(data) > _LARGEST_FILE or not keys:
            raise KeyProblem(f"the key file {self.path} holds no keys; put it back from a copy")
        return keys

    def _write(self, keys: Sequence[Key]) -> None:
        """Replace the file: after a crash there is the old one or the new one, for us alone."""
        new = self.path.with_name(self.path.name + ".new")
        text = _HEAD + "".join(key.text() + "\n" for key in keys)
        try:
            new.unlink(missing_ok=True)  # left by a crash, perhaps half written
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, 0o600), "w", encoding="ascii") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            new.rename(self.path)
            _sync(self.path.parent)
        except OSError as error:
            raise KeyProblem(f"the key file {self.path} can't be written: {error.strerror}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Services that share a data directory change the file one after the other."""
        lock = self.path.with_name(self.path.name + ".lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(lock, flags, 0o600)
        except OSError as error:
            raise KeyProblem(f"the key file {self.path} can't be written: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)


def _check(path: Path, info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise KeyProblem(f"the key file {path} is not a regular file")
    if info.st_uid not in (os.geteuid(), 0):
        raise KeyProblem(f"the key file {path} belongs to user {info.st_uid}, not to this one")
    if info.st_mode & 0o077:
        mode = stat.S_IMODE(info.st_mode)
        raise KeyProblem(
            f"the key file {path} has mode {mode:04o}, so others can read it: "
            f"chmod 600 {path}, and consider its keys known (nemo secrets rotate-key)"
        )


def _sync(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
