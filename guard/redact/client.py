r"""The thin client of the resident redactor: standard library only, a few milliseconds from start to answer.

The protocol is a line and bytes, both ways, on a unix socket:

    redact <format> <length>\n<bytes>       ->  ok <length>\n<redacted bytes>
    spans <format> <length>\n<bytes>        ->  ok <length>\n<JSON list of start, end, kind, incident, partial, marker>
    fingerprint <kind> <length>\n<value>    ->  ok <length>\n<key id> <fingerprint> [<key id> <fingerprint>]…
    status - 0\n                            ->  ok <length>\n<JSON>

Anything else is answered with `no <length>\n<reason>`. A client trusts only a service that runs as root or
as itself.
"""

from __future__ import annotations

# The module `socket` loads enumerations and selectors, a third of a short call's time; what it wraps is enough here.
import _socket as socket
import os
import sys

SO_PEERCRED = 17
LIMIT = 4 << 20
TIMEOUT = 2.0


class Refused(OSError):  # noqa: N818 - an answer, and the wrapper of no other error
    """The service answered, and said no."""


def socket_paths() -> list[str]:
    """Return where a service may listen, the first choice first."""
    given = os.environ.get("GUARD_REDACT_SOCKET")
    if given:
        return [given]
    state = os.environ.get("GUARD_STATE_DIR")
    if state:
        return [os.path.join(state, "redact.sock")]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [os.path.join(runtime, "guard", "redact.sock")] if runtime else []
    return ["/run/guard/redact.sock", *own]


class Client:
    """Asks the resident service.

    Args:
        path: the socket; None tries the usual places.
        timeout: seconds for each wait.
    """

    def __init__(self, path: str | None = None, timeout: float = TIMEOUT) -> None:
        self._paths = [path] if path else socket_paths()
        self._timeout = timeout
        self._socket: socket.socket | None = None

    def available(self) -> bool:
        """Connect, and say whether a trusted service answers."""
        try:
            self._connect()
        except OSError:
            return False
        return True

    def _connect(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        problem: OSError = FileNotFoundError("no service")
        for path in self._paths:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            connection.settimeout(self._timeout)
            try:
                connection.connect(path)
                credentials = connection.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)
                uid = int.from_bytes(credentials[4:8], sys.byteorder)
                if uid not in (0, os.geteuid()):
                    raise PermissionError(f"the service at {path} runs as uid {uid}")
            except OSError as error:
                connection.close()
                problem = error
                continue
            self._socket = connection
            return connection
        raise problem

    def ask(self, verb: str, word: str, data: bytes) -> bytes:
        """Send one request and return the answer's bytes.

        Raises:
            Refused: the service said no.
            OSError: there is no service, or it broke off.
        """
        connection = self._connect()
        try:
            connection.sendall(f"{verb} {word} {len(data)}\n".encode() + data)
            head = b""
            while not head.endswith(b"\n"):
                byte = connection.recv(1)
                if not byte or len(head) > 64:
                    raise ConnectionError("the service broke off")
                head += byte
            verdict, size = head.split()
            left = int(size)
            if left > 4 * LIMIT:
                raise ConnectionError("the service's answer makes no sense")
            parts = []
            while left:
                part = connection.recv(min(left, 65536))
                if not part:
                    raise ConnectionError("the service broke off")
                parts.append(part)
                left -= len(part)
        except (OSError, ValueError) as error:
            self.close()
            raise (
                error if isinstance(error, OSError) else ConnectionError("the service's answer makes no sense")
            ) from None
        answer = b"".join(parts)
        if verdict != b"ok":
            raise Refused(answer.decode("utf-8", "replace"))
        return answer

    def redact(self, data: bytes, format_name: str = "auto") -> bytes:
        """Return the redacted text; errors as `ask`."""
        return self.ask("redact", format_name, data)

    def fingerprint(self, kind: str, value: bytes) -> tuple[str, str, tuple[tuple[str, str], ...]] | None:
        """Return key id, fingerprint and those of a rotation's overlap; None for what can be guessed."""
        words = self.ask("fingerprint", kind, value).decode("ascii").split()
        if not words:
            return None
        pairs = list(zip(words[::2], words[1::2], strict=True))
        return pairs[0][0], pairs[0][1], tuple(pairs[1:])

    def status(self) -> dict[str, object]:
        """Return what the service tells of itself; nothing where there is none, or it makes no sense."""
        import json  # dear where a short text is redacted

        try:
            told: dict[str, object] = json.loads(self.ask("status", "-", b""))
        except (OSError, ValueError):
            return {}
        return told

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def main(arguments: list[str]) -> int:
    """Redact standard input through the service; 4 when there is none: the hook takes the cold path."""
    data = sys.stdin.buffer.read(LIMIT + 1)
    if len(data) > LIMIT:
        return 4
    try:
        out = Client().redact(data, arguments[0] if arguments else "auto")
    except OSError:
        return 4
    sys.stdout.buffer.write(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
