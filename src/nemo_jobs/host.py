"""This host, this data directory, and which of the services on it this process is."""

import fcntl
import hashlib
import os
import platform
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_jobs.domain.profiles import ProfileSet

MAX_SERVICES = 64


def host_id() -> str:
    """The same for every service on this host, different on another one."""
    parts = [platform.node()]
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            parts.append(Path(path).read_text(encoding="ascii").strip())
            break
        except OSError:
            continue
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def prepare_data_dir(path: Path) -> Path:
    """Make `path` if it is missing, for this user alone. Raises OSError with a sentence."""
    path = path.expanduser().absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.stat()
    if info.st_uid != os.geteuid():
        raise PermissionError(f"data directory {path} belongs to user {info.st_uid}, not to this one")
    if stat.S_IMODE(info.st_mode) & 0o077:
        if any(path.iterdir()):
            mode = stat.S_IMODE(info.st_mode)
            raise PermissionError(f"data directory {path} has mode {mode:04o} and must have 0700 (chmod 700)")
        path.chmod(0o700)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(f"data directory {path} can't be written")
    return path


def working_directory_problem(path: str) -> str | None:
    """Why no task could get its directory below `path`; None when it can. Makes nothing."""
    from nemo_jobs.backends.keeper_files import Refused, check_root

    root = Path(path).expanduser().absolute()
    if not os.path.lexists(root):
        above = next(parent for parent in root.parents if parent.exists())
        if above.is_dir() and os.access(above, os.W_OK | os.X_OK):
            return None
        return f"the working directory {root} can't be made in {above}"
    if root.exists() and not root.is_dir():
        return f"the working directory {root} is not a directory"
    try:
        check_root(str(root))
    except Refused as error:
        return str(error)
    return None


def unusable_profiles(profiles: "ProfileSet") -> dict[tuple[str, str], str]:
    """The host profiles whose working directory would make every step on them fail, and why."""
    found = {}
    for profile in profiles:
        directory = getattr(profile.config, "working_directory", None)
        if directory is None or profile.unavailable:
            continue
        problem = working_directory_problem(directory)
        if problem is not None:
            name = f"{profile.provider}/{profile.profile}"
            hint = "mend it, or configure another working_directory"
            found[profile.key] = f"profile {name}: {problem}; {hint}"
    return found


class Slot:
    """A numbered place among the services that share a data directory, held by a file lock.

    The number makes the service's name the same after a restart, so it takes up its own leases
    at once instead of waiting until they run out.
    """

    def __init__(self, data_dir: Path) -> None:
        folder = data_dir / "services"
        folder.mkdir(mode=0o700, exist_ok=True)
        self._file: IO[bytes] | None = None
        for number in range(MAX_SERVICES):
            file = (folder / f"{number}.lock").open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                continue
            self._file, self.number = file, number
            return
        raise RuntimeError(f"more than {MAX_SERVICES} services share {data_dir}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
