"""The servers of resolv.conf(5): DNS to them is always open."""

import _socket
import posix as os

from guard.kernel import real_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guard.confine.handlers.base import Supervisor

_FILE = "/etc/resolv.conf"
_MOST = 65536
_DEFAULT = frozenset((b"\x7f\0\0\1", bytes(15) + b"\1"))  # resolv.conf(5): with no server named, the local one


class NameServers:
    """The name servers as they are now: a VPN or DHCP may change them while the tree runs."""

    def __init__(self, file: str = _FILE) -> None:
        self._file = file
        self._stamp: tuple[int, int, int] = (0, 0, 0)
        self._known: frozenset[bytes] = _DEFAULT
        self._read(self._look())

    def known(self, supervisor: "Supervisor") -> "frozenset[bytes]":
        """Their addresses, 4 or 16 bytes each; a file that the tree could write is not read again."""
        stamp = self._look()
        if stamp != self._stamp and not supervisor.may_write(real_path(self._file)):
            self._read(stamp)
        return self._known

    def _look(self) -> "tuple[int, int, int]":
        try:
            about = os.stat(self._file)
        except OSError:
            return (0, 0, 0)
        return about.st_ino, about.st_mtime_ns, about.st_size

    def _read(self, stamp: "tuple[int, int, int]") -> None:
        self._stamp = stamp
        self._known = name_servers(self._file)


def name_servers(file: str = _FILE) -> "frozenset[bytes]":
    """The addresses that a file as resolv.conf(5) names now; the default where it cannot be read."""
    try:
        with open(file, "rb") as stream:
            return servers(stream.read(_MOST))
    except OSError:
        return _DEFAULT


def servers(text: bytes) -> "frozenset[bytes]":
    """The addresses that a resolv.conf names."""
    found = set()
    for line in text.split(b"\n"):
        words = line.split()
        if len(words) < 2 or words[0] != b"nameserver":
            continue
        name = words[1].decode("ascii", "replace").partition("%")[0]
        for family in (_socket.AF_INET, _socket.AF_INET6):
            try:
                found.add(_socket.inet_pton(family, name))
            except OSError:
                continue
    return frozenset(found) or _DEFAULT
