"""read, write, exec and chmod: what the places of a session give a path."""

from __future__ import annotations

import os
import re
import stat
import struct

from guard import kernel
from guard.confine import places
from guard.confine.explain.answer import ALLOWED, DENIED, REWRITTEN, Answer, UnfitError
from guard.confine.explain.session import FILTER, KERNEL, MASKED, ORDINARY, SHARED, SUPERVISOR, Entry, Session
from guard.kernel import landlock
from guard.policy import filter as filters
from guard.policy.refusals import NOTHING

_AT_FDCWD = 0xFFFFFF9C
_PT_INTERP = 3
# Entries of another process's directory in /proc that the kernel opens only to who may trace it (proc(5)).
_TRACED = ("mem", "environ", "auxv", "maps", "smaps", "smaps_rollup", "pagemap", "stack", "syscall", "fd", "fdinfo",
           "map_files", "root", "cwd", "exe", "io", "personality", "timers", "ns", "numa_maps")  # fmt: skip


def read(session: Session, path: str) -> Answer:
    """Open a file for reading, or list a directory."""
    real = os.path.realpath(path)
    need = landlock.READ_DIR if os.path.isdir(real) else landlock.READ_FILE
    other = _process(session, path) or _open_already(real)
    return other or _judge(session, real, real, need, os.R_OK, "files.read")


def execute(session: Session, path: str) -> Answer:
    """Start a program, or a script with the interpreter that its first line names."""
    real = os.path.realpath(path)
    if os.path.isdir(real):
        return Answer(DENIED, "files", "a directory cannot be executed", ORDINARY, real=real)
    answer = _judge(session, real, real, landlock.EXECUTE, os.X_OK, "files.read")
    interpreter = _interpreter(real) if answer.verdict == ALLOWED else ""
    if interpreter:
        through = _judge(session, *(os.path.realpath(interpreter),) * 2, landlock.EXECUTE, os.X_OK, "files.read")
        if through.verdict != ALLOWED:
            return through
    if answer.verdict != ALLOWED:
        return answer
    unseen = answer.unseen
    if _raises(real):
        unseen = "inside a session nothing raises privilege: it runs as you, without its set-id"
    elif session.modes["pipe-to-shell"] == "enforce" and session.supervised and session.may_write(real):
        unseen = "refused if a download of the same session wrote it"
    return Answer(answer.verdict, "files", answer.why, answer.layer, answer.entry, unseen, real=real)


def write(session: Session, path: str) -> Answer:
    """Write a file, make it where there is none, or make files in a directory."""
    real = os.path.realpath(path)
    other = _open_already(real)
    if other:
        return other
    if os.path.isdir(real):
        return _judge(session, real, real, landlock.MAKE_REG, os.W_OK | os.X_OK, "files.write")
    if os.path.lexists(real):
        return _judge(session, real, real, landlock.WRITE_FILE, os.W_OK, "files.write")
    parent = os.path.dirname(real)
    while not os.path.isdir(parent):
        if os.path.lexists(parent):
            return Answer(DENIED, "files", f"{parent} is no directory", ORDINARY, real=real)
        parent = os.path.dirname(parent)
    need = landlock.MAKE_REG if parent == os.path.dirname(real) else landlock.MAKE_REG | landlock.MAKE_DIR
    return _judge(session, real, parent, need, os.W_OK | os.X_OK, "files.write")


def _judge(session: Session, real: str, target: str, need: int, mode: int, key: str) -> Answer:
    """Judge one path.

    Args:
        session: what is asked.
        real: the path, no links left in it.
        target: the same, or the directory in which it would be made.
        need: Landlock's rights.
        mode: access(2)'s bits.
        key: what would grant it.
    """
    writes = key == "files.write"
    denies, protects = session.entry("files.deny", real), session.entry("files.protect", real)
    grants = session.entry("files.write", target) or session.entry("files.devices", target)
    if not writes:
        grants = grants or session.entry("files.read", target)
    if _covered_memory(session, real):
        if not writes and real != SHARED:
            why = "the session has a shared memory of its own, and it is not in there"
            return Answer(DENIED, "files", why, MASKED, grants, real=real)
        target = SHARED if writes else real
        mode = mode & ~os.W_OK
    refused = need & session.handled & ~session.rights(target)
    if session.files and session.hidden(real):
        more = widen(session, real, key, denies)
        return Answer(DENIED, "files", "the policy denies this place", MASKED, denies, "", more, real)
    if refused:
        return _refused(session, real, target, key, denies, protects)
    if writes and session.shielded(real):
        why = "the policy protects it: it may be read, not written"
        return Answer(DENIED, "files", why, MASKED, protects, "", widen(session, real, key, protects), real)
    if writes and session.kept(real):
        why = "the policy protects it, and it is not there: what is made under this name is moved aside at once"
        rule = protects or session.setting("files.protect")
        return Answer(DENIED, "files", why, SUPERVISOR, rule, "", widen(session, real, key, protects), real)
    ordinary = _ordinary(target, mode)
    if ordinary:
        return Answer(DENIED, "files", f"guard allows it; {ordinary}", ORDINARY, grants, real=real)
    entry, unseen = _held(session, writes, grants, denies, protects)
    return Answer(ALLOWED, "files", _why_allowed(session, real, target), "", entry, unseen, real=real)


def _covered_memory(session: Session, real: str) -> bool:
    """Whether it lies in the shared memory that a session will have a directory of its own for."""
    return session.masked and session.shared and not session.here.inside and places.is_below(real, SHARED)


def _why_allowed(session: Session, real: str, target: str) -> str:
    if not session.files:
        mode = session.modes["files"]
        return f"the control files is {mode}: nothing of it is enforced"
    if not session.handled and not session.masked:
        return "nothing holds files here"
    if target == real and not os.path.lexists(real):
        return "the policy grants it; there is nothing of that name"
    return "the policy grants it"


def _held(
    session: Session, writes: bool, grants: Entry | None, denies: Entry | None, protects: Entry | None
) -> tuple[Entry | None, str]:
    """What the policy asks for and this host does not give, where something is allowed all the same."""
    if not session.files:
        return session.setting("controls.files"), ""
    if denies:
        return denies, "NOT HELD here: the policy denies it, and no layer can"
    if protects and writes:
        if session.masked:
            return protects, "NOT HELD: the policy protects it, and it is not there when the session starts"
        return protects, "NOT HELD here: the policy protects it, and that needs the mask"
    if not session.handled:
        return grants, f"NOT HELD here: {session.here.host.landlock_reason or 'no Landlock'}"
    return grants, ""


def _refused(
    session: Session, real: str, target: str, key: str, denies: Entry | None, protects: Entry | None
) -> Answer:
    writes = key == "files.write"
    deciding = denies or (protects if writes else None)
    unseen = "it can still be seen to exist (stat)" if denies and not session.masked else ""
    if denies:
        why = "the policy denies this place"
    elif deciding:
        why = "the policy protects it: it may be read, not written"
    elif any(places.is_below(real, top) for top in session.here.own):
        return Answer(DENIED, "files", "guard keeps its own state and configuration there", KERNEL, None, real=real)
    else:
        granted = session.entry("files.read", target) or session.entry("files.write", target)
        if granted and (not writes or session.entry("files.write", target)):
            # Beside a denied place what is there is granted name by name.
            why = "a denied place lies in it, so its names are granted one by one"
            if os.path.isdir(real):
                why += ": not the list"
            else:
                why += ", and this one was not there at the start"
            return Answer(DENIED, "files", why, KERNEL, granted, unseen, widen(session, real, key, None), real)
        why = "the policy grants reading here, not writing" if granted else "the policy grants nothing here"
        deciding = session.setting(key)
    return Answer(DENIED, "files", why, KERNEL, deciding, unseen, widen(session, real, key, deciding), real)


def widen(session: Session, real: str, key: str, deciding: Entry | None) -> dict[str, object]:
    """Return what an exception would have to widen: the grant that is missing, and the refusal that stands.

    Args:
        session: the one that denies.
        real: the path.
        key: what grants it.
        deciding: the entry that refuses it.
    """
    found: dict[str, object] = {}
    if deciding and deciding.key in ("files.deny", "files.protect"):
        found[deciding.key] = [deciding.value]
    if session.entry(key, real) or (key == "files.read" and session.entry("files.write", real)):
        return found
    # What is not there cannot be granted: the directory it would be made in is.
    place = real if os.path.lexists(real) else os.path.dirname(real)
    if not os.path.lexists(place) or place in ("/", *session.here.homes):
        return {}
    return {**found, key: [pattern(session, place)]}


def pattern(session: Session, real: str) -> str:
    """Write a path as a policy would: below the home by variable."""
    home = session.here.home
    return "{home}" + real[len(home) :] if home and places.is_below(real, home) else real


def _ordinary(target: str, mode: int) -> str:
    """Why the host itself refuses, "" if it does not: modes, access lists, read-only file systems."""
    if not os.path.lexists(target) or _may(target, mode):
        return ""
    if mode & os.W_OK and os.statvfs(target).f_flag & os.ST_RDONLY:
        return "the file system is read-only"
    return "the modes of the file or of a directory above it do not"


def _may(target: str, mode: int) -> bool:
    """Whether the session's user may; root without root's capabilities, which a session does not have."""
    if os.geteuid():
        return os.access(target, mode, effective_ids=os.access in os.supports_effective_ids)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kernel.drop_capabilities()
            code = 0 if os.access(target, mode, effective_ids=True) else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _open_already(real: str) -> Answer | None:
    if re.fullmatch(r"/proc/\d+/(task/\d+/)?fd/(pipe|socket|anon_inode):.*", real):
        return Answer(ALLOWED, "files", "it is open already: nothing that lies in a directory", real=real)
    return None


def _process(session: Session, path: str) -> Answer | None:
    """Another process's memory and the like: whoever may not trace it may not read it."""
    found = re.match(r"/proc/(\d+)/(?:task/\d+/)?(\w+)", os.path.normpath(os.path.join(os.getcwd(), path)))
    if not found or found[2] not in _TRACED or session.here.inside or not session.domain:
        return None
    why = "it is of a process outside of the session"
    return Answer(DENIED, "processes", why, KERNEL, session.setting("controls.processes"), real=found[0])


def _interpreter(real: str) -> str:
    """What the kernel starts in a program's stead or beside it: by `#!`, or an ELF's loader (elf(5), PT_INTERP)."""
    try:
        with open(real, "rb") as file:
            head = file.read(256)
            if head.startswith(b"#!"):
                words = os.fsdecode(head[2:].split(b"\n")[0]).split()
                return words[0] if words else ""
            if head[:6] != b"\x7fELF\2\1":
                return ""
            (table,), (size, count) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<HH", head, 54)
            file.seek(table)
            for _ in range(min(count, 64)):
                kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", file.read(size))
                if kind == _PT_INTERP:
                    file.seek(at)
                    return os.fsdecode(file.read(min(length, 4096)).split(b"\0")[0])
    except (OSError, struct.error):
        return ""  # not ours to read, or no program: whether it runs is the kernel's answer
    return ""


def _raises(real: str) -> bool:
    try:
        status = os.stat(real)
    except OSError:
        return False
    return bool(status.st_mode & stat.S_ISUID) and status.st_uid != os.geteuid()


# chmod --------------------------------------------------------------------------------------------------


def chmod(session: Session, mode: str, path: str) -> Answer:
    """Change a file's mode.

    Raises:
        UnfitError: the mode is none.
        OSError: there is no such file, or none that can be seen.
    """
    real = os.path.realpath(path)
    status = os.stat(real)
    wanted = new_mode(mode, status.st_mode)
    foreign = os.geteuid() != status.st_uid
    ordinary = Answer(DENIED, "metadata", "guard aside: only a file's owner changes its mode", ORDINARY, real=real)
    if session.files and (session.hidden(real) or session.shielded(real)):
        key = "files.deny" if session.hidden(real) else "files.protect"
        return Answer(DENIED, "files", "the place is hidden or read-only", MASKED, session.entry(key, real), real=real)
    answer = _by_supervisor(session, wanted, real) if "fchmodat" in session.calls else _by_filter(session, wanted, real)
    if foreign and answer.verdict != DENIED:
        return ordinary
    return answer


def _by_supervisor(session: Session, wanted: int, real: str) -> Answer:
    more: dict[str, object]
    outside = not session.may_write(real)
    if outside and session.modes["metadata"] == "enforce":
        more = widen(session, real, "files.write", None)
        why = "it lies outside the places that the session may write"
        return Answer(DENIED, "metadata", why, SUPERVISOR, session.setting("files.write"), "", more, real)
    if _sets_id(wanted, real) and session.modes["setuid"] == "enforce":
        why = "a set-id program runs as its owner for everybody"
        more = {"modes.setuid": "observe"}
        return Answer(DENIED, "setuid", why, SUPERVISOR, session.setting("modes.setuid"), "", more, real)
    if wanted & 0o2 and session.modes["world-writable"] == "enforce":
        setting = session.setting("modes.world_writable")
        if setting.value == "strip":
            why = f"done as {wanted & ~0o2:04o}: everybody could write otherwise"
            return Answer(REWRITTEN, "world-writable", why, SUPERVISOR, setting, real=real)
        why, more = "everybody could write it", {"modes.world_writable": "observe"}
        return Answer(DENIED, "world-writable", why, SUPERVISOR, setting, "", more, real)
    return Answer(ALLOWED, "metadata", "the policy allows this mode", real=real)


def _sets_id(wanted: int, real: str) -> bool:
    return bool(wanted & stat.S_ISUID or (wanted & stat.S_ISGID and not os.path.isdir(real)))


def _by_filter(session: Session, wanted: int, real: str) -> Answer:
    rule = filters.verdict(session.rules, "fchmodat", (_AT_FDCWD, 0, wanted))
    unseen = ""
    if session.modes["metadata"] == "enforce" and not session.may_write(real):
        unseen = "NOT HELD here: it lies outside, and to see that needs the supervisor"
    elif wanted & stat.S_ISGID and session.modes["setuid"] == "enforce" and not os.path.isdir(real):
        unseen = "NOT HELD here: set-group-id of a file needs the supervisor"
    if rule is None:
        return Answer(ALLOWED, "metadata", "the policy allows this mode", unseen=unseen, real=real)
    control = rule.controls[0]
    if rule.action == NOTHING:
        why = "answered as done, and the mode stays: without a supervisor it cannot be done in part"
        return Answer(REWRITTEN, control, why, FILTER, session.setting(rule.key), real=real)
    more: dict[str, object] = {rule.key: "observe"}
    return Answer(DENIED, control, rule.reason, FILTER, session.setting(rule.key), "", more, real)


_CLAUSE = re.compile(r"([ugoa]*)([+=-])([rwxXst]*)")


def new_mode(text: str, present: int) -> int:
    """Read a mode as chmod(1) does.

    Args:
        text: octal, or clauses such as `go-w,u+x`.
        present: the file's, with its type.

    Raises:
        UnfitError: it is neither.
    """
    if re.fullmatch(r"[0-7]{1,5}", text) and int(text, 8) <= 0o7777:
        return int(text, 8)
    mode = stat.S_IMODE(present)
    for clause in text.split(","):
        found = _CLAUSE.fullmatch(clause)
        if not found:
            raise UnfitError(f"{text!r} is no mode; write one such as 644 or o-w")
        # Without letters the umask has its say; that it leaves o+w in is not to be relied upon.
        who, sign, what = found[1].replace("a", "ugo") or "ugo", found[2], found[3]
        bits = 0
        for letter in who:
            shift = {"u": 6, "g": 3, "o": 0}[letter]
            run = "x" in what or ("X" in what and (stat.S_ISDIR(present) or mode & 0o111))
            bits |= (("r" in what) * 4 | ("w" in what) * 2 | bool(run)) << shift
        bits |= ("s" in what) * (("u" in who) * stat.S_ISUID | ("g" in who) * stat.S_ISGID)
        bits |= ("t" in what) * stat.S_ISVTX
        if sign == "=":
            mode &= ~sum(0o7 << {"u": 6, "g": 3, "o": 0}[letter] for letter in set(who))
        mode = mode & ~bits if sign == "-" else mode | bits
    return mode


__all__ = ["chmod", "execute", "new_mode", "pattern", "read", "widen", "write"]
