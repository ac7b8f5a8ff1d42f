"""Where things lie on this host: a plan's path patterns become rules, hidden places and shields.

Landlock can only allow. A place denied inside a grant is kept out by granting its siblings instead of
their parent, at every level above it; what is created later directly in such a parent stays unseen
until the next start. Where a mount namespace can be had, denied places are hidden as well and
protected ones made read-only (`guard.confine.launch`).

A symbolic link is never followed below a place that a confined tree may write, and never while
siblings are listed: `~/x -> /` must widen nothing.
"""

import posix as os

from guard.confine import Denied, covers
from guard.kernel import O_PATH, basename, decode, dirname, landlock, open_beneath, real_path


class UnfitError(Exception):
    """A project that cannot be one; the text says why."""


def session_variables(
    home: str, projects: "tuple[str, ...]", tmp: str, user: str, uid: int
) -> "dict[str, tuple[str, ...]]":
    """What the open variables of patterns stand for; an empty text stands for nothing."""
    return {
        "home": (home,) if home else (),
        "project": projects,
        "tmp": (tmp,) if tmp else (),
        "user": (user,) if user else (),
        "uid": (str(uid),),
    }


def expand(pattern: str, variables: "dict[str, tuple[str, ...]]") -> "list[str]":
    """Fill a pattern's variables.

    Args:
        pattern: an absolute path, or one that begins with a variable such as `{project}`.
        variables: name to its values; none at all makes the pattern vanish.

    Returns:
        One path for every combination of values; an unknown variable gives none.
    """
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    name, _, tail = rest.partition("}")
    # Only the pattern is looked at again, never a value: a project may be named `{home}`.
    return [head + value + end for value in variables.get(name, ()) for end in expand(tail, variables)]


def is_below(path: str, top: str) -> bool:
    """Whether `path` is `top` or lies beneath it; both absolute and normal."""
    return path == top or top == "/" or path.startswith(top + "/")


def find_project(cwd: str, homes: "tuple[str, ...]", forbidden: "tuple[str, ...]", uid: int) -> "str | None":
    """The project of a session that named none: the git top level, else the working directory.

    Args:
        cwd: the working directory, real.
        homes: the user's home directories, real.
        forbidden: places that hold guard's state or configuration, real.
        uid: the user.

    Returns:
        A directory, or None where only a place that must not be a project would fit.
    """
    found, at = None, cwd
    while at != "/" and not any(is_below(home, at) for home in homes):
        gate = at + "/.git"
        kind = _kind(gate)
        if kind in (_DIRECTORY, _FILE):
            found = at
            # A submodule's git directory lies in its superproject, which then is the project.
            if kind == _FILE and _is_submodule(at):
                at = dirname(at)
                continue
            break
        at = dirname(at)
    for candidate in (found, cwd):
        if candidate is not None:
            try:
                check_project(candidate, homes, forbidden, uid)
            except UnfitError:
                continue
            return candidate
    return None


def check_project(path: str, homes: "tuple[str, ...]", forbidden: "tuple[str, ...]", uid: int) -> None:
    """Raise `UnfitError` when a directory must not be made writable to an agent.

    Args:
        path: the candidate, real.
        homes, forbidden, uid: as for `find_project`.
    """
    for home in homes:
        if is_below(home, path):
            raise UnfitError("it is the home directory" if home == path else "the home directory lies in it")
    if path == "/":
        raise UnfitError("it is the root of the file system")
    for place in forbidden:
        if is_below(place, path) or is_below(path, place):
            raise UnfitError(f"it holds guard's own {place}")
    try:
        status = os.stat(path)
    except OSError as error:
        raise UnfitError(error.strerror or "it cannot be read") from None
    if status.st_mode & 0o170000 != 0o040000:
        raise UnfitError("it is not a directory")
    if status.st_mode & 0o1002 == 0o1002 and status.st_uid != uid:
        raise UnfitError("it is shared by everyone, like /tmp")


def read_line(path: str) -> str:
    """The first line of a small file that a tree may have written; empty when it is anything else."""
    return _read(path).partition("\n")[0]


def _read(path: str) -> str:
    """The beginning of a regular file that a tree may have written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if os.fstat(fd).st_mode & 0o170000 != 0o100000:
            return ""
        return decode(os.read(fd, 4096))
    finally:
        os.close(fd)


def _git_directory(project: str) -> str:
    """Where the git directory is that a file `{project}/.git` names; empty where it names none."""
    named = read_line(project + "/.git").partition("gitdir: ")[2]
    return _real_from(project, named) if named else ""


def _real_from(place: str, named: str) -> str:
    """Where a path leads that stands in a file of git's: from a directory, unless it is absolute."""
    return real_path(named if named.startswith("/") else f"{place}/{named}")


def _is_submodule(path: str) -> bool:
    """Whether a repository whose `.git` is a file is a submodule of one above it, if the link is mutual.

    `{project}/.git` is written by agents: it is believed only where the git directory lies outside and
    its `core.worktree` names the repository back.
    """
    private = _git_directory(path)
    if "/modules/" not in private or is_below(private, path):
        return False
    for line in _read(private + "/config").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "worktree":
            return _real_from(private, value.strip()) == path
    return False


def worktree_common(project: str) -> "str | None":
    """The main repository's git directory of a linked worktree, if the link is mutual.

    `{project}/.git` is written by agents: it is believed only where it names COMMON/worktrees/NAME
    and the file `gitdir` there, which lies outside every project, names this project back.
    """
    private = _git_directory(project)
    if not private:
        return None
    common, middle = dirname(dirname(private)), basename(dirname(private))
    if middle != "worktrees" or is_below(private, project):
        return None
    if real_path(read_line(private + "/gitdir")) != project + "/.git":
        return None
    if _real_from(private, read_line(private + "/commondir")) != common:
        return None
    return common if _kind(common + "/objects") == _kind(common + "/refs") == _DIRECTORY else None


_FORMAT, _DIRECTORY, _FILE, _LINK = 0o170000, 0o040000, 0o100000, 0o120000


def _kind(path: str) -> int:
    """The file type bits of what has this name, a link for itself; 0 for nothing."""
    try:
        return os.lstat(path).st_mode & _FORMAT
    except OSError:
        return 0


_TERMINAL = landlock.READ_FILE | landlock.READ_DIR | landlock.WRITE_FILE | landlock.IOCTL_DEV


class Places:
    """One session's places, worked out but not yet applied.

    Args:
        grants: (pattern, Landlock rights) in the order of the plan.
        deny, protect: patterns.
        variables: what the patterns' variables stand for here; see `expand`.
        homes: every home of the user: deny and protect hold in all of them.
        own: guard's own directories, kept from every change whatever is granted.
        commons: git directories outside the project that the session may write.

    Attributes:
        hidden: existing denied places.
        shields: existing protected places below a writable one.
        absent: protected names that do not exist, in directories that do.
        links: links of a repository's that lead to what is protected: another thing in their place would be believed.
        anchors: the directories between a writable place and either: to rename one would take its shield along, and
            leave room for another.
        masked: whether mounts hold hidden, shields and anchors; known once there are rules.
        terminals: devices that lead to terminals of the session's own alone, once there are such; granted then. Else
            the one it was started at, where /dev/tty is granted.
        queues: a descriptor of the session's own POSIX message queues, -1 for none; used up by `grant`.
        refused: projects that lie in a place which the policy `denies` or `protects`; they must not be granted.
        notes: what the policy asks for and these places cannot give, in words.
    """

    def __init__(
        self,
        grants: "list[tuple[str, int]]",
        deny: "list[str]",
        protect: "list[str]",
        variables: "dict[str, tuple[str, ...]]",
        homes: "tuple[str, ...]",
        own: "tuple[str, ...]" = (),
        commons: "tuple[str, ...]" = (),
    ) -> None:
        self.notes: list[str] = []
        self.terminals: tuple[str, ...] = ()
        self.queues = -1
        self.hidden: list[str] = []
        self.shields: list[str] = []
        self.absent: list[str] = []
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.masked = False
        self._known: dict[str, str] = {}
        self._names: dict[str, set[str]] = {}
        self._denied: Denied = {}
        self._own: Denied = {}
        projects = variables.get("project", ())
        everywhere = {**variables, "home": homes}
        # Real already, and written by trees: no link in or below them is ever followed.
        fixed = (*projects, *variables.get("tmp", ()), *commons)
        self._homes = tuple(home + "/" for home in homes)
        self._fixed = tuple(top + "/" for top in fixed)
        self._grants: list[tuple[str, int]] = []
        tops = list(fixed)
        for pattern, access in grants:
            for path in expand(pattern, variables):
                self._grants.append((path, access))
                if access & landlock.CHANGES and not path.startswith("/dev/"):
                    tops.append(path)
            if pattern == "{project}":
                self._grants += [(path, access) for path in commons]
        self._tops = dict.fromkeys(tops)
        self._written = tuple(top + "/" for top in tops)
        # What holds the home cannot be denied: nothing would be left. What holds a project can: then it is none.
        ancestors = {"/", "/usr", "/etc"}
        for path in homes:
            if any(other != path and is_below(path, other) for other in homes):
                continue  # a HOME that names ~/.ssh takes nothing from what is denied in the home it lies in
            while path not in ancestors:
                ancestors.add(path)
                path = dirname(path)
        for pattern in deny:
            for path in expand(pattern, everywhere):
                self._deny(path, ancestors)
        for path in own:
            if _kind(path):
                plant(self._own, path)
        self.refused = {project: "denies" for project in projects if covers(self._denied, project)}
        for pattern in protect:
            for path in expand(pattern, everywhere):
                for target in self._protect(path):
                    for project in projects:
                        if is_below(project, target):
                            self.refused.setdefault(project, "protects")
        within = [pattern[len("{project}/.git") :] for pattern in protect if pattern.startswith("{project}/.git/")]
        if within:
            # What is protected in a repository is protected in the one that a worktree belongs to.
            repositories = list(commons)
            for project in projects:
                self._protect_link(project)
                for name in ("", *within):
                    self._keep_link(f"{project}/.git{name}")
                if _kind(project + "/HEAD") == _FILE and _kind(project + "/objects") == _DIRECTORY:
                    repositories.append(project)  # a bare repository
                elif _kind(project + "/.git") == _DIRECTORY:
                    self._protect_worktrees(project + "/.git")
            for repository in repositories:
                for name in within:
                    self._protect(repository + name)
                    self._keep_link(repository + name)
                self._protect_deciding(repository)
                self._protect_worktrees(repository)

    def _protect_link(self, project: str) -> None:
        """What says, beside the settings and hooks themselves, where git finds them: shielded where it exists."""
        private = project + "/.git"
        kind = _kind(private)
        if kind == _FILE:
            self._protect(private)
            private = _git_directory(project)
        self._protect_deciding(private)

    def _keep_link(self, path: str) -> None:
        """No mount covers a link: the supervisor sees to it that no other thing has its name."""
        if path.startswith(self._written) and _kind(path) == _LINK:
            self.links.append(path)
            self._anchor(path)

    def _protect_deciding(self, git: str) -> None:
        """What says in a git directory where the rest of it is: shielded, or kept from being made."""
        for name in ("commondir", "gitdir", "config.worktree"):
            if _kind(f"{git}/{name}") or _kind(git) == _DIRECTORY:
                self._protect(f"{git}/{name}")

    def _protect_worktrees(self, repository: str) -> None:
        """The same of the repository's worktrees that lie outside: git believes it of them there.

        One within a writable place is a nested repository, its `.git` the session's to write and it to remove.
        """
        try:
            names = os.listdir(repository + "/worktrees")
        except OSError:
            return
        for name in sorted(names):
            private = f"{repository}/worktrees/{name}"
            if _kind(private) != _DIRECTORY:
                continue
            worktree = read_line(private + "/gitdir")
            if worktree and not _real_from(private, worktree).startswith(self._written):
                self._protect_deciding(private)

    def _deny(self, path: str, ancestors: "set[str]") -> None:
        # A link below a place that trees write is a tree's: what it points to is not denied in its name.
        real = path if (path + "/").startswith(self._written) else self._real(path)
        for target in (path,) if real == path else (path, real):
            if target in ancestors:
                self.notes.append(f"denied place {path} holds the home or the system itself: not denied")
                continue
            if target.startswith("/proc/"):
                # Its siblings are processes, and most of them do not exist yet.
                self.notes.append(f"{path} cannot be denied apart from the rest of /proc")
                continue
            plant(self._denied, target)
            kind = self._kind(target)
            if kind and kind != _LINK and target not in self.hidden:
                self.hidden.append(target)

    def _protect(self, path: str) -> "set[str]":
        """Shield a place, where it is writable, and what it is a link to: ~/.bashrc may lie in a project."""
        if not self._kind(path):
            if (path + "/").startswith(self._written):
                if self._kind(dirname(path)) == _DIRECTORY:
                    self.absent.append(path)
                    self._anchor(path)
                else:
                    self.notes.append(f"{path} does not exist yet: not protected")
            return set()
        targets = {path, self._real(path)}
        for target in targets:
            if not (target + "/").startswith(self._written) or target in self.shields or _kind(target) == _LINK:
                continue
            self.shields.append(target)
            self._anchor(target)
        return targets

    def _anchor(self, path: str) -> None:
        """Hold the directories that lead to a protected place."""
        above = dirname(path)
        while (above + "/").startswith(self._written) and above not in self.anchors:
            if above in self._tops and not above.startswith(self._written):
                break  # its own parent is not writable; that of a project in ~/guard-work is
            self.anchors.append(above)
            above = dirname(above)

    def steady(self) -> "tuple[str, ...]":
        """Return the directories above protected names that the session cannot put another in the place of."""
        tops = self.writable()
        outer = (top for top in tops if not any(top != other and is_below(top, other) for other in tops))
        return (*outer, *(self.anchors if self.masked else ()))

    def _kind(self, path: str) -> int:
        """`_kind`, asking the file system once a directory for all that a home does not have."""
        if not path.startswith(self._homes) or path.startswith(self._fixed):
            return _kind(path)  # a project has few such, and its list changes all the time
        parent, _, name = path.rpartition("/")
        names = self._names.get(parent)
        if names is None:
            try:
                # The home is looked at directly; anything deeper only where its own parent has it.
                known = parent + "/" in self._homes or self._kind(parent)
                names = set(os.listdir(parent)) if known else set()
            except OSError:
                names = set()
            self._names[parent] = names
        return _kind(path) if name in names else 0

    def _real(self, path: str) -> str:
        """What os.path.realpath says, asking for each directory once."""
        if path == "/":
            return path
        known = self._known.get(path)
        if known is None:
            parent, _, name = path.rpartition("/")
            above = self._real(parent or "/")
            known = f"{above}/{name}" if above != "/" else "/" + name
            if self._kind(known) == _LINK:
                known = real_path(known)
            self._known[path] = known
        return known

    def grant(self, ruleset: "landlock.Ruleset", masked: bool) -> None:
        """Put into a ruleset what the session may reach.

        Args:
            ruleset: where the rules go.
            masked: whether the hidden places really are hidden by mounts; grant only after those.
        """
        self.masked = masked
        if not masked and any(path == "/dev/tty" for path, _ in self._grants):
            # /dev/stderr is opened by its own name. A rule is of the file: it holds for none that gets the name later.
            self.terminals = tuple(filter(None, (own_terminal(),)))
        for path in self.terminals:
            self._grant(path, _TERMINAL, masked, ruleset)
        if self.queues >= 0:
            ruleset.allow_path(self.queues, landlock.READ_FILE | landlock.WRITE_FILE)
            os.close(self.queues)
        if self.terminals and masked:
            self._grant("/dev", landlock.READ_DIR, masked, ruleset)  # ttyname(3) reads it to find the console
        for path, access in self._grants:
            if path.startswith("/dev/") and path.endswith("*"):
                self._grant_devices(path[:-1], access, ruleset)
            else:
                self._grant(path, access, masked, ruleset)

    def writable(self) -> "tuple[str, ...]":
        """Return the real paths of the places at and below which the session may write."""
        made = tuple(path for path, access in self._grants if path.startswith("/dev/") and access & landlock.MAKE_REG)
        return (*(self._real(top) for top in self._tops), *made)

    def trees(self) -> "tuple[Denied, Denied]":
        """Return what is denied and what is guard's own, as `covers` takes it."""
        return self._denied, self._own

    def denies(self, real: str) -> bool:
        """Whether a real path is denied, or guard's own, even within a place that may be written."""
        return covers(self._denied, real) or covers(self._own, real)

    def _grant_devices(self, prefix: str, access: int, ruleset: "landlock.Ruleset") -> None:
        parent, _, start = prefix.rpartition("/")
        try:
            fd = open_beneath(parent)
        except OSError:
            return
        try:
            ruleset.allow_entries(fd, access, start)
        except OSError as error:
            if error.filename == "landlock_add_rule":
                raise
        os.close(fd)

    def _open(self, path: str) -> "tuple[int, str]":
        """Open a granted place; returns the descriptor and the place's real path.

        Links that are root's or the user's (/bin, ~/.cache on another disk) are followed, a tree's are not.
        """
        if (path + "/").startswith(self._fixed):
            return open_beneath(path), path
        if path.startswith(self._written):
            above = max((top for top in self._tops if path.startswith(top + "/")), key=len)
            real = self._real(above) + path[len(above) :]
            return open_beneath(real), real
        fd = os.open(path, O_PATH)
        return fd, os.readlink(f"/proc/self/fd/{fd}") if _kind("/proc/self/fd") else real_path(path)

    def _grant(self, path: str, access: int, masked: bool, ruleset: "landlock.Ruleset") -> None:
        try:
            fd, real = self._open(path)
        except OSError as error:
            if error.errno == 40:
                self.notes.append(f"{path} is reached through a symbolic link: not granted")
            return
        if self.denies(real):
            os.close(fd)
            return
        own = subtree(self._own, real)
        denied = subtree(self._denied, real)
        writes = access & landlock.CHANGES
        if denied and writes and (masked or not self._any_exists(real, denied)):
            denied = None
        if own and not writes:
            own = None
        if not denied and not own:
            ruleset.allow_path(fd, access)
            os.close(fd)
            return
        if writes and denied:
            self.notes.append(f"{path}: nothing new can be made beside the denied places in it")
        self._siblings(fd, real, denied or {}, own or {}, access, masked, ruleset)

    def _any_exists(self, path: str, node: "Denied") -> bool:
        return any(
            _kind(path + "/" + name) != 0 and ("" in below or self._any_exists(path + "/" + name, below))
            for name, below in node.items()
            if name
        )

    def _siblings(
        self,
        fd: int,
        path: str,
        denied: "Denied",
        own: "Denied",
        access: int,
        masked: bool,
        ruleset: "landlock.Ruleset",
    ) -> None:
        """Grant everything in a directory, whose real path is `path`, but the denied; `fd` is used up."""
        if masked:
            # The list of names: with the denied places hidden, it shows nothing of what is in them.
            ruleset.allow_path(fd, access & landlock.READ_DIR, True)
        apart = {**denied, **own}
        try:
            ruleset.allow_entries(fd, access, "", apart)
        except OSError as error:
            if error.filename == "landlock_add_rule":
                raise
            return
        finally:
            os.close(fd)
        for name in apart:
            below, kept = denied.get(name), own.get(name)
            if not name or (below and "" in below) or (kept and "" in kept):
                continue
            place = path.rstrip("/") + "/" + name
            kind = _kind(place)
            if kind in (0, _LINK):
                continue
            try:
                inner = open_beneath(place)
            except OSError:
                continue
            if kind == _DIRECTORY:
                self._siblings(inner, place, below or {}, kept or {}, access, masked, ruleset)
            else:
                ruleset.allow_path(inner, access, False)
                os.close(inner)


def own_terminal() -> str:
    """The pseudo-terminal that one of the standard streams is, by its name; empty where none is."""
    for fd in range(3):
        try:
            name = os.ttyname(fd)
        except OSError:
            continue
        if name.startswith("/dev/pts/"):
            return name
    return ""


def plant(tree: "Denied", path: str) -> None:
    """Mark a path as denied."""
    for part in path.split("/"):
        if part:
            tree = tree.setdefault(part, {})
    tree[""] = {}


def subtree(tree: "Denied", path: str) -> "Denied | None":
    """What is denied beneath a path that is not denied itself."""
    for part in path.split("/"):
        if part:
            below = tree.get(part)
            if below is None:
                return None
            tree = below
    return tree
