"""Where things lie on this host: a plan's path patterns become rules, hidden places and shields.

Landlock can only allow. A place denied inside a grant is kept out by granting its siblings instead of
their parent, at every level above it; what is created later directly in such a parent stays unseen
until the next start. Where a mount namespace can be had, denied places are hidden as well and
protected ones made read-only (`guard.confine.launch`).

A symbolic link is never followed below a place that a confined tree may write, and never while
siblings are listed: `~/x -> /` must widen nothing.
"""

import os

from guard.kernel import O_PATH, landlock, open_beneath


class Unfit(Exception):
    """A project that cannot be one; the text says why."""


def expand(pattern: str, variables: "dict[str, tuple[str, ...]]") -> "list[str]":
    """Fill a pattern's variables.

    Args:
        pattern: an absolute path, or one that begins with a variable such as `{project}`.
        variables: name to its values; none at all makes the pattern vanish.

    Returns:
        One path for every combination of values; an unknown variable gives none.
    """
    paths = [pattern]
    while paths and "{" in paths[0]:
        name = paths[0].partition("{")[2].partition("}")[0]
        mark = "{" + name + "}"
        paths = [path.replace(mark, value) for path in paths for value in variables.get(name, ())]
    return paths


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
        try:
            kind = os.lstat(gate).st_mode & 0o170000
        except OSError:
            kind = 0
        if kind == 0o040000 or kind == 0o100000:
            found = at
            if kind == 0o100000:
                # A submodule's git directory lies in its superproject, which then is the project.
                above = read_line(gate).partition("gitdir: ")[2]
                if above and "/modules/" in above:
                    at = os.path.dirname(at)
                    continue
            break
        at = os.path.dirname(at)
    for candidate in (found, cwd):
        if candidate is not None:
            try:
                check_project(candidate, homes, forbidden, uid)
            except Unfit:
                continue
            return candidate
    return None


def check_project(path: str, homes: "tuple[str, ...]", forbidden: "tuple[str, ...]", uid: int) -> None:
    """Raise `Unfit` when a directory must not be made writable to an agent.

    Args:
        path: the candidate, real.
        homes, forbidden, uid: as for `find_project`.
    """
    for home in homes:
        if is_below(home, path):
            raise Unfit("it is the home directory" if home == path else "the home directory lies in it")
    if path == "/":
        raise Unfit("it is the root of the file system")
    for place in forbidden:
        if is_below(place, path) or is_below(path, place):
            raise Unfit(f"it holds guard's own {place}")
    try:
        status = os.stat(path)
    except OSError as error:
        raise Unfit(error.strerror or "it cannot be read") from None
    if status.st_mode & 0o170000 != 0o040000:
        raise Unfit("it is not a directory")
    if status.st_mode & 0o1002 == 0o1002 and status.st_uid != uid:
        raise Unfit("it is shared by everyone, like /tmp")


def read_line(path: str) -> str:
    """The first line of a small file that a tree may have written; empty when it is anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if os.fstat(fd).st_mode & 0o170000 != 0o100000:
            return ""
        return os.fsdecode(os.read(fd, 4096)).partition("\n")[0]
    finally:
        os.close(fd)


def worktree_common(project: str) -> "str | None":
    """The main repository's git directory of a linked worktree, if the link is mutual.

    `{project}/.git` is written by agents: it is believed only where it names COMMON/worktrees/NAME
    and the file `gitdir` there, which lies outside every project, names this project back.
    """
    named = read_line(project + "/.git").partition("gitdir: ")[2]
    if not named:
        return None
    private = os.path.realpath(os.path.join(project, named))
    common, middle = os.path.dirname(os.path.dirname(private)), os.path.basename(os.path.dirname(private))
    if middle != "worktrees" or is_below(private, project):
        return None
    if os.path.realpath(read_line(private + "/gitdir")) != project + "/.git":
        return None
    if os.path.realpath(os.path.join(private, read_line(private + "/commondir"))) != common:
        return None
    return common if os.path.isdir(common + "/objects") and os.path.isdir(common + "/refs") else None


def exists(path: str) -> bool:
    """Whether something has this name, a dangling link included."""
    try:
        os.lstat(path)
    except OSError:
        return False
    return True


Denied = dict  # a tree of path components; the key "" marks a denied place


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
        hidden: existing denied places. shields: existing protected places below a writable one.
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
        self.notes: "list[str]" = []
        self.hidden: "list[str]" = []
        self.shields: "list[str]" = []
        self._denied: "Denied" = {}
        self._own: "Denied" = {}
        projects = variables.get("project", ())
        everywhere = {**variables, "home": homes}
        # Real already, and written by trees: no link in or below them is ever followed.
        self._fixed = (*projects, *variables.get("tmp", ()), *commons)
        self._tree_writes = list(self._fixed)
        self._grants: "list[tuple[str, int]]" = []
        for pattern, access in grants:
            for path in expand(pattern, variables):
                self._grants.append((path, access))
                if access & landlock.CHANGES and not path.startswith("/dev/"):
                    self._tree_writes.append(path)
        self._grants += [(path, access) for path in commons for pattern, access in grants if pattern == "{project}"]
        for pattern in deny:
            for path in expand(pattern, everywhere):
                self._deny(path, (*homes, *projects))
        for path in own:
            if exists(path):
                _plant(self._own, path)
        for pattern in protect:
            for path in expand(pattern, everywhere):
                self._protect(path)
            # What is protected in a repository is protected in the one that a worktree belongs to.
            if pattern.startswith("{project}/.git/"):
                for common in commons:
                    self._protect(common + pattern[len("{project}/.git") :])

    def _deny(self, path: str, anchors: "tuple[str, ...]") -> None:
        targets = [path]
        if not self._tree_writes or not any(is_below(path, top) for top in self._tree_writes):
            real = os.path.realpath(path)
            if real != path:
                targets.append(real)
        for target in targets:
            if any(is_below(anchor, target) for anchor in anchors) or target in ("/", "/usr", "/etc"):
                self.notes.append(f"denied place {path} holds the home or the project itself: not denied")
                continue
            _plant(self._denied, target)
            if exists(target) and not os.path.islink(target) and target not in self.hidden:
                self.hidden.append(target)

    def _protect(self, path: str) -> None:
        if not any(is_below(path, top) for top in self._tree_writes):
            return
        if not exists(path):
            self.notes.append(f"{path} does not exist yet: not protected")
            return
        real = os.path.realpath(path)
        for target in {path, real}:
            if any(is_below(target, top) for top in self._tree_writes) and target not in self.shields:
                self.shields.append(target)

    def rules(self, masked: bool) -> "list[tuple[int, int]]":
        """Open what the session may reach.

        Args:
            masked: whether the hidden places really are hidden by mounts; open only after those.

        Returns:
            (descriptor, rights) pairs for `Ruleset.allow_path`; the caller closes the descriptors.
        """
        opened: "list[tuple[int, int]]" = []
        for path, access in self._grants:
            name = os.path.basename(path)
            if path.startswith("/dev/") and name.endswith("*"):
                self._open_devices(os.path.dirname(path), name[:-1], access, opened)
            else:
                self._grant(path, access, masked, opened)
        return opened

    def _open_devices(self, parent: str, prefix: str, access: int, opened: "list[tuple[int, int]]") -> None:
        try:
            names = os.listdir(parent)
        except OSError:
            return
        for name in names:
            if name.startswith(prefix):
                try:
                    opened.append((os.open(parent + "/" + name, O_PATH | os.O_NOFOLLOW), access))
                except OSError:
                    continue

    def _grant(self, path: str, access: int, masked: bool, opened: "list[tuple[int, int]]") -> None:
        real = self._resolve(path)
        if _covers(self._denied, real) or _covers(self._own, real):
            return
        try:
            fd = open_beneath(real)
        except OSError as error:
            if error.errno == 40:
                self.notes.append(f"{path} is reached through a symbolic link: not granted")
            return
        own = _subtree(self._own, real)
        denied = _subtree(self._denied, real)
        writes = access & landlock.CHANGES
        if denied and writes and (masked or not self._any_exists(real, denied)):
            denied = None
        if own and not writes:
            own = None
        if not denied and not own:
            opened.append((fd, access))
            return
        if writes and denied:
            self.notes.append(f"{path}: nothing new can be made beside the denied places in it")
        self._siblings(fd, denied or {}, own or {}, access, masked, opened)

    def _resolve(self, path: str) -> str:
        """Follow the links that are root's or the user's (/bin, ~/.cache on another disk), not a tree's."""
        if any(is_below(path, top) for top in self._fixed):
            return path
        above = max((top for top in self._tree_writes if path != top and is_below(path, top)), key=len, default="")
        return os.path.realpath(above) + path[len(above) :] if above else os.path.realpath(path)

    def _any_exists(self, path: str, node: "Denied") -> bool:
        return any(
            exists(path + "/" + name) and ("" in below or self._any_exists(path + "/" + name, below))
            for name, below in node.items()
            if name
        )

    def _siblings(
        self, fd: int, denied: "Denied", own: "Denied", access: int, masked: bool, opened: "list[tuple[int, int]]"
    ) -> None:
        """Grant everything in a directory but the denied; `fd` is used up."""
        if masked and access & landlock.READ_DIR:
            # The list of names: with the denied places hidden, it shows nothing of what is in them.
            opened.append((os.dup(fd), landlock.READ_DIR))
        try:
            listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            os.close(fd)
            return
        try:
            names = os.listdir(listing)
        except OSError:
            names = []
        finally:
            os.close(listing)
        for name in names:
            below, kept = denied.get(name), own.get(name)
            if below is not None and "" in below:
                continue
            rights = access
            if kept is not None and "" in kept:
                continue
            try:
                entry = os.open(name, O_PATH | os.O_NOFOLLOW, dir_fd=fd)
            except OSError:
                continue
            kind = os.fstat(entry).st_mode & 0o170000
            if kind == 0o120000:
                os.close(entry)
            elif (below or kept) and kind == 0o040000:
                self._siblings(entry, below or {}, kept or {}, rights, masked, opened)
            else:
                opened.append((entry, rights))
        os.close(fd)


def _plant(tree: "Denied", path: str) -> None:
    for part in path.split("/"):
        if part:
            tree = tree.setdefault(part, {})
    tree[""] = True


def _covers(tree: "Denied", path: str) -> bool:
    """Whether the path or one above it is denied."""
    for part in path.split("/"):
        if part:
            tree = tree.get(part)
            if tree is None:
                return False
            if "" in tree:
                return True
    return False


def _subtree(tree: "Denied", path: str) -> "Denied | None":
    """What is denied beneath a path that is not denied itself."""
    for part in path.split("/"):
        if part:
            tree = tree.get(part)
            if tree is None:
                return None
    return tree
