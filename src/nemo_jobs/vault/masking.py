"""Hiding secret values in output, also where they stand encoded and where a read cuts them. Pure.

What is hidden of a value with at least four characters: each of its lines, and the whole of it in
base64 (wherever it stands in the encoded text, both alphabets, also wrapped into lines),
percent-encoded, and as a JSON string. No form contains a line feed, so that nothing has to wait
across one.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from nemo_jobs.domain.model import Json
from nemo_jobs.domain.secrets import MASKED_LENGTH
from nemo_jobs.vault.many_forms import ManyForms

MASK = b"***"
#: Widths at which tools wrap base64 by themselves.
_WRAPPED = (76, 64)
#: Left alone by `encodeURIComponent` of browsers.
_COMPONENT = "!'()*~"
#: From more forms than this on they are not looked for one by one.
_MANY = 500
#: How many places are tried before a cautious answer must do, for values that repeat themselves.
_TRIES = 64
_URLSAFE = bytes.maketrans(b"+/", b"-_")


class Masks:
    """All forms of the values of one run."""

    __slots__ = ("_forms", "_longest", "_many")

    def __init__(self, values: Iterable[str]) -> None:
        found = {form for value in values for form in _forms(value)}
        # The longest first: where two begin at one place, it covers both.
        forms = sorted(found, key=lambda form: (-len(form), form))
        self._forms = [(form, _period(form)) for form in forms]
        self._longest = len(forms[0]) if forms else 0
        self._many = ManyForms(forms) if len(forms) > _MANY else None

    def __bool__(self) -> bool:
        return bool(self._forms)

    @property
    def count(self) -> int:
        """How many forms are looked for."""
        return len(self._forms)

    def hide(self, data: bytes) -> bytes:
        """`data` with every form in it replaced; overlapping ones by one mask."""
        return _replaced(data, self.spans(data), len(data))[0]

    def hide_text(self, text: str) -> str:
        """The same for text, which may begin in the middle of a value that was cut off."""
        data = text.encode("utf-8", "surrogatepass")
        cut = self._cut_at_begin(data)
        if cut:
            data = MASK + data[cut:]
        return self.hide(data).decode("utf-8", "surrogatepass")

    def begun(self, data: bytes) -> int:
        """From where on `data` may be the begin of a form: that part must wait for what follows."""
        low = max(data.rfind(b"\n") + 1, len(data) - self._longest + 1)
        hold = len(data)
        if low >= hold:
            return hold
        if self._many is not None:
            return self._many.begun(data, low)
        for form, _ in self._forms:
            hold = _begin_of(form, data, low, hold)
        return hold

    def spans(self, data: bytes, *more: tuple[int, int]) -> list[tuple[int, int]]:
        """Where forms stand in `data`, with `more`; in order, overlapping ones joined."""
        spans = list(more)
        if self._many is not None:
            return _joined(spans + self._many.spans(data))
        for form, period in self._forms:
            at = data.find(form)
            while at >= 0:
                again = _repeats(form, data, at, period)
                spans.append((at, at + again * abs(period) + len(form)))
                at = data.find(form, at + again * abs(period) + (1 if again else abs(period)))
        return _joined(spans)

    def _cut_at_begin(self, data: bytes) -> int:
        """How many bytes at the begin are the end of a form."""
        head, longest = data[:MASKED_LENGTH], 0
        if len(head) < MASKED_LENGTH:
            return 0
        for form, _ in self._forms:
            at = form.find(head, max(1, len(form) - len(data)))
            while at >= 0:
                size = len(form) - at
                if size > longest and data.startswith(form[at:]):
                    longest = size
                at = form.find(head, at + 1)
        return longest


class MaskedStream:
    """One stream of output. What may be the begin of a value is held until more has come."""

    __slots__ = ("_masks", "covered", "held")

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self.held = b""
        self.covered = 0  # so much of what is held is behind a mask that was given already

    def feed(self, block: bytes) -> bytes:
        """What is known of the output so far and was not given yet, without values."""
        data = self.held + block if self.held else block
        return self._give(data, self._masks.begun(data))

    def finish(self) -> bytes:
        """The rest: nothing follows any more. A value that breaks off is hidden too."""
        data, size = self.held, len(self.held)
        begun = self._masks.begun(data)
        broken = [(begun, size)] if size - begun >= MASKED_LENGTH else []
        return self._give(data, size, *broken)

    def state(self) -> Json:
        """What is needed to go on elsewhere. It holds output in clear."""
        return {"held": base64.b64encode(self.held).decode(), "covered": self.covered}

    def restore(self, state: Json | None) -> None:
        if state:
            self.held, self.covered = base64.b64decode(state["held"]), int(state["covered"])

    def _give(self, data: bytes, end: int, *more: tuple[int, int]) -> bytes:
        before = [(0, self.covered)] if self.covered else []
        spans = self._masks.spans(data, *before, *more)
        given, self.covered = _replaced(data, spans, end, begun=bool(before))
        self.held = data[end:]
        return given


def unmasked(value: str) -> bool:
    """Whether a value is too short to be hidden."""
    return len(value) < MASKED_LENGTH


def _forms(value: str) -> Iterator[bytes]:
    if unmasked(value):
        return
    for line in value.splitlines():
        stripped = line.strip()
        if not unmasked(stripped):
            yield stripped.encode()
    for text in {value, value.strip()}:
        if not unmasked(text):
            yield from _percent_forms(text)
            yield from _json_forms(text)
            yield from _base64_forms(text.encode())


def _percent_forms(text: str) -> Iterator[bytes]:
    for form in (quote(text), quote(text, safe=""), quote_plus(text), quote(text, safe=_COMPONENT)):
        yield form.encode()
        yield _lower_escapes(form).encode()


def _lower_escapes(form: str) -> str:
    head, *rest = form.split("%")
    return head + "".join("%" + part[:2].lower() + part[2:] for part in rest)


def _json_forms(text: str) -> Iterator[bytes]:
    for form in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        yield form[1:-1].encode()
        yield form[1:-1].replace("/", "\\/").encode()


def _base64_forms(data: bytes) -> Iterator[bytes]:
    """Encoded alone, and the part that is the same wherever it stands in a longer text."""
    whole = data[: len(data) // 3 * 3]  # what stays when something is appended
    for form in (*_shifted(data), *_wrapped(data), *_wrapped(whole)):
        yield form
        yield form.translate(_URLSAFE)


def _shifted(data: bytes) -> Iterator[bytes]:
    alone = base64.b64encode(data)
    yield alone
    yield alone.rstrip(b"=")
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + data).rstrip(b"=")
        rest = (before + len(data)) % 3
        # The characters that also hold bits of neighbours are not part of it.
        form = encoded[(0, 2, 3)[before] : len(encoded) - (rest != 0)]
        if len(form) >= MASKED_LENGTH:
            yield form


def _wrapped(data: bytes) -> Iterator[bytes]:
    encoded = base64.b64encode(data)
    for width in _WRAPPED:
        for at in range(0, len(encoded), width) if len(encoded) > width else ():
            line = encoded[at : at + width].rstrip(b"=")
            if len(line) >= MASKED_LENGTH:
                yield line


def _period(form: bytes) -> int:
    """The least distance of two occurrences of `form`; negative: it is that at least."""
    head, at = form[:MASKED_LENGTH], 1
    for _ in range(_TRIES):
        at = form.find(head, at)
        if at < 0:
            last = range(len(form) - MASKED_LENGTH + 1, len(form))
            return next((at for at in last if form.startswith(form[at:])), len(form))
        if form.startswith(form[at:]):
            return at
        at += 1
    return -at


def _repeats(form: bytes, data: bytes, at: int, period: int) -> int:
    """How often `form` occurs again, each time a period further: not found one by one, which
    takes minutes for a value like `aaaa` in output like it."""
    end, step = at + len(form), period
    if not 0 < period < len(form):
        return 0
    while data[end : end + step] == data[end - period : end - period + step] and end + step <= len(data):
        end += step
        step *= 2
    while step > 1:
        step //= 2
        if end + step <= len(data) and data[end : end + step] == data[end - period : end - period + step]:
            end += step
    return (end - at - len(form)) // period


def _begin_of(form: bytes, data: bytes, low: int, high: int) -> int:
    """The first place from `low` on, before `high`, whose rest of `data` is a begin of `form`."""
    size = len(data)
    low = max(low, size - len(form) + 1)
    head = form[:MASKED_LENGTH]
    at = data.find(head, low)
    for _ in range(_TRIES):
        if not 0 <= at < high:
            break
        if form.startswith(data[at:]):
            return at
        at = data.find(head, at + 1)
    else:
        return at if 0 <= at < high else high  # to wait for too much does no harm
    for at in range(max(low, size - MASKED_LENGTH + 1), high):
        if form.startswith(data[at:]):
            return at
    return high


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    spans.sort()
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start < joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _replaced(
    data: bytes, spans: list[tuple[int, int]], end: int, *, begun: bool = False
) -> tuple[bytes, int]:
    """`data` up to `end` with a mask at each span, and how far the last one reaches beyond. With
    `begun` the first span has its mask already."""
    parts, at = [], 0
    for start, stop in spans:
        if start >= end and not begun:
            break
        if not begun:
            parts += [data[at:start], MASK]
        begun, at = False, stop
    parts.append(data[at:end] if at or end < len(data) else data)
    return b"".join(parts) if len(parts) > 1 else parts[0], max(0, at - end)
