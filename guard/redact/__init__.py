"""The redactor: no secret is stored.

Importing this package imports nothing else, since `guard run` does it before the agent starts: rules, engine
and carriers load when a text is first redacted.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from guard.redact.scan import Scanner

__all__ = ["Redacted", "bless", "program_name", "redact_argv", "redact_text", "withhold"]

class Redacted(str):
    """Text that went through the redactor; only the redactor makes it.

    An event is built from this type alone, so that a type checker refuses to store anything else. Slicing and
    joining give plain `str` back: what was assembled anew has to be redacted anew.

    Raises:
        TypeError: when the type itself is called.
    """

    __slots__ = ()

    def __new__(cls, *_: object) -> "Redacted":  # noqa: D102 - the class says it
        raise TypeError("Redacted text comes from guard.redact.redact_text, not from the type itself")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as plain text: what comes back from a file has not been through the redactor."""
        return (str, (str(self),))


def bless(text: str) -> Redacted:
    """Give text the type `Redacted`; for the redactor's own modules.

    Args:
        text: what the redactor has just cleaned, or a constant of guard's own code.
    """
    return str.__new__(Redacted, text)


def withhold(text: str | bytes) -> Redacted:
    """Keep nothing of a text that nobody has redacted but that there was one."""
    return bless("[WITHHELD]" if text else "")


def program_name(path: str) -> Redacted:
    """Return the base name of a program, the one part of a command line that is stored as it is.

    A name with anything but letters, digits and `._+-@` in it, or of over 64 characters, is withheld: a
    secret can be a file's name too.
    """
    name = path.rpartition("/")[2]
    plain = name.replace(".", "").replace("_", "").replace("+", "").replace("-", "").replace("@", "")
    if len(name) <= 64 and (plain.isalnum() or not plain) and name.isascii():
        return bless(name)
    return withhold(name)


_SHARED: "list[Scanner]" = []


def redact_text(text: str, carrier: str = "auto") -> Redacted:
    """Return a text with every secret replaced by a marker without fingerprint.

    Args:
        text: any text; what is no Unicode may stand in it as lone surrogates.
        carrier: how it is read: auto, text, jsonl, strace, pty, history.
    """
    from guard.redact.scan import Scanner
    from guard.redact.stream import redact_bytes

    if not _SHARED:
        # The rules never change within a process, and building them anew costs 20 ms.
        _SHARED.append(Scanner())
    data = text.encode("utf-8", "surrogateescape")
    return bless(redact_bytes(data, _SHARED[0], None, carrier).decode("utf-8", "surrogateescape"))


def redact_argv(argv: "Iterable[str]") -> "tuple[Redacted, ...]":
    """Return an argument list with every secret replaced, also where option and value are two arguments.

    Args:
        argv: the arguments as the kernel has them.
    """
    from guard.redact.carriers.argv import redact_arguments

    return redact_arguments(tuple(argv))
