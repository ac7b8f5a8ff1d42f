"""What the service manager is told: sd_notify(3), by a datagram."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Tells systemd (sd_notify(3)), where it asked to be told."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        self.watchdog = int(microseconds) / 2e6 if microseconds.isdigit() else 0.0

    def tell(self, *lines: str) -> None:
        """Send lines such as `READY=1`."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
            # Never waiting: a manager that does not read must not stop the watch.
            notifier.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, address)
