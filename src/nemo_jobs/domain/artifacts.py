"""Where the bytes of a result lie, as clients write it: `workspace/fileset#path`. Pure."""

from dataclasses import dataclass

from nemo_jobs.domain.model import Invalid
from nemo_jobs.domain.names import is_name
from nemo_jobs.domain.paths import checked_path

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
    try:
        within = checked_path(path.removesuffix("/"), "the path behind #")
    except UnicodeEncodeError:
        raise Invalid("artifact_url: the path behind # has half a surrogate pair, which is no text") from None
    except Invalid as error:
        raise Invalid(f"artifact_url {url[:200]!r}: {error}") from None
    return Artifact(given, fileset, within, path.endswith("/"))
