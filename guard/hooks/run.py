"""`guard hooks run AGENT before|after`: what an agent's hook calls.

Before a command: what the policy in force would refuse of it, and that a secret stands in it. Advice alone, since the
limits are the kernel's: nothing is decided here, and whatever goes wrong here leaves the agent to its work. After it:
the transcript is scrubbed as far as it has grown.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

LIMIT = 4 << 20


def main(arguments: list[str]) -> int:
    """Answer an agent on standard output; always 0, since another code would stop its work."""
    try:
        agent, when = arguments
        asked = json.loads(sys.stdin.buffer.read(LIMIT))
        if not isinstance(asked, dict):
            return 0
        if when == "before":
            said = before(asked)
            if said:
                sys.stdout.write(json.dumps(answer(agent, said), ensure_ascii=False) + "\n")
        else:
            after(asked)
    except Exception as error:  # noqa: BLE001 - an agent is never stopped by its adviser
        sys.stderr.write(f"guard hooks: {error}\n")
    return 0


def command_of(asked: dict[str, object]) -> str:
    """Return the command line in a hook's input, in any of the agents' forms; "" where there is none."""
    arguments: object = asked.get("tool_input", asked.get("toolArgs", asked))
    if isinstance(arguments, str):
        text = arguments
        try:
            arguments = json.loads(text)
        except ValueError:
            return text
    found = arguments.get("command", "") if isinstance(arguments, dict) else ""
    return " ".join(map(str, found)) if isinstance(found, list) else str(found)


def before(asked: dict[str, Any]) -> list[str]:
    """Return what is to be said of a command before it runs."""
    from guard.hooks.advice import acts, pipes_to_shell

    command = command_of(asked)
    if not command:
        return []
    cwd = str(asked.get("cwd") or os.getcwd())
    said = refusals(acts(command, cwd), cwd)
    if pipes_to_shell(command):
        said.append("a download goes into a shell: save it, read it, and run the file instead")
    if holds_secret(command):
        said.append("a secret stands in this command: hand it over by a file or the environment instead")
    return said


def refusals(asked: list[tuple[str, tuple[str, ...]]], cwd: str) -> list[str]:
    """Return what `guard explain` denies of these acts, a sentence each."""
    if not asked:
        return []
    from guard.cli import split_places
    from guard.cli.explain import surroundings
    from guard.confine.explain import ACTS, DENIED, Session, UnfitError, judge
    from guard.errors import GuardError

    if os.path.isdir(cwd):
        os.chdir(cwd)
    effective, here = surroundings(split_places([])[0], "", [], "")
    session = Session(effective, here)
    said = []
    for act, words in asked:
        try:
            answers = judge(session, ACTS[act].answers(*words))
        except (UnfitError, OSError, GuardError):
            continue
        said += [f"`{act} {' '.join(words)}` will be refused: {a.why}" for a in answers if a.verdict == DENIED]
    return said


def holds_secret(command: str) -> bool:
    """Say whether the redactor finds something in a command."""
    from guard.history.line import clean

    data = command.encode("utf-8", "surrogateescape")
    return clean(data) != data


def answer(agent: str, said: list[str]) -> dict[str, object]:
    """Return advice in the words of an agent's protocol; it never decides."""
    text = "guard: " + "; ".join(said)
    if agent == "cursor":
        return {"agent_message": text, "user_message": text}  # no `permission`: the user is asked as without us
    if agent == "copilot":
        return {"additionalContext": text}
    event = "BeforeTool" if agent == "gemini" else "PreToolUse"
    return {"systemMessage": text, "hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


def after(asked: dict[str, Any]) -> None:
    """Scrub the transcript that an agent names, where it lies in the user's own home."""
    path = asked.get("transcript_path") or asked.get("transcriptPath")
    if not isinstance(path, str) or not path:
        return
    real, home = os.path.realpath(os.path.expanduser(path)), os.path.realpath(os.path.expanduser("~"))
    if not real.startswith(home + "/") or not os.path.isfile(real) or os.stat(real).st_uid != os.geteuid():
        return
    if not real.endswith((".jsonl", ".json", ".ndjson", ".log", ".txt", ".md")):
        return  # no transcript: a credentials file is not to be scrubbed because an agent names it
    from guard.redact.files import overwrite
    from guard.redact.marking import Marks
    from guard.redact.scan import Scanner

    # The last line may be half written; it is looked at the next time, and when the session ends.
    ended = str(asked.get("hook_event_name", "")).lower() in ("sessionend", "stop")
    begin = max(0, os.stat(real).st_size - (1 << 20)) if not ended else 0
    if begin:
        with open(real, "rb") as file:
            file.seek(begin)
            begin += len(file.readline())
    overwrite(real, Scanner(), Marks(), "auto", None, begin, whole_lines=not ended)
