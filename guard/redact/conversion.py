"""Taking a rule pack from an installed scanner: it prints its rules, and what can be converted becomes the site's pack.

The form read is that of `kingfisher rules list --format json`: a list of objects with `id` and `pattern` (RE2 or Rust
syntax), and where present `visible`, `entropy`, `keywords`. Only its rules are asked for: the program scans nothing.
A rule that cannot be converted is left out with the reason; nothing of a scanner stands in guard.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from typing import Any, Final, NamedTuple

from guard.errors import StateError, UsageError
from guard.redact import expressions
from guard.redact.expressions import UnfitError
from guard.redact.pack import FILE, Confirmer, Pack, PackRule, digest, path
from guard.redact.rules.commands import COMMANDS
from guard.redact.rules.formats import FORMATS
from guard.redact.rules.table import CONTEXTS
from guard.redact.text import Text

_PRINT: Final = ("rules", "list", "--format", "json", "--quiet", "--no-update-check")
_LEAST_START: Final = 4
_MOST_STEPS: Final = 1 << 21
"""Ways in which a rule may divide one stretch of text; an open repetition counts as 1024."""
_COMMON: Final = 30
"""A start that stands more often than this in a megabyte of ordinary text would make the prefilter slow."""

_NO_SECRET = re.compile(r"(?:[-_](?:id|url|host|username|domain|address)|public[-_].*)(?:\.\d+)?\Z")
_TAIL: Final = (r"""(?:\\?['"\x60]|[\s;]|\\[nr]|$)""", r"\b")
_LEAD = re.compile(r"(\A(?:\(\?i\))?)(?:\\b|\(\?:(?:\^|\\A)\|\[(?:\\.|[^\]\\])+\]\))")
_FLAGS = re.compile(r"(?:\(\?[a-z]+\))+")
_REWRITES: Final = (
    (r"\z", r"\Z"), ("[:alnum:]", "A-Za-z0-9"), ("[:alpha:]", "A-Za-z"), ("[:digit:]", "0-9"),
    ("[:xdigit:]", "0-9A-Fa-f"),
    # Around the separator of a name and its value stand blanks and quotes; in JSON and traces backslashes too.
    (r"""[\s'"]{0,3}""", r"""[\s'"\\]{0,6}"""), (r"""[\x60'"\s=]{0,5}""", r"""[\x60'"\s=\\]{0,8}"""),
    ("[_. -]*", "[_. -]{0,4}"), ("[ _-]*", "[ _-]{0,4}"), (r"\s*", r"\s{0,8}"),
)  # fmt: skip


class Installed(NamedTuple):
    """What became of a scanner's rules: the pack, and why the others were left out, with their number."""

    pack: Pack
    left_out: Counter[str]


def install(program: str) -> Installed:
    """Ask a scanner for its rules, convert them and write the site's pack.

    Args:
        program: the scanner's name in PATH, or its path.

    Raises:
        UsageError: there is no such program.
        StateError: it prints no rules in a known form, or none of them can be used; nothing is written then.
        OSError: the configuration directory cannot be written.
    """
    listed = _ask(program)
    clean = _clean()
    lowered = clean.data.lower()
    rules: list[PackRule] = []
    left_out: Counter[str] = Counter()
    for each in listed:
        try:
            rule = convert(each)
            _try_out(rule, clean, lowered)
        except UnfitError as reason:
            left_out[str(reason)] += 1
        else:
            rules.append(rule)
    if not rules:
        raise StateError(f"{program}: none of its {len(listed)} rules can be used", "the pack was left as it is")
    pack = Pack(tuple(rules), os.path.basename(program))
    _write(pack)
    return Installed(pack, left_out)


def _ask(program: str) -> list[Any]:
    found = shutil.which(program)
    if found is None:
        raise UsageError(f"{program}: no such program", "name an installed scanner that prints its rules: kingfisher")
    try:
        # Nothing of the caller's environment, where keys may stand, and nothing of the caller's folder.
        done = subprocess.run(  # noqa: S603
            [os.path.abspath(found), *_PRINT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
            cwd="/",
            env={"PATH": os.defpath, "HOME": "/nonexistent"},
        )
        rules = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError, RecursionError):
        rules = None
    if not isinstance(rules, list) or not all(isinstance(each, dict) and "pattern" in each for each in rules):
        said = f"`{program} {' '.join(_PRINT)}` printed no rules"
        raise StateError(said, "kingfisher 2 prints them in the form that is read here")
    return rules


def convert(given: dict[str, Any]) -> PackRule:
    """Make a rule of the pack from one that a scanner printed; raises with the reason where it cannot."""
    name = str(given.get("id") or "rule")
    if given.get("visible") is False or _NO_SECRET.search(name):
        raise UnfitError("no secret by itself")
    source = str(given["pattern"])
    for old, new in _REWRITES:
        source = source.replace(old, new)
    tail = next((each for each in _TAIL if source.endswith(each)), "")
    # What must not stand before a token or behind it is asked as for the built-in rules, which know escapes.
    source = expressions.scoped(_LEAD.sub(r"\1", source.removesuffix(tail), count=1))
    tree = expressions.parsed(source)
    # Rules without a group of their own have the whole match for a secret; what stands behind it goes with it.
    group = tree.state.groupdict.get("TOKEN", 1 if tree.state.groups > 1 else 0)
    behind = r"(?![A-Za-z0-9])" if tail else "" if group else r"[A-Za-z0-9_\-]*"
    if expressions.steps(tree) > _MOST_STEPS:
        raise UnfitError("not linear")
    if not expressions.is_token(expressions.group(tree, group) if group else tree):
        raise UnfitError("its secret may hold blanks, quotes or anything")
    starts = sorted(expressions.starts(tree)[0])
    if not starts or min(map(len, starts)) < _LEAST_START:
        raise UnfitError("begins with no literal")
    kind = re.sub(r"[^a-z0-9]+", "-", re.split(r"[./]", re.sub(r"\.\d+\Z", "", name))[-1].lower())[:40].strip("-")
    entropy = given.get("entropy")
    keyword = group > 0 and expressions.named(tree, group)
    bits = float(entropy) if isinstance(entropy, int | float) and 0 < entropy <= 8 else 0.0
    flags = _FLAGS.match(source)
    head = flags.end() if flags is not None else 0
    regex = f"{source[:head]}(?:{source[head:]}){behind}"
    return PackRule(kind or "rule", regex, tuple(starts), group, bits, keyword)


def _clean() -> Text:
    """Return text without a secret: what the built-in rules must leave, and sources of this Python's library."""
    leaves = [row.leaves for row in FORMATS] + [row.leaves for row in CONTEXTS] + [row.leaves for row in COMMANDS]
    pieces = [text.encode() for texts in leaves for text in texts]
    folder = sysconfig.get_paths()["stdlib"]
    size = 0
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py") and size < 3 << 20:
            with open(os.path.join(folder, name), "rb") as file:
                pieces.append(file.read())
            size += len(pieces[-1])
    return Text(b"\n".join(pieces))


def _try_out(rule: PackRule, clean: Text, lowered: bytes) -> None:
    confirmer = Confirmer(rule)
    for start in map(str.encode, rule.starts):
        if lowered.count(start) > _COMMON * max(1.0, len(lowered) / 1e6):
            raise UnfitError("begins with a word of ordinary text")
        at = lowered.find(start)
        while at >= 0:
            if confirmer.confirm(clean, at, len(start)):
                raise UnfitError("finds secrets in clean text")
            at = lowered.find(start, at + 1)


def _write(pack: Pack) -> None:
    place = path()
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(place), prefix=f".{FILE}.")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            json.dump({"source": pack.source, "digest": digest(pack.rules), "rules": pack.rules}, file)
            os.fchmod(file.fileno(), 0o644)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise
