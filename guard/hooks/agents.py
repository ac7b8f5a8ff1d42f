"""The agents' own hooks: what each calls before and after a command, and where it reads that from.

Settings are the user's: ours is merged in, and what was there comes back byte for byte. A file that is no JSON is
left alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from guard.errors import GuardError
from guard.hooks import blocks

Json = dict[str, Any]


@dataclass(frozen=True)
class Agent:
    """How an agent calls hooks.

    Args:
        file: its settings; `{home}`, or `{project}` for an agent that reads them from the project alone.
        before, after: the events' names.
        form: `claude` (groups with a matcher), `cursor` (a list of commands) or `copilot`.
        matcher: which tools run commands, where the form has one.
        base: what a file of its own begins with.
        note: what a person must do besides; "" for nothing.
    """

    file: str
    before: str
    after: tuple[str, ...]
    form: str
    matcher: str = ""
    base: Mapping[str, object] | None = None
    note: str = ""


AGENTS: Final[Mapping[str, Agent]] = {
    # code.claude.com/docs/en/hooks
    "claude": Agent("{home}/.claude/settings.json", "PreToolUse", ("PostToolUse", "SessionEnd"), "claude", "Bash"),
    # developers.openai.com/codex/hooks
    "codex": Agent("{home}/.codex/hooks.json", "PreToolUse", ("PostToolUse", "Stop"), "claude", "Bash",
                   note="Codex runs a new hook only after you have trusted it: it asks at its next start"),
    # cursor.com/docs/agent/hooks
    "cursor": Agent("{home}/.cursor/hooks.json", "beforeShellExecution", ("afterShellExecution", "stop"), "cursor",
                    base={"version": 1}),
    # docs.github.com/copilot/reference/copilot-cli-reference/cli-hooks-reference
    "copilot": Agent("{project}/.github/hooks/guard.json", "preToolUse", ("postToolUse", "sessionEnd"), "copilot",
                     base={"version": 1}, note="Copilot reads hooks from the project: commit the file, or ignore it"),
    # geminicli.com/docs/hooks/reference
    "gemini": Agent("{home}/.gemini/settings.json", "BeforeTool", ("AfterTool", "SessionEnd"), "claude",
                    "run_shell_command"),
}  # fmt: skip


def command(guard: str, agent: str, when: str) -> str:
    """Return what an agent is to call."""
    return f"{guard} hooks run {agent} {when}"


def _ours(value: object) -> bool:
    return isinstance(value, str) and re.search(r"guard hooks run [a-z]+ (before|after)$", value) is not None


def _entry(agent: Agent, line: str, event: str) -> Json:
    if agent.form == "cursor":
        return {"command": line}
    if agent.form == "copilot":
        return {"type": "command", "bash": line, "timeoutSec": 10}
    hooks: Json = {"hooks": [{"type": "command", "command": line}]}
    tool = event == agent.before or "Tool" in event
    return {"matcher": agent.matcher, **hooks} if tool else hooks


def _is_ours(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    inner = entry.get("hooks")
    if isinstance(inner, list):
        return bool(inner) and all(isinstance(one, dict) and _ours(one.get("command")) for one in inner)
    return _ours(entry.get("command")) or _ours(entry.get("bash"))


def merged(settings: Json, name: str, guard: str) -> Json:
    """Return settings with our hooks behind those that are there.

    Raises:
        GuardError: `hooks` is not what the agent's format says.
    """
    agent = AGENTS[name]
    out = without(settings)
    hooks = out.setdefault("hooks", {})
    if not isinstance(hooks, dict):
        raise GuardError("`hooks` in it is no object", "mend it by hand; nothing was changed")
    for event in (agent.before, *agent.after):
        entries = hooks.setdefault(event, [])
        if not isinstance(entries, list):
            raise GuardError(f"`hooks.{event}` in it is no list", "mend it by hand; nothing was changed")
        when = "before" if event == agent.before else "after"
        entries.append(_entry(agent, command(guard, name, when), event))
    return out


def without(settings: Json) -> Json:
    """Return settings without our hooks, and without the lists that held nothing else."""
    hooks = settings.get("hooks")
    if not isinstance(hooks, dict):
        return dict(settings)
    kept = {
        event: [entry for entry in entries if not _is_ours(entry)] if isinstance(entries, list) else entries
        for event, entries in hooks.items()
    }
    kept = {event: entries for event, entries in kept.items() if entries or not hooks[event]}
    out = {**settings, "hooks": kept}
    if not kept and hooks:
        del out["hooks"]
    return out


def install(name: str, path: str, guard: str, memory: str) -> bool:
    """Merge our hooks into an agent's settings and say whether anything changed.

    Args:
        name: of `AGENTS`.
        path: its settings.
        guard: the program guard.
        memory: our folder, where the bytes that were there are kept until uninstall.

    Raises:
        GuardError: the settings are not JSON as the agent documents it; they are left as they are.
    """
    before = blocks.read(path)
    settings = _parse(before, path) if before is not None and before.strip() else dict(AGENTS[name].base or {})
    try:
        after = merged(settings, name, guard)
    except GuardError as error:
        raise GuardError(f"{path}: {error.what}", error.remedy) from None
    if before is not None and after == settings:
        return False
    text = _dump(after, before)
    kept = os.path.join(memory, f"{name}.json")
    if not _remembers(kept, before):  # a second install keeps what was there before the first
        record = {"before": None if before is None else before.decode("latin-1"), "ours": _digest(text), "path": path}
    else:
        record = {**json.loads(blocks.read(kept) or b"{}"), "ours": _digest(text)}
    blocks.write(kept, json.dumps(record).encode(), 0o600)
    blocks.write(path, text, 0o600)
    return True


def uninstall(name: str, path: str, memory: str) -> bool:
    """Take our hooks out again: byte for byte what was there, where nobody has changed the file since.

    Raises:
        GuardError: the file is no JSON any more; it is left as it is.
    """
    now = blocks.read(path)
    kept = os.path.join(memory, f"{name}.json")
    if now is None:
        return False
    if _remembers(kept, now):
        record = json.loads(blocks.read(kept) or b"{}")
        if record["before"] is None:
            os.unlink(os.path.realpath(path))
        else:
            blocks.write(path, record["before"].encode("latin-1"))
        os.unlink(kept)
        return True
    settings = _parse(now, path) if now.strip() else {}
    after = without(settings)
    blocks.remove(kept)
    if after == settings:
        return False
    blocks.write(path, _dump(after, now))
    return True


def _remembers(kept: str, text: bytes | None) -> bool:
    """Say whether a file is still as our last install left it."""
    data = blocks.read(kept)
    try:
        return data is not None and text is not None and json.loads(data)["ours"] == _digest(text)
    except (ValueError, KeyError, TypeError):
        return False


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _parse(text: bytes, path: str) -> Json:
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise GuardError(
            f"{path} is no JSON ({error})",
            "mend it, or add by hand what `guard hooks show` prints; nothing was changed",
        ) from None
    if not isinstance(settings, dict):
        raise GuardError(f"{path} holds no object", "mend it; nothing was changed")
    return settings


def _dump(settings: Json, before: bytes | None) -> bytes:
    found = re.search(rb"\n([ \t]+)\"", before or b"")
    indent = found.group(1).decode() if found else "  "
    return json.dumps(settings, indent=indent, ensure_ascii=False).encode() + b"\n"
