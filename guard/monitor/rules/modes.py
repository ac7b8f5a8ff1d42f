"""Something that anybody may write: by a mode, an ACL, or a umask of 0."""

from __future__ import annotations

import stat

from guard.monitor.facts import AnyFact, Mode, ModeBy
from guard.monitor.findings import Context, Example, Outcome, Rule, Scalar, text_of
from guard.monitor.rules.table import AGENT, PLAIN

_HOW = {
    ModeBy.CHMOD: "given to anybody to write",
    ModeBy.ACL: "opened to anybody by an ACL",
    ModeBy.DEFAULT_ACL: "set to open what is made in it",
    ModeBy.OPEN: "created writable by anybody",
    ModeBy.MKDIR: "created writable by anybody",
    ModeBy.MKNOD: "created writable by anybody",
    ModeBy.BIND: "created writable by anybody",
}
_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISREG, "file"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)
_OTHERS_WRITE = 0o002


def kind_of(mode: int) -> str:
    """Name the type in a mode's bits."""
    return next((name for test, name in _KINDS if test(mode)), "file")


def world_writable(fact: AnyFact, context: Context) -> Outcome | None:
    """Judge a mode: sticky directories are how /tmp works, what was open before is no news."""
    assert isinstance(fact, Mode)  # noqa: S101 - the row says so
    bits = stat.S_IMODE(fact.mode)
    if stat.S_ISLNK(fact.mode):
        return None  # a link's mode is always 0777 and means nothing
    kind = kind_of(fact.mode)
    detail: dict[str, Scalar] = {
        "path": text_of(fact.path),
        "mode": f"{bits:04o}",
        "by": fact.by.value,
        "kind": kind,
    }
    if fact.before >= 0:
        detail["before"] = f"{fact.before & 0o7777:04o}"
    if fact.io_uring:
        detail["io_uring"] = True
    if fact.more:
        detail["more"] = fact.more
        detail["under"] = tuple(map(text_of, fact.under))
    sticky = kind == "directory" and bool(bits & stat.S_ISVTX) and fact.by is not ModeBy.DEFAULT_ACL
    open_before = fact.before >= 0 and bool(fact.before & _OTHERS_WRITE) and fact.by is ModeBy.CHMOD
    severity = ""
    if sticky or open_before:
        severity = "low"
    elif bits & (stat.S_ISUID | stat.S_ISGID) and kind == "file":
        severity = "high"
    how = "made writable by anybody, sticky" if sticky else _HOW[fact.by]
    what = f"a {kind} was" if not fact.more else f"{fact.more + 1} of one sort, a {kind} the last, were"
    return Outcome(f"{what} {how} (mode {bits:04o})", severity, detail, text_of(fact.path))


def _mode(says: str, mode: int, severity: str, *, before: int = 0o644, by: ModeBy = ModeBy.CHMOD) -> Example:
    return Example(says, Mode(5, AGENT, b"/home/u/x", mode, before, by), Context(PLAIN), severity)


RULES = (
    Rule(
        "world-writable",
        "world-writable",
        "medium",
        ("T1222.002",),
        (Mode,),
        world_writable,
        "A file, directory, socket or FIFO got the right to write for everybody, by whatever call.",
        (
            _mode("chmod 777 file", stat.S_IFREG | 0o777, "medium"),
            _mode("chmod 666 file", stat.S_IFREG | 0o666, "medium"),
            _mode("chmod o+w directory", stat.S_IFDIR | 0o757, "medium", before=0o755),
            _mode("mkdir under umask 0", stat.S_IFDIR | 0o777, "medium", before=-1, by=ModeBy.MKDIR),
            _mode("a file made under umask 0", stat.S_IFREG | 0o666, "medium", before=-1, by=ModeBy.OPEN),
            _mode("an ACL entry for others", stat.S_IFREG | 0o646, "medium", by=ModeBy.ACL),
            _mode("a default ACL", stat.S_IFDIR | 0o757, "medium", by=ModeBy.DEFAULT_ACL),
            _mode("a socket bound under umask 0", stat.S_IFSOCK | 0o777, "medium", before=-1, by=ModeBy.BIND),
            _mode("a program with the set-user-id bit that anybody may rewrite", stat.S_IFREG | 0o4777, "high"),
            _mode("chmod 1777 directory", stat.S_IFDIR | 0o1777, "low", before=0o755),
            _mode("chmod 777 of what was 777", stat.S_IFREG | 0o777, "low", before=0o777),
            _mode("a symbolic link, whose mode means nothing", stat.S_IFLNK | 0o777, "", before=-1, by=ModeBy.OPEN),
        ),
    ),
)
