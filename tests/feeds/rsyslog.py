"""A real rsyslogd on loopback: TLS with both sides checked, RELP, plain TCP; and a wire that can be cut."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import trustme

from tests.beds.ports import free_port
from tests.feeds.cluster import until

RSYSLOGD = shutil.which("rsyslogd") or ("/usr/sbin/rsyslogd" if Path("/usr/sbin/rsyslogd").exists() else "")


def needs(*modules: str) -> pytest.MarkDecorator:
    """Skip, and say so, where rsyslogd or a module of it is missing."""
    missing = [] if RSYSLOGD else ["rsyslogd"]
    for module in modules:
        if not list(Path("/usr/lib").glob(f"*/rsyslog/{module}.so")):
            missing.append(module)
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


class Authority:
    """A throw-away authority with the certificates of a receiver and of nodes."""

    def __init__(self, folder: Path, *nodes: str) -> None:
        self.folder = folder
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        for name in ("siem.test", *nodes):
            made = authority.issue_cert(name, common_name=name)
            made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
            (folder / f"{name}.key").touch(0o600)
            made.private_key_pem.write_to_path(folder / f"{name}.key")

    def options(self, node: str) -> list[str]:
        """What a feed of a node needs."""
        return [
            f'ca_file = "{self.folder}/ca.pem"', f'cert_file = "{self.folder}/{node}.pem"',
            f'key_file = "{self.folder}/{node}.key"', 'server_name = "siem.test"',
        ]  # fmt: skip


class Rsyslog:
    """One rsyslogd; inputs are (port, configuration of the input). Every message is a line of `output`."""

    def __init__(self, folder: Path, modules: Sequence[str], inputs: Sequence[str], template: str = "%rawmsg%\\n") -> None:
        self.folder = folder
        self.output = folder / "received"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "rsyslog.conf").write_text("\n".join((
            f'global(workDirectory="{folder}" maxMessageSize="512k" parser.escapeControlCharactersOnReceive="off")',
            *modules,
            f'template(name="line" type="string" string="{template}")' if "%" in template else template,
            'ruleset(name="all") {'
            f' action(type="omfile" file="{self.output}" template="line" asyncWriting="off" flushOnTXEnd="on") }}',
            *inputs,
        )) + "\n")  # fmt: skip

    @classmethod
    def tls(cls, folder: Path, authority: Authority, ports: dict[str, int], template: str = "%rawmsg%\\n") -> Rsyslog:
        """An input a node, which takes that node's certificate alone."""
        files = (
            f'global(DefaultNetstreamDriver="gtls" DefaultNetstreamDriverCAFile="{authority.folder}/ca.pem"'
            f' DefaultNetstreamDriverCertFile="{authority.folder}/siem.test.pem"'
            f' DefaultNetstreamDriverKeyFile="{authority.folder}/siem.test.key")'
        )
        module = 'module(load="imtcp" streamDriver.name="gtls" streamDriver.mode="1" streamDriver.authMode="x509/name")'
        inputs = [
            f'input(type="imtcp" address="127.0.0.1" port="{port}" name="{node}" permittedPeer="{node}" ruleset="all")'
            for node, port in ports.items()
        ]
        return cls(folder, [files, module], inputs, template)

    @classmethod
    def relp(cls, folder: Path, port: int, authority: Authority | None = None, node: str = "") -> Rsyslog:
        tls = "" if authority is None else (
            f' tls="on" tls.authMode="name" tls.permittedPeer=["{node}"] tls.caCert="{authority.folder}/ca.pem"'
            f' tls.myCert="{authority.folder}/siem.test.pem" tls.myPrivKey="{authority.folder}/siem.test.key"'
        )  # fmt: skip
        module = 'module(load="imrelp" tls.tlslib="openssl" ruleset="all")'
        return cls(folder, [], [module, f'input(type="imrelp" address="127.0.0.1" port="{port}"{tls})'])

    @classmethod
    def tcp(cls, folder: Path, port: int) -> Rsyslog:
        return cls(folder, ['module(load="imtcp")'], [f'input(type="imtcp" address="127.0.0.1" port="{port}" ruleset="all")'])

    def __enter__(self) -> Rsyslog:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)

    def start(self) -> None:
        with open(self.folder / "rsyslog.log", "ab") as log:
            self.process = subprocess.Popen(
                [RSYSLOGD, "-n", "-f", str(self.folder / "rsyslog.conf"), "-i", str(self.folder / "pid")],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it; with SIGTERM it writes what it holds first."""
        if self.process is not None:
            os.kill(self.process.pid, number)
            self.process.wait(20)
        self.process = None

    def lines(self) -> list[bytes]:
        return self.output.read_bytes().splitlines() if self.output.exists() else []

    def events(self) -> list[bytes]:
        """The events in the messages."""
        return [line[line.index(b"{") :] for line in self.lines()]


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Wire:
    """A connection's way to a port that can be cut: what came after `swallow` was set is lost, then a reset."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.port = free_port()
        self.passed = 0
        self.cuts = 0
        self.cut_at: int | None = None
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.to), timeout=10)
            except OSError:
                near.close()
                continue
            threading.Thread(target=self._back, args=(far, near), daemon=True).start()
            threading.Thread(target=self._forth, args=(near, far), daemon=True).start()

    def _forth(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while data := near.recv(65536):
                if self.cut_at is not None and self.passed + len(data) > self.cut_at:
                    # Taken from the sender, whose kernel believes it delivered, and never passed on.
                    self.cut_at = None
                    self.cuts += 1
                    time.sleep(0.2)
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                self.passed += len(data)
                far.sendall(data)
            else:
                far.shutdown(socket.SHUT_WR)
                return
        except OSError:
            pass
        for each in (near, far):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        near.close()

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        try:
            while data := far.recv(65536):
                near.sendall(data)
            near.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._listener.close()


__all__ = ["Authority", "Rsyslog", "Wire", "listening", "needs", "until"]
