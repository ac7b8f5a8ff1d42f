"""Who gets what: the effective policy of one user, harness, host and project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from guard.errors import GuardError, PolicyError
from guard.policy import layers
from guard.policy.canonical import digest_of, origins_of, text_of, values_of
from guard.policy.keys import HARNESSES
from guard.policy.library import Library, place
from guard.policy.load import PROJECT_FILE, SiteFile, load_site
from guard.policy.model import Effective, Item, Policy, Setting, Site
from guard.policy.paths import glob_within
from guard.policy.rows import Assignment, Exemption, load_assignments, load_exceptions
from guard.policy.source import Reader, check_private, printable, read_file

CONFIG_DIR = "/etc/guard"
LAST_GOOD = "/var/lib/guard/last-good"
DEFAULT_POLICY = "login-node"
USER_FILE = "policy.toml"


def shipped_dir() -> str:
    """Return where the policies that ship lie: in an installed package, or beside it in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "shipped", "policies")
    return installed if os.path.isdir(installed) else os.path.join(os.path.dirname(package), "policies")


@dataclass(frozen=True)
class Request:
    """For whom a policy is asked.

    Args:
        user, uid: the account; `user` may be "" where it has no name.
        groups: names of the Unix groups it is in.
        host: the node's name.
        harness: the name of the harness that is started, or "".
        policy: NAME, or a PATH (it contains `/`), of `--policy`; None for the assigned one.
        project_dir: the project, absolute; None for none.
        use_project_layer: whether its `.guard.toml` counts.
        overlays: NAMEs added by the caller; only where no site decides.
        now: seconds since the epoch.
    """

    user: str
    uid: int
    groups: tuple[str, ...] = ()
    host: str = ""
    harness: str = ""
    policy: str | None = None
    project_dir: str | None = None
    use_project_layer: bool = True
    overlays: tuple[str, ...] = ()
    now: float = 0.0


@dataclass(frozen=True)
class Config:
    """Where policies lie.

    Args:
        config_dir: the site's configuration.
        user_config_dir: the user's, None for none.
        shipped_dir: the policies that ship.
        floor_dir: root's own; where it has a site.toml, another `config_dir` can only tighten it.
        last_good_dir: the site's files as they were when they last loaded, None for none.
        reader: how files that are the user's are read.
    """

    config_dir: str = CONFIG_DIR
    user_config_dir: str | None = None
    shipped_dir: str = field(default_factory=shipped_dir)
    floor_dir: str = CONFIG_DIR
    last_good_dir: str | None = LAST_GOOD
    reader: Reader = read_file


@dataclass
class _Level:
    """What one configuration directory decides."""

    managed: bool
    settings: Mapping[str, Setting]
    site: Site
    name: str
    mode: str
    assigned_by: str
    library: Library
    exceptions: tuple[str, ...] = ()
    expires: float | None = None
    alerts: tuple[str, ...] = ()


def is_managed(config_dir: str) -> bool:
    """Whether a directory's files decide for the node, rather than each user for himself.

    Raises:
        PolicyError: it cannot be told.
    """
    for name in ("site.toml", "assign.toml"):
        path = os.path.join(config_dir, name)
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise PolicyError(f"{printable(path)}: cannot be looked for: {error.strerror}") from error
        return True
    return False


def resolve(request: Request, config: Config) -> Effective:
    """Work out the effective policy.

    A host without site.toml and assign.toml: `--policy`, else login-node, is the base, and the project's
    and the user's files tighten it. Elsewhere the assigned policy is the base, site.toml's own keys are
    its floor, exceptions in force widen that, and `--policy` is one more layer that tightens.

    Raises:
        PolicyError: a file cannot be used; where a site file cannot, and its last good copy is at
            hand, that is in force instead and `Effective.alerts` says so.
    """
    top = config.config_dir
    if os.path.realpath(top) != os.path.realpath(config.floor_dir) and is_managed(config.floor_dir):
        top = config.floor_dir
    level = _level(request, config, top)
    below = _below(request, config, level, top)
    if any(_overlays_off(settings) for settings in below):
        level = _level(request, config, top, overlay=False)
        below = _below(request, config, level, top)
    settings = level.settings
    notes = level.library.notes
    for layer in below:
        settings = layers.tighten(settings, layer, notes)
    values = values_of(settings)
    _note_kept(settings, notes)
    return Effective(
        name=level.name,
        values=values,
        origins=origins_of(settings),
        layers=tuple(dict.fromkeys(level.library.layers)),
        exceptions=level.exceptions,
        assigned_by=level.assigned_by,
        mode=level.mode,
        harness=request.harness,
        expires=level.expires,
        sources=tuple(level.library.looked_for),
        notes=tuple(dict.fromkeys(notes)),
        site=level.site,
        digest=digest_of(level.name, values, level.mode),
        text=text_of(level.name, values, level.mode),
        alerts=level.alerts,
    )


def _overlays_off(settings: Mapping[str, Setting]) -> bool:
    setting = settings.get("harness.overlays")
    return setting is not None and setting.items[0].value == "off"


def _level(request: Request, config: Config, directory: str, *, overlay: bool = True) -> _Level:
    try:
        return _read_level(request, config, directory, overlay)
    except PolicyError as error:
        last_good = config.last_good_dir
        if last_good is None or not is_managed(directory) or not _trusted(last_good, directory):
            raise
        level = _read_level(request, config, last_good, overlay)
        # What is broken is watched too: once it is mended, what was compiled is stale.
        for name in ("site.toml", "assign.toml", "exceptions.d", "policies", "policies/overlays"):
            level.library.looked_for[os.path.join(directory, name)] = None
        level.library.looked_for[str(error).split(":", 1)[0]] = None
        alert = f"the last good site files are in force, since the present ones do not load: {error}"
        return replace(level, alerts=(alert,))


def _trusted(last_good: str, directory: str) -> bool:
    """Whether the copy is of the same owner as the original, and nobody else's to write."""
    try:
        if os.stat(last_good).st_uid != os.stat(directory).st_uid:
            return False
        check_private(last_good)
    except (OSError, GuardError):
        return False
    return True


def _read_level(request: Request, config: Config, directory: str, overlay: bool) -> _Level:
    site_path, assign_path = os.path.join(directory, "site.toml"), os.path.join(directory, "assign.toml")
    sitefile = load_site(site_path)
    site = sitefile.site if sitefile else Site()
    library = Library((os.path.join(directory, "policies"), config.shipped_dir), site.variables)
    library.looked_for.update(dict.fromkeys((site_path, assign_path)))
    rows = load_assignments(assign_path)
    if sitefile is None and rows is None:
        return _unmanaged(request, config, library, overlay)
    row = next((each for each in rows or () if _speaks_of(each, request)), None)
    policy, assigned_by = _assigned(library, site, row)
    settings = library.flatten(policy, layers.complete({}))
    if row is not None:
        for item in row.overlays:
            settings = library.laid(settings, _overlay_of(row, item, library))
    if overlay:
        settings = _with_harness(settings, request, site, library, sitefile)
    if sitefile is not None:
        settings = layers.tighten(settings, library.filled(sitefile.floor), library.notes)
    for name in request.overlays:
        library.notes.append(f"overlay {name} left out: the site decides which apply")
    level = _Level(
        managed=True,
        settings=settings,
        site=site,
        name=policy.name,
        mode=row.mode if row else "enforce",
        assigned_by=assigned_by,
        library=library,
    )
    return _with_exceptions(level, request, directory)


def _speaks_of(row: Assignment, request: Request) -> bool:
    return row.subject.matches(request.user, request.groups, request.host, request.harness)


def _assigned(library: Library, site: Site, row: Assignment | None) -> tuple[Policy, str]:
    if row is None:
        by = os.path.basename(site.file) or "assign.toml"
        return library.policy(site.default_policy, site.file or "assign.toml"), by
    if row.policy is None:
        return library.policy(site.default_policy, str(row.origin)), place(row.origin)
    name, origin = str(row.policy.value), row.policy.origin
    policy = library.named(name)
    if policy is None:
        raise row.doc.error_at(origin.line, origin.column, f"there is no policy {name!r}")
    return policy, place(row.origin)


def _overlay_of(row: Assignment, item: Item, library: Library) -> Policy:
    overlay = library.named(str(item.value), "overlay")
    if overlay is None:
        raise row.doc.error_at(item.origin.line, item.origin.column, f"there is no overlay {item.value!r}")
    return overlay


def _unmanaged(request: Request, config: Config, library: Library, overlay: bool) -> _Level:
    if request.policy is None:
        policy, by = library.policy(DEFAULT_POLICY, "the default"), "default"
    else:
        policy, by = _asked(library, config, request.policy), "--policy"
    settings = library.flatten(policy, layers.complete({}))
    for name in request.overlays:
        settings = library.laid(settings, library.overlay(name, "--overlay"))
    site = Site()
    if overlay:
        settings = _with_harness(settings, request, site, library, None)
    return _Level(
        managed=False,
        settings=settings,
        site=site,
        name=policy.name,
        mode="enforce",
        assigned_by=by,
        library=library,
    )


def _asked(library: Library, config: Config, asked: str) -> Policy:
    """Find the policy of `--policy`: a PATH only when it contains `/`."""
    if "/" not in asked:
        return library.policy(asked, "--policy")
    path = os.path.abspath(asked)
    own = library.read_by(config.reader)
    policy = own.read(path, "policy")
    library.looked_for.update(own.looked_for)
    if policy is None:
        raise PolicyError(f"{printable(asked)}: there is no such file; a NAME without / is looked up instead")
    return policy


def _with_harness(
    settings: dict[str, Setting], request: Request, site: Site, library: Library, sitefile: SiteFile | None
) -> dict[str, Setting]:
    """Add the overlay of the harness, where harnesses get theirs by themselves."""
    harness = request.harness
    if not harness or _overlays_off(settings) or (sitefile and _overlays_off(sitefile.floor.settings)):
        return settings
    if harness not in (*HARNESSES, *site.harnesses):
        return settings
    overlay = library.named(harness, "overlay")
    if overlay is None:
        library.notes.append(f"there is no overlay for the harness {harness}")
        return settings
    return library.laid(settings, overlay)


def exception_files(directory: str) -> list[str]:
    """Return the files of exceptions.d in order.

    Raises:
        PolicyError: it is there and cannot be listed.
    """
    folder = os.path.join(directory, "exceptions.d")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PolicyError(f"{printable(folder)}: cannot be listed: {error.strerror}") from error
    return [
        os.path.join(folder, name)
        for name in sorted(names)
        if name.endswith(".toml") and not name.startswith(".")
    ]


def _with_exceptions(level: _Level, request: Request, directory: str) -> _Level:
    library = level.library
    # The directory itself: a new file changes its time.
    library.looked_for[os.path.join(directory, "exceptions.d")] = None
    found: list[Exemption] = []
    for path in exception_files(directory):
        library.looked_for[path] = None
        found += load_exceptions(path, level.site.variables, library.notes) or ()
    subject = (request.user, request.groups, request.host, request.harness)
    in_force = [each for each in found if each.until > request.now and each.subject.matches(*subject)]
    settings = level.settings
    for each in in_force:
        settings = layers.exempt(settings, each.widen, library.notes)
        library.layers.append(each.origin.file)
    return replace(
        level,
        settings=settings,
        exceptions=tuple(each.label for each in in_force),
        expires=min((each.until for each in in_force), default=None),
    )


def _below(request: Request, config: Config, level: _Level, top: str) -> list[Mapping[str, Setting]]:
    """Return the layers that only tighten, the highest first."""
    library = level.library
    out: list[Mapping[str, Setting]] = []
    if top != config.config_dir:
        moved = _read_level(replace(request, policy=None, overlays=()), config, config.config_dir, True)
        library.looked_for.update(moved.library.looked_for)
        library.layers += moved.library.layers
        out.append(moved.settings)
    if level.managed and request.policy is not None:
        out.append(library.flatten(_asked(library, config, request.policy), {}))
    if request.project_dir is not None and request.use_project_layer:
        out += _project(request.project_dir, config, library)
    if config.user_config_dir is not None:
        own = library.read_by(config.reader)
        policy = own.read(os.path.join(config.user_config_dir, USER_FILE), "user")
        library.looked_for.update(own.looked_for)
        if policy is not None:
            out.append(library.flatten(policy, {}))
    return out


def _project(project: str, config: Config, library: Library) -> list[Mapping[str, Setting]]:
    """Return the layer of the project's own file, which agents write: it may name shipped policies only."""
    path = os.path.join(project, PROJECT_FILE)
    shipped = Library((config.shipped_dir,), library.variables, config.reader)
    try:
        policy = shipped.read(path, "project")
        trusted = Library((config.shipped_dir,), library.variables)
        out: list[Mapping[str, Setting]] = [] if policy is None else [trusted.flatten(policy, {})]
    except PolicyError as error:
        remedy = "mend it, or start with --no-project-policy (not from inside a tree)"
        raise PolicyError(error.what, remedy) from error
    library.looked_for.update({path: None, **trusted.looked_for})
    library.layers += trusted.layers
    library.notes += trusted.notes
    return out


def _note_kept(settings: Mapping[str, Setting], notes: list[str]) -> None:
    """Say which variables a file drops by name although `env.keep` exempts them."""
    for dropped in settings["env.drop"].items:
        name = str(dropped.value)
        for kept in settings["env.keep"].items:
            if "*" not in name and glob_within(str(kept.value), name):
                notes.append(
                    f"{dropped.origin}: env.drop: {name} stays, kept by {kept.value} ({kept.origin})"
                )
