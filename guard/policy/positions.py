"""Where every key and list entry of a TOML document stands, since `tomllib` tells only values.

The scanner runs on text that `tomllib` has accepted, so it may assume a well-formed document; where
it should be wrong all the same it stops, and what it has not seen is placed at its nearest parent.
Grammar: TOML 1.0.0.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from bisect import bisect_right
from dataclasses import dataclass, field

Where = tuple[str | int, ...]
"""The way to a value: keys and list indexes, as `("network", "connect", 0, "ports")`."""

_BLANK = re.compile(r"[ \t]*")
_SPACE = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""")
_STRING = re.compile(
    r'''"""(?:\\[\s\S]|[^\\])*?"{3,5}|"(?:\\.|[^"\\\n])*"''' + "|" + r"""'''[\s\S]*?'{3,5}|'[^'\n]*'"""
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


class _LostError(Exception):
    """The text is not what the scanner takes it for."""


@dataclass
class Positions:
    r"""Offsets into a text, as lines and columns counted from 1.

    Args:
        text: the document, with `\n` line ends.
        keys: way → offset of the key (of the entry itself for one of a list).
        values: way → offset of the value.
    """

    text: str
    keys: dict[Where, int] = field(default_factory=dict)
    values: dict[Where, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._starts = [0] + [match.end() for match in re.finditer("\n", self.text)]

    def place(self, where: Where, *, of_key: bool = False) -> tuple[int, int]:
        """Return (line, column) of a value, or of its key; of the nearest parent when it is unknown."""
        first, second = (self.keys, self.values) if of_key else (self.values, self.keys)
        while where:
            offset = first.get(where, second.get(where))
            if offset is not None:
                return self.line_column(offset)
            where = where[:-1]
        return (1, 1)

    def line_column(self, offset: int) -> tuple[int, int]:
        """Return the line and column of an offset."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return a line's text without its end, "" when there is no such line."""
        if not 1 <= number <= len(self._starts):
            return ""
        end = self.text.find("\n", self._starts[number - 1])
        return self.text[self._starts[number - 1] : end if end >= 0 else len(self.text)]


def locate(text: str) -> Positions:
    r"""Find every key and entry of a document that `tomllib` accepts.

    Args:
        text: the document; `\r\n` must already be `\n`, as `tomllib` does it.
    """
    scanner = _Scanner(text)
    # Positions serve messages only: a lost scanner costs a caret, never a wrong value.
    with contextlib.suppress(_LostError, RecursionError, tomllib.TOMLDecodeError):
        scanner.document()
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found = Positions(text)
        self.lists: dict[Where, int] = {}  # arrays of tables → index of the last

    def document(self) -> None:
        table: Where = ()
        while self.skip(_SPACE) < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self.header("[[", "]]")
            elif self.text[self.at] == "[":
                table = self.header("[", "]")
            else:
                self.pair(table)

    def header(self, opening: str, closing: str) -> Where:
        self.expect(opening)
        where: Where = ()
        parts = self.dotted()
        for index, (name, offset) in enumerate(parts):
            where = (*where, name)
            self.found.keys.setdefault(where, offset)
            if index == len(parts) - 1 and opening == "[[":
                self.lists[where] = self.lists.get(where, -1) + 1
            if where in self.lists:
                where = (*where, self.lists[where])
                self.found.keys.setdefault(where, offset)
        # A later [table] header is the better place than a first [table.sub].
        self.found.values.setdefault(where, parts[-1][1])
        self.skip(_BLANK)
        self.expect(closing)
        return where

    def pair(self, table: Where) -> None:
        where = table
        for name, offset in self.dotted():
            where = (*where, name)
            self.found.keys.setdefault(where, offset)
        self.skip(_BLANK)
        self.expect("=")
        self.skip(_BLANK)
        self.value(where)

    def dotted(self) -> list[tuple[str, int]]:
        parts = []
        while True:
            self.skip(_BLANK)
            match = _KEY.match(self.text, self.at)
            if match is None:
                raise _LostError
            raw = match.group()
            name = raw if raw[0] not in "\"'" else str(tomllib.loads(f"x={raw}")["x"])
            parts.append((name, self.at))
            self.at = match.end()
            self.skip(_BLANK)
            if not self.text.startswith(".", self.at):
                return parts
            self.at += 1

    def value(self, where: Where) -> None:
        self.found.values[where] = self.at
        head = self.text[self.at : self.at + 1]
        if head == "[":
            self.at += 1
            index = 0
            while self.skip(_SPACE) < len(self.text) and self.text[self.at] != "]":
                self.value((*where, index))
                index += 1
                self.skip(_SPACE)
                if self.text.startswith(",", self.at):
                    self.at += 1
            self.expect("]")
        elif head == "{":
            self.at += 1
            while self.skip(_SPACE) < len(self.text) and self.text[self.at] != "}":
                self.pair(where)
                self.skip(_SPACE)
                if self.text.startswith(",", self.at):
                    self.at += 1
            self.expect("}")
        else:
            match = (_STRING if head and head in "\"'" else _SCALAR).match(self.text, self.at)
            if match is None:
                raise _LostError
            self.at = match.end()

    def skip(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return self.at

    def expect(self, token: str) -> None:
        if not self.text.startswith(token, self.at):
            raise _LostError
        self.at += len(token)
