"""Names that people choose and ids that the service makes."""

import functools
import hashlib
import re
import secrets
import unicodedata

NAME_PATTERN = r"^[a-z](?!.*--)[a-z0-9\-@.+_]{1,62}(?<!-)$"
NAME_RE = re.compile(NAME_PATTERN)
NAME_RULE = (
    "2 to 63 characters: a lower-case letter, then lower-case letters, digits and - @ . + _; "
    "no double hyphen and no hyphen at the end"
)
NAME_LIMIT = 63
FILESET_PREFIX = "job-fileset-"
#: A job whose fileset is made for it leaves room for the prefix in the fileset's own name.
JOB_NAME_LIMIT = NAME_LIMIT - len(FILESET_PREFIX)

JOB_ID = "platform-job"
ATTEMPT_ID = "platform-job-attempt"
STEP_ID = "platform-job-step"
TASK_ID = "platform-job-task"

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_LOWER_DIGITS = _LOWER + "0123456789"
_NOT_IN_NAME = re.compile(r"[^a-z0-9@.+_]+")
_LONGEST_ENDING = 16
_UP_TO_LETTER = re.compile(r"^[^a-z]+")


def is_name(text: str) -> bool:
    """Whether `text` may name a job, task, result, step, workspace, project, secret or fileset."""
    return NAME_RE.fullmatch(text) is not None


def new_id(prefix: str, now: int) -> str:
    """`<prefix>-<21 digits in base 58>`: 8 of the time `now` (microseconds since 1970), 13 random.

    Ids made one after the other are neighbours in every index: a database writes a few pages for
    a burst of jobs instead of several for each. They are not meant to be secret.
    """
    return f"{prefix}-{_time_digits(now >> 6)}{_random(_BASE58, 13)}"


@functools.lru_cache(maxsize=64)
def _time_digits(number: int) -> str:
    """8 digits, which last until the year 2229."""
    digits = ""
    for _ in range(8):
        number, rest = divmod(number, 58)
        digits = _BASE58[rest] + digits
    return digits


def attempt_name() -> str:
    return "att-" + _random(_LOWER, 20)


def task_name(key: str) -> str:
    """The name of the task that runs under `key`: always the same one."""
    return "task-" + hashlib.sha256(key.encode()).hexdigest()[:32]


def fileset_name(job: str) -> str:
    return FILESET_PREFIX + job


def generated_job_name(source: str) -> str:
    """A legal job name that begins like `source` and that no other job has."""
    stem = _UP_TO_LETTER.sub("", _NOT_IN_NAME.sub("-", source.lower()))
    stem = stem[:20].rstrip("-") or "job"
    return f"{stem}-{_random(_LOWER_DIGITS, 8)}"


def result_name(text: str, more: str = "") -> str:
    """A legal name that is as much like `text`, the name of a file, as names can be.

    `more`, at most 40 characters, goes before the ending, such as `-2` in `model-2.json`; what is cut is
    before it. Other texts may give the same name.
    """
    # Letters with marks lose the marks; what else is not ASCII counts as a blank.
    ascii_text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    plain = _NOT_IN_NAME.sub("-", ascii_text.lower())
    stem, dot, ending = plain.rpartition(".")
    if not stem or len(ending) > _LONGEST_ENDING:
        stem, dot, ending = plain, "", ""
    stem = stem.lstrip("-@.+_").rstrip("-")
    if not stem[:1].isalpha() or len(stem + dot + ending) < 2:
        stem = f"result-{stem}" if stem else "result"
    room = NAME_LIMIT - len(more + dot + ending)
    # Only hyphens make a name illegal from here on: two in a row, or one at the end.
    return re.sub("--+", "-", stem[:room] + more + dot + ending).rstrip("-")


def _random(alphabet: str, length: int) -> str:
    # Each byte is a letter. Some letters are a little more likely than others, which costs less than
    # a tenth of a bit each; a draw for each letter would cost ten times as much.
    return secrets.token_bytes(length).translate(_letters_of(alphabet)).decode()


@functools.cache
def _letters_of(alphabet: str) -> bytes:
    return bytes(ord(alphabet[byte % len(alphabet)]) for byte in range(256))
