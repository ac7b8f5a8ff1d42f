"""Who gets what: the effective policy of one user, harness, host and project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from guard.errors import PolicyError
from guard.policy import layers
from guard.policy.canonical import digest_of, origins_of, text_of, values_of
from guard.policy.level import Level, asked, exception_files, is_managed, level_of, overlays_off, read_level
from guard.policy.library import Library
from guard.policy.load import PROJECT_FILE
from guard.policy.model import Effective, Setting
from guard.policy.paths import glob_within
from guard.policy.request import CONFIG_DIR, DEFAULT_POLICY, LAST_GOOD, USER_FILE, Config, Request, shipped_dir

__all__ = [
    "CONFIG_DIR",
    "DEFAULT_POLICY",
    "LAST_GOOD",
    "USER_FILE",
    "Config",
    "Request",
    "exception_files",
    "is_managed",
    "resolve",
    "shipped_dir",
]


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
    level = level_of(request, config, top)
    below = _below(request, config, level, top)
    if any(overlays_off(settings) for settings in below):
        level = level_of(request, config, top, overlay=False)
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


def _below(request: Request, config: Config, level: Level, top: str) -> list[Mapping[str, Setting]]:
    """Return the layers that only tighten, the highest first."""
    library = level.library
    out: list[Mapping[str, Setting]] = []
    if top != config.config_dir:
        moved = read_level(replace(request, policy=None, overlays=()), config, config.config_dir, True)
        library.looked_for.update(moved.library.looked_for)
        library.layers += moved.library.layers
        out.append(moved.settings)
    if level.managed and request.policy is not None:
        out.append(library.flatten(asked(library, config, request.policy), {}))
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
                notes.append(f"{dropped.origin}: env.drop: {name} stays, kept by {kept.value} ({kept.origin})")
