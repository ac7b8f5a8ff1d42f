"""The one text type that may be stored, and what makes it without the rules.

No imports: `guard run` loads this before the agent starts.
"""

from __future__ import annotations


class Redacted(str):
    """Text that went through the redactor; only the redactor makes it.

    An event is built from this type alone, so that a type checker refuses to store anything else. Slicing and
    joining give plain `str` back: what was assembled anew has to be redacted anew.

    Raises:
        TypeError: when the type itself is called.
    """

    __slots__ = ()

    def __new__(cls, *_: object) -> Redacted:  # noqa: D102 - the class says it
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
