"""From bytes as they were written to lines as they are stored. Pure.

The rules, the same for every backend:

* A line ends at a line feed; carriage returns right before it belong to the line end.
* A carriage return inside a line starts the line anew, as on a terminal: of the redraws only
  the last one that shows something is stored, at the line's end, and while no line feed comes,
  at most one a second (`snapshot`).
* A line longer than `MAX_LINE` bytes is split, never inside a UTF-8 character.
* What follows the last line feed becomes a line when the stream ends (`finish`).

Bytes are kept as they are; decoding is the reader's business.
"""

import base64

from nemo_jobs.domain.model import Json

MAX_LINE = 1 << 20


class LineSplitter:
    """Splits one stream. `state` and `restore` let another process go on in mid-line."""

    def __init__(self) -> None:
        self._carry = b""
        self._bar = b""  # the last redraw that is complete
        self._redraws = False  # a carriage return came since the last line feed
        self._shown = b""  # what the last snapshot stored

    @property
    def redrawing(self) -> bool:
        """True while a progress bar is being drawn that has not been stored as it is now."""
        return self._redraws and bool(self._bar or self._carry) and (self._bar or self._carry) != self._shown

    def feed(self, block: bytes) -> tuple[bytes, int]:
        """Lines that are complete now: their bytes, each ended by a line feed, and their number."""
        if b"\r" in block or self._redraws or self._carry.endswith(b"\r"):
            return self._feed_redraws(block)
        data = self._carry + block if self._carry else block
        cut = data.rfind(b"\n") + 1
        self._carry = data[cut:]
        lines = data[:cut]
        count = lines.count(b"\n")
        if cut and lines.find(b"\n") > MAX_LINE:
            lines, count = _split_long(lines)
        if len(self._carry) > MAX_LINE:
            more, self._carry = _cut_long(self._carry)
            lines, count = lines + more, count + more.count(b"\n")
        return lines, count

    def snapshot(self) -> bytes:
        """The present state of a progress bar as one line; empty when there is nothing new."""
        if not self.redrawing:
            return b""
        self._shown = self._bar or self._carry
        return self._shown + b"\n"

    def finish(self) -> tuple[bytes, int]:
        """The unfinished last line, if there is one."""
        line = self._end_line(self._carry)
        self._carry = b""
        return (line, line.count(b"\n")) if line != b"\n" else (b"", 0)

    def state(self) -> Json | None:
        """What is needed to go on; None when nothing is pending."""
        if not self._carry and not self._redraws:
            return None
        texts = {"carry": self._carry, "bar": self._bar, "shown": self._shown}
        return {"redraws": self._redraws, **{k: base64.b64encode(v).decode() for k, v in texts.items() if v}}

    def restore(self, state: Json) -> None:
        self._redraws = bool(state["redraws"])
        self._carry = base64.b64decode(state.get("carry", ""))
        self._bar = base64.b64decode(state.get("bar", ""))
        self._shown = base64.b64decode(state.get("shown", ""))

    def _feed_redraws(self, block: bytes) -> tuple[bytes, int]:
        parts = (self._carry + block).split(b"\n")
        tail = parts.pop()
        lines = b"".join([self._end_line(part) for part in parts])
        self._hold(tail)
        return lines, lines.count(b"\n")

    def _end_line(self, text: bytes) -> bytes:
        """`text` and what was drawn before it, as one line; empty when it is stored already."""
        text = text.rstrip(b"\r")
        if not self._redraws and b"\r" not in text:
            return _split_long(text + b"\n")[0] if len(text) > MAX_LINE else text + b"\n"
        shown = _last_visible(text) or self._bar
        stored = bool(self._shown) and shown in (self._shown, b"")
        self._redraws, self._bar, self._shown = False, b"", b""
        if stored:
            return b""
        return _split_long(shown + b"\n")[0] if len(shown) > MAX_LINE else shown + b"\n"

    def _hold(self, tail: bytes) -> None:
        """Keep the unfinished line, of its redraws only the last complete one."""
        head, cr, rest = tail.rpartition(b"\r")
        if cr and rest:
            self._redraws = True
            self._bar = _last_visible(head) or self._bar
            tail = rest
        elif cr and head.rstrip(b"\r"):
            # A carriage return at the very end may be half of a line end: it waits in the carry.
            before, inner, last = head.rstrip(b"\r").rpartition(b"\r")
            if inner:
                self._redraws = True
                self._bar = _last_visible(before) or self._bar
            tail = last + b"\r"
        self._carry = tail if len(tail) <= MAX_LINE else tail[-MAX_LINE:] if self._redraws else tail


def _last_visible(text: bytes) -> bytes:
    """The last part between carriage returns that is more than blanks."""
    for part in reversed(text.split(b"\r")):
        if part.strip():
            return part
    return b""


def _boundary(data: bytes, at: int) -> int:
    """The last character boundary at or before `at`, for UTF-8; `at` when there is none near."""
    for back in range(4):
        if at - back > 0 and data[at - back] & 0xC0 != 0x80:
            return at - back
    return at


def _cut_long(text: bytes) -> tuple[bytes, bytes]:
    """Whole pieces of `text`, each ended by a line feed, and the rest, at most MAX_LINE bytes."""
    pieces = []
    while len(text) > MAX_LINE:
        at = _boundary(text, MAX_LINE)
        pieces.append(text[:at] + b"\n")
        text = text[at:]
    return b"".join(pieces), text


def _split_long(lines: bytes) -> tuple[bytes, int]:
    out = []
    for line in lines.split(b"\n")[:-1]:
        head, rest = _cut_long(line)
        out.append(head + rest + b"\n")
    data = b"".join(out)
    return data, data.count(b"\n")
