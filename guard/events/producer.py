"""Who makes events: counts them, and stamps host, boot, time and id."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Mapping, Sequence

from guard.errors import EventError
from guard.events.model import (
    CONTROLS,
    MESSAGE_MOST,
    NO_POLICY,
    NO_PROCESS,
    NO_TREE,
    VERDICTS,
    WORD,
    Control,
    Detail,
    Event,
    Origin,
    PolicyRef,
    Process,
    Severity,
    Tree,
    Verdict,
    is_redacted,
)  # fmt: skip
from guard.redact import Redacted


def rfc3339(nanoseconds: int) -> str:
    """A time since 1970 as RFC 3339 in UTC with microseconds."""
    head = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 1_000_000_000))
    return f"{head}.{nanoseconds // 1000 % 1_000_000:06d}Z"


def boot_id() -> str:
    """The kernel's id of this boot; empty where it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as text:
            return text.read().strip()
    except OSError:
        return ""


def user_name(uid: int) -> str:
    """The name of a user; empty where the number has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""


class Ids:
    """UUIDv7 (RFC 9562, method 1): milliseconds, a counter that never falls, random bits.

    A clock that jumps back gives ids that still rise: the old millisecond goes on counting.

    Args:
        clock: nanoseconds since 1970.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._last = 0
        self._count = 0

    def new(self) -> str:
        """The next id."""
        now = self._clock() // 1_000_000
        if now > self._last:
            self._last, self._count = now, 0
        else:
            self._count += 1
            if self._count > 0xFFF:
                self._last, self._count = self._last + 1, 0
        rest = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
        whole = self._last << 80 | 0x7 << 76 | self._count << 64 | 0b10 << 62 | rest
        text = f"{whole:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Producer:
    """One source of events: counts them, and stamps host, boot, time and id.

    Args:
        name: `monitor`, `run:<session>`, `redact:<uid>`, `service`, …
        origin: what the source claims; who accepts its events has the last word.
        host: the node's name; the kernel's where not given.
        clock: nanoseconds since 1970.
    """

    def __init__(
        self, name: str, origin: Origin = "service", *, host: str = "", clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.name = name
        self._origin: Origin = origin
        self._host = host or os.uname().nodename
        self._boot = boot_id()
        self._clock = clock
        self._ids = Ids(clock)
        self._seq = 0

    def event(
        self,
        control: Control,
        rule: str,
        severity: Severity,
        message: Redacted,
        *,
        verdict: Verdict = "observed",
        tree: Tree = NO_TREE,
        process: Process = NO_PROCESS,
        policy: PolicyRef = NO_POLICY,
        detail: Mapping[str, Detail] | None = None,
        mitre: Sequence[str] = (),
        when: int = 0,
        origin: Origin | None = None,
    ) -> Event:
        """Make the next event.

        Args:
            control: the control or category it speaks of.
            rule: the rule's name, a word.
            severity, verdict, tree, process, policy, mitre: as design.md has them.
            message: one line for people, of `say`.
            detail: by control; every text in it redacted.
            when: nanoseconds since 1970 at which it happened; now where not given.
            origin: where it differs from the producer's.

        Raises:
            EventError: a text was not redacted, or a field is not as an event has it. Nothing was counted.
        """
        for text in (message, process.exe, process.cwd, *process.argv):
            if not isinstance(text, Redacted):
                raise EventError(f"{control}/{rule}: a text was not redacted", "pass it through guard.redact first")
        if len(message) > MESSAGE_MOST or "\n" in message:
            raise EventError(f"{control}/{rule}: the message is no line of under 100 characters", "use `say`")
        if control not in CONTROLS or verdict not in VERDICTS or not WORD.fullmatch(rule):
            raise EventError(f"{control}/{rule}/{verdict}: not a control, rule or verdict", "see docs/events.md")
        if detail and not is_redacted(detail):
            raise EventError(f"{control}/{rule}: a text in detail was not redacted", "pass it through guard.redact")
        self._seq += 1
        return Event(
            id=self._ids.new(),
            time=rfc3339(when or self._clock()),
            host=self._host,
            boot=self._boot,
            producer=self.name,
            seq=self._seq,
            origin=origin or self._origin,
            control=control,
            rule=rule,
            severity=severity,
            verdict=verdict,
            tree=tree,
            process=process,
            policy=policy,
            detail=detail or {},
            mitre=tuple(mitre),
            message=message,
        )
