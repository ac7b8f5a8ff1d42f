"""What another kernel would load, told from its BTF alone: `guard doctor --btf FILE`; and what the BTF cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from guard.errors import MonitorError
from guard.monitor import objects
from guard.monitor.libbpf import Btf, Library
from guard.monitor.loading import Object

CANNOT_TELL = (
    "whether that kernel lets trampolines attach (it may refuse LSM and fmod_ret with EPERM)",
    "whether bpf stands in its lsm= list: where it does not, fmod serves",
    "whether lockdown, a seccomp filter or a missing capability refuses the load",
    "what its verifier says: try `guard monitor --check` on the machine itself",
)


@dataclass(frozen=True)
class Outlook:
    """One backend on another kernel.

    Args:
        backend: its name.
        loads: nothing that BTF tells is missing for it.
        why: what is missing, where it does not.
        there: programs that it would have.
        missing: program → what the kernel lacks; fallbacks that are not needed are not counted.
    """

    backend: str
    loads: bool
    why: str
    there: tuple[str, ...]
    missing: Mapping[str, str]


def outlook(path: str) -> tuple[Outlook, ...]:
    """Tell which backends would load.

    Args:
        path: raw BTF, as /sys/kernel/btf/vmlinux is, or a vmlinux that has it.

    Raises:
        MonitorError: the file cannot be read as BTF, or libbpf or the objects are not there.
    """
    library = Library()
    btf = Btf(library, path)
    try:
        if not btf.has_tracepoint("sched_process_exec"):
            raise MonitorError(f"{path} is BTF, but of no kernel", "copy /sys/kernel/btf/vmlinux of the other machine")
        return tuple(_outlook(library, btf, backend) for backend in objects.OBJECTS)
    finally:
        btf.close()


def _outlook(library: Library, btf: Btf, backend: str) -> Outlook:
    opened = Object(library, objects.path(backend))
    try:
        lacks = {program.section: program.wants(btf) for program in opened.programs}
    finally:
        opened.close()
    there = {section for section, why in lacks.items() if not why}
    missing = {
        section: why for section, why in lacks.items()
        if why and not objects.superseded(section, there) and not objects.served(section, there)
    }  # fmt: skip
    wanted = [section for section in objects.ALWAYS if section in missing]
    hooks = [section for section in there if section.startswith(("lsm/", "fmod_ret/"))]
    if wanted:
        why = missing[wanted[0]]
    elif backend != "tracepoint" and not hooks:
        why = "this kernel has none of its hooks"
    else:
        why = ""
    present = tuple(sorted(section for section in there if not objects.superseded(section, there)))
    return Outlook(backend, not why, why, present, missing)


def as_text(path: str, rows: tuple[Outlook, ...]) -> str:
    """The table for people."""
    lines = [f"from the types in {path}:"]
    for row in rows:
        lines.append(f"  {row.backend:12}{'would load' if row.loads else 'would not load'}, {len(row.there)} programs"
                     + (f": {row.why}" if row.why else ""))  # fmt: skip
        lines += [f"    without {section}: {why}" for section, why in sorted(row.missing.items())]
    lines.append("it cannot tell:")
    lines += [f"  {sentence}" for sentence in CANNOT_TELL]
    return "\n".join(lines) + "\n"
