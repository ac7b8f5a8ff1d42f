"""Path patterns and variable globs: what is well formed, and what lies beneath what.

Paths are compared as text, component by component. A variable is an atom: `{home}/x` lies beneath
`{home}`, and beneath `/` since every path does, but never beneath `/home/ada`, whatever `{home}` will
be. Two layers that name one place in two ways therefore lose it, which is the safe side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from guard.policy.keys import OPEN_VARIABLES, PLACE_VARIABLES

VARIABLE = re.compile(r"\{([^{}]*)\}")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LONGEST = 4095  # PATH_MAX without its NUL


def variables(text: str) -> list[str]:
    """Return the names of the variables in a text, in order."""
    return VARIABLE.findall(text)


def check_variables(text: str, known: Iterable[str]) -> str:
    """Check braces and names, and return the text.

    Raises:
        ValueError: the sentence that says what is wrong.
    """
    names = set(known)
    for name in variables(text):
        if name not in names:
            listed = ", ".join(f"{{{each}}}" for each in sorted(names))
            raise ValueError(f"unknown variable {{{name}}}; known here: {listed}")
    rest = VARIABLE.sub("", text)
    if "{" in rest or "}" in rest:
        raise ValueError("has a brace without its other half; a variable is written {name}")
    return text


def check_name(name: str) -> None:
    """Check the name of a site variable.

    Raises:
        ValueError: the sentence that says what is wrong.
    """
    if not _NAME.fullmatch(name):
        raise ValueError("a variable's name has small letters, digits and _ only")
    if name in OPEN_VARIABLES:
        raise ValueError(f"{{{name}}} is guard's own and differs by session")


def normal(text: str, known: Iterable[str], *, stars: bool = False) -> str:
    """Check a path pattern and return it in its one spelling.

    Args:
        text: as written.
        known: names of the variables that may be used.
        stars: whether the last component may end in `*`.

    Raises:
        ValueError: the sentence that says what is wrong.
    """
    names = frozenset(known)
    if not text:
        raise ValueError("is empty; write an absolute path")
    if "\0" in text:
        raise ValueError("holds a NUL, which no path can")
    if len(text.encode("utf-8", "surrogatepass")) > _LONGEST:
        raise ValueError(f"is longer than {_LONGEST} bytes")
    check_variables(text, names)
    if text.startswith("~"):
        raise ValueError(f"~ is not expanded; write {{home}}{text[1:]}")
    if not text.startswith(("/", "{")):
        raise ValueError("is relative; write an absolute path, or begin with a variable such as {project}")
    head = VARIABLE.match(text)
    if head is not None and head.group(1) in OPEN_VARIABLES and head.group(1) not in PLACE_VARIABLES:
        raise ValueError(f"{{{head.group(1)}}} is no place; a path begins with / or one of {{home}}, {{project}}")
    if head is not None and text[head.end() : head.end() + 1] not in ("", "/"):
        raise ValueError(f"needs a / after {head.group()}")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError("has .. in it; write the place itself")
    for index, part in enumerate(parts):
        for name in variables(part):
            if name in PLACE_VARIABLES and (index or head is None):
                raise ValueError(f"{{{name}}} is a whole path, so it can only come first")
        if "*" in part:
            if not stars:
                raise ValueError("wildcards cannot be granted here: the kernel judges whole directories")
            if index != len(parts) - 1 or part.index("*") != len(part) - 1:
                raise ValueError("only the end of the last part may be *")
    joined = "/".join(parts)
    return joined if head is not None else "/" + joined


def below(upper: str, lower: str) -> bool:
    """Whether every place that `lower` names lies at or beneath one that `upper` names."""
    if upper == "/":
        return True
    one, other = upper.split("/"), lower.split("/")
    if len(one) > len(other) or one[:-1] != other[: len(one) - 1]:
        return False
    return glob_within(one[-1], other[len(one) - 1])


def glob_within(upper: str, lower: str) -> bool:
    """Whether every text that the glob `lower` matches, `upper` matches too.

    A `*` of `lower` is taken as a character that only a `*` of `upper` matches: that never says yes
    wrongly, and says no wrongly only for globs such as `*a*` within `**a`.
    """
    pieces = upper.split("*")
    if len(pieces) == 1:
        return upper == lower
    if not lower.startswith(pieces[0]) or not lower.endswith(pieces[-1]):
        return False
    at, end = len(pieces[0]), len(lower) - len(pieces[-1])
    for piece in pieces[1:-1]:
        found = lower.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


def check_glob(text: str) -> str:
    """Check the glob of an environment variable's name.

    Raises:
        ValueError: the sentence that says what is wrong.
    """
    if not text:
        raise ValueError("is empty; write a variable's name, or a glob such as DBUS_*")
    if "=" in text or "\0" in text:
        raise ValueError("is not a variable's name: those hold no = and no NUL")
    if any(char in text for char in "?[]{}"):
        raise ValueError("only * stands for anything in a variable's name")
    return text


def fill(text: str, values: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Put site variables into a text: one result for each combination of their values.

    Args:
        text: a path pattern or an address.
        values: name → values; variables that are not in it stay as they are.
    """
    out = [text]
    for name in dict.fromkeys(variables(text)):
        if name in values:
            out = [each.replace(f"{{{name}}}", value) for each in out for value in values[name]]
    return out
