"""Root's plans: every plan that this node's assignments can ask for, compiled before anybody starts.

`STATE/plans/index` says which plan is whose, with names already turned into numbers, so that a start needs
neither TOML nor the name service. Who is not answered there (a new group of groups, a layer of the user's
or the project's own) gets a plan made in memory for that one start. `STATE/policies/DIGEST.toml` is the text
of each policy, under the digest that events name; `STATE/last-good/` the site's files as they last loaded.

The index has a plan's outer form (`guard.policy.plan.dumps`) and is read by `guard.confine.state`:
`guard`, `machine`, `host`, `landlock` (ABI, errno), `config`, `sources`, `expires` (0.0); `rows`
[(number, subject)] in order of assign.toml and `exceptions` [(until, subject)], both without those of other
hosts; `plans` {(row number or -1, harness, (exception number, …)): file}. A subject is (uids, gids,
harnesses, user names, group names): the names are those that had no number here when it was made, and
(), (), … is everybody.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from zlib import crc32

from guard import __version__
from guard.errors import GuardError, PlanError, PolicyError
from guard.kernel import landlock
from guard.policy import last_good, plan
from guard.policy.assign import Config, Request, exception_files, is_managed, resolve, shipped_dir
from guard.policy.host import discover
from guard.policy.keys import HARNESSES
from guard.policy.load import load_site
from guard.policy.rows import Assignment, Exemption, Subject, load_assignments, load_exceptions
from guard.policy.source import check_private, printable
from guard.policy.status import Host

MOST = 512
"""Plans that are compiled; those of the largest combinations of groups are left out first."""

_ACCOUNTS = ("/etc/passwd", "/etc/group")
Key = tuple[int, str, tuple[int, ...]]
Row = tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Compiled:
    """What came of compiling a site.

    Args:
        plans: how many plans were written.
        left_out: how many combinations were not, and are compiled at each start.
        alerts: why a file of the site's is not in force, or a plan could not be made.
    """

    plans: int
    left_out: int
    alerts: tuple[str, ...]


def compile_site(config_dir: str, state_dir: str, now: float, host: Host | None = None) -> Compiled:
    """Compile a site's plans, and keep its files as the last good ones where all of them load.

    Args:
        config_dir: the configuration, with a site.toml or an assign.toml.
        state_dir: root's state; `plans/` and `last-good/` are made in it.
        now: seconds since the epoch.
        host: what this host enforces; None: found out, as an ordinary user.

    Returns:
        What was written, and what was not.

    Raises:
        PolicyError: the site's files cannot be used at all, and there are no last good ones.
        PlanError: no plan that is made here would hold.
        StateError: a directory that others may write.
        GuardError: there is no site, or the state cannot be written.
    """
    config_dir, state_dir = os.path.abspath(config_dir), os.path.abspath(state_dir)
    if not is_managed(config_dir):
        raise GuardError(
            f"{printable(config_dir)}: there is neither a site.toml nor an assign.toml",
            "without them each user's plans are made at the first start, and there is nothing to compile",
        )
    check_private(config_dir)
    check_private(state_dir)
    try:
        for name in ("plans", "policies"):
            os.makedirs(os.path.join(state_dir, name), 0o755, exist_ok=True)
        good = os.path.join(state_dir, "last-good")
        alerts = last_good.keep(config_dir, shipped_dir(), good, now)
        if alerts and os.path.isdir(good):
            alerts.append("the last good site files stay in force")
        site = _Site.read(config_dir, good, now)
        if site is None:
            return Compiled(0, 0, tuple(alerts))
        return site.write(os.path.join(state_dir, "plans"), host or _discover_as_nobody(), alerts)
    except OSError as error:
        where = printable(str(error.filename or state_dir))
        raise GuardError(f"{where}: cannot be written: {error.strerror}", "free space there") from error


class _Site:
    """A site's rows and exceptions that speak of this host, and the sessions that they tell apart."""

    def __init__(self, config: Config, now: float, rows: tuple[Assignment, ...], exemptions: list[Exemption]) -> None:
        self.config, self.now = config, now
        self.host = os.uname().nodename
        self.rows = [(number, row) for number, row in enumerate(rows) if self._is_here(row.subject)]
        self.exemptions = [each for each in exemptions if self._is_here(each.subject)]
        subjects = [row.subject for _, row in self.rows] + [each.subject for each in self.exemptions]
        self.users = sorted({name for subject in subjects for name in subject.users})
        self.groups = sorted({name for subject in subjects for name in subject.groups})

    @classmethod
    def read(cls, config_dir: str, good: str, now: float) -> _Site | None:
        """Read it; None where a file does not load and the last good ones answer for all of them.

        Raises:
            PolicyError: a file does not load, and there are no last good ones.
        """
        try:
            sitefile = load_site(os.path.join(config_dir, "site.toml"))
            variables = sitefile.site.variables if sitefile else {}
            rows = load_assignments(os.path.join(config_dir, "assign.toml")) or ()
            exemptions: list[Exemption] = []
            for path in exception_files(config_dir):
                exemptions += load_exceptions(path, variables, []) or ()
        except PolicyError:
            if os.path.isdir(good):
                return None
            raise
        return cls(Config(config_dir, floor_dir=config_dir, last_good_dir=good), now, rows, exemptions)

    def _is_here(self, subject: Subject) -> bool:
        return Subject(hosts=subject.hosts).matches("", (), self.host, "")

    def write(self, shelf: str, host: Host, alerts: list[str]) -> Compiled:
        answered = landlock.abi()
        if bool(answered[0]) != bool(host.abi):
            raise PlanError(
                f"Landlock answers here and enforces nothing: {host.landlock_reason}",
                "compile outside of any sandbox or container",
            )
        texts = os.path.join(os.path.dirname(shelf), "policies")
        plans: dict[Key, str] = {}
        left_out = 0
        tried: set[Key] = set()
        for request, key in self._sessions():
            if key in tried:
                continue
            tried.add(key)
            if len(plans) >= MOST:
                left_out += 1
                continue
            try:
                effective = resolve(request, self.config)
            except PolicyError as error:
                alerts.append(str(error))
                continue
            # The last good rows may be others than those of the index: only the present ones are in it.
            if effective.alerts:
                alerts += effective.alerts
                continue
            made = plan.compile(effective, host, self.now)
            made["alerts"] = []
            made["plan_digest"] = sha256(plan.dumps(made)).hexdigest()
            made["request"] = ("site", *key)
            content = plan.dumps(made)
            plans[key] = f"{sha256(content).hexdigest()[:24]}.plan"
            _replace(os.path.join(shelf, plans[key]), _sealed(content))
            _replace(os.path.join(texts, f"{effective.digest}.toml"), effective.text.encode("utf-8", "replace"))
        index: plan.Plan = {
            "guard": __version__,
            "machine": host.machine,
            "host": self.host,
            "landlock": answered,
            "config": self.config.config_dir,
            "expires": 0.0,
            "sources": plan.stamp(self._sources(), self.now),
            "rows": [(number, _numbers(row.subject)) for number, row in self.rows],
            "exceptions": [(each.until, _numbers(each.subject)) for each in self.exemptions],
            "plans": plans,
        }
        _replace(os.path.join(shelf, "index"), _sealed(plan.dumps(index)))
        _clear(shelf, {"index", *plans.values()})
        return Compiled(len(plans), left_out, tuple(dict.fromkeys(alerts)))

    def _sources(self) -> list[str]:
        """Return what decides who gets which plan; what a plan is made of is in the plan."""
        top = self.config.config_dir
        names = ("site.toml", "assign.toml", "exceptions.d")
        found = [os.path.join(top, name) for name in names] + exception_files(top)
        # A name may get another number, or a number another name.
        return [*found, *_ACCOUNTS] if self.users or self.groups else found

    def _sessions(self) -> Iterator[tuple[Request, Key]]:
        """Yield sessions that get different plans, the likely ones first; repeated keys are for the caller.

        Every named user as he is, and users in none, one and two of the named groups; each now and from
        every date on at which one of his exceptions ends.
        """
        named = set(self.groups)
        people = [("", tuple(groups)) for count in range(3) for groups in combinations(self.groups, count)]
        people[1:1] = [(user, _groups_of(user, named)) for user in self.users]
        for user, groups in people:
            for harness in ("", *HARNESSES):
                moment = self.now
                while True:
                    subject = (user, groups, self.host, harness)
                    row = next((n for n, row in self.rows if row.subject.matches(*subject)), -1)
                    open_ = [
                        n
                        for n, each in enumerate(self.exemptions)
                        if each.until > moment and each.subject.matches(*subject)
                    ]
                    request = Request(user, -1, groups, self.host, harness, use_project_layer=False, now=moment)
                    yield request, (row, harness, tuple(open_))
                    if not open_:
                        break
                    moment = min(self.exemptions[n].until for n in open_)


def _groups_of(user: str, named: set[str]) -> tuple[str, ...]:
    try:
        gids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return ()  # nobody of that name yet: he is told apart at his first start
    found = []
    for gid in gids:
        try:
            found.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return tuple(sorted(named.intersection(found)))


def _numbers(subject: Subject) -> Row:
    uids, users = _resolved(subject.users, _uid_of)
    gids, groups = _resolved(subject.groups, _gid_of)
    return uids, gids, subject.harnesses, users, groups


def _uid_of(name: str) -> int:
    uid = pwd.getpwnam(name).pw_uid
    if pwd.getpwuid(uid).pw_name != name:
        raise KeyError(name)  # a second name for one number: sessions go by the first
    return uid


def _gid_of(name: str) -> int:
    gid = grp.getgrnam(name).gr_gid
    if grp.getgrgid(gid).gr_name != name:
        raise KeyError(name)
    return gid


def _resolved(names: tuple[str, ...], look_up: Callable[[str], int]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    numbers, unknown = [], []
    for name in names:
        try:
            numbers.append(look_up(name))
        except KeyError:
            unknown.append(name)
    return tuple(numbers), tuple(unknown)


def _discover_as_nobody() -> Host:
    """Find out what this host enforces for those whom the plans are for: a child that has become nobody."""
    if os.geteuid() != 0:
        return discover()
    import marshal

    out, into = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            found = discover()
            with open(into, "wb") as stream:
                stream.write(marshal.dumps([getattr(found, name) for name in Host.__dataclass_fields__]))
        finally:
            os._exit(0)  # nothing of the parent's may be flushed or undone here
    os.close(into)
    with open(out, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    if not answer:
        raise PlanError("what this host enforces could not be found out", "see `guard doctor`")
    return Host(*marshal.loads(answer))  # noqa: S302 - our own child's


def _sealed(content: bytes) -> bytes:
    """Return a plan's content with the checksum that `guard.confine.state` asks for."""
    return content + crc32(content).to_bytes(4, "little")


def _replace(path: str, content: bytes) -> None:
    """Write a file whole, readable by all and writable by its owner."""
    part = f"{path}.{os.getpid()}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with open(descriptor, "wb") as stream:
            os.fchmod(descriptor, 0o644)
            stream.write(content)
            stream.flush()
            os.fsync(descriptor)
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise


def _clear(shelf: str, kept: set[str]) -> None:
    """Remove what no index names any more; a start that was just about to read it makes its own."""
    for name in os.listdir(shelf):
        path = os.path.join(shelf, name)
        if name in kept:
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
