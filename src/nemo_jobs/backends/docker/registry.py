"""Names of images: which registry they belong to, and how they are shown."""

import re
from dataclasses import dataclass

DEFAULT = "docker.io"
#: The name under which logins for the default registry are kept.
DEFAULT_LOGIN = "https://index.docker.io/v1/"

_MOST = 1000  # characters
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-fA-F]{32,}")
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ImageName:
    """`registry` is a host with an optional port; of `tag` and `digest` at least one is given, but for
    an image that is named by its id alone, which no registry has."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""
    id: str = ""

    @property
    def source(self) -> str:
        """The name without tag and digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def version(self) -> str:
        """What the engine takes as the tag of a pull: the digest goes before the tag."""
        return self.digest or self.tag


def parse(text: str) -> ImageName:
    """Read a name as the engine does; raises ValueError with a sentence."""
    if len(text) > _MOST:
        raise ValueError(f"an image name of {len(text)} characters is too long")
    if _ID.fullmatch(text):
        return ImageName("", "", id=text)
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise ValueError(f"the image name {text!r} has no valid digest behind the @")
    host, slash, path = rest.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost" or host != host.lower()):
        host, path = DEFAULT, rest
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError(f"the image name {text!r} has no valid tag behind the colon")
    if not _NAME.fullmatch(path) or not (host == DEFAULT or _HOST.fullmatch(host)):
        raise ValueError(f"{text!r} is no valid image name: {_hint(path)}")
    if host == "index.docker.io":
        host = DEFAULT
    if host == DEFAULT and "/" not in path:
        path = f"library/{path}"
    return ImageName(host, path, tag or ("" if digest else "latest"), digest)


def host_of(text: str) -> str:
    """The host (with its port) of what people write for a registry: a URL or a name, with or without
    a path. The default registry's several names are one."""
    host = text.partition("://")[2] if "://" in text else text
    host = host.partition("/")[0].rpartition("@")[2].lower()
    return DEFAULT if host in ("index.docker.io", "registry-1.docker.io", DEFAULT) else host


def _hint(path: str) -> str:
    if not path:
        return "it is empty"
    if path != path.lower():
        return "it must be in lower case"
    return "it may hold letters, digits and single . _ - / between them"
