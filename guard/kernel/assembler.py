"""An assembler for the few classic BPF instructions that filters need, with labels for offsets.

Conditional jumps reach 255 instructions, `go` any distance; the kernel takes forward jumps only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

LOAD, AND, RETURN, GO = 0x20, 0x54, 0x06, 0x05
EQUAL, GREATER, NOT_LESS, ANY_BIT = 0x15, 0x25, 0x35, 0x45


@dataclass(slots=True)
class _Line:
    code: int
    k: int
    yes: str = ""
    no: str = ""
    yes_far: int = 0
    no_far: int = 0


class Assembler:
    """A program in the making; instructions are appended by its methods."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._labels: dict[str, int] = {}
        self._fresh = 0

    def load(self, offset: int) -> None:
        """Load the 32-bit word at an offset of `struct seccomp_data`."""
        self._lines.append(_Line(LOAD, offset))

    def mask(self, bits: int) -> None:
        """Keep these bits of what was loaded."""
        if bits != 0xFFFFFFFF:
            self._lines.append(_Line(AND, bits))

    def jump(self, test: int, k: int, yes: str = "", no: str = "") -> None:
        """Compare what was loaded with k and go to a label; an empty one: to the next instruction."""
        self._lines.append(_Line(test, k, yes, no))

    def go(self, label: str) -> None:
        """Go to a label."""
        self._lines.append(_Line(GO, 0, label))

    def answer(self, action: int) -> None:
        """End with an answer."""
        self._lines.append(_Line(RETURN, action))

    def place(self, program: bytes) -> None:
        """Put a finished program here; every one of its ways must end in an answer."""
        for code, yes, no, k in struct.iter_unpack("<HBBI", program):
            self._lines.append(_Line(code, k, "", "", yes, no))

    def mark(self, label: str) -> None:
        """Let a label stand for the next instruction."""
        if label in self._labels:
            raise ValueError(f"label {label} stands twice")
        self._labels[label] = len(self._lines)

    def label(self) -> str:
        """Return a label that is used nowhere yet."""
        self._fresh += 1
        return f"@{self._fresh}"

    def assemble(self) -> bytes:
        """Return the bytes; a label marked at the very end leads to whatever is appended to them.

        Raises:
            ValueError: a label is missing, behind, or too far for a conditional jump.
        """
        out = bytearray()
        for index, line in enumerate(self._lines):
            yes = self._distance(index, line.yes) or line.yes_far
            no = self._distance(index, line.no) or line.no_far
            if line.code == GO and line.yes:
                out += struct.pack("<HBBI", GO, 0, 0, yes)
                continue
            if max(yes, no) > 255:
                raise ValueError(f"instruction {index} jumps {max(yes, no)} far")
            out += struct.pack("<HBBI", line.code, yes, no, line.k)
        return bytes(out)

    def _distance(self, index: int, label: str) -> int:
        if not label:
            return 0
        distance = self._labels[label] - index - 1 if label in self._labels else -1
        if distance < 0:
            raise ValueError(f"label {label} is not ahead of instruction {index}")
        return distance
