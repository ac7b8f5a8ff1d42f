"""Nothing unredacted is stored: the type that says so, importable before an agent starts.

An event's free text (command lines, paths, working directories, messages) is of type `Redacted`, and
only this package makes one. Until the redactor is asked, the text is withheld whole.
"""

_MADE_HERE = object()


class Redacted(str):
    """Text that may be stored: it went through the redactor, or was withheld.

    Raises:
        TypeError: when made anywhere but in `guard.redact`.
    """

    __slots__ = ()

    def __new__(cls, text: str, made: object = None) -> "Redacted":  # noqa: D102 - the class says it
        if made is not _MADE_HERE:
            raise TypeError("only guard.redact makes Redacted text: pass it through withhold()")
        return str.__new__(cls, text)


def withhold(text: "str | bytes") -> Redacted:
    """Keep nothing of a text that nobody has redacted but that there was one."""
    return Redacted("[WITHHELD]" if text else "", _MADE_HERE)


def program_name(path: str) -> Redacted:
    """The base name of a program, the one part of a command line that is stored as it is.

    A name with anything but letters, digits and `._+-@` in it, or of over 64 characters, is withheld:
    a secret can be a file's name too.
    """
    name = path.rpartition("/")[2]
    plain = name.replace(".", "").replace("_", "").replace("+", "").replace("-", "").replace("@", "")
    if len(name) <= 64 and (plain.isalnum() or not plain) and name.isascii():
        return Redacted(name, _MADE_HERE)
    return withhold(name)
