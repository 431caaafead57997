"""Names that people choose and ids that the service makes."""

import hashlib
import re
import secrets

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
_BASE58_PAIRS = [first + second for first in _BASE58 for second in _BASE58]
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_LOWER_DIGITS = _LOWER + "0123456789"
_NOT_IN_NAME = re.compile(r"[^a-z0-9@.+_]+")
_UP_TO_LETTER = re.compile(r"^[^a-z]+")


def is_name(text: str) -> bool:
    """Whether `text` may name a job, task, result, step, workspace, project, secret or fileset."""
    return NAME_RE.fullmatch(text) is not None


def new_id(prefix: str, now: int) -> str:
    """`<prefix>-<128 bits in base 58>`: the time `now` (microseconds since 1970) in milliseconds,
    then 80 random bits.

    Ids made one after the other are neighbours in every index: a database writes a few pages for
    a burst of jobs instead of several for each. They are not meant to be secret.
    """
    number = now // 1000 << 80 | secrets.randbits(80)
    pairs = []
    for _ in range(11):  # two digits a division: ids are made for each job
        number, rest = divmod(number, 58 * 58)
        pairs.append(_BASE58_PAIRS[rest])
    digits = "".join(reversed(pairs))
    return f"{prefix}-{digits[1:] if digits[0] == _BASE58[0] else digits}"


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


def _random(alphabet: str, length: int) -> str:
    # One draw for all of it: `secrets.choice` for each character costs ten times as much.
    number = secrets.randbits(8 * length)
    letters = []
    for _ in range(length):
        number, index = divmod(number, len(alphabet))
        letters.append(alphabet[index])
    return "".join(letters)
