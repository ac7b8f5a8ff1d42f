"""`guard explain`: whether a session may do something, which line of the policy decides, and what would allow it."""

from __future__ import annotations

import datetime
import json
import os
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer

from guard.cli import Places
from guard.cli.effective import effective_for
from guard.cli.policy_text import short
from guard.cli.subject import find_person
from guard.confine import launch, places
from guard.confine.explain import ACTS, DENIED, Answer, Answers, Here, Session, UnfitError, judge
from guard.confine.explain.allow import DAYS, Remedy, remedy
from guard.confine.explain.session import KERNEL, ORDINARY
from guard.confine.handlers.names import name_servers
from guard.errors import EXIT_FOUND, ControlError, GuardError, PolicyError, UsageError
from guard.kernel import landlock
from guard.kernel.mounts import mounts
from guard.policy.assign import Config, is_managed
from guard.policy.host import discover
from guard.policy.keys import HARNESSES
from guard.policy.library import Library
from guard.policy.load import load_site
from guard.policy.model import Effective, Policy, Setting
from guard.policy.source import printable
from guard.policy.status import Host

app = typer.Typer()
_WIDTH = 79
_MOST_SHOWN = 46


@app.command(context_settings={"ignore_unknown_options": True})
def explain(
    context: typer.Context,
    act: Annotated[str, typer.Argument(metavar="ACT", help="write, read, exec, chmod, bind, connect or unix.")],
    words: Annotated[
        list[str], typer.Argument(metavar="PATH|MODE PATH|ADDR:PORT", help="What it is done to.", show_default=False)
    ],
    policy: Annotated[str, typer.Option(metavar="NAME|PATH", help="Instead of the one you are assigned.")] = "",
    project: Annotated[list[str] | None, typer.Option(metavar="DIR", help="As of guard run.")] = None,
    harness: Annotated[str, typer.Option(metavar="H", help="As if this harness were started.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON with stable keys, for programs.")] = False,
) -> int:
    """Tell whether a session may do something here, and why; nothing is tried.

    Exits with 0 when it is allowed, done in another way, or only observed; 1 when it is denied.
    """
    if act not in ACTS:
        raise UsageError(f"explain: no act {printable(act)!r}", f"known: {', '.join(ACTS)}")
    if len(words) != len(ACTS[act].words):
        raise UsageError(f"explain {act} takes {' '.join(ACTS[act].words)}")
    try:
        ask = ACTS[act].answers(*words)
        effective, here = surroundings(context.obj, policy, project or [], harness)
        session = Session(effective, here)
        answers = judge(session, ask)
    except UnfitError as error:
        raise UsageError(f"explain: {printable(str(error))}") from None
    except OSError as error:
        raise GuardError(f"{printable(str(error.filename or words[-1]))}: {error.strerror}") from None
    except ControlError as error:
        raise GuardError(error.what, error.remedy) from None
    told = {(answer.verdict, answer.why, answer.layer): answer for answer in reversed(answers)}
    out = []
    for answer in reversed(told.values()):
        found = _remedy(session, ask, answer, context.obj)
        out.append((answer, found))
    if as_json:
        rows = [document(act, words, answer, found, session) for answer, found in out]
        sys.stdout.write(json.dumps(rows if len(rows) > 1 else rows[0], indent=2, ensure_ascii=False) + "\n")
    else:
        lines = [line for answer, found in out for line in text(act, words, answer, found, session)]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return EXIT_FOUND if any(answer.verdict == DENIED for answer in answers) else 0


# Who and where ------------------------------------------------------------------------------------------


def surroundings(where: Places, policy: str, projects: list[str], harness: str) -> tuple[Effective, Here]:
    """Find out what `guard run` would, by its own steps; inside a session, what that has."""
    start = launch.Launch([])
    words = ["--config", where.config, *(["--state", where.state] if where.state else [])]
    start.options.parse([*words, *(word for each in projects for word in ("--project", each)), "--", "true"])
    start._look_around()
    start._check_config()
    inside = _inside(start.environment)
    person = replace(find_person(""), home=start.home)
    if inside and not policy:
        policy = _policy_of_session(start.environment, where)
    layer = start.projects[0] if start.projects else ""
    try:
        effective = effective_for(where, person, policy, harness, layer)
    except PolicyError as error:
        if not inside:
            raise
        raise GuardError(f"inside this session its policy cannot be read: {error}", "ask outside") from error
    start._check_roots(list(effective.site.project_roots))
    host = _host_of_session() if inside else discover()
    commons = (places.worktree_common(each) for each in start.projects)
    listens = launch.can_listen()
    here = Here(
        uid=start.uid,
        user=person.name,
        home=start.home,
        homes=start.homes,
        projects=start.projects,
        commons=tuple(each for each in commons if each),
        own=start._own(),
        tmp=_tmp_of_session(start) if inside else "",
        host=host,
        # Where a supervisor stands already, a second listener is refused.
        can_listen=not listens if inside else listens,
        can_mask=_masked() if inside else host.mask,
        many_groups=not inside and bool(start.uid and set(os.getgroups()) - {os.getegid()}),
        name_servers=name_servers(),
        first_port=_first_port(),
        inside=inside,
    )
    return effective, here


def _inside(environment: Mapping[bytes, bytes]) -> bool:
    """Whether this process is in a session: guard's mark, borne out by the kernel. A lie harms only who tells it."""
    return b"GUARD_SESSION" in environment and launch.sandboxed()


def _policy_of_session(environment: Mapping[bytes, bytes], where: Places) -> str:
    name = environment.get(b"GUARD_POLICY", b"").decode("utf-8", "replace")
    if not name or is_managed(where.config) or is_managed(Config().floor_dir):
        return ""  # the site says which
    library = Library((os.path.join(where.config, "policies"), Config().shipped_dir))
    if library.named(name) is None:
        what = f"this session's policy {printable(name)} is in no directory of policies"
        raise GuardError(what, "name its file with --policy")
    return name


def _host_of_session() -> Host:
    abi, _ = landlock.abi()
    return Host(machine=os.uname().machine, abi=abi, seccomp=True, mask=_masked())


def _masked() -> bool:
    """Whether mounts of guard's stand here: they are all of a source of that name."""
    try:
        return any((mount.kind, mount.source) == ("tmpfs", "guard") for mount in mounts())
    except OSError:
        return False


def _tmp_of_session(start: launch.Launch) -> str:
    path = os.path.realpath(os.fsdecode(start.environment.get(b"TMPDIR", b"")) or "/")
    return path if os.path.basename(os.path.dirname(path)) == f"guard-{start.uid}" else ""


def _first_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 1024


# What would allow it ------------------------------------------------------------------------------------


def _remedy(session: Session, ask: Answers, answer: Answer, where: Places) -> Remedy:
    if answer.verdict != DENIED:
        return Remedy()
    config = Config()
    site = load_site(os.path.join(where.config, "site.toml"))
    library = Library((os.path.join(where.config, "policies"), config.shipped_dir), site.site.variables if site else {})
    overlays: list[tuple[bool, int, Policy, Mapping[str, Setting]]] = []
    for name, _ in library.names("overlay"):
        try:
            overlay = library.overlay(name, "explain")
        except PolicyError:
            continue  # one of the site's that does not load opens nothing
        settings = library.filled(overlay)
        size = sum(len(setting.items) for setting in settings.values())
        overlays.append((name in HARNESSES and name != session.effective.harness, size, overlay, settings))
    overlays.sort(key=lambda row: row[:2])
    return remedy(
        session,
        ask,
        answer,
        [(overlay, settings) for _, _, overlay, settings in overlays],
        library.filled(site.floor) if site else {},
        is_managed(where.config) or is_managed(config.floor_dir),
        library.named(session.effective.name) is not None,
        datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=DAYS),
    )


# Output -------------------------------------------------------------------------------------------------


def text(act: str, words: list[str], answer: Answer, found: Remedy, session: Session) -> list[str]:
    """Write an answer for people: a few lines, each under 80 columns where no path is longer."""
    out = [_shortened(f"{answer.verdict}: {act} {' '.join(map(printable, words))}")]
    rows = [("why", answer.why)]
    if answer.entry is not None:
        shown = printable(f"{answer.entry.key} {answer.entry.value}".strip())
        shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"
        rows.append(("rule", f"{shown} ({short(answer.entry.origin)})"))
    if answer.layer:
        rows.append(("by", answer.layer if answer.layer == KERNEL else f"the {answer.layer}"))
    if answer.unseen:
        rows.append(("but", answer.unseen))
    if answer.verdict == DENIED:
        rows.append(("allow", _allow(answer, found, session)))
    for name, line in rows:
        out += textwrap.wrap(
            printable(line), _WIDTH, initial_indent=f"  {name:<6} ", subsequent_indent=" " * 9,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return out + [f"    {line}" for line in found.text.splitlines()]


def _allow(answer: Answer, found: Remedy, session: Session) -> str:
    if found.overlay:
        who = "an administrator adds it to your row of assign.toml" if found.managed else "add it to a policy of yours"
        own = found.overlay in HARNESSES and found.overlay != session.effective.harness
        return f"the overlay {found.overlay}" + (" comes with that harness" if own else f"; {who}")
    if found.text:
        return "an exception by the administrator:" if found.managed else "a policy of your own, with a reason:"
    if answer.layer == ORDINARY:
        return "not guard's to give"
    if found.danger:
        return f"not proposed: {found.danger}"
    return "no overlay and no one exception; let a person do it outside"


def _shortened(line: str, width: int = _WIDTH) -> str:
    if len(line) <= width:
        return line
    keep = (width - 1) // 2
    return f"{line[: width - 1 - keep]}…{line[-keep:]}"


def document(act: str, words: list[str], answer: Answer, found: Remedy, session: Session) -> dict[str, object]:
    """Return an answer as JSON has it."""
    entry = answer.entry
    return {
        "verdict": answer.verdict,
        "act": act,
        "object": words[-1],
        "judged": answer.real,
        "control": answer.control,
        "why": answer.why,
        "rule": None
        if entry is None
        else {"key": entry.key, "value": entry.value, "file": entry.origin.file, "line": entry.origin.line,
              "reason": entry.origin.reason},
        "layer": answer.layer,
        "unseen": answer.unseen,
        "policy": session.effective.name,
        "layers": {"landlock": session.domain, "filter": bool(session.rules), "mask": session.masked,
                   "supervisor": session.supervised},
        "inside": session.here.inside,
        "allow": {"overlay": found.overlay, "opens": found.opens, "text": found.text, "danger": found.danger},
    }  # fmt: skip


__all__ = ["app"]
