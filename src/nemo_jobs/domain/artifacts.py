"""Where the bytes of a result lie, as clients write it: `workspace/fileset#path`. Pure."""

from dataclasses import dataclass

from nemo_jobs.domain.model import Invalid
from nemo_jobs.domain.names import is_name

MAX_URL = 2048
SCHEME = "fileset://"
FORMS = "workspace/fileset#path, fileset#path or fileset://workspace/fileset#path"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a fileset, or with `folder` what is below a path of it. `path` has no slash at
    either end."""

    workspace: str
    fileset: str
    path: str
    folder: bool

    def __str__(self) -> str:
        return f"{self.workspace}/{self.fileset}#{self.path}{'/' if self.folder else ''}"


def parse_artifact(url: str, workspace: str) -> Artifact:
    """What an `artifact_url` names; `workspace` is meant where it names none. Raises Invalid, also
    for every other kind of address: nothing is ever fetched from elsewhere."""
    if len(url) > MAX_URL:
        raise Invalid(f"artifact_url has {len(url)} characters; at most {MAX_URL} are allowed")
    place, hash_sign, path = url.removeprefix(SCHEME).partition("#")
    where, slash, fileset = place.rpartition("/")
    given = where if slash else "" if url.startswith(SCHEME) else workspace
    if not hash_sign or not is_name(fileset) or not is_name(given):
        raise Invalid(f"artifact_url {url[:200]!r} does not name a file of a fileset; it must be {FORMS}")
    problem = path_problem(path.removesuffix("/"))
    if problem:
        raise Invalid(f"artifact_url {url[:200]!r}: the path behind # {problem}")
    return Artifact(given, fileset, path.removesuffix("/"), path.endswith("/"))


def path_problem(path: str) -> str:
    """Why this can't be the path of a file in a fileset; empty when it can."""
    if not path:
        return "is empty"
    if path.startswith("/"):
        return "begins with a slash; it is relative to the fileset"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "has an empty part, or one that is . or .."
    if "\\" in path or any(character < " " or "\x7f" <= character <= "\x9f" for character in path):
        return "has a backslash or a control character"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "has half a surrogate pair, which is no text"
    return ""
