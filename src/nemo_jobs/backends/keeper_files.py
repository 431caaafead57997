"""The directories of a task: made before its start, taken back when it could not start.

    <working directory>/{workspace}/{job}/{attempt}/job-storage
                                                   /{step}/{task}/config/job_step_config.json
                                                                 /scratch
                                                                 /results
                       /.keepers                   links to the keepers that use it; nurseries

Where a new inode goes decides what it costs: on ext4 without a journal one takes 20 us, but 200 to
900 us in a group of inodes where many were deleted in the last minutes. So what is new is made in
one of several nurseries, which the file system is asked to place in different groups, and moved to
its place complete. Standard library only: the keeper runs this.
"""

import contextlib
import errno
import fcntl
import functools
import os
import stat
import struct

CONFIG_NAME = "job_step_config.json"
STORAGE_NAME = "job-storage"
RESULTS_NAME = "results"
OWN_NAME = ".keepers"
_PLACES = 128
_GET_FLAGS, _SET_FLAGS, _TOP_OF_TREES = 0x80086601, 0x40086602, 0x20000
_TRIES = 5


class Refused(Exception):
    """The working directory can't be used; the same would fail again."""


def check_root(root: str) -> None:
    """Make the working directory, or refuse one that others could look or write into."""
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        link, there = os.lstat(root), os.stat(root)
    except OSError as error:
        raise Refused(f"the working directory {root} can't be made: {error.strerror}") from error
    ours = (os.geteuid(), 0)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in ours:
        raise Refused(f"the working directory {root} is a link that another user made")
    if not stat.S_ISDIR(there.st_mode):
        raise Refused(f"the working directory {root} is not a directory")
    if there.st_uid != os.geteuid():
        raise Refused(f"the working directory {root} belongs to another user")
    if there.st_mode & 0o077:
        mode = stat.S_IMODE(there.st_mode)
        raise Refused(f"the working directory {root} has mode {mode:04o} and must have 0700 (chmod 700)")


def register(root: str, keeper: str, identity: str) -> None:
    """Note in the working directory that this keeper uses it, once for all its tasks.

    Another keeper that finds the directory of a task already there asks the ones noted.
    """
    own = f"{root}/{OWN_NAME}"
    os.makedirs(own, mode=0o700, exist_ok=True)
    spread(own)
    with contextlib.suppress(FileExistsError):
        os.symlink(keeper, f"{own}/{identity}")


def registered(root: str) -> list[str]:
    """The directories of the keepers that use this working directory."""
    own = f"{root}/{OWN_NAME}"
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(own):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"{own}/{name}"))
    return found


def spread(directory: str) -> None:
    """Ask the file system to place the directories in this one far from each other."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = struct.unpack("l", fcntl.ioctl(file, _GET_FLAGS, struct.pack("l", 0)))[0]
        fcntl.ioctl(file, _SET_FLAGS, struct.pack("l", flags | _TOP_OF_TREES))
    except OSError:
        pass  # only a hint, and not every file system takes it
    finally:
        os.close(file)


@functools.lru_cache(maxsize=16)
def identity_of(keeper: str) -> str:
    """The name under which working directories note the keeper of this directory.

    FNV-1a: a module of hashes costs the keeper 4 MB.
    """
    number = 0xCBF29CE484222325
    for byte in keeper.encode():
        number = (number ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{number:016x}"


def place_of(task: str, identity: str) -> str:
    """Which of the spread directories serves this task.

    ext4 derives their group from their names, so that these differ from keeper to keeper.
    """
    return f"{sum(task.encode()) % _PLACES:02x}-{identity[:8]}"


def out_of(keeper: str, task: str) -> str:
    """The output files of a task are this path with `.out` and `.err` behind it.

    Not in the task's own directory: there `cat *` would read what it writes, for ever.
    """
    return f"{keeper}/out/{place_of(task, identity_of(keeper))}/{task}"


def attempt_of(task_dir: str) -> str:
    return os.path.dirname(os.path.dirname(task_dir))


def make_out(keeper: str) -> None:
    os.makedirs(f"{keeper}/out", mode=0o700, exist_ok=True)
    spread(f"{keeper}/out")


def make_task(root: str, task_dir: str, config: str, keeper: str) -> None:
    """Make everything; FileExistsError says that the task has been started before by somebody.

    `keeper` is the identity under which nurseries are told from another keeper's.
    """
    attempt_dir = attempt_of(task_dir)
    job_dir = os.path.dirname(attempt_dir)
    for _ in range(_TRIES):  # a removal nearby may take an empty parent away between two calls
        try:
            if os.path.lexists(job_dir):
                _make(os.path.dirname(task_dir))
                os.mkdir(task_dir)
                _fill(task_dir, attempt_dir, config)
            else:
                _make_job(root, task_dir, config, keeper)
            return
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
            _take_back_nursery(root, task_dir, keeper)
    raise FileNotFoundError(errno.ENOENT, "its parents come and go", task_dir)


def take_back(root: str, task_dir: str, out: str, keeper: str) -> None:
    """Undo `make_task` for a program that never ran; leaves what others put there."""
    _take_back_nursery(root, task_dir, keeper)
    for suffix in (".out", ".err"):
        with contextlib.suppress(OSError):
            os.unlink(out + suffix)
    _take_back_tree(task_dir)
    remove_empty(attempt_of(task_dir), root)


def remove_empty(path: str, root: str) -> None:
    """Remove `path` and its parents below `root` as long as they are empty."""
    while path.startswith(root + "/"):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError:
            return
        path = os.path.dirname(path)


def _nursery(root: str, task: str, keeper: str) -> str:
    """Where the job's directory is made."""
    return f"{root}/{OWN_NAME}/{place_of(task, keeper)}/{task}"


def _make_job(root: str, task_dir: str, config: str, keeper: str) -> None:
    """Make the directory of a job's first task, and move it to its place complete."""
    parts = task_dir[len(root) + 1 :].split("/")
    nursery = _nursery(root, parts[-1], keeper)
    try:
        os.mkdir(nursery)
    except FileNotFoundError:
        _make(os.path.dirname(nursery))
        os.mkdir(nursery)
    except FileExistsError:  # left by a keeper that was killed right here
        _take_back_nursery(root, task_dir, keeper)
        os.mkdir(nursery)
    attempt_dir = f"{nursery}/{parts[2]}"
    step_dir = f"{attempt_dir}/{parts[3]}"
    new_task = f"{step_dir}/{parts[4]}"
    for path in (attempt_dir, step_dir, new_task):
        os.mkdir(path)
    _fill(new_task, attempt_dir, config)
    job_dir = f"{root}/{parts[0]}/{parts[1]}"
    try:
        os.rename(nursery, job_dir)
    except FileNotFoundError:
        _make(f"{root}/{parts[0]}")
        os.rename(nursery, job_dir)


def _fill(task_dir: str, attempt_dir: str, config: str) -> None:
    try:
        os.mkdir(f"{attempt_dir}/{STORAGE_NAME}")
    except FileExistsError:
        pass  # made for an earlier step
    for name in ("scratch", RESULTS_NAME, "config"):
        os.mkdir(f"{task_dir}/{name}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = os.open(f"{task_dir}/config/{CONFIG_NAME}", flags, 0o600)
    try:
        data = config.encode()
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


def _take_back_nursery(root: str, task_dir: str, keeper: str) -> None:
    attempt_dir = attempt_of(task_dir)
    nursery = _nursery(root, os.path.basename(task_dir), keeper)
    if os.path.lexists(nursery):
        new_attempt = f"{nursery}/{os.path.basename(attempt_dir)}"
        _take_back_tree(task_dir.replace(attempt_dir, new_attempt, 1))
        remove_empty(new_attempt, os.path.dirname(nursery))


def _take_back_tree(task_dir: str) -> None:
    attempt_dir = attempt_of(task_dir)
    with contextlib.suppress(OSError):
        os.unlink(f"{task_dir}/config/{CONFIG_NAME}")
    own = [f"{task_dir}/{name}" for name in ("config", "scratch", RESULTS_NAME)]
    for path in (*own, task_dir, os.path.dirname(task_dir)):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    with contextlib.suppress(OSError):
        if os.listdir(attempt_dir) == [STORAGE_NAME]:
            os.rmdir(f"{attempt_dir}/{STORAGE_NAME}")


def _make(path: str) -> None:
    """mkdir -p, trying the last one first: usually only the last ones are missing."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
