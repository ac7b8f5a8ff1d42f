"""What the kernel's side is told of programs' names: interpreters, launchers, trusted fetchers, schedulers, harnesses.

One table a kind, names as in execve's path, without directories. Whatever a name alone does not decide is a hint,
and is judged by `guard.monitor.catalogue` from the whole of argv.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from guard.monitor.catalogue import LONGEST_NAME, Catalogue, wrapped
from guard.monitor.facts import Program

SHELLS = (
    "sh", "bash", "rbash", "dash", "ash", "zsh", "zsh5", "ksh", "ksh93", "mksh", "pdksh", "yash", "csh", "tcsh", "oksh",
    "lksh", "posh", "nu", "elvish", "xonsh", "hush", "fish", "pwsh", "static-sh", "bash-static", "zsh-static",
)  # fmt: skip
PYTHONS = (
    "python", "python2", "python2.7", "python3", "python3-dbg", "pypy", "pypy3", "ipython", "ipython3",
    *(f"python3.{minor}" for minor in range(6, 20)), *(f"pypy3.{minor}" for minor in range(6, 14)),
)  # fmt: skip
INTERPRETERS = (
    "perl", "ruby", "irb", "jruby", "node", "nodejs", "bun", "deno", "tsx", "ts-node", "php", "php-cli", "lua",
    "luajit", "tclsh", "wish", "expect", "julia", "Rscript", "R", "osh", "raku", "guile", "awk", "gawk", "mawk",
    "nawk", "original-awk",
    *(f"perl5.{minor}.{patch}" for minor in (26, 30, 32, 34, 36, 38, 40) for patch in (0, 1, 2, 3)),
    *(f"ruby{version}" for version in ("2.7", "3.0", "3.1", "3.2", "3.3", "3.4")),
    *(f"php{version}" for version in ("7.4", "8.0", "8.1", "8.2", "8.3", "8.4")),
    *(f"lua5.{minor}" for minor in (1, 2, 3, 4)), *(f"tclsh8.{minor}" for minor in (5, 6, 7)),
)  # fmt: skip
LAUNCHERS = (
    "busybox", "toybox", "ld.so", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "ld-linux.so.2",
    "ld-musl-x86_64.so.1", "ld-musl-aarch64.so.1",
)  # fmt: skip
RESOLVERS = ("dig", "host", "nslookup", "drill", "delv", "kdig", "khost", "doggo", "dog", "q", "dnsx", "adig")
"""Ask for names, and hand on what the answer says."""
SCHEDULERS = ("squeue", "sacct", "sinfo", "scancel", "sbatch", "sprio", "sstat", "scontrol", "sshare", "qstat", "bjobs")
"""Ask a scheduler's controller something each time they run."""

TRUSTED = (
    "git", "git-remote-http", "git-remote-https", "git-remote-ftp", "git-lfs", "pip", "pip3", "pipx", "uv", "uvx",
    "poetry", "pdm", "hatch", "conda", "mamba", "micromamba", "pixi", "npm", "npx", "yarn", "pnpm", "corepack", "cargo",
    "rustup", "go", "gem", "bundle", "composer", "apt", "apt-get", "apt-cache", "aptitude", "dpkg", "dnf",
    "dnf-3", "dnf5", "yum", "microdnf", "zypper", "rpm", "apk", "pacman", "brew", "nix", "guix",
    "spack", "eb", "module", "mvn", "gradle", "dotnet", "luarocks", "cpan", "cpanm", "julia-pkg", "debootstrap",
)  # fmt: skip
"""Fetchers whose work is to bring code: what they write is no data from outside, unless the site says otherwise."""

_BY_KIND: Mapping[Program, tuple[str, ...]] = {
    Program.SHELL: SHELLS,
    Program.PYTHON: PYTHONS,
    Program.INTERPRETER: INTERPRETERS,
    Program.LAUNCHER: LAUNCHERS,
    Program.SCHEDULER: SCHEDULERS,
    Program.RESOLVER: RESOLVERS,
}


def program_table(catalogue: Catalogue, trusted: Iterable[str] = TRUSTED) -> dict[str, Program]:
    """Return name → what it is, as `guard.monitor.source.Settings.programs` takes it.

    Args:
        catalogue: the harnesses. A name that is sure labels in the kernel; others come up as hints.
        trusted: names of fetchers that the policy trusts.
    """
    out: dict[str, Program] = {}

    def add(names: Iterable[str], kind: Program) -> None:
        for name in names:
            if len(name.encode()) <= LONGEST_NAME:
                out[name] = out.get(name, Program.NONE) | kind

    for kind, names in _BY_KIND.items():
        add(names, kind)
    add(trusted, Program.TRUSTED)
    sure: set[str] = set()
    for row in catalogue.rows.values():
        if row.confidence == "high" and not row.only and not row.unless:
            sure.update(row.programs)
    add(sure, Program.HARNESS)
    add((name for name in _hints(catalogue) if name not in sure), Program.HINT)
    return out


def _hints(catalogue: Catalogue) -> Iterable[str]:
    yield from ("guard", "--type=extensionHost")
    for row in catalogue.rows.values():
        yield from (*row.programs, *row.scripts, *row.modules)
        yield from map(wrapped, (*row.programs, *row.scripts))
        for pattern in row.paths:
            name = os.path.basename(pattern)
            if name.endswith(".*"):
                yield from (f"{name[:-2]}.{ending}" for ending in ("js", "mjs", "cjs"))
            elif not set("*?[") & set(name):
                yield name
