"""What stands in a feed's table: one row an option, read by the loader and printed in docs/feeds.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

SEVERITIES = ("info", "low", "medium", "high", "critical")
FORMATS = ("event", "ocsf", "ecs", "cef", "falcosidekick")


class Takes(Enum):
    """What an option takes."""

    TEXT = "text"
    WORD = "word"
    PATH = "path"
    SECRET = "file of a secret"  # noqa: S105 - a kind of option
    NUMBER = "number"
    SECONDS = "seconds"
    FLAG = "true or false"
    TEXTS = "list of texts"
    URL = "URL"
    ADDRESS = "HOST:PORT"


Value = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True)
class Option:
    """One key of a feed's table.

    Args:
        name: the key.
        takes: the type of its value.
        doc: one sentence.
        default: where it is absent; None for nothing.
        required: whether it must be there.
        words: for WORD, what it may be.
        least: for numbers and seconds.
        most: for numbers and seconds.
    """

    name: str
    takes: Takes
    doc: str
    default: Value = None
    required: bool = False
    words: tuple[str, ...] = ()
    least: float = 0
    most: float = 1e9


def _text(name: str, doc: str, default: Value = None, *, required: bool = False) -> Option:
    return Option(name, Takes.TEXT, doc, default, required)


def _path(name: str, doc: str, default: Value = None, *, required: bool = False) -> Option:
    return Option(name, Takes.PATH, doc, default, required)


def _secret(name: str, doc: str, *, required: bool = False) -> Option:
    return Option(name, Takes.SECRET, doc, None, required)


def _number(name: str, doc: str, default: int | None, least: int = 0, most: float = 1e9) -> Option:
    return Option(name, Takes.NUMBER, doc, default, least=least, most=most)


def _seconds(name: str, doc: str, default: float, least: float = 0.01, most: float = 86400) -> Option:
    return Option(name, Takes.SECONDS, doc, default, least=least, most=most)


def _word(name: str, doc: str, words: tuple[str, ...], default: str) -> Option:
    return Option(name, Takes.WORD, doc, default, words=words)


def _flag(name: str, doc: str, default: bool) -> Option:
    return Option(name, Takes.FLAG, doc, default)


COMMON: tuple[Option, ...] = (
    _word("format", "The form in which events are sent (docs/events.md).", FORMATS, "event"),
    _word("minimum", "Events below this severity are not sent.", SEVERITIES, "info"),
    _number("batch", "Events handed to the destination at once.", 1000, 1, 20000),
    _seconds("timeout", "How long one wait for the destination may last.", 10, 0.05),
    _seconds("watchdog", "A feed without a sign of life for so long is ended and started again.", 60, 0.2),
    _seconds("backoff", "Wait after the first failure; it doubles with each further one.", 0.25, 0.001),
    _seconds("backoff_most", "Longest wait between two tries.", 60, 0.001),
)
"""What every kind takes, beside `name`, `kind`, `only` and `except`."""

_TLS = (
    _path("ca_file", "PEM with the authorities that the server's certificate is checked against; else the system's."),
    _path("cert_file", "PEM with this node's certificate, for mutual authentication."),
    _secret("key_file", "PEM with the key of `cert_file`."),
    _text("server_name", "The name that the server's certificate must carry, if not the host of the address."),
)

_HTTP = (
    Option("url", Takes.URL, "Where to send to.", required=True),
    _path("ca_file", "PEM with the authorities that the server's certificate is checked against; else the system's."),
    _path("cert_file", "PEM with this node's certificate, for mutual authentication."),
    _secret("key_file", "PEM with the key of `cert_file`."),
)

_SYSLOG = (
    Option("server", Takes.ADDRESS, "The receiver, HOST:PORT; an IPv6 address in brackets.", required=True),
    _flag("tls", "Whether the connection is TLS (RFC 5425); certificates are always checked.", True),
    *_TLS,
    _word(
        "facility",
        "Syslog facility.",
        ("kern", "user", "daemon", "auth", "syslog", "authpriv", *(f"local{n}" for n in range(8))),
        "authpriv",
    ),
    _text("enterprise", "Private enterprise number in the id of the structured data; 32473 is for examples.", "32473"),
)

NATS_LOGIN = (
    Option("servers", Takes.TEXTS, "nats:// or tls:// addresses of the cluster.", required=True),
    _text("user", "User name; the server decides what it may publish."),
    _secret("password_file", "Password of `user`."),
    _secret("token_file", "A token, instead of a user."),
    _secret("creds_file", "NATS credentials (JWT and seed), instead of a user."),
    _secret("nkey_file", "NKey seed, instead of a user."),
    *_TLS,
    _text("stream", "Name of the stream.", "GUARD"),
    _text("subject", "Events go to SUBJECT.NODE; the stream takes SUBJECT.>.", "guard.events"),
)
"""Shared by the feed `nats` and by `[source]`."""

_NATS = (
    *NATS_LOGIN,
    _text("node", "NODE in the subject, the one that the user may publish to; else `user`, else the host's name."),
    _flag("create", "Whether the stream is made when absent; false where nodes may only publish.", True),
    _number("replicas", "Copies of a stream that is made here.", 3, 1, 5),
    _seconds("duplicate_window", "How long a stream that is made here knows an event's id again.", 600, 1, 7 * 86400),
    _number("stream_bytes", "Largest size of a stream that is made here, in bytes; 0 is the server's own limit.", 0),
    _number("in_flight", "Events sent and not acknowledged yet.", 2000, 1, 50000),
)

KINDS: Mapping[str, tuple[Option, ...]] = {
    "jsonl": (
        _path("path", "The file, - for standard output.", required=True),
        _number("rotate_bytes", "The file is put aside as PATH.1 past this size; 0 leaves that to logrotate.", 0),
        _number("keep", "How many put aside are kept.", 7, 1, 10000),
    ),
    "syslog": (
        *_SYSLOG,
        _seconds("window", "What was sent within so many seconds before a cut is sent again.", 30, 0.1, 3600),
        _number("window_events", "Most events in that window.", 20000, 1, 1000000),
    ),
    "relp": (*_SYSLOG, _number("in_flight", "Messages sent and not acknowledged yet.", 128, 1, 10000)),
    "journald": (_path("socket", "journald's socket.", "/run/systemd/journal/socket"),),
    "webhook": (
        *_HTTP,
        _secret("hmac_file", "Key of the signature (Standard Webhooks: webhook-id, -timestamp, -signature)."),
        _secret("token_file", "Sent as `Authorization: Bearer`."),
        _word("body", "One event a request, a JSON array, or JSON lines.", ("object", "array", "lines"), "array"),
    ),
    "splunk-hec": (
        *_HTTP,
        _secret("token_file", "The HEC token.", required=True),
        _text("index", "Index of the events; else the token's own."),
        _text("sourcetype", "Source type.", "guard:event"),
        _flag("ack", "Whether to wait for indexer acknowledgement (the token must have it enabled).", True),
        _seconds("ack_timeout", "An event not acknowledged by then is sent again.", 120, 0.1, 3600),
    ),
    "opensearch": (
        *_HTTP,
        _text("index", "Index or data stream; %Y, %m, %d stand for the event's day.", "guard-%Y.%m.%d"),
        _text("user", "For basic authentication."),
        _secret("password_file", "Password of `user`."),
        _secret("api_key_file", "Sent as `Authorization: ApiKey`."),
    ),
    "prometheus": (
        Option("listen", Takes.ADDRESS, "Where /metrics is served; loopback unless you mean otherwise."),
        _path("textfile", "A file for node_exporter's textfile collector, replaced atomically."),
    ),
    "nats": _NATS,
    "archive": (
        _path("path", "Directory; events of a day go to PATH/YYYY-MM-DD.jsonl.zst.", required=True),
        _number("level", "zstd's level.", 9, 1, 19),
    ),
    "incidents": (
        _path("path", "The site's store; else that of the state directory."),
        _number("keep_days", "Days after which what was received is removed.", 400, 1, 36500),
    ),
}
"""Kind → its options beside the common ones."""

SPOOL = (
    _path("path", "The spool; else that of the state directory."),
)  # fmt: skip

SOURCE = (
    _word("kind", "Events come from a stream instead of the node's spool.", ("nats",), "nats"),
    *NATS_LOGIN,
    _text("consumer", "Prefix of the durable consumers: PREFIX-FEED.", "guard"),
    _seconds("ack_wait", "An event not acknowledged by then is handed out again.", 120, 1, 3600),
)
