"""`guard policy`: list, show, lint, diff and compile."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from typing import Annotated

import typer

from guard.cli import Places
from guard.cli.effective import dropped, effective_for
from guard.cli.subject import find_person
from guard.errors import EXIT_CANNOT, EXIT_FOUND, GuardError, PolicyError, UsageError
from guard.policy import layers
from guard.policy.assign import DEFAULT_POLICY, Config
from guard.policy.canonical import origins_of, values_of
from guard.policy.keys import HARNESSES
from guard.policy.library import Library
from guard.policy.load import load, load_site
from guard.policy.model import Policy, Setting, Site
from guard.policy.source import check_private, printable

app = typer.Typer(no_args_is_help=True, help="List, show, check, compare and compile policies.")

Json = Annotated[bool, typer.Option("--json", help="For programs.")]
Named = Annotated[str, typer.Argument(metavar="NAME|PATH", show_default=False)]
User = Annotated[str, typer.Option("--user", metavar="U", help="Any user of this host.")]
Harness = Annotated[str, typer.Option("--harness", metavar="H", help="As if this harness were started.")]
Project = Annotated[str, typer.Option("--project", metavar="DIR", help="The project.")]


def _say(text: str) -> None:
    sys.stderr.write(f"guard: {text}\n")


def _out(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _places(ctx: typer.Context) -> Places:
    places = ctx.find_root().obj
    if not isinstance(places, Places):
        raise TypeError("the command line was not started by guard.cli.main")
    check_private(places.config)
    return places


def _library(places: Places) -> tuple[Library, Site]:
    config = Config(places.config)
    sitefile = load_site(os.path.join(places.config, "site.toml"))
    site = sitefile.site if sitefile else Site()
    return Library((os.path.join(places.config, "policies"), config.shipped_dir), site.variables), site


def is_path(text: str) -> bool:
    """Whether an argument is a PATH: it contains `/`, or is `.` or `..`, which are no names."""
    return "/" in text or text in (".", "..")


def _find(library: Library, text: str) -> Policy:
    """Find a policy or overlay by NAME or PATH.

    Raises:
        PolicyError: there is none, or it cannot be used.
    """
    if is_path(text):
        from guard.policy.lint import kind_of
        from guard.policy.source import read_document

        path = os.path.abspath(text)
        doc = read_document(path)
        if doc is None:
            raise PolicyError(f"{printable(text)}: there is no such file")
        kind = kind_of(path, doc)
        if kind in ("assign", "exceptions", "site"):
            raise PolicyError(f"{printable(text)}: is a file of kind {kind}, not a policy")
        policy = load(path, kind, variables=library.variables)
        if policy is None:
            raise PolicyError(f"{printable(text)}: there is no such file")
        return policy
    found = library.named(text) or library.named(text, "overlay")
    return found or library.policy(text, "policy")


def _whole(library: Library, policy: Policy) -> dict[str, Setting]:
    return library.flatten(policy, layers.complete({}))


@app.command("list")
def list_(ctx: typer.Context, as_json: Json = False) -> int:
    """List policies and overlays: name, kind, where from, description."""
    places = _places(ctx)
    library, site = _library(places)
    rows: list[dict[str, str]] = []
    code = 0
    for kind in ("policy", "overlay"):
        for name, path in library.names(kind):
            try:
                policy = load(path, kind, variables=library.variables)
            except PolicyError as error:
                _say(str(error))
                code = EXIT_CANNOT
                continue
            if policy is None:
                continue
            harness = kind == "overlay" and name in (*HARNESSES, *site.harnesses)
            rows.append(
                {
                    "name": name,
                    "kind": "harness" if harness else kind,
                    "from": "shipped" if path.startswith(Config().shipped_dir + os.sep) else "site",
                    "description": policy.description,
                    "file": path,
                    "extends": str(policy.extends.value) if policy.extends else "",
                    "reason": policy.reason,
                    "opens": policy.opens,
                    "tried": policy.tried,
                }
            )
    if as_json:
        _print_json(rows)
        return code
    shown = ("name", "kind", "from", "description")
    widths = [max([len(name), *(len(row[name]) for row in rows)]) for name in shown[:-1]]
    _out(_aligned([name.upper() for name in shown], widths))
    for row in rows:
        _out(_aligned([printable(row[name]) for name in shown], widths))
    return code


def _aligned(cells: list[str], widths: list[int]) -> list[str]:
    lead = "".join(f"{cell:<{width}}  " for cell, width in zip(cells, widths, strict=False))
    return textwrap.wrap(
        cells[-1] or "-", max(79, len(lead) + 20), initial_indent=lead, subsequent_indent=" " * len(lead)
    )


@app.command()
def show(
    ctx: typer.Context,
    name: Named = "",
    effective: Annotated[bool, typer.Option("--effective", help="What a session gets, with every layer.")] = False,
    user: User = "",
    harness: Harness = "",
    project: Project = "",
    as_json: Json = False,
    schema: Annotated[bool, typer.Option("--schema", help="The JSON Schema of policy files.")] = False,
    for_agents: Annotated[bool, typer.Option("--for-agents", help="For an AGENTS.md: what holds, in words.")] = False,
) -> int:
    """Show a policy with where each value comes from, or what holds for a user.

    With --schema, NAME may be policy, overlay, site, assign or exceptions.
    """
    if schema:
        return _schema(name)
    places = _places(ctx)
    if for_agents:
        from guard.policy import for_agents as agents

        _out(agents.text(effective_for(places, find_person(user), name, harness, project)))
        return 0
    if effective or user or harness or project:
        return _show_effective(places, name, user, harness, project, as_json)
    library, site = _library(places)
    policy = _find(library, name or (site.default_policy if site.file else DEFAULT_POLICY))
    # An overlay is shown as what it adds; a policy as what holds under it, defaults included.
    settings = library.filled(policy) if policy.kind == "overlay" else _whole(library, policy)
    values, origins = values_of(settings), origins_of(settings)
    from guard.cli import policy_text

    if as_json:
        _print_json(
            {
                "name": policy.name,
                "file": policy.file,
                "description": policy.description,
                "reason": policy.reason,
                "opens": policy.opens,
                "tried": policy.tried,
                "layers": library.layers,
                "values": policy_text.values_json(values),
                "origins": policy_text.origins_json(origins),
                "notes": library.notes,
            }
        )
        return 0
    lines = policy_text.comment("policy", policy.name)
    for title in ("description", "reason", "opens", "tried"):
        if text := str(getattr(policy, title)):
            lines += policy_text.comment(title, text)
    lines += policy_text.comment("layers", policy_text.layers_text(library.layers))
    for note in dict.fromkeys(library.notes):
        lines += policy_text.comment("note", note)
    _out([*lines, *policy_text.render(values, origins)])
    return 0


def _schema(kind: str) -> int:
    from guard.policy.schema import KINDS
    from guard.policy.schema import schema as schema_of

    if kind not in ("", *KINDS):
        raise UsageError(f"there is no schema for {kind!r}", f"there is one for each of {', '.join(KINDS)}")
    _print_json(schema_of(kind or "policy"))
    return 0


def _show_effective(places: Places, name: str, user: str, harness: str, project: str, as_json: bool) -> int:
    from guard.cli import policy_text

    person = find_person(user)
    resolved = effective_for(places, person, name, harness, project)
    present = dropped(resolved, os.environ) if person.is_me else []
    if as_json:
        _print_json(policy_text.document(resolved, person.name or str(person.uid), present))
        return 0
    whom = person.name or str(person.uid)
    whom += f", groups {', '.join(person.groups) or 'without a name'}"
    whom += f", harness {harness}" if harness else ""
    lines = policy_text.head(resolved, whom, present if person.is_me else None)
    _out([*lines, *policy_text.render(resolved.values, resolved.origins)])
    return 0


@app.command()
def lint(ctx: typer.Context, path: Named = "", as_json: Json = False) -> int:
    """Check a file, a policy by name, or a checkout of a site's configuration; 1 when there is something.

    Needs no root and asks the host nothing.
    """
    from guard.policy.lint import Finding
    from guard.policy.lint import lint as lint_path

    config = Config()
    now = time.time()
    findings: list[Finding] = []
    if path:
        target = path
        if not is_path(path):
            library, _ = _library(_places(ctx))
            names = dict([*library.names("overlay"), *library.names("policy")])
            if path not in names:
                library.policy(path, "policy lint")  # says which names there are
            target = names[path]
        findings = lint_path(target, config.shipped_dir, now)
    else:
        places = _places(ctx)
        targets = [
            places.config,
            os.path.join(find_person("").home or "/", ".config", "guard", "policy.toml"),
        ]
        for target in targets:
            if os.path.lexists(target):
                findings += lint_path(target, config.shipped_dir, now)
    if as_json:
        _print_json([{name: getattr(each, name) for name in each.__dataclass_fields__} for each in findings])
    else:
        _out([str(each) for each in findings])
        errors = sum(each.level == "error" for each in findings)
        if findings:
            _say(f"{errors} errors, {len(findings) - errors} warnings")
    return EXIT_FOUND if findings else 0


@app.command()
def diff(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", show_default=False)],
    as_json: Json = False,
) -> int:
    """Compare two policies in effect, NAME or PATH; 1 when B differs from A."""
    from guard.policy.diff import compare

    places = _places(ctx)
    library, _ = _library(places)
    changes = compare(*(_whole(library, _find(library, each)) for each in (first, second)))
    from guard.cli import policy_text

    if as_json:
        _print_json(
            [
                {
                    "key": each.key,
                    "before": each.before,
                    "after": each.after,
                    "effect": each.effect,
                    "file": each.origin.file,
                    "line": each.origin.line,
                }
                for each in changes
            ]
        )
    else:
        _out([policy_text.change(each) for each in changes])
    return EXIT_FOUND if changes else 0


@app.command("compile")
def compile_(
    ctx: typer.Context,
    name: Named = "",
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Where the plan goes.")] = "",
    user: User = "",
    harness: Harness = "",
    project: Project = "",
    container: Annotated[
        str, typer.Option("--container", metavar="DIR", help="For `guard-exec --start`; DIR is the project in there.")
    ] = "",
    container_home: Annotated[str, typer.Option(metavar="DIR", help="The home in the container.")] = "/root",
) -> int:
    """Compile what a user gets into a plan for this host, or into a start for a container without Python.

    Root, without any of these, compiles the site's plans and keeps its files as the last good ones.
    """
    places = _places(ctx)
    if os.geteuid() == 0 and not any((name, output, user, harness, project, container)):
        from guard.cli.site_plans import compile_all

        return compile_all(places)
    from guard.policy import plan
    from guard.policy.host import discover

    since = time.time()
    effective = effective_for(places, find_person(user), name, harness, project)
    compiled = plan.compile(effective, discover(), since)
    if not container:
        _write(output, plan.dumps(compiled))
        return 0
    from guard.confine.portable import lacks, portable

    if not (container.startswith("/") and container_home.startswith("/")):
        raise UsageError("--container and --container-home take absolute paths", "as they are inside the container")
    try:
        _write(output, portable(compiled, container, container_home))
    except ValueError as error:
        raise GuardError(f"no start for a container: {error}", "see `guard doctor`") from error
    for what in lacks(compiled):
        _say(what)
    return 0


def _write(path: str, content: bytes) -> None:
    """Write a product: stdout without a path; through a device or pipe; else replacing the file whole."""
    if not path or path == "-":
        if sys.stdout.isatty():
            raise UsageError("a plan is no text for a terminal", "give -o FILE, or send stdout elsewhere")
        sys.stdout.buffer.write(content)
        return
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as stream:
                stream.write(content)
            return
        # Beside the file, not beside a link to it: the link stays, and what it means is replaced.
        real = os.path.realpath(path)
        part = f"{real}.{os.getpid()}.part"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with open(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, real)
        except OSError:
            os.unlink(part)
            raise
    except OSError as error:
        raise GuardError(f"{printable(path)}: cannot be written: {error.strerror}") from error
