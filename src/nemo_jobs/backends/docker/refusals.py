"""What the engine's reasons for a pull that failed mean: whether trying again can help."""

import re
from enum import Enum

from nemo_jobs.backends.docker.registry import ImageName


class Meaning(Enum):
    """Its value is the beginning of a sentence for people, behind the name of the image."""

    LIMITED = "the registry was asked too often"
    SPACE = "the engine's disk has no space for it"
    DENIED = "the registry doesn't let us have it"
    MISSING = "the registry doesn't have it"
    PLATFORM = "it isn't made for the engine's platform"
    DISTRUST = "the engine doesn't trust the registry's connection"
    INVALID = "the engine doesn't accept it"
    UNREACHABLE = "the registry can't be reached"
    FAILING = "the registry fails"
    OTHER = "the engine fails"


#: No try can change these.
PERMANENT = frozenset(
    {
        Meaning.SPACE,
        Meaning.DENIED,
        Meaning.MISSING,
        Meaning.PLATFORM,
        Meaning.DISTRUST,
        Meaning.INVALID,
    }
)

# The first that fits counts: a limit may be told together with a denial, and a denial as "not found".
_SIGNS = tuple(
    (meaning, re.compile(signs, re.IGNORECASE))
    for meaning, signs in (
        (Meaning.LIMITED, r"too ?many ?requests|rate limit|(http|status:?|code:?) 429"),
        (Meaning.SPACE, r"no space left|disk quota exceeded|not enough space"),
        (
            Meaning.PLATFORM,
            r"no matching manifest|does not match the specified platform|operating system .* cannot be used"
            r"|no match for platform|unsupported (manifest )?media type|schema ?(version )?1 ",
        ),
        (
            Meaning.UNREACHABLE,
            r"connection refused|no such host|lookup \S+( on \S+)?:|name resolution|no route to host"
            r"|network is unreachable",
        ),
        (Meaning.DISTRUST, r"x509:|http response to https client|certificate|tls: (?!handshake timeout)"),
        (
            Meaning.DENIED,
            r"unauthori[sz]ed|denied|authentication|no basic auth|forbidden|(http|status:?|code:?) 40[13]",
        ),
        (
            Meaning.FAILING,
            r"(http|status:?|code:?) 5\d\d|timeout|timed out|deadline exceeded|unexpected eof|: eof$|^eof$"
            r"|connection reset|broken pipe|closed network connection|verification failed|goaway|http2:"
            r"|temporar|unavailable|bad gateway|canceled|unexpected commit digest|short read",
        ),
        (Meaning.MISSING, r"not found|unknown|does not exist|no such image|(http|status:?|code:?) 404"),
        (Meaning.INVALID, r"invalid reference|invalid checksum|repository name"),
    )
)


def meaning(status: int, text: str, image: ImageName) -> Meaning:
    """What a reason means; `status` is that of the engine's answer, 0 for one told while pulling."""
    text = _without_names(text, image)
    for found, signs in _SIGNS:
        if signs.search(text):
            return found
    if status == 404:
        return Meaning.MISSING
    return Meaning.INVALID if status == 400 else Meaning.OTHER


def _without_names(text: str, image: ImageName) -> str:
    """Names are the user's words: an image may be called "timeout". A short one counts as a name only
    where names stand, as it may be any word."""
    for name in (image.source, image.repository, image.registry):
        if "/" in name or "." in name:
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "…", text)
    short = re.escape(image.repository.removeprefix("library/"))
    return re.sub(rf"(?<=\bfor ){short}\b|(?<![\w.-]){short}:{re.escape(image.tag or '…')}\b", "…", text)
