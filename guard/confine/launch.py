"""`guard run`: from a command line to a confined process, in the order that the kernel's rules allow.

Everything imported here is paid for at every start: small modules of the standard library only, no
third-party package (tests/confine/test_budget.py). A plan that is not at hand is made by a process
of its own (`guard.policy.prepare`).

The order: read the plan; no new privileges; mount namespace; open the rules' descriptors inside it;
tell what holds, and refuse if that is too little; write the event; umask, limits; Landlock;
capabilities; seccomp; exec. Whatever fails before exec ends with 125 and nothing started.
"""

import gc
import posix as os
import pwd
import sys

from guard import confine, kernel
from guard.confine import places, state
from guard.kernel import basename, decode, encode, landlock, real_path
from guard.redact import program_name, withhold

# Program name to harness; a policy's overlay of that name is added (docs/policies.md).
HARNESSES = {
    "claude": "claude",
    "codex": "codex",
    "cursor": "cursor",
    "cursor-agent": "cursor",
    "copilot": "copilot",
    "gemini": "gemini",
}
CONTROLS = (
    "files", "metadata", "world-writable", "setuid", "bind", "connect", "unix-sockets", "pipe-to-shell",
    "processes", "kernel-surface", "limits",
)  # fmt: skip
TYPE_CHECKING = False  # `typing` costs more than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from guard.confine.written import Writer
else:
    Any = object

USAGE = """\
usage: guard run [--policy NAME|PATH] [--project DIR]... [--audit] [--require CONTROL,...|all]
                 [--session LABEL] [--no-project-policy] [--tell] [--recording FILE]
                 [--state DIR] [--config DIR] -- CMD ARG..."""
# What the dynamic loader and libc take orders from: our own interpreter is started again without it.
_LOADER = (b"LD_", b"GLIBC_TUNABLES", b"GCONV_PATH", b"LOCPATH", b"MALLOC_")
Plan = dict[str, Any]  # guard.policy.plan describes it


def main(argv: "list[str]", start: "list[str]") -> int:
    """Run a command confined.

    Args:
        argv: the arguments after `run`.
        start: the command line that starts guard itself, for starting it again.

    Returns:
        An exit code when nothing was started; on success the process becomes the command.
    """
    gc.disable()  # nothing here lives long enough
    fill_streams()
    launch = Launch(start)

    def interrupted() -> int:
        launch.refused("interrupted", "")
        return confine.end_by_interrupt()

    def unraised(lost: "sys.UnraisableHookArgs") -> None:
        """An interrupt that came in a callback of the interpreter's would be lost."""
        if lost.exc_type is KeyboardInterrupt:
            interrupted()
        sys.__unraisablehook__(lost)

    sys.unraisablehook = unraised
    try:
        return launch.run(argv)
    except KeyboardInterrupt:
        return interrupted()
    except OSError as error:
        return launch.refused(explain(error), "")
    except Exception as error:
        if b"GUARD_DEBUG" in os.environ:
            raise
        return launch.refused(str(error) or type(error).__name__, getattr(error, "control", ""))


def fill_streams() -> None:
    """Put /dev/null where a standard stream is closed, up to exec: no file of ours must get its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/dev/null", os.O_RDWR)  # the lowest free number, not inherited
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - for as long as we live


def _error(kind: str, what: str, remedy: str = "", control: str = "") -> Exception:
    """An error from `guard.errors`, which is loaded only when there is one."""
    from guard import errors

    if kind == "usage":
        return errors.UsageError(what, remedy)
    return errors.ControlError(what, remedy, control)


def explain(error: OSError) -> str:
    """What a failed call means, and what to do, where that is known."""
    where = str(error.filename or "")
    try:
        from guard.kernel import reasons

        if where.startswith("landlock_"):
            return "; ".join(filter(None, reasons.why_landlock(error.errno or 0, where)))
        if where in ("seccomp", "prctl"):
            return "; ".join(filter(None, reasons.why_seccomp(error.errno or 0, where)))
    except (ImportError, OSError):
        # The file rules hold already, and may not let us read the explanation.
        return f"{where}: {error.strerror or error}; see `guard doctor`"
    return f"{where}: {error.strerror or error}" if where else kernel.reason(error)


class Options:
    """What the command line and the environment ask for.

    Args:
        environment: the caller's, as `environment_block` reads it.
        uid: the caller.
    """

    def __init__(self, environment: "dict[bytes, bytes]", uid: int) -> None:
        self.command: list[str] = []
        self.policy = ""
        self.projects: list[str] = []
        self.required: list[str] = []
        self.label = ""
        self.recording = ""
        self.argv0 = ""  # the name that the command sees, where it is not the one that was given
        self.audit = False
        self.tell = False
        self.project_policy = True
        self.project_search = True
        self.environment_fd = -1
        self.write_start = -1  # what guard-exec asks to be written down: a descriptor with the start's name and key
        self.state_named = False  # by the caller, not by default
        self.state = decode(environment.get(b"GUARD_STATE_DIR", b"")) or state.default_state(uid)
        self.config = decode(environment.get(b"GUARD_CONFIG_DIR", b"")) or state.SITE

    def parse(self, argv: "list[str]") -> None:
        """Read the arguments after `run`.

        Raises:
            UsageError: the sentence says which word is wrong.
        """
        rest = list(argv)
        while rest:
            word = rest[0]
            if word == "--":
                del rest[0]
                break
            if not word.startswith("-") or word == "-":
                break
            del rest[0]
            name, joined, value = word.partition("=")
            if name in ("--audit", "--no-project-policy", "--no-project", "--tell") and not joined:
                self.audit |= name == "--audit"
                self.project_search &= name != "--no-project"
                self.tell |= name == "--tell"
                self.project_policy &= name != "--no-project-policy"
                continue
            if name not in _TAKES_VALUE:
                raise _error("usage", f"unknown option {word}", USAGE)
            if not joined:
                if not rest:
                    raise _error("usage", f"{name} needs a value", USAGE)
                value = rest.pop(0)
            if not value:
                raise _error("usage", f"{name} needs a value", USAGE)
            self._take(name, value)
        if not rest or not rest[0]:
            raise _error("usage", "no command given", USAGE)
        self.command = rest
        self.state_named = self.state != state.default_state(os.geteuid())
        self.state, self.config = _absolute(self.state), _absolute(self.config)

    def _take(self, name: str, value: str) -> None:
        if name == "--policy":
            self.policy = value
        elif name == "--project":
            self.projects.append(value)
        elif name == "--session":
            if len(value) > 64 or not value.isprintable():
                raise _error("usage", "--session takes a label of at most 64 printable characters")
            self.label = value
        elif name == "--recording":
            self.recording = value
        elif name == "--argv0":
            self.argv0 = value
        elif name == "--state":
            self.state = value
        elif name == "--config":
            self.config = value
        elif name == "--environment-fd":
            self.environment_fd = int(value) if value.isdigit() else -1
        elif name == "--write-start":
            self.write_start = int(value) if value.isdigit() else -1
        else:
            for control in value.split(","):
                if control != "all" and control not in CONTROLS:
                    raise _error("usage", f"--require: no control {control!r}", f"known: all, {', '.join(CONTROLS)}")
                self.required.append(control)

    def harness(self) -> str:
        """The harness that the command starts, by its name; empty for any other program."""
        for word in self.command[:2]:
            found = HARNESSES.get(basename(word))
            if found:
                return found
            if basename(self.command[0]) not in ("node", "bun", "deno", "npx", "uvx"):
                break
        return ""


_TAKES_VALUE = (
    "--policy", "--project", "--require", "--session", "--recording", "--state", "--config", "--environment-fd",
    "--write-start", "--argv0",
)  # fmt: skip


class Launch:
    """One start.

    Args:
        start: the command line that starts guard itself.
    """

    def __init__(self, start: "list[str]") -> None:
        self._start = start
        self.uid = os.geteuid()
        self.root = os.getpid()
        self.id = state.new_id()
        self.environment = confine.environment_block()
        self.options = Options(self.environment, self.uid)
        self.plan: Plan = {}
        self.cwd = ""
        self.user = ""
        self.home = ""
        self.homes: tuple[str, ...] = ()
        self.projects: tuple[str, ...] = ()
        self.harness = ""
        self.tmp: state.PrivateTmp | None = None
        self.spool: state.Spool | None = None
        self.fault = ""  # why events cannot be written
        self.landlock_errno = 0
        self.own_ipc = b""  # the filter's head in an IPC namespace of our own
        self.distrusted = False  # whether others may have written in the state directory

    def run(self, argv: "list[str]") -> int:
        """Everything from the arguments to exec; returns only what the shell's contract calls a failure."""
        options = self.options
        options.parse(argv)
        if options.recording:
            from guard.confine import record

            return record.run(self, self._start, argv, _TAKES_VALUE)
        if options.environment_fd >= 0:
            self.environment = confine.environment_from(options.environment_fd)
        elif any(name.startswith(_LOADER) for name in self.environment):
            self._start_again(argv)
        program = confine.find_program(options.command[0], self.environment.get(b"PATH", b"/bin:/usr/bin"))
        writer = self._writer(program) if options.write_start >= 0 else None
        self._look_around()
        self._open_spool()
        self.plan = plan = self._plan()
        if options.audit and plan["audit"] == "forbid":
            raise _error("control", "--audit is forbidden on this node (site.toml, audit)", "run without it")
        if plan["alerts"]:
            sys.stderr.write("guard: the site's files do not load, the last good ones are in force; tell its keepers\n")
        self._check_roots(plan["project_roots"])
        if options.audit or plan["mode"] != "enforce":
            from guard.confine import unconfined

            return unconfined.run(self, program)
        self.tmp = self._private_tmp(plan["tmp"])
        self.tmp.sweep()  # not from within a user namespace: there the environments of those outside are hidden
        held = self._places(plan)
        confine.keep_pipes(options.command, self.environment)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        masked = self._mask(plan, held)
        ruleset = self._ruleset(plan, held, masked)
        supervised = ruleset is not None and bool(plan["bpf_supervised"]) and can_listen()
        if plan["supervise"] == "always" and not supervised:
            raise _error("control", "the policy demands a supervisor, and none can be had here", "see `guard doctor`")
        statuses = self._statuses(plan, held, masked, supervised)
        self._demand(plan, statuses)
        environment = self._child_environment(plan)
        if os.stat(program).st_mode & 0o4000:  # sudo, su: what they say themselves is not always clear
            sys.stderr.write(f"guard: {basename(program)} gains no rights: none can be raised inside (no_new_privs)\n")
        severity = "info" if set(plan["asked"]) - {"limits"} else "medium"
        self.record_start(statuses, severity)
        if writer:
            writer.keep(held, supervised, lambda: self.record_start(statuses, severity))
        os.umask(os.umask(0o077) | plan["umask"])
        self.tmp.inherit()
        if supervised and ruleset is not None:
            return self._run_supervised(program, environment, ruleset, held)
        if options.tell:
            sys.stderr.write("guard: --tell: this session has no supervisor to tell; `guard explain` answers\n")
        lower_limits(plan["rlimits"])
        confine.default_signals()
        if ruleset is not None:
            ruleset.restrict(plan["restrict_flags"])
        kernel.drop_capabilities()
        program_ = plan["bpf" if ruleset is not None else "bpf_alone"]
        kernel.load_filter(self.own_ipc + program_, plan["seccomp_flags"])
        return self.execute(program, environment)

    def rehearse(self, argv: "list[str]") -> None:
        """Touch what a start touches, and change nothing: whoever must not hang lets a child try first.

        Raises:
            GuardError, OSError: what the start would be refused for.
        """
        options = self.options
        options.parse(argv)
        self._look_around()
        self._open_spool()
        self.plan = plan = self._plan()
        if self.fault and plan["events"] == "refuse":
            raise _error("control", f"this start cannot be recorded: {self.fault}", "free space, or ask the site")
        self._check_roots(plan["project_roots"])
        if plan["mode"] == "enforce":
            self._places(plan)

    def _run_supervised(
        self, program: str, environment: "dict[bytes, bytes]", ruleset: "landlock.Ruleset", held: "places.Places"
    ) -> int:
        from guard.confine import beside

        return beside.run(self, program, environment, ruleset, held)

    def _writer(self, program: str) -> "Writer":
        from guard.confine import written

        return written.Writer(self, program)

    # Before anything is decided ---------------------------------------------------------------------

    def _start_again(self, argv: "list[str]") -> None:
        """Start again free of what the loader was told; the whole environment goes along for the child."""
        keep = os.memfd_create("guard-environment", 0)
        with open(keep, "wb", closefd=False) as block:
            block.write(b"\0".join(name + b"=" + value for name, value in self.environment.items()))
        os.lseek(keep, 0, 0)
        clean = {name: value for name, value in self.environment.items() if not name.startswith(_LOADER)}
        os.execve(self._start[0], [*self._start, "run", "--environment-fd", str(keep), *argv], clean)

    def _look_around(self) -> None:
        """Find out where we are: working directory, home, projects, site."""
        options = self.options
        if state.is_site(state.SITE):
            options.config = state.SITE  # root's floor: nothing named elsewhere replaces it
        try:
            self.cwd = os.getcwd()
        except OSError:
            raise _error("control", "the working directory is gone", "change to one that exists") from None
        try:
            self.user = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            self.user = ""  # a number without a name: `{user}` then means nothing
        self.home, self.homes = confine.homes(self.environment, self.uid, state.is_site(options.config))
        forbidden = self._own()
        found = []
        for name in options.projects:
            path = real_path(name)
            try:
                places.check_project(path, self.homes, forbidden, self.uid)
            except places.UnfitError as error:
                raise _error("control", f"--project {name}: {error}", "name a directory of its own") from None
            found.append(path)
        if not options.projects and options.project_search:
            project = places.find_project(self.cwd, self.homes, forbidden, self.uid)
            if project:
                found.append(project)
            else:
                sys.stderr.write(
                    f"guard: {self.cwd} is no place for a project: nothing in it is writable;"
                    " change to a project's directory or name one with --project\n"
                )
        self.projects = tuple(dict.fromkeys(found))
        self.harness = options.harness()

    def _own(self) -> "tuple[str, ...]":
        own = (self.options.state, self.options.config, state.SITE, state.ROOT_STATE)
        return tuple(dict.fromkeys(map(real_path, own)))

    def _check_roots(self, roots: "list[str]") -> None:
        if not roots:
            return
        variables = self.variables()
        tops = [real_path(path) for root in roots for path in places.expand(root, variables)]
        kept = tuple(path for path in self.projects if any(places.is_below(path, top) for top in tops))
        for path in self.projects:
            if path not in kept:
                where = f"{path} lies outside the site's project_roots ({', '.join(tops)})"
                if self.options.projects:
                    raise _error("control", f"--project: {where}", "work in one of them")
                sys.stderr.write(f"guard: {where}: nothing in it is writable\n")
        self.projects = kept

    @property
    def command(self) -> "list[str]":
        """The command's words."""
        return self.options.command

    @property
    def job(self) -> bytes:
        """The Slurm job that we run in, as the environment has it."""
        return self.environment.get(b"SLURM_JOB_ID", b"")

    def variables(self) -> "dict[str, tuple[str, ...]]":
        """What the variables of paths stand for in this session."""
        tmp = self.tmp.path if self.tmp else ""
        return places.session_variables(self.home, self.projects, tmp, self.user, self.uid)

    # The plan ---------------------------------------------------------------------------------------

    def _plan(self) -> "Plan":
        """The plan for this start: the one at hand if it is fresh and to be trusted, else a new one."""
        options = self.options
        abi, why = landlock.abi()
        self.landlock_errno = why
        # Only a layer that is there makes a difference: two projects without one share a plan.
        layer = self.projects[0] if self.projects and options.project_policy else ""
        if layer and state.is_absent(layer + "/.guard.toml"):
            layer = ""
        named = _absolute(options.policy) if "/" in options.policy else options.policy
        request = (
            named, self.harness, layer, self.home, self.uid, tuple(sorted({os.getegid(), *os.getgroups()})),
            options.config, options.state, abi, why, kernel.MACHINE, os.uname().nodename, options.audit,
        )  # fmt: skip
        self._check_config()
        return state.find_plan(request, "" if self.distrusted else options.state, options.config)

    def _check_config(self) -> None:
        """Refuse a configuration that others may have written; one that is not there is none."""
        config = self.options.config
        for name in ("", "/site.toml", "/assign.toml", "/exceptions.d"):
            if not state.exists(config + name):
                continue  # absent, or a link to nothing, which does not load
            reason = state.distrust(config + name, 0 if config == state.SITE else self.uid)
            if reason:
                raise _error("control", f"the configuration cannot be trusted: {reason}", "give it to root, mode 0755")

    # Confinement ------------------------------------------------------------------------------------

    def _private_tmp(self, base: str) -> "state.PrivateTmp":
        why = ""
        for candidate in (base, "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108 - a private one is made inside
            try:
                return state.PrivateTmp(candidate, self.uid)
            except OSError as error:
                why = why or error.strerror or str(error)
        raise _error("control", f"no private temporary directory in {base}: {why}", "free space there")

    def _places(self, plan: "Plan") -> "places.Places":
        commons: tuple[str, ...] = ()
        if plan["worktrees"]:
            found = (places.worktree_common(project) for project in self.projects)
            commons = tuple(common for common in found if common)
        enforced = plan["fs"]
        # guard installed within a project: its code, and what it loads to compile a plan, runs outside next time.
        code = [__file__.rpartition("/guard/")[0], self._start[-1], self._start[-1].replace("/libexec/", "/bin/")]
        held = places.Places(
            plan["grants"],
            plan["deny"] if enforced else [],
            [*plan["protect"], *code] if enforced else [],
            self.variables(),
            self.homes,
            self._own() if enforced else (),
            commons,
        )
        if not held.refused:
            return held
        for path, verb in held.refused.items():
            where = f"{path} lies in a place that the policy {plan['policy']} {verb}"
            if self.options.projects:
                raise _error("control", f"--project: {where}", "name another directory")
            sys.stderr.write(f"guard: {where}: nothing in it is writable\n")
        self.projects = tuple(path for path in self.projects if path not in held.refused)
        return self._places(plan)

    def _mask(self, plan: "Plan", held: "places.Places") -> bool:
        """Cover the denied and protected places by mounts, if the policy wants and this host can."""
        wanted = plan["mask"]
        if not plan["fs"]:
            return False
        # Shared memory has the names of all programs of the user: the session gets a directory of its own.
        shared = [real_path(path) for path, _ in plan["grants"] if path == "/dev/shm"]  # noqa: S108
        private = tuple(path for path in shared if not places.is_below(self.tmp.path if self.tmp else "", path))
        if shared and not private:
            why = "/dev/shm is shared with the user's other programs: the session's own files lie there"  # noqa: S108
            held.notes.append(why)
        if wanted == "never" or not (held.hidden or held.shields or private or plan["bpf_own_ipc"]):
            return False
        if wanted == "auto" and self.uid and set(os.getgroups()) - {os.getegid()}:
            # In a user namespace the further groups lose their names: shared trees would break.
            why = 'you have several groups, and a mask would unname them (files.mask = "always" has it all the same)'
            held.notes.append(f"denied places can be seen (stat): {why}")
            return False
        try:
            entered, also = kernel.enter_mount_namespace(kernel.CLONE_NEWIPC if plan["bpf_own_ipc"] else 0)
            if entered:
                if also:
                    self.own_ipc = plan["bpf_own_ipc"]
                kernel.cover(held.hidden, held.anchors, held.shields, private)
                held.terminals, held.queues = kernel.own_terminals(places.own_terminal(), bool(also))
                self._enter_again()
                return True
            fault = "user namespaces are not allowed here"
        except OSError as error:
            fault = f"{error.filename}: {error.strerror}"
        if wanted == "always":
            raise _error("control", f"files: the mask that the policy demands cannot be had: {fault}", "", "files")
        held.notes.append(f"no mask: {fault}")
        return False

    def _enter_again(self) -> None:
        """Let go of what leads around the new mounts: the working directory we came in, and our lock."""
        if self.tmp:
            self.tmp.hold_again()
        try:
            os.chdir(self.cwd)
        except OSError:
            what = f"the policy {self.plan['policy']} denies the working directory {self.cwd}"
            raise _error("control", what, "change to another", "files") from None

    def _ruleset(self, plan: "Plan", held: "places.Places", masked: bool) -> "landlock.Ruleset | None":
        if not plan["abi"] or not (plan["handled_fs"] or plan["handled_net"] or plan["scoped"]):
            return None
        ruleset = landlock.Ruleset(plan["abi"], plan["handled_fs"], plan["handled_net"], plan["scoped"])
        if plan["fs"]:
            held.grant(ruleset, masked)
        for port, access in plan["ports"]:
            ruleset.allow_port(port, access)
        return ruleset

    def _statuses(
        self, plan: "Plan", held: "places.Places", masked: bool, supervised: bool
    ) -> "dict[str, tuple[str, list[str]]]":
        """Each control's state in this very session: the plan's, less what its places could not give."""
        statuses = dict(plan["status" + "_supervised" * supervised + "_mask" * masked])
        level, missing = statuses["files"]
        if level in ("enforced", "partial"):
            missing = [*missing, *held.notes]
            if held.absent and not supervised:
                names = ", ".join(held.absent)
                missing.append(f"what does not exist yet is not protected without the supervisor: {names}")
            if held.links and not supervised:
                missing.append(f"links can be replaced without the supervisor: {', '.join(held.links)}")
            if held.shields and not masked:
                missing.append(f"protected but writable here: {', '.join(held.shields)}")
            statuses["files"] = ("partial" if missing else "enforced", missing)
        return statuses

    def _demand(self, plan: "Plan", statuses: "dict[str, tuple[str, list[str]]]") -> None:
        """Refuse where less holds than is required."""
        if not set(plan["asked"]) - {"limits"}:
            sys.stderr.write(f"guard: OBSERVE: the policy {plan['policy']} enforces nothing but limits\n")
        wanted = plan["asked"] if "all" in self.options.required else self.options.required
        for control in wanted:
            level, missing = statuses.get(control, ("absent", []))
            if level != "enforced":
                raise _error(
                    "control", f"--require {control}: it is {level}: {'; '.join(missing) or 'the policy turns it off'}",
                    "see `guard doctor`", control,
                )  # fmt: skip
        rules = plan["on_fault"]
        absent = [c for c in plan["asked"] if statuses[c][0] == "absent" and rules.get(c, "default") != "warn"]
        if absent:
            from guard.kernel import reasons

            missing = statuses[absent[0]][1]
            raise _error(
                "control", f"not enforced on this host: {', '.join(absent)}: {missing[0] if missing else 'unknown'}",
                f"{reasons.remedy(missing, self.landlock_errno)}; --audit runs without any limit", absent[0],
            )  # fmt: skip
        for control, (level, missing) in statuses.items():
            if level == "absent" and control in plan["asked"]:
                sys.stderr.write(f"guard: {control}: NOT ENFORCED: {'; '.join(missing)}\n")
            elif level == "partial" and rules.get(control, "default") == "refuse":
                raise _error("control", f"{control} is only partly enforced: {'; '.join(missing)}",
                             "see `guard doctor`", control)  # fmt: skip

    def _child_environment(self, plan: "Plan") -> "dict[bytes, bytes]":
        drop, keep = confine.Globs(plan["env_drop"]), confine.Globs(plan["env_keep"])
        child = {name: value for name, value in self.environment.items() if not drop.match(name) or keep.match(name)}
        if self.tmp:
            child[b"TMPDIR"] = child[b"TMUX_TMPDIR"] = encode(self.tmp.path)
        child[b"GUARD_SESSION"] = self.id.encode()
        child[b"GUARD_POLICY"] = plan["policy"].encode()
        return child

    def execute(self, program: str, environment: "dict[bytes, bytes]") -> int:
        """Become the command, as execvp(3) would; returns an exit code where that is not possible."""
        command = self.options.command
        try:
            os.execve(program, [self.options.argv0 or command[0], *command[1:]], environment)
        except OSError as error:
            fault = error
        if fault.errno == 8:  # a script without an interpreter line, as execvp(3) starts it
            try:
                os.execve("/bin/sh", ["/bin/sh", program, *command[1:]], environment)
            except OSError as error:
                fault = error
        why = fault.strerror
        if fault.errno == 13 and self.plan.get("fs") and os.access(program, os.X_OK):
            why = f"the policy {self.plan['policy']} does not let {program} be executed"
        sys.stderr.write(f"guard: {command[0]}: {why}\n")
        self.record_unexecuted(126)
        return 126

    def record_unexecuted(self, code: int) -> None:
        """Put on record that the command could not be executed."""
        self.record("session-stop", "info", "observed", f"command could not be executed, exit {code}", {"exit": code})

    def record_refused(self, what: str, control: str) -> None:
        """Put on record that nothing was started."""
        self.record("start-refused", "medium", "denied", "a start was refused",
                    {"control": control, "reason": withhold(what)}, control or "session")  # fmt: skip

    # Events -----------------------------------------------------------------------------------------

    def _open_spool(self) -> None:
        try:
            state.prepare_state(self.options.state, self.uid)
        except state.DistrustError as error:
            self.fault, self.distrusted = str(error.strerror), True
            # A place that somebody else took under its usual name is gone around: he shall not keep us from starting.
            if self.options.state_named:
                what = f"the state directory cannot be trusted: {error.strerror}"
                raise _error("control", what, "make it your own, mode 0700") from None
            return
        except OSError as error:
            self.fault = f"{error.filename or self.options.state}: {error.strerror}"
            return
        try:
            self.spool = state.Spool(self.options.state, f"run:{self.id}")
        except OSError as error:
            self.fault = f"{error.filename or self.options.state}: {error.strerror}"

    def record_start(self, statuses: "dict[str, tuple[str, list[str]]]", severity: str = "info") -> None:
        """Put the start on record, and tell what was lost before."""
        plan = self.plan
        detail = {
            "version": plan["guard"],
            "label": bool(self.options.label),
            "plan": plan["plan_digest"],
            "layers": [self._layer_name(file) for file in plan["layers"]],
            "exceptions": plan["exceptions"],
            "assigned_by": plan["assigned_by"],
            "modes": plan["supervisor"]["modes"],
            "status": {control: {"state": level, "missing": [withhold(m) if "/" in m else m for m in missing]}
                       for control, (level, missing) in statuses.items()},
            "audit": self.options.audit,
            "last_good": bool(plan["alerts"]),
        }  # fmt: skip
        if self.spool:
            lost = self.spool.lost()
            if lost:
                self.record("events-lost", "medium", "observed", f"{lost} events could not be written before",
                             {"lost": lost, "stage": "spool"}, "telemetry")  # fmt: skip
                if not self.fault:
                    self.spool.told_lost(lost)
        name = program_name(self.options.command[0])
        self.record("session-start", severity, "observed", f"{name} started under {plan['policy']}", detail)
        if self.fault:
            if plan["events"] == "refuse":
                raise _error("control", f"this start cannot be recorded: {self.fault}", "free space, or ask the site")
            state.count_lost(self.options.state)
            if not sandboxed():
                sys.stderr.write(f"guard: this start could not be recorded: {self.fault}\n")

    def _layer_name(self, file: str) -> str:
        """How an event names a policy file: root's by its path, the caller's by what it is to him."""
        library = __file__.rpartition("/confine/")[0]
        if places.is_below(file, self.options.config) or places.is_below(file, library):
            return file.rpartition("/policies/")[2] if places.is_below(file, library) else file
        if file == f"{self.home}/.config/guard/policy.toml":
            return "{home}/.config/guard/policy.toml"
        return "{project}/.guard.toml" if file.endswith("/.guard.toml") else withhold(file)

    def record(
        self,
        rule: str,
        severity: str,
        verdict: str,
        message: str,
        detail: "dict[str, object]",
        control: str = "session",
    ) -> None:
        """Write one event about this session; what cannot be written is remembered in `fault`."""
        state.record(self, rule, severity, verdict, message, detail, control)

    def refused(self, what: str, control: str) -> int:
        """Say that nothing was started, and record it."""
        sys.stderr.write(f"guard: not started: {what}\n")
        if self.tmp:
            self.tmp.remove()
        self.options.state = _absolute(self.options.state)  # not done yet where the words were wrong
        try:
            if self.spool is None and not self.distrusted:
                self._open_spool()
            self.record_refused(what, control)
            if self.fault:
                state.count_lost(self.options.state)
        except Exception as error:  # noqa: BLE001 - the answer is 125, whatever the record comes to
            sys.stderr.write(f"guard: this could not be recorded: {error}\n")
        return 125


def lower_limits(limits: "list[tuple[int, int]]") -> None:
    """Set resource limits, soft and hard, never above what holds already.

    An ordinary user cannot go above the hard limit: the kernel refuses, and only then is asked what it is.
    The module `resource` is a library of its own to load, and root may raise anything.
    """
    for number, value in limits:
        if os.geteuid():
            try:
                limit = value.to_bytes(8, sys.byteorder) * 2
                kernel.syscall("prlimit64", 0, number, limit, None)
                continue
            except OSError:
                pass  # above the hard limit
        import resource

        _, hard = resource.getrlimit(number)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (least, least))


def can_listen() -> bool:
    """Whether this process may become supervised: not below another supervisor, nor where /proc is not its own."""
    try:
        # Of another PID namespace, /proc gives its processes other numbers, and others under theirs.
        if os.readlink("/proc/self") != str(os.getpid()):
            return False
    except OSError:
        return False
    if not sandboxed():
        return True
    from guard.confine import beside

    return beside.can_listen()


def _absolute(path: str) -> str:
    if path.startswith("/") and "/." not in path and "//" not in path:
        return path
    from os.path import abspath

    return abspath(path)


def sandboxed() -> bool:
    """Whether a filter stood above us at the start: then our own state may well be out of reach."""
    try:
        with open("/proc/self/status", "rb") as status:
            return b"\nSeccomp:\t2" in status.read()
    except OSError:
        return True
