"""What stands behind a shim: finds the real program, and starts it under guard if it is the agent that has the name.

Many an agent shares its name with other software (`copilot`, `goose`, `droid`): the catalogue decides by program,
interpreter and first word, and what is no agent is started as if no shim were there.
"""

from __future__ import annotations

import os
import re
import sys

from guard.entry import start
from guard.entry.guarded import guarded
from guard.errors import EXIT_NOT_FOUND, EXIT_REFUSED
from guard.monitor.catalogue import Catalogue, Match, shipped

MARK = b"# guard shim"
"""What a shim's second line begins with: it is how a shim knows another."""
BYPASS = "GUARD_BYPASS"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PLATFORM = re.compile(r"(linux|darwin|windows|x86_64|aarch64)")


def names(catalogue: Catalogue, least: str = "medium") -> tuple[str, ...]:
    """Return the names under which agents are started.

    Args:
        catalogue: the known agents.
        least: the least confidence of a row whose names get a shim.
    """
    levels = ("low", "medium", "high")
    found = {
        name
        for row in catalogue.rows.values()
        if levels.index(row.confidence) >= levels.index(least)
        for name in (*row.programs, *row.scripts)
        if _NAME.fullmatch(name) and not _PLATFORM.search(name)
    }
    return tuple(sorted(found))


def main(arguments: list[str]) -> int:
    """Run `guard shim exec NAME ARG…`; returns only where nothing could be started."""
    if not arguments:
        return EXIT_REFUSED
    name, *rest = arguments
    program = find(name, os.environ.get("PATH", ""))
    if not program:
        sys.stderr.write(f"{name}: command not found\n")
        return EXIT_NOT_FOUND
    argv, environment = [name, *rest], dict(os.environ)
    config = start.config_directory()
    match = recognise(program, rest)
    if match is None or start.switched_off(config):
        return start.become(program, argv, environment)
    chosen, fault = start.settings(config)
    reason = environment.pop(BYPASS, "").strip()
    if reason and not guarded():
        if chosen.bypass == "allow" and not fault:
            detail: dict[str, object] = {"reason": reason, "harness": match.harness}
            start.told("bypass", f"{match.harness} was started without guard", detail)
            return start.become(program, argv, environment)
        sys.stderr.write(f"guard: {BYPASS}: this site allows no way around guard\n")
    code, why = start.confined([], program, argv, environment, chosen.deadline) if not fault else (EXIT_REFUSED, fault)
    if not why:
        return code
    if guarded():  # the last layer was refused (there are at most sixteen): what holds already holds on
        return start.become(program, argv, environment)
    plain = chosen.on_fault_agent == "plain"
    start.told(
        "agent-unguarded" if plain else "agent-refused",
        f"{match.harness} {'runs without guard' if plain else 'was refused'}",
        {"reason": why, "harness": match.harness},
        "high" if plain else "medium",
    )
    sys.stderr.write(f"guard: {why}; {'it runs without guard' if plain else f'{name} was not started'}\n")
    return start.become(program, argv, environment) if plain else EXIT_REFUSED


def find(name: str, path: str) -> str:
    """Return the first program of a name on PATH that is no shim; "" where there is none."""
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK) and not is_shim(candidate):
            return os.path.abspath(candidate)
    return ""


def is_shim(path: str) -> bool:
    """Say whether a program is a shim of guard's."""
    try:
        with open(path, "rb") as file:
            return MARK in file.read(256)
    except OSError:
        return False


def recognise(program: str, arguments: list[str]) -> Match | None:
    """Say which agent a program is, by its name, its interpreter line and its first word."""
    catalogue = shipped()
    real = os.path.realpath(program)
    try:
        with open(real, "rb") as file:
            head = file.read(256)
    except OSError:
        head = b""
    if not head.startswith(b"#!"):
        return catalogue.recognise(program, real, [program, *arguments])
    words = head[2:].split(b"\n")[0].decode("utf-8", "replace").split()
    runner = next((w for w in words[1:] if not w.startswith("-") and "=" not in w), "") if words else ""
    interpreter = runner if words and os.path.basename(words[0]) == "env" else words[0] if words else ""
    if os.path.basename(interpreter).rstrip("0123456789.") not in ("node", "bun", "deno", "python"):
        return catalogue.recognise(program, real, [program, *arguments])
    return catalogue.recognise(program, interpreter, [interpreter, program, *arguments]) or catalogue.recognise(
        real, interpreter, [interpreter, real, *arguments]
    )


def script(name: str, guard: str) -> str:
    """Return a shim.

    Args:
        name: under which the agent is started.
        guard: the program guard.
    """
    return f"""#!/bin/sh
{MARK.decode()} for {name}: starts it under guard (docs/shells.md)
# Where no process can be started guard itself says so, and does what the site has chosen.
trap 'trap - EXIT; exec {guard} shim exec {name} "$@"' EXIT
# bash as sh tries for 15 s to start a process where no more may be: what is there is counted without one.
at_limit() {{
	while read -r first second most _; do
		[ "$first $second" != "Max processes" ] || break
	done < /proc/self/limits
	read -r _ _ _ tasks _ < /proc/loadavg
	case $most in '' | *[!0-9]*) return 1 ;; esac
	[ "${{tasks#*/}}" -ge "$most" ] || return 1
	count=0
	for each in /proc/[0-9]*; do
		[ ! -O "$each" ] || {{ set -- "$each"/task/* && count=$((count + $#)); }}
	done
	[ "$count" -ge "$most" ]
}}
[ ! "${{BASH_VERSION-}}" ] || ! at_limit 2> /dev/null || exit
# What hangs is given two seconds; what only computes, on a busy node, more.
ready() {{
	timeout -s KILL 2 {guard} shim ready < /dev/null > /dev/null 2>&1 && return
	[ $? = 137 ] && read -r load _ < /proc/loadavg && [ "${{load%.*}}" -ge "$(nproc)" ] &&
		timeout -s KILL 4 {guard} shim ready < /dev/null > /dev/null 2>&1
}}
if ready; then
	trap - EXIT
	exec {guard} shim exec {name} "$@"
fi
trap - EXIT
# In a session that cannot execute guard (the kernel says whether this is one), where root has switched guard off, and
# where the site wants it so, the agent starts without.
config=${{GUARD_CONFIG_DIR:-/etc/guard}}
for file in site assign entry; do [ ! -e /etc/guard/$file.toml ] || config=/etc/guard; done
if ! grep -q '^Seccomp:.2' /proc/self/status && [ ! -f "$config/off" ]; then
	if ! grep -Eqs '^[[:space:]]*on_fault_agent[[:space:]]*=[[:space:]]*"plain"' "$config/entry.toml"; then
		echo "guard: {guard} cannot be started, so {name} is not; $config/off lets it start without" >&2
		exit 125
	fi
	echo "guard: {guard} cannot be started; {name} runs without guard" >&2
	timeout 1 logger -t guard -p auth.warning -- "{name} runs without guard: {guard} cannot be started" 2> /dev/null
fi
IFS=:
for folder in $PATH; do
	if [ -x "$folder/{name}" ] && ! head -c 256 "$folder/{name}" | grep -aq '{MARK.decode()}'; then
		exec "$folder/{name}" "$@"
	fi
done
echo "{name}: command not found" >&2
exit 127
"""
