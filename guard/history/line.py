"""`guard history line`: one command line in, the same without its secrets out, as quickly as a process can.

A shell asks at a line that its prefilter stops at. The resident service answers; where there is none, or it does not
answer in time, this process looks itself. It imports next to nothing: the start is what a person feels.
"""

import _socket
import posix
import sys

WAIT = 0.25
"""Seconds the service may take: a person waits for the prompt."""
MARK = b"__REDACTED__"
"""What stands in a history: no shell reads anything into it when the line is called back."""
LIMIT = 1 << 20
CLEAN = 10
"""The exit code that says so: 1 is what an interpreter that breaks down ends with."""
_START = b"[REDACTED:"


def plain_marks(text: bytes) -> bytes:
    """Turn the redactor's markers, whose brackets a shell would read as a pattern, into `MARK`."""
    parts = text.split(_START)
    out = [parts[0]]
    for part in parts[1:]:
        kind, closed, rest = part.partition(b"]")
        proper = closed and 0 < len(kind) < 60 and not kind.strip(b"abcdefghijklmnopqrstuvwxyz0123456789:-")
        out.append(MARK + rest if proper else _START + part)
    return b"".join(out)


def main(arguments: list[str]) -> int:
    """Read a line from standard input.

    Returns:
        0 the line had secrets, standard output has it without them; `CLEAN` it has none, and nothing is written; 3 it
        cannot be told, and the shell must not store the line as it is.
    """
    data = b""
    while part := posix.read(0, 65536):
        data += part
        if len(data) > LIMIT:
            return 3
    out = clean(data)
    if out is None:
        return 3
    if out == data:
        return CLEAN
    while out:
        out = out[posix.write(1, out) :]
    return 0


def clean(data: bytes) -> "bytes | None":
    """Return a line without its secrets; None when that cannot be told."""
    try:
        out = _ask(data)
    except OSError:
        try:
            out = _look(data)
        except Exception:  # noqa: BLE001 - whatever it is, the shell must hear that nobody looked
            return None
    return plain_marks(out)


def _places() -> list[bytes]:
    environment = posix.environ
    if given := environment.get(b"GUARD_REDACT_SOCKET"):
        return [given]
    if state := environment.get(b"GUARD_STATE_DIR"):
        return [state + b"/redact.sock"]
    runtime = environment.get(b"XDG_RUNTIME_DIR")
    return [b"/run/guard/redact.sock", *([runtime + b"/guard/redact.sock"] if runtime else [])]


def _ask(data: bytes) -> bytes:
    """Ask the service (guard.redact.client describes the protocol); it must be root's or our own."""
    fault: OSError = FileNotFoundError("no service")
    for place in _places():
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        connection.settimeout(WAIT)
        try:
            connection.connect(place)
            peer = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
            if int.from_bytes(peer[4:8], sys.byteorder) not in (0, posix.geteuid()):
                raise PermissionError("the service is another user's")
            # A line's end is not part of the entry, and a rule may want to see it.
            connection.sendall(b"redact text %d\n" % (len(data) + 1) + data + b"\n")
            answer = b""
            while b"\n" not in answer:
                answer += _more(connection)
            head, _, body = answer.partition(b"\n")
            verdict, _, size = head.partition(b" ")
            if verdict != b"ok" or not size.isdigit():
                raise ConnectionError("the service said no")
            while len(body) < int(size):
                body += _more(connection)
            return body.removesuffix(b"\n")
        except OSError as error:
            fault = error
        finally:
            connection.close()
    raise fault


def _more(connection: "_socket.socket") -> bytes:
    part = connection.recv(65536)
    if not part:
        raise ConnectionError("the service broke off")
    return part


def _look(data: bytes) -> bytes:
    from guard.redact.scan import Scanner
    from guard.redact.stream import redact_bytes

    return redact_bytes(data + b"\n", Scanner(), None, "text").removesuffix(b"\n")
