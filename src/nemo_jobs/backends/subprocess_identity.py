"""The token of a task on the host, in a file of its own: an environment is seen and inherited by
more programs than one thinks, and `env` in a script would print it into the log."""

import contextlib
import os

#: Under this name clients find the file.
VARIABLE = "NHX_WORKLOAD_IDENTITY_TOKEN_FILE"
_FOLDER = "tokens"


def token_file(keeper_dir: str, key: str) -> str:
    """Where the token of the run `key` is, if it has one."""
    return f"{keeper_dir}/{_FOLDER}/{key}"


def write_token(keeper_dir: str, key: str, token: str) -> str:
    """Write the file whole, readable for this user alone; its path. Again is fine. Raises OSError."""
    path = token_file(keeper_dir, key)
    part = f"{path}.part"
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="ascii") as stream:
        stream.write(token)
    os.replace(part, path)
    return path


def erase_token(keeper_dir: str, key: str) -> None:
    """Remove the file, if there is one."""
    for path in (token_file(keeper_dir, key), f"{token_file(keeper_dir, key)}.part"):
        with contextlib.suppress(OSError):
            os.unlink(path)
