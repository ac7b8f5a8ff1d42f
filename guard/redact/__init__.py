"""The redactor: no secret is stored.

Importing this package imports nothing else, since `guard run` does it before the agent starts: rules, engine
and carriers load when a text is first redacted.
"""

from __future__ import annotations

from guard.redact.redacted import Redacted, program_name, withhold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from guard.redact.scan import Scanner

__all__ = ["Redacted", "program_name", "redact_argv", "redact_text", "withhold"]

_SHARED: list[Scanner] = []


def redact_text(text: str, carrier: str = "auto") -> Redacted:
    """Return a text with every secret replaced by a marker without fingerprint.

    Args:
        text: any text; what is no Unicode may stand in it as lone surrogates.
        carrier: how it is read: auto, text, jsonl, strace, pty, history.
    """
    from guard.redact.redacted import bless
    from guard.redact.scan import Scanner
    from guard.redact.stream import redact_bytes

    if not _SHARED:
        # The rules never change within a process, and building them anew costs 20 ms.
        _SHARED.append(Scanner())
    data = text.encode("utf-8", "surrogateescape")
    return bless(redact_bytes(data, _SHARED[0], None, carrier).decode("utf-8", "surrogateescape"))


def redact_argv(argv: Iterable[str]) -> tuple[Redacted, ...]:
    """Return an argument list with every secret replaced, also where option and value are two arguments.

    Args:
        argv: the arguments as the kernel has them.
    """
    from guard.redact.carriers.argv import redact_arguments

    return redact_arguments(tuple(argv))
