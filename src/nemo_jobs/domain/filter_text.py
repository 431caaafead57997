"""The text form of a job filter: `source~"night" AND status IN ["error","paused"]`."""

import re
from dataclasses import dataclass
from typing import Any

from nemo_jobs.domain.filter_tree import And, FilterError, Node, Not, Op, Or, compare, field_of

_TOKEN = re.compile(
    r"""(?P<blank>\s+)
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
    |(?P<word>[A-Za-z_]\w*(?:\.\w+)*)
    |(?P<sign>>=|<=|[:~<>()\[\],-])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ORDER = {">": Op.GT, ">=": Op.GTE, "<": Op.LT, "<=": Op.LTE}
_DEPTH_LIMIT = 20


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # text, number, word, sign or end
    text: str
    at: int


def parse_text(source: str) -> Node:
    """The tree of a filter in text form. Raises `FilterError` with the position, from 1."""
    parser = _Parser(_tokens(source))
    node = parser.alternatives(0)
    parser.expect_end()
    return node


def _tokens(source: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            what = "text without its closing quote" if source[at] == '"' else f"unexpected {source[at]!r}"
            raise _error(at, what)
        if match.lastgroup != "blank":
            tokens.append(_Token(str(match.lastgroup), match[0], at))
        at = match.end()
    tokens.append(_Token("end", "", len(source)))
    return tokens


def _error(at: int, what: str) -> FilterError:
    return FilterError(f"filter, at position {at + 1}: {what}")


class _Parser:
    """Recursive descent; each method reads one rule and leaves the next token in front."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def alternatives(self, depth: int) -> Node:
        nodes = [self._sequence(depth)]
        while self._word("or"):
            nodes.append(self._sequence(depth))
        return nodes[0] if len(nodes) == 1 else Or(tuple(nodes))

    def expect_end(self) -> None:
        if self._token.kind != "end":
            raise self._unexpected("the end, AND, OR or another term")

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _sequence(self, depth: int) -> Node:
        nodes = [self._term(depth)]
        while True:
            if not self._word("and") and not self._term_follows():
                return nodes[0] if len(nodes) == 1 else And(tuple(nodes))
            nodes.append(self._term(depth))

    def _term_follows(self) -> bool:
        token = self._token
        return token.text in ("(", "-") or (token.kind == "word" and token.text.lower() != "or")

    def _term(self, depth: int) -> Node:
        if depth >= _DEPTH_LIMIT:
            raise _error(self._token.at, f"nested more than {_DEPTH_LIMIT} deep")
        if self._sign("-"):
            return Not(self._term(depth + 1))
        if self._sign("("):
            node = self.alternatives(depth + 1)
            if not self._sign(")"):
                raise self._unexpected("')'")
            return node
        return self._comparison()

    def _comparison(self) -> Node:
        token = self._token
        if token.kind != "word" or token.text.lower() in ("and", "or"):
            raise self._unexpected("a field")
        if token.text.lower() == "not":
            raise _error(token.at, 'NOT does not stand in front of a term; write - instead, as in -name:"x"')
        self._next += 1
        parts = token.text.split(".")
        if self._sign("["):
            parts.append(self._key(token, parts))
        try:
            field = field_of(parts)
            op, value = self._operator()
            return compare(field, op, value)
        except FilterError as error:
            raise error if "at position" in str(error) else _error(token.at, str(error)) from None

    def _key(self, token: _Token, parts: list[str]) -> str:
        if len(parts) > 1:
            raise _error(token.at, "a key in brackets follows a single word, without dots")
        if self._token.kind != "text":
            raise self._unexpected("a key in double quotes")
        key = _unquote(self._take().text)
        if not self._sign("]"):
            raise self._unexpected("']'")
        return key

    def _operator(self) -> tuple[Op, Any]:
        token = self._token
        if self._sign(":"):
            return Op.EQ, self._literal("text in double quotes, a number, true, false or null", words=True)
        if self._sign("~"):
            if self._token.kind != "text":
                raise self._unexpected("text in double quotes")
            return Op.LIKE, _unquote(self._take().text)
        if token.kind == "sign" and token.text in _ORDER:
            self._next += 1
            return _ORDER[token.text], self._literal("text in double quotes or a number")
        if self._word("in"):
            return Op.IN, self._list()
        if self._word("not"):
            if not self._word("in"):
                raise self._unexpected("IN")
            return Op.NIN, self._list()
        raise self._unexpected("':', '~', '<', '<=', '>', '>=', IN or NOT IN")

    def _list(self) -> list[Any]:
        if not self._sign("["):
            raise self._unexpected("'['")
        items: list[Any] = []
        while not self._sign("]"):
            if items and not self._sign(","):
                raise self._unexpected("',' or ']'")
            items.append(self._literal("text in double quotes, a number, true, false or null", words=True))
        return items

    def _literal(self, wanted: str, words: bool = False) -> Any:
        token = self._token
        if token.kind == "text":
            return _unquote(self._take().text)
        if token.kind == "number":
            self._next += 1
            return int(token.text) if re.fullmatch(r"-?[0-9]{1,30}", token.text) else float(token.text)
        if words and token.kind == "word" and token.text.lower() in ("null", "true", "false"):
            self._next += 1
            return {"null": None, "true": True, "false": False}[token.text.lower()]
        raise self._unexpected(wanted)

    def _take(self) -> _Token:
        token = self._token
        self._next += 1
        return token

    def _word(self, word: str) -> bool:
        found = self._token.kind == "word" and self._token.text.lower() == word
        self._next += found
        return found

    def _sign(self, sign: str) -> bool:
        found = self._token.kind == "sign" and self._token.text == sign
        self._next += found
        return found

    def _unexpected(self, wanted: str) -> FilterError:
        token = self._token
        found = "the end" if token.kind == "end" else repr(token.text[:40])
        return _error(token.at, f"expected {wanted}, found {found}")


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text[1:-1], flags=re.DOTALL)
