"""What one configuration directory decides: assignment, floor, exceptions, or the user's own choice."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from guard.errors import GuardError, PolicyError
from guard.policy import layers
from guard.policy.keys import HARNESSES
from guard.policy.library import Library, place
from guard.policy.load import SiteFile, load_site
from guard.policy.model import Item, Policy, Setting, Site
from guard.policy.request import DEFAULT_POLICY, Config, Request
from guard.policy.rows import Assignment, Exemption, load_assignments, load_exceptions
from guard.policy.source import check_private, printable


@dataclass
class Level:
    """What one configuration directory decides.

    Args:
        managed: whether root decides; else the user does, who is at the base himself.
        settings: complete; lower layers tighten it.
        site: as in site.toml.
        name, mode, assigned_by, exceptions, expires, alerts: as in `Effective`.
        library: where its policies were found, and what was read and noted on the way.
    """

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


def overlays_off(settings: Mapping[str, Setting]) -> bool:
    """Whether a layer says that no harness gets an overlay by itself."""
    setting = settings.get("harness.overlays")
    return setting is not None and setting.items[0].value == "off"


def level_of(request: Request, config: Config, directory: str, *, overlay: bool = True) -> Level:
    """Work out what a directory decides, by its last good files where the present ones do not load.

    Args:
        request: for whom.
        config: where policies lie.
        directory: root's configuration, or a user's own.
        overlay: whether the harness's overlay may be added.

    Raises:
        PolicyError: a file cannot be used, and there is no last good copy.
    """
    try:
        return read_level(request, config, directory, overlay)
    except PolicyError as error:
        last_good = config.last_good_dir
        if last_good is None or not is_managed(directory) or not _trusted(last_good, directory):
            raise
        level = read_level(request, config, last_good, overlay)
        # What is broken is watched too: once it is mended, what was compiled is stale.
        for name in ("site.toml", "assign.toml", "exceptions.d", "policies", "policies/overlays"):
            level.library.looked_for[os.path.join(directory, name)] = None
        level.library.looked_for[str(error).split(":", 1)[0]] = None
        alert = f"the last good site files are in force, since the present ones do not load: {error}"
        return replace(level, alerts=(alert,))


def _trusted(last_good: str, directory: str) -> bool:
    """Whether the copy is of the same owner as the original, and nobody else's to write."""
    try:
        # A copy without a site would hand the decision to the user.
        if os.stat(last_good).st_uid != os.stat(directory).st_uid or not is_managed(last_good):
            return False
        check_private(last_good)
    except (OSError, GuardError):
        return False
    return True


def read_level(request: Request, config: Config, directory: str, overlay: bool) -> Level:
    """Work out what a directory decides, by the files that are there.

    Raises:
        PolicyError: one of them cannot be used.
    """
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
    level = Level(
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


def _unmanaged(request: Request, config: Config, library: Library, overlay: bool) -> Level:
    if request.policy is None:
        policy, by = library.policy(DEFAULT_POLICY, "the default"), "default"
    else:
        policy, by = asked(library, config, request.policy), "--policy"
    settings = library.flatten(policy, layers.complete({}))
    for name in request.overlays:
        settings = library.laid(settings, library.overlay(name, "--overlay"))
    site = Site()
    if overlay:
        settings = _with_harness(settings, request, site, library, None)
    return Level(
        managed=False,
        settings=settings,
        site=site,
        name=policy.name,
        mode="enforce",
        assigned_by=by,
        library=library,
    )


def asked(library: Library, config: Config, asked: str) -> Policy:
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
    if not harness or overlays_off(settings) or (sitefile and overlays_off(sitefile.floor.settings)):
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
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(".toml") and not name.startswith(".")]


def _with_exceptions(level: Level, request: Request, directory: str) -> Level:
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
