"""`guard learn`: watch a session, propose the narrowest policy for it."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Annotated

import typer

from guard.cli import Places
from guard.confine import learn, state, supervise
from guard.confine.launch import Launch, Plan
from guard.errors import ControlError, UsageError
from guard.kernel import MACHINE, drop_capabilities, landlock, notify
from guard.policy.assign import Config, Request, resolve

app = typer.Typer(add_completion=False)


class Learning(Launch):
    """A start whose supervisor only watches."""

    def __init__(self, start: list[str], policy: str) -> None:
        super().__init__(start)
        self._policy = policy
        self.report, path = tempfile.mkstemp(prefix="guard-learn-")
        os.unlink(path)
        self.status = 125 << 8

    def _plan(self) -> Plan:
        self.options.policy = self._policy
        plan = super()._plan()
        if plan["audit"] == "forbid":
            raise ControlError("`guard learn` is forbidden on this node (site.toml, audit)", "ask the site")
        plan["bpf_supervised"] = learn.head(MACHINE) + plan["bpf"]
        return plan

    def _run_supervised(
        self, program: str, environment: dict[bytes, bytes], ruleset: landlock.Ruleset, held: object
    ) -> int:
        watcher = learn.Watcher(MACHINE, self.report)

        def enter() -> int:
            ruleset.restrict(self.plan["restrict_flags"])
            drop_capabilities()  # as every session; and S may take nothing from a process that has more than it
            return notify.load_listener(self.own_ipc + self.plan["bpf_supervised"], self.plan["seccomp_flags"])

        self.status = supervise.stay(enter, lambda: self.execute(program, environment), watcher)
        state.forget_plans(self.options.state)
        return os.waitstatus_to_exitcode(self.status)


@app.command()
def main(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help="The command, after `--`.", metavar="-- CMD ARG…")],
    output: Annotated[str, typer.Option("-o", "--output", help="Write the policy here instead of stdout.")] = "",
    project: Annotated[list[str], typer.Option(help="What {project} means; repeatable.")] = [],  # noqa: B006
    name: Annotated[str, typer.Option(help="The policy's name.")] = "learned",
) -> None:
    """Watch CMD run and propose the narrowest policy under which it runs again."""
    if not command:
        raise UsageError("no command given", "guard learn [-o FILE] -- CMD ARG…")
    places = context.find_object(Places)
    with tempfile.NamedTemporaryFile("w", prefix="guard-learn-", suffix=".toml") as policy:
        policy.write(learn.WATCHING)
        policy.flush()
        entry = [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0])]
        session = Learning(entry, policy.name)
        words = [word for path in project for word in ("--project", path)]
        if places and places.state:
            words += ["--state", places.state]
        if places:
            words += ["--config", places.config]
        code = session.run([*words, "--no-project-policy", "--", *command])
    with open(session.report, closefd=False) as file:
        file.seek(0)
        text = file.readline()
    if not text:
        raise ControlError("the session was not watched", "see `guard doctor`: it needs seccomp user notification")
    config = Config(session.options.config)
    base = resolve(Request(user="", uid=session.uid, policy="base", use_project_layer=False), config)
    here = learn.Here(session.home, session.projects, session.tmp.path if session.tmp else "", _kind)
    proposal = learn.propose(name, learn.Seen.from_json(text), base, here)
    if output:
        with open(output, "w") as target:
            target.write(proposal)
        sys.stderr.write(f"guard: the proposal is in {output}; fill in the reasons, then try it\n")
    else:
        sys.stdout.write(proposal)
    raise typer.Exit(code if code >= 0 else 128 - code)


def _kind(path: str) -> str:
    return "directory" if os.path.isdir(path) else "file" if os.path.exists(path) else ""
