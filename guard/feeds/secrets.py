"""Secrets of feeds: read from files, never from the command line, never shown."""

from __future__ import annotations

import os
import ssl
import stat

from guard.feeds.config import Feed
from guard.feeds.sink import FeedError
from guard.policy.source import printable, read_file

_MOST = 64 << 10


def secret(feed: Feed, option: str) -> str:
    """Return the text of the file that an option names, without its last line end; "" where it names none.

    Raises:
        FeedError: it cannot be read, is empty, or others may change it.
    """
    return secret_bytes(feed, option).decode("utf-8", "surrogateescape")


def secret_bytes(feed: Feed, option: str) -> bytes:
    """Return the bytes of the file that an option names; see `secret`.

    Raises:
        FeedError: it cannot be read, is empty, or others may change it.
    """
    path = feed.text(option)
    if not path:
        return b""
    check(feed, option)
    try:
        content = read_file(path, _MOST, True)
    except Exception as error:
        raise FeedError(f"feed {feed.name}: {option}: {error}", "give the service a file that it can read") from error
    content = content.rstrip(b"\r\n")
    if not content:
        raise FeedError(f"feed {feed.name}: {printable(path)} ({option}) is empty", "write the secret into it")
    return content


def check(feed: Feed, option: str) -> None:
    """Refuse a file that others may change.

    Raises:
        FeedError: it is not there, or is writable by group or others.
    """
    path = feed.text(option)
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise FeedError(
            f"feed {feed.name}: {option} = {printable(path)}: {error.strerror}", "check the path and its owner"
        ) from error
    if stat.S_ISREG(mode) and mode & 0o022:
        raise FeedError(
            f"feed {feed.name}: {printable(path)} ({option}) can be changed by others", f"chmod 600 {printable(path)}"
        )


def loose(feed: Feed) -> list[str]:
    """Return the secret files of a feed that anybody on the node may read."""
    found = []
    for option, value in feed.options.items():
        if option.endswith("_file") and option not in ("ca_file", "cert_file") and isinstance(value, str):
            try:
                mode = os.stat(value).st_mode
            except OSError:
                continue  # told when it is needed
            if mode & 0o004:
                found.append(value)
    return found


def tls_context(feed: Feed) -> ssl.SSLContext:
    """Return the TLS settings of a feed: TLS 1.2 or later, the server always checked, by name too.

    Raises:
        FeedError: a file cannot be used.
    """
    if feed.text("key_file"):
        check(feed, "key_file")
    for option in ("ca_file", "cert_file", "key_file"):
        path = feed.text(option)
        if path and not os.access(path, os.R_OK):
            reason = "cannot be read" if os.path.exists(path) else "does not exist"
            raise FeedError(f"feed {feed.name}: {option}: {printable(path)} {reason}", "give the service a PEM file")
    try:
        context = ssl.create_default_context(cafile=feed.text("ca_file") or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if feed.text("cert_file"):
            # A password would be asked for on the terminal of a service: refused instead.
            context.load_cert_chain(feed.text("cert_file"), feed.text("key_file"), password=_no_password)
    except (OSError, ValueError) as error:
        raise FeedError(
            f"feed {feed.name}: ca_file, cert_file or key_file cannot be used: {error}",
            "they are PEM; the key has no password and belongs to the certificate",
        ) from error
    return context


def _no_password() -> str:
    raise ValueError("the key is protected by a password")
