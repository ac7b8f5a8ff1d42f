"""Keeping a copy of the site's files as they last loaded, for the day when they do not."""

from __future__ import annotations

import os
import shutil

from guard.errors import PolicyError
from guard.policy.assign import exception_files
from guard.policy.lint import lint
from guard.policy.source import LIMIT, read_file


def keep(config_dir: str, shipped_dir: str, target: str, now: float) -> list[str]:
    """Copy a site's files, if every one of them loads; `resolve` falls back on the copy.

    Args:
        config_dir: the site's configuration.
        shipped_dir: the policies that it builds on.
        target: the copy, replaced whole; its parent must exist.
        now: seconds since the epoch.

    Returns:
        What kept the present files from becoming the last good ones; empty when they did.

    Raises:
        OSError: the copy cannot be written.
    """
    errors = [str(each) for each in lint(config_dir, shipped_dir, now) if each.level == "error"]
    if errors:
        return errors
    fresh, former = f"{target}.new", f"{target}.old"
    for path in (fresh, former):
        shutil.rmtree(path, ignore_errors=True)
    os.makedirs(fresh, 0o755)
    try:
        for path in _files(config_dir):
            copy = os.path.join(fresh, os.path.relpath(path, config_dir))
            os.makedirs(os.path.dirname(copy), 0o755, exist_ok=True)
            content = read_file(path, LIMIT, True)
            with open(copy, "wb") as stream:
                stream.write(content)
            os.chmod(copy, 0o644)
    except (PolicyError, OSError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, PolicyError):
            return [str(error)]  # changed while it was copied: the next time
        raise
    # Two renames, not one: a reader between them finds no copy, which is the state before the first.
    if os.path.isdir(target):
        os.rename(target, former)
    os.rename(fresh, target)
    shutil.rmtree(former, ignore_errors=True)
    return []


def _files(config_dir: str) -> list[str]:
    found = [os.path.join(config_dir, name) for name in ("site.toml", "assign.toml")]
    found += exception_files(config_dir)
    for folder in ("policies", "policies/overlays"):
        place = os.path.join(config_dir, folder)
        if os.path.isdir(place):
            found += [os.path.join(place, name) for name in sorted(os.listdir(place)) if name.endswith(".toml")]
    return [path for path in found if os.path.lexists(path)]
