"""What guard keeps on a node for one user: plans, event lines, and each session's temporary directory.

Node-local state is `/var/lib/guard` for root and `/var/tmp/guard-UID` for a user, or where
`GUARD_STATE_DIR` or `--state` say. Nothing here waits, and nothing here is fatal but what the
policy makes so: a session whose state cannot be written still starts confined.
"""

import errno
import fcntl
import marshal
import posix as os
import sys
import time
from binascii import crc32

from guard import __version__
from guard.kernel import dirname, real_path, unmarshal
from guard.redact import Redacted, program_name, withhold

SITE = "/etc/guard"
ROOT_STATE = "/var/lib/guard"
SPOOL = "events.jsonl"
SPOOL_LIMIT = 64 << 20  # bytes; one older file is kept beside it
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def default_state(uid: int) -> str:
    """The state directory of a user of this node."""
    return ROOT_STATE if uid == 0 else f"/var/tmp/guard-{uid}"  # noqa: S108 - checked by `distrust`


def root_ids() -> "tuple[int, ...]":
    """Owners to trust as root: 0, and the overflow id where root has no name in our user namespace."""
    try:
        with open("/proc/self/uid_map", "rb") as table:
            whole = table.read().split() == [b"0", b"0", b"4294967295"]
    except OSError:
        whole = True
    return (0,) if whole else (0, 65534)


def distrust(path: str, uid: int) -> str:
    """Why a directory must not hold guard's state or configuration; empty when it may.

    Args:
        path: absolute.
        uid: the user besides root who may own and write it.
    """
    owners = (*root_ids(), uid)
    at = real_path(path)
    while True:
        try:
            status = os.stat(at)
        except OSError as error:
            return f"{at}: {error.strerror}"
        if status.st_mode & 0o022 and not status.st_mode & 0o1000:
            return f"{at} is writable by others (mode {status.st_mode & 0o7777:04o})"
        if status.st_uid not in owners:
            return f"{at} belongs to user {status.st_uid}"
        if at == "/":
            return ""
        at = dirname(at)


class DistrustError(OSError):
    """A directory that others may have written in; `strerror` is the sentence."""


def prepare_state(path: str, uid: int) -> None:
    """Make the state directory if need be, 0700 for a user's.

    Raises:
        DistrustError: it exists and must not be used.
        OSError: it cannot be made (full, read-only, no permission).
    """
    try:
        os.mkdir(path, 0o755 if uid == 0 else 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        _make_directories(path)
    reason = distrust(path, uid)
    if reason:
        raise DistrustError(errno.EPERM, reason, path)


def _make_directories(path: str) -> None:
    from os import makedirs

    makedirs(path, 0o755 if os.geteuid() == 0 else 0o700)


def new_id() -> str:
    """A UUIDv7 (RFC 9562): milliseconds since 1970, then random bits."""
    head = (time.time_ns() // 1_000_000).to_bytes(6, "big")
    rest = bytearray(os.urandom(10))
    rest[0] = rest[0] & 0x0F | 0x70
    rest[2] = rest[2] & 0x3F | 0x80
    text = (head + rest).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


PLAN_MAGIC = b"guard-plan 4\n"
TYPE_CHECKING = False  # `typing` costs more than all the rest here
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Session(Protocol):
        """What an event tells of the session that it is about."""

        id: str
        uid: int
        user: str
        harness: str
        cwd: str
        plan: dict[str, Any]
        root: int  # the process that the shell knows
        fault: str  # why the last event could not be written

        @property
        def spool(self) -> "Spool | None":
            """Where its events are written."""
            ...

        @property
        def command(self) -> list[str]:
            """The command's words."""
            ...

        @property
        def job(self) -> bytes:
            """The Slurm job."""
            ...
else:
    Any = object
Plan = dict[str, Any]  # guard.policy.plan describes it
Request = tuple[Any, ...]  # guard.policy.prepare takes it
_UID, _ABI, _AUDIT = 4, 8, 12  # where a request holds the caller (his groups follow), Landlock's ABI, --audit
_OWN_NAME = 13  # characters of a cached plan's name: a checksum and `.plan`
_START_NAME = 16  # of a written start's (guard.confine.written): a sum
PLAN_MOST = 16 << 20  # bytes, checksum included; the largest seen has 20,000


def exists(path: str) -> bool:
    """Whether a path leads to something that can be seen."""
    try:
        os.stat(path)
    except OSError:
        return False
    return True


def is_absent(path: str) -> bool:
    """Whether there is surely nothing of that name; what cannot be told counts as there."""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno in (errno.ENOENT, errno.ENOTDIR)
    return False


def is_site(config: str) -> bool:
    """Whether root's files there decide for the node; a directory that hides them from us does too."""
    return not (is_absent(config + "/site.toml") and is_absent(config + "/assign.toml"))


def find_plan(request: "Request", state: str, config: str) -> "Plan":
    """The plan for a start: the one at hand if it is fresh and may be trusted, else one made now.

    Where root's files decide, only root's plans count, and no user's cache is asked or filled.

    Args:
        request: all that the plan depends on besides the files it was made from; a user's cached plan
            holds an equal one.
        state, config: directories; an empty `state` keeps nothing.

    Raises:
        ControlError: no plan can be made; the sentence is the compiler's.
    """
    if is_site(config):
        # A moved configuration of root's has its plans beside it; no other place is asked for /etc/guard.
        shelves = [f"{ROOT_STATE}/plans"] if config == SITE else [f"{state}/plans", f"{ROOT_STATE}/plans"]
        for shelf in shelves:
            plan = _site_plan(request, shelf)
            if plan:
                return plan
        return _new_plan(request, state)[0]
    name = f"{crc32(repr(request).encode('utf-8', 'replace')):08x}.plan"
    plan = _fresh_plan(f"{state}/plans/{name}", os.geteuid()) if state else None
    if plan and plan.get("request") == request:
        return plan
    plan, content = _new_plan(request, state)
    # Made while Landlock did not answer as it does now (out of layers, out of memory): for this once.
    if state and not request[_AUDIT] and bool(plan["abi"]) == bool(request[_ABI]):
        keep(f"{state}/plans", name, content + crc32(content).to_bytes(4, "little"))
    return plan


def _new_plan(request: "Request", state: str) -> "tuple[Plan, bytes]":
    """A plan made now, and its file's content; the policy's text is kept under the digest that events name."""
    made = _make_plan(request)
    head = len(PLAN_MAGIC) + 8
    end = head + int.from_bytes(made[head - 8 : head], "little")
    plan = load_plan(made[:end])
    text = f"{plan['digest']}.toml"
    if state and not exists(f"{state}/policies/{text}"):
        keep(f"{state}/policies", text, made[end:])
    return plan, made[:end]


def _site_plan(request: "Request", shelf: str) -> "Plan | None":
    """Root's plan for a start, as `guard.policy.site` arranged them; None where none answers it."""
    named, harness, layer, home, _, _, config, _, abi, why, machine, host, _ = request
    if named or layer or (home and not is_absent(home + "/.config/guard/policy.toml")):
        return None  # a layer of the caller's own
    index = _fresh_plan(shelf + "/index", 0)
    here = (machine, host, (abi, why), config)
    if not index or tuple(map(index.get, ("machine", "host", "landlock", "config"))) != here:
        return None
    row = next((number for number, subject in index["rows"] if _speaks_of(subject, request)), -1)
    now = time.time()
    widened = tuple(
        number
        for number, (until, subject) in enumerate(index["exceptions"])
        if until > now and _speaks_of(subject, request)
    )
    name = index["plans"].get((row, harness, widened))
    return _fresh_plan(f"{shelf}/{name}", 0) if name else None


def _speaks_of(subject: "tuple[tuple[object, ...], ...]", request: "Request") -> bool:
    """Whether a row of the index speaks of the caller; names are those that had no number when it was made."""
    uids, gids, harnesses, users, groups = subject
    uid, own = request[_UID], request[_UID + 1]
    if (uids or users) and uid not in uids and not (users and _name_of("user", uid) in users):
        return False
    if (gids or groups) and not set(gids).intersection(own):  # noqa: SIM102 - one condition a line
        if not any(_name_of("group", gid) in groups for gid in (own if groups else ())):
            return False
    return not harnesses or request[1] in harnesses


def _name_of(kind: str, number: int) -> str:
    import grp
    import pwd

    try:
        return pwd.getpwuid(number).pw_name if kind == "user" else grp.getgrgid(number).gr_name
    except KeyError:
        return ""


def load_plan(content: bytes) -> "Plan":
    """Undo `guard.policy.plan.dumps`.

    Raises:
        ValueError: it is no plan, or not whole.
    """
    head = len(PLAN_MAGIC) + 8
    body = content[head:]
    if not content.startswith(PLAN_MAGIC) or int.from_bytes(content[head - 8 : head], "little") != len(body):
        raise ValueError("not a plan, or cut short")
    plan = unmarshal(body)  # read only from files that `_read_plan` trusts
    if not isinstance(plan, dict):
        raise ValueError("not a plan")  # noqa: TRY004 - whatever is wrong with the bytes is one error
    return plan


def is_fresh(plan: "Plan") -> bool:
    """Whether a plan still says what its files say: none changed, appeared or went, no date passed."""
    if plan["guard"] != __version__ or (plan["expires"] and plan["expires"] <= time.time()):
        return False
    for path, changed, size, inode in plan["sources"]:
        try:
            status = os.stat(path)
        except OSError:
            if size or inode:
                return False
            continue
        if (status.st_mtime_ns, status.st_size, status.st_ino) != (changed, size, inode):
            return False
    return True


def _fresh_plan(path: str, owner: int) -> "Plan | None":
    """A plan from disk that may be trusted and still holds; None for any other, whatever it is made of."""
    plan = _read_plan(path, owner)
    try:
        return plan if plan and is_fresh(plan) else None
    except (KeyError, TypeError, ValueError):
        return None


def _read_plan(path: str, owner: int) -> "Plan | None":
    """A plan from disk, if nobody but its owner and root can have written it."""
    if distrust(dirname(path), owner):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if status.st_mode & 0o170022 != 0o100000 or status.st_uid not in (*root_ids(), owner):
            return None
        # At its end a checksum: a disk's error must not become a plan that is half right.
        content = os.read(fd, min(status.st_size, PLAN_MOST))
        if crc32(content[:-4]).to_bytes(4, "little") != content[-4:]:
            return None
        return load_plan(content[:-4])
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def keep(shelf: str, name: str, content: bytes) -> None:
    """Keep a file of ours, whole or not at all; where that is not possible the next start tries again."""
    part = f"{shelf}/.{name}.{os.getpid()}"
    try:
        if not exists(shelf):
            _make_directories(shelf)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.rename(part, f"{shelf}/{name}")
    except OSError:
        try:
            os.unlink(part)
        except OSError:
            return


def forget_plans(state: str) -> None:
    """Throw the user's cached plans and written starts away: something unconfined may have written there.

    Root's plans for a site, which have longer names, are nobody's cache and stay.
    """
    for kind, ending, length in (("/plans", ".plan", _OWN_NAME), ("/starts", "", _START_NAME)):
        try:
            shelf = os.open(state + kind, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        for name in os.listdir(shelf):
            if name.endswith(ending) and len(name) == length:
                try:
                    os.unlink(name, dir_fd=shelf)
                except OSError:
                    continue
        os.close(shelf)


def _make_plan(request: "Request") -> bytes:
    import subprocess

    from guard.errors import ControlError

    library = dirname(dirname(__file__))
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from guard.policy.prepare import main; sys.exit(main())"
    try:
        made = subprocess.run(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-I", "-c", code, dirname(library)],
            input=marshal.dumps(request),
            # ctypes looks for a library with the help of gcc and ld: not those of a project's own directory.
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ControlError(f"the policy cannot be compiled: {error}") from None
    if made.returncode:
        said = made.stderr.decode("utf-8", "replace").strip()
        if made.returncode != 125:  # not one of its sentences: the end of a traceback, or nothing
            said = f"the policy cannot be compiled: {said.rpartition(chr(10))[2] or f'exit {made.returncode}'}"
        raise ControlError(said)
    return made.stdout


class PrivateTmp:
    """A session's own temporary directory, `{base}/guard-UID/NAME`, kept as long as its tree lives.

    A lock on the directory itself is inherited by the tree, so that the next session can tell whether
    anything of it is still there.

    Args:
        base: the site's directory for temporary files.
        uid: the user.

    Attributes:
        path: the directory.
        shelf: the directory of all the user's.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, base: str, uid: int) -> None:
        self.shelf = _find_shelf(real_path(base), uid)
        while True:
            name = "".join(_ALPHABET[byte & 31] for byte in os.urandom(8))
            self.path = f"{self.shelf}/{name}"
            try:
                os.mkdir(self.path, 0o700)
            except FileExistsError:
                continue
            try:
                self._lock = self._hold()
            except (BlockingIOError, FileNotFoundError):
                continue  # a sweep came between the two and took it for a dead one's: it is the sweep's now
            except OSError:
                self.remove()
                raise
            if os.fstat(self._lock).st_nlink:
                return
            os.close(self._lock)

    def fileno(self) -> int:
        """The lock."""
        return self._lock

    def _hold(self) -> int:
        held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            high = _high(held)
        finally:
            os.close(held)
        try:
            # Shared, so that `hold_again` never lets go; who sweeps asks for all, and is not waited for.
            fcntl.flock(high, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(high)
            raise
        return high

    def hold_again(self) -> None:
        """Hold the lock by a descriptor of the mount namespace we have entered.

        The old one belongs to the namespace before: `openat(lock, "../../..")` would lead past the mask.
        """
        before, self._lock = self._lock, self._hold()
        os.close(before)

    def inherit(self) -> None:
        """Let the lock pass into the tree."""
        os.set_inheritable(self._lock, True)

    def remove(self) -> None:
        """Take the empty directory away again: nothing was started in it."""
        try:
            os.rmdir(self.path)
        except OSError:
            return

    def sweep(self) -> None:
        """Remove what dead sessions left, in a process of its own that holds nothing of ours.

        Dead is a session whose lock is free and whose directory no process of the user names in its
        environment: a daemon may have closed the descriptor it inherited. To know that costs a look at every process
        of the host, so that few that were written to within the last minute are left to a later start.
        """
        free, now, is_worth_it = [], time.time(), False
        for name in os.listdir(self.shelf):
            path = f"{self.shelf}/{name}"
            if path == self.path:
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free.append((name, fd))
                is_worth_it |= not now - 60 < os.fstat(fd).st_mtime <= now
            except OSError:
                os.close(fd)
        if len(free) < 8 and not is_worth_it:
            for _, fd in free:
                os.close(fd)
            return
        try:
            child = os.fork()
        except OSError:
            child = -1  # the next start sweeps
        if child == 0:
            try:
                if os.fork() == 0:
                    from guard.confine import sweep

                    sweep.remove_dead(self.shelf, [name for name, _ in free], {fd for _, fd in free})
            finally:
                os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
        for _, fd in free:
            os.close(fd)


def _high(fd: int) -> int:
    """A copy of a descriptor with a number that no shell script expects to be free, as far as the limit goes."""
    for lowest in (200, 50):
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue  # a lower limit on open files
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _find_shelf(base: str, uid: int) -> str:
    shelf = f"{base}/guard-{uid}"
    try:
        os.mkdir(shelf, 0o700)
    except FileExistsError:
        if not _is_shelf(shelf, uid):
            # Somebody else took the name (in a user namespace: root itself). Go on without him, under a name
            # that nobody can foresee, and that our next session finds and sweeps.
            for name in os.listdir(base):
                if name.startswith(f"guard-{uid}-") and _is_shelf(f"{base}/{name}", uid):
                    return f"{base}/{name}"
            shelf = f"{shelf}-{os.urandom(8).hex()}"
            os.mkdir(shelf, 0o700)
    return shelf


def _is_shelf(path: str, uid: int) -> bool:
    """Whether it is a directory of this user's that nobody else may enter."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_uid == uid and status.st_mode & 0o170077 == 0o040000


class Spool:
    """The user's event lines on this node, appended one write each.

    Args:
        state: the state directory, prepared.
        producer: as `run:SESSION`.

    Attributes:
        path, lost_path: the lines, and the count of those that could not be written.
        seq: how many this producer has written.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, state: str, producer: str) -> None:
        self.path = f"{state}/{SPOOL}"
        self.lost_path = f"{state}/events.lost"
        self._producer = producer
        self.seq = 0
        self._fd = os.open(
            self.path,
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
            0o600,
        )
        if os.fstat(self._fd).st_size > SPOOL_LIMIT:
            os.rename(self.path, self.path + ".1")

    def fileno(self) -> int:
        """The open file."""
        return self._fd

    def write(self, record: "dict[str, object]") -> None:
        """Append one event; `time`, `id`, `host`, `boot`, `producer`, `seq` and `origin` are filled in.

        Raises:
            OSError: it was not stored whole (ENOSPC, EDQUOT, EROFS, …); no half line stays.
        """
        line = self.line(record)
        size = os.fstat(self._fd).st_size
        written = os.write(self._fd, line)
        if written != len(line):
            if os.fstat(self._fd).st_size == size + written:  # nobody has written behind it meanwhile
                os.ftruncate(self._fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self.seq += 1

    def line(self, record: "dict[str, object]") -> bytes:
        """An event's line, as the next that is written."""
        now = time.time_ns()
        whole = {
            "schema": 1,
            "id": new_id(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1_000_000_000))
            + f".{now // 1000 % 1_000_000:06d}Z",
            "host": os.uname().nodename,
            "boot": _boot_id(),
            "producer": self._producer,
            "seq": self.seq + 1,
            "origin": "user",
            **record,
        }
        return to_json(whole).encode("utf-8", "replace") + b"\n"

    def lost(self) -> int:
        """How many events could not be written before, as `count_lost` kept it."""
        try:
            return os.stat(self.lost_path).st_size
        except OSError:
            return 0

    def told_lost(self, told: int) -> None:
        """Take off the count what an event has told."""
        try:
            os.truncate(self.lost_path, max(0, self.lost() - told))
        except OSError:
            return  # told once more, rather than never


def count_lost(state: str) -> None:
    """Keep that one event was lost: a file longer by a hole of one byte, which a full disk or quota still takes."""
    try:
        fd = os.open(
            f"{state}/events.lost",
            os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
            0o600,
        )
        try:
            os.ftruncate(fd, os.fstat(fd).st_size + 1)
        finally:
            os.close(fd)
    except OSError:
        return  # said on stderr by the caller; there is no further place


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as text:
            return text.read().strip()
    except OSError:
        return ""


# What some reader takes for the end of a line never stands in one.
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)} | {34: '\\"', 92: "\\\\"}


def to_json(value: object) -> str:
    """JSON (RFC 8259) of the plain values an event is made of; `json` would cost a millisecond of import."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return '"' + value.translate(_ESCAPES) + '"'
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_json(str(key))}:{to_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(to_json, value)) + "]"
    raise TypeError(f"no JSON for {type(value).__name__}")


def record(
    session: "Session",
    rule: str,
    severity: str,
    verdict: str,
    message: str,
    detail: "dict[str, object]",
    control: str = "session",
) -> bool:
    """Write one event about a session, and tell whether it was; what cannot be written is remembered in its `fault`."""
    event: dict[str, object] = {
        "control": control,
        "rule": rule,
        "severity": severity,
        "verdict": verdict,
        "tree": {
            "session": session.id,
            "harness": session.harness,
            "root_pid": session.root,
            "uid": session.uid,
            "user": session.user,
        },
        "process": process(session.command, session.cwd),
        "policy": {"name": session.plan.get("policy", ""), "digest": session.plan.get("digest", "")},
        "detail": detail,
        "mitre": [],
        "message": message[:99],
    }
    if session.job.isdigit() and len(session.job) < 20:
        event["tree"]["slurm_job_id"] = int(session.job)  # type: ignore[index]
    if session.spool is None:
        return False
    try:
        session.spool.write(event)
    except OSError as error:
        session.fault = f"{session.spool.path}: {error.strerror}"
        return False
    return True


def process(argv: "list[str]", cwd: str) -> "dict[str, object]":
    """The `process` object of an event about this process: what is not redacted yet is withheld."""
    text: list[Redacted] = [program_name(argv[0])] if argv else []
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "exe": program_name(argv[0]) if argv else withhold(""),
        "argv": text,
        "argc": len(argv),
        "cwd": withhold(cwd),
    }
