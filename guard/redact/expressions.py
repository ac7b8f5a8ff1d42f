"""What can be told of a foreign expression before it is used: how it begins, what it captures, what it may cost.

Read from the tree that the standard library's own parser makes, so what is judged is what will run.
"""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any, Final

_MOST_STARTS: Final = 24
_UNBOUND: Final = 1024
_NOT_IN_A_TOKEN: Final = frozenset((*range(33), *b"\"'`\\<>", 127))
_FLAG = re.compile(r"\(\?[a-z]+\)")


class UnfitError(Exception):
    """The reason why one rule is left out; it is counted, and told to nobody as an error."""


def scoped(source: str) -> str:
    """Give flags within an expression, which hold to the end of their group, a group of their own."""
    at = _FLAG.search(source, 1)
    if at is None:
        return source
    depth, pos, in_class = 0, at.end(), False
    while pos < len(source):
        mark = source[pos]
        if mark == "\\":
            pos += 1
        elif in_class:
            in_class = mark != "]"
        elif mark == "[":
            in_class = True
        elif mark == "(":
            depth += 1
        elif mark == ")":
            if depth == 0:
                break
            depth -= 1
        elif mark == "|" and depth == 0:
            raise UnfitError("another dialect of expressions")
        pos += 1
    grouped = f"{source[: at.start()]}{at.group()[:-1]}:{source[at.end() : pos]}){source[pos:]}"
    return scoped(grouped)


def parsed(source: str) -> Any:  # noqa: ANN401 - the standard library's parser has no types
    """Return an expression's tree; refuse what Python does not know."""
    parser = importlib.import_module("re._parser")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(source.encode("ascii"))
            return parser.parse(source.encode("ascii"))
    except (re.error, UnicodeEncodeError, OverflowError, RecursionError):
        raise UnfitError("another dialect of expressions") from None


def _inner(op: str, av: Any) -> list[Any]:  # noqa: ANN401
    """Return the parts of a node."""
    if op == "SUBPATTERN":
        return [av[3]]
    if op == "BRANCH":
        return list(av[1])
    if op in ("MAX_REPEAT", "MIN_REPEAT"):
        return [av[2]]
    if op in ("LITERAL", "NOT_LITERAL", "IN", "ANY", "AT"):
        return []
    raise UnfitError("look-around or back-reference")


def steps(tree: Any, repeated: bool = False) -> int:  # noqa: ANN401
    """Bound the number of ways in which a stretch of text can be divided among the repetitions."""
    ways = 1
    for op, av in tree:
        name = str(op)
        spread = min(int(av[1]) - int(av[0]) + 1, _UNBOUND) if name.endswith("_REPEAT") else 1
        if spread > 1 and repeated:
            raise UnfitError("not linear")
        parts = [steps(part, repeated or spread > 2) for part in _inner(name, av)]
        ways *= spread * max([1, *parts])
    return ways


def group(tree: Any, number: int) -> Any:  # noqa: ANN401
    """Return the tree of a capturing group."""
    for op, av in tree:
        if str(op) == "SUBPATTERN" and av[0] == number:
            return av[3]
        for part in _inner(str(op), av):
            found = group(part, number)
            if found is not None:
                return found
    return None


def named(tree: Any, number: int) -> bool:  # noqa: ANN401
    """Say whether anything is matched before a capturing group."""
    for node in tree:
        if str(node[0]) != "AT":
            return group([node], number) is None
    return False


def is_token(tree: Any) -> bool:  # noqa: ANN401
    """Say whether what a tree matches can hold no blank, quote, backslash or control."""
    for op, av in tree:
        name = str(op)
        if name in ("ANY", "NOT_LITERAL") or (name == "LITERAL" and av in _NOT_IN_A_TOKEN):
            return False
        if name == "IN" and not all(_plain(str(kind), value) for kind, value in av):
            return False
        if not all(is_token(part) for part in _inner(name, av)):
            return False
    return True


def _plain(kind: str, value: Any) -> bool:  # noqa: ANN401
    if kind == "LITERAL":
        return value not in _NOT_IN_A_TOKEN
    if kind == "RANGE":
        return _NOT_IN_A_TOKEN.isdisjoint(range(value[0], value[1] + 1))
    return kind == "CATEGORY" and str(value) in ("CATEGORY_WORD", "CATEGORY_DIGIT")


def starts(tree: Any) -> tuple[set[str], bool]:  # noqa: ANN401
    """Return the literals, in lower case, with one of which a match begins, and whether they are all of it."""
    begun = {""}
    for op, av in tree:
        name = str(op)
        whole = True
        if name == "LITERAL":
            further = {chr(av).lower()}
        elif name == "IN" and len(av) <= 4 and all(str(kind) == "LITERAL" for kind, _value in av):
            further = {chr(value).lower() for _kind, value in av}
        elif name in ("SUBPATTERN", "BRANCH"):
            parts = [starts(part) for part in _inner(name, av)]
            further, whole = set().union(*(part[0] for part in parts)), all(part[1] for part in parts)
        elif name.endswith("_REPEAT") and av[0] == 0 and begun == {""}:
            continue  # may be absent, so a match begins behind it as well
        elif name.endswith("_REPEAT") and (av[0], av[1]) in ((0, 1), (1, 1)):
            further, whole = starts(av[2])
            if av[0] == 0:
                if not whole:
                    break
                further = further | {""}
        elif name == "AT":
            if begun != {""}:
                break
            continue
        else:
            break
        if len(begun) * len(further) > _MOST_STARTS:
            break
        begun = {head + rest for head in begun for rest in further}
        if not whole:
            break
    else:
        return begun, True
    return begun, False
