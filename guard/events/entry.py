"""An event on its way into the spool: its two halves of JSON, and what the spool sorts by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from guard.events.model import Event
from guard.events.wire import Severity, check, dump, parse, table

_BEFORE: Final = ("schema", "id", "time", "host", "boot", "producer")
_BEHIND: Final = ("origin", "control", "rule", "severity", "verdict", "policy", "mitre")
"""With `seq` between them what stays when a row's personal part is erased; all else may speak of a person, later
versions' fields too."""
OVERHEAD: Final = 220
"""Bytes a row costs beside its JSON: key, index entries, seal, chain."""
_PUBLIC_ABOUT: Final = 400


class Entry:
    """One event for the spool.

    Args:
        whole: the event's JSON object, checked.
        quiet: why it is stored but not sent; empty for what is sent.
        renumber: whether the spool gives it the next `seq` of its producer.
        owner: the uid that the producer belongs to.

    Attributes:
        id: 16 bytes.
        uid: the user it speaks of, -1 for nobody.
        rank: 0 to 3, by what may displace it: a user's telemetry, telemetry, a user's alert, an alert.
        key: under what it is counted where it is lost.
    """

    ERASED: ClassVar[bytes] = dump({"tree": {}, "process": {}, "detail": {}, "message": "", "erased": True})
    RANKS: ClassVar[tuple[str, ...]] = ("user telemetry", "telemetry", "user alerts", "alerts")

    __slots__ = (
        "_before", "_behind", "_personal", "_seq", "id", "owner", "producer", "quiet", "rank", "renumber", "severity",
        "uid",
    )  # fmt: skip

    def __init__(self, whole: dict[str, object], *, quiet: str = "", renumber: bool = False, owner: int = 0) -> None:
        # As bytes at once, so that nothing else of the event is held until it is stored.
        personal = whole.copy()
        self._before = dump({name: personal.pop(name) for name in _BEFORE if name in personal})[:-1]
        self._behind = dump({name: personal.pop(name) for name in _BEHIND if name in personal})[1:]
        seq = personal.pop("seq", 0)
        self._seq = seq if isinstance(seq, int) else 0
        self._personal = dump(personal)
        self.quiet = quiet
        self.renumber = renumber
        self.owner = owner
        self.id = bytes.fromhex(str(whole["id"]).replace("-", ""))
        self.severity = Severity.of(str(whole["severity"]))
        self.producer = str(whole.get("producer", ""))
        uid = table(whole, "tree").get("uid")
        self.uid = uid if isinstance(uid, int) and -1 <= uid < 1 << 32 else -1
        self.rank = 2 * (self.severity >= Severity.MEDIUM) + (whole.get("origin") in ("kernel", "service"))

    @classmethod
    def of(cls, event: Event | bytes | Mapping[str, object], quiet: str = "") -> Entry:
        """Make an entry of an event, or of a line or JSON object that is one.

        Raises:
            EventError: it is none.
        """
        if isinstance(event, Event):
            return cls(event.plain(), quiet=quiet)
        whole = parse(event) if isinstance(event, bytes) else dict(event)
        check(whole)
        return cls(whole, quiet=quiet)

    @property
    def is_alert(self) -> bool:
        """Whether it asks for a person's attention."""
        return self.rank >= 2

    @property
    def displaces(self) -> int:
        """The rank below which stored rows make way for it: what users claim displaces only their own telemetry."""
        return (0, 1, 1, 3)[self.rank]

    @property
    def key(self) -> str:
        """What it is, for the count of what was lost."""
        return self.RANKS[self.rank]

    @property
    def size(self) -> int:
        """Bytes that it will take, about."""
        return OVERHEAD + _PUBLIC_ABOUT + len(self._personal)

    def sealed(self, seq: int | None) -> tuple[bytes, bytes]:
        """The public and the personal half, each a JSON object.

        Args:
            seq: the number to give it; None leaves its own.
        """
        return b'%b,"seq":%d,%b' % (self._before, self._seq if seq is None else seq, self._behind), self._personal
