"""feeds.toml: which feeds there are and where they go, or one error with file, line, column and a caret."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from guard.errors import StateError
from guard.feeds.options import COMMON, KINDS, SOURCE, SPOOL, Option, Takes, Value
from guard.policy.load import check_schema
from guard.policy.positions import Where
from guard.policy.source import Document, Reader, check_file, parse_document, printable, read_document, read_file
from guard.policy.values import Reading, describe

FILTERS = ("control", "rule", "verdict", "severity", "origin", "harness", "user", "host", "producer")
"""What `only` and `except` may name; each takes a list of names with `*`."""

_HEADS = ("schema", "spool", "source", "feed")
_FEED_HEADS = ("name", "kind", "only", "except")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Feed:
    """One feed.

    Args:
        name: unique in the file; the cursor's name.
        kind: a key of `options.KINDS`.
        options: option → value, defaults filled in.
        only: filter key → globs, one of which must match.
        without: filter key → globs, none of which may match.
    """

    name: str
    kind: str
    options: Mapping[str, Value]
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return an option that is text, "" where it is absent."""
        value = self.options.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        """Return an option that is a whole number."""
        value = self.options[name]
        return value if isinstance(value, int) else 0

    def seconds(self, name: str) -> float:
        """Return an option that is a time."""
        value = self.options[name]
        return float(value) if isinstance(value, int | float) else 0.0

    def flag(self, name: str) -> bool:
        """Return an option that is true or false."""
        return self.options[name] is True

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an option that is a list of texts."""
        value = self.options.get(name)
        return value if isinstance(value, tuple) else ()

    @property
    def whole(self) -> bool:
        """Whether everything that is sent to feeds is sent to this one: only then is a gap a loss."""
        return not self.only and not self.without and self.options["minimum"] == "info"


@dataclass(frozen=True)
class Config:
    """A feeds.toml.

    Args:
        file: its path.
        spool: path of the spool, "" for the node's own.
        source: the stream that events come from, None where it is the spool.
        feeds: in the order of the file.
    """

    file: str
    spool: str
    source: Feed | None
    feeds: tuple[Feed, ...]

    def feed(self, name: str) -> Feed:
        """Return a feed by name.

        Raises:
            StateError: there is none of that name.
        """
        for feed in self.feeds:
            if feed.name == name:
                return feed
        known = ", ".join(feed.name for feed in self.feeds) or "none"
        raise StateError(f"{printable(self.file)} has no feed {name!r}", f"it has {known}")


def load(path: str, reader: Reader = read_file) -> Config:
    """Read a feeds.toml.

    Raises:
        PolicyError: it cannot be used; the message shows the place.
        StateError: there is none.
    """
    check_file(path)
    doc = read_document(path, reader)
    if doc is None:
        raise StateError(f"{printable(path)} does not exist", "write it as docs/feeds.md shows, or name one: --config")
    return from_document(doc)


def loads(content: bytes, file: str) -> Config:
    """Read a feeds.toml from its bytes.

    Raises:
        PolicyError: it cannot be used; the message shows the place.
    """
    return from_document(parse_document(file, content))


def from_document(doc: Document) -> Config:
    """Check a document.

    Raises:
        PolicyError: the first thing that is wrong with it.
    """
    reading = Reading(doc, frozenset(), most=256)
    check_schema(reading)
    for name in doc.data:
        if name not in _HEADS:
            reading.unknown((name,), name, _HEADS, "table")
    spool = _options(reading, doc.data.get("spool", {}), ("spool",), SPOOL, "[spool]")
    source = None
    if "source" in doc.data:
        options = _options(reading, doc.data["source"], ("source",), SOURCE, "[source]")
        if "spool" in doc.data:
            reading.fail(("source",), "events come from [spool] or from [source], not from both", of_key=True)
        source = Feed("source", "nats", options)
    rows = reading.array(doc.data.get("feed", []), ("feed",), "feed")
    feeds: list[Feed] = []
    for index, row in enumerate(rows):
        feed = _feed(reading, row, ("feed", index))
        if any(other.name == feed.name for other in feeds):
            reading.fail(("feed", index, "name"), f"there are two feeds with the name {feed.name!r}")
        feeds.append(feed)
    path = spool["path"]
    return Config(doc.file, path if isinstance(path, str) else "", source, tuple(feeds))


def _feed(reading: Reading, row: object, where: Where) -> Feed:
    if not isinstance(row, dict):
        reading.fail(where, f"a feed is a table, not {describe(row)}; write [[feed]]")
    for name in ("name", "kind"):
        if name not in row:
            reading.fail(where, f"a feed needs a {name}", of_key=True)
    name = reading.name(row["name"], (*where, "name"), "name")
    kind = reading.text(row["kind"], (*where, "kind"), "kind")
    if kind not in KINDS:
        reading.fail((*where, "kind"), f"kind is one of {', '.join(KINDS)}, not {kind!r}")
    options = _options(
        reading,
        {key: value for key, value in row.items() if key not in _FEED_HEADS},
        where,
        (*COMMON, *KINDS[kind]),
        f"a feed of kind {kind}",
        _FEED_HEADS,
    )
    only, without = (_filter(reading, row.get(each, {}), (*where, each)) for each in ("only", "except"))
    feed = Feed(name, kind, options, only, without)
    _judge(reading, feed, where)
    return feed


def _judge(reading: Reading, feed: Feed, where: Where) -> None:
    """Refuse what no single option can be blamed for."""
    given = feed.options
    if feed.seconds("watchdog") <= 2 * feed.seconds("timeout"):
        reading.fail(
            (*where, "watchdog" if "watchdog" in reading_keys(reading, where) else "timeout"),
            "watchdog must be more than twice timeout: a connection is two waits, and what may last is no hang",
        )
    if feed.seconds("backoff_most") < feed.seconds("backoff"):
        reading.fail((*where, "backoff_most"), "backoff_most is shorter than backoff")
    if given.get("cert_file") and not given.get("key_file"):
        reading.fail((*where, "cert_file"), "cert_file needs key_file beside it")
    if feed.kind in ("syslog", "relp") and not feed.flag("tls"):
        for name in ("ca_file", "cert_file", "key_file", "server_name"):
            if given.get(name):
                reading.fail((*where, name), f"{name} says TLS, and tls = false says none")
    if given.get("password_file") and not given.get("user"):
        reading.fail((*where, "password_file"), "password_file needs user beside it")
    if feed.kind == "prometheus" and not given.get("listen") and not given.get("textfile"):
        reading.fail(where, "a feed of kind prometheus needs listen or textfile", of_key=True)
    json_wanted = feed.kind == "opensearch" or (feed.kind == "webhook" and given["body"] == "array")
    if given["format"] == "cef" and json_wanted:
        reading.fail((*where, "format"), "cef is no JSON, and this destination takes JSON alone")
    if feed.kind == "incidents" and given["format"] != "event":
        reading.fail((*where, "format"), "the site's store takes events as they are")


def reading_keys(reading: Reading, where: Where) -> Mapping[str, object]:
    """Return the table that stands at a place of the document."""
    found: object = reading.doc.data
    for step in where:
        found = found[step]  # type: ignore[index]
    return found if isinstance(found, dict) else {}


def _filter(reading: Reading, value: object, where: Where) -> dict[str, tuple[str, ...]]:
    table = reading.table(value, where, FILTERS, str(where[-1]))
    out = {}
    for name, entries in table.items():
        texts = reading.array(entries, (*where, name), name)
        if not texts:
            reading.fail((*where, name), f"{name} is empty and would match nothing; leave it out")
        out[name] = tuple(
            reading.text(each, (*where, name, index), f"an entry of {name}", empty=False)
            for index, each in enumerate(texts)
        )
    return out


def _options(
    reading: Reading,
    value: object,
    where: Where,
    rows: Sequence[Option],
    what: str,
    beside: Sequence[str] = (),
) -> dict[str, Value]:
    known = {row.name: row for row in rows}
    if not isinstance(value, dict):
        reading.fail(where, f"{what} is a table, not {describe(value)}")
    for name in value:
        if name not in known:
            reading.unknown((*where, name), name, (*beside, *known), f"key in {what}:")
    out: dict[str, Value] = {}
    for name, row in known.items():
        if name in value:
            out[name] = _read(reading, row, value[name], (*where, name))
        elif row.required:
            reading.fail(where, f"{what} needs {name}: {row.doc}", of_key=True)
        else:
            out[name] = row.default
    return out


def _read(reading: Reading, row: Option, value: object, where: Where) -> Value:
    name, takes = row.name, row.takes
    if takes is Takes.FLAG:
        if not isinstance(value, bool):
            reading.fail(where, f"{name} is true or false, not {describe(value)}")
        return value
    if takes in (Takes.NUMBER, Takes.SECONDS):
        whole = takes is Takes.NUMBER
        if isinstance(value, bool) or not isinstance(value, int | float) or (whole and isinstance(value, float)):
            what = "a whole number" if whole else "a number of seconds"
            reading.fail(where, f"{name} is {what}, not {describe(value)}")
        if not row.least <= value <= row.most:
            reading.fail(where, f"{name} is between {row.least:g} and {row.most:g}")
        return value
    if takes is Takes.TEXTS:
        texts = tuple(
            reading.text(each, (*where, index), f"an entry of {name}", empty=False)
            for index, each in enumerate(reading.array(value, where, name))
        )
        if not texts:
            reading.fail(where, f"{name} is empty")
        for index, each in enumerate(texts):
            _server(reading, each, (*where, index))
        return texts
    text = reading.text(value, where, name, empty=False)
    if takes is Takes.WORD and text not in row.words:
        reading.fail(where, f"{name} is one of {', '.join(row.words)}, not {text!r}")
    if takes in (Takes.PATH, Takes.SECRET) and not text.startswith("/") and text != "-":
        reading.fail(where, f"{name} is an absolute path, not {text!r}")
    if takes is Takes.URL:
        _url(reading, text, where, name)
    if takes is Takes.ADDRESS:
        try:
            address(text)
        except ValueError as error:
            reading.fail(where, f"{name} {error}")
    return text


def _url(reading: Reading, text: str, where: Where, name: str) -> None:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        reading.fail(where, f"{name} is no URL: {error}")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        reading.fail(where, f"{name} is an http:// or https:// URL, not {text!r}")
    if parts.username or parts.password:
        reading.fail(where, f"{name} must carry no password: a secret stands in a file (*_file)")


def _server(reading: Reading, text: str, where: Where) -> None:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        reading.fail(where, f"this is no address of a server: {error}")
    if parts.scheme not in ("nats", "tls") or not parts.hostname or port == 0:
        reading.fail(where, f"a server is nats://HOST:PORT or tls://HOST:PORT, not {text!r}")
    if parts.username or parts.password:
        # Servers that the cluster tells of would get no login either: the client library takes it from options alone.
        reading.fail(where, "a server must carry no login: write user and password_file")


def address(text: str) -> tuple[str, int]:
    """Split HOST:PORT, an IPv6 address in brackets.

    Raises:
        ValueError: it is none; the message is a predicate.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"is HOST:PORT, not {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"has no IPv6 address in its brackets: {text!r}") from None
    elif not _HOST.fullmatch(host):
        raise ValueError(f"is HOST:PORT, not {text!r}")
    return host, int(port)
