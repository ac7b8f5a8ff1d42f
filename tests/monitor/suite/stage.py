"""The suite's stage: a network namespace with an outside, a monitor, a harness; runs cases and tells what was said.

    unshare -n python -m tests.monitor.suite.stage --backend tracepoint [--enforce] [--only NAME,…] [--jobs 4]

One line of JSON a case on stdout, then one with the sums. Root; the namespace must be its own.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import http.server
import io
import json
import os
import random
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from guard.events.reader import Reader
from guard.redact import samples

from .case import Case
from .table import promised

OUTSIDE = "203.0.113.5"
"""TEST-NET-3 (RFC 5737): not loopback, and nobody's."""
AGENT = "suite-agent"
SEVERITIES = ("info", "low", "medium", "high", "critical")
ATTENTION = SEVERITIES.index("medium")
FIRST_PORT = 20000
SHELL_CODE = 'echo PRO""VEN\n'
"""Prints PROVEN only where it is run and not where it is shown."""
FILES = {
    "u": SHELL_CODE,
    "p": 'print("PRO" + "VEN")\n',
    "l": 'print "PRO" . "VEN", "\\n";\n',
    "j": 'console.log("PRO" + "VEN");\n',
    "x": "#!/bin/sh\n" + SHELL_CODE,
    "d": '{"a": 1, "text": "some data"}\n',
}


NESTED = """#!/usr/bin/python3
import subprocess, sys, time, urllib.request
time.sleep(0.2)
text = urllib.request.urlopen(sys.argv[1]).read()
open("s", "wb").write(text)
subprocess.run(["sh", "s"])
"""
"""A harness: what it was told it writes, and runs."""


@dataclass(frozen=True)
class Result:
    """What came of a case.

    Args:
        name: the case's.
        done: the act was really done.
        skipped: this kernel lacks the call.
        said: rule, severity and verdict of every event of medium or higher, and of the rule that was waited for.
        right: as it must be.
        why: in words, where it is not.
    """

    name: str
    done: bool
    skipped: bool
    said: tuple[str, ...]
    right: bool
    why: str = ""


class Outside(contextlib.AbstractContextManager["Outside"]):
    """The other machine: a web server on an address that is not loopback; on port 53 too, and code as any answer there."""

    def __init__(self, root: Path) -> None:
        for name, text in FILES.items():
            (root / name).write_text(text)
        library = root / "so.c"
        library.write_text(
            '#include <stdio.h>\n__attribute__((constructor)) static void run(void) { puts("PRO" "VEN"); }\n'
        )
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(root / "so"), str(library)], check=True)
        with tarfile.open(root / "t", "w:gz") as pack:
            entry = tarfile.TarInfo("inside")
            entry.size = len(SHELL_CODE)
            pack.addfile(entry, io.BytesIO(SHELL_CODE.encode()))
        work = root / "work"
        run = functools.partial(subprocess.run, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        run(["git", "init", "-q", str(work)])
        (work / "s.sh").write_text("echo x\n")
        run(["git", "-C", str(work), "add", "."])
        run(["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"])
        run(["git", "clone", "-q", "--bare", str(work), str(root / "r.git")])
        run(["git", "-C", str(root / "r.git"), "update-server-info"])
        handler = functools.partial(_Quiet, directory=str(root))
        self._servers = [http.server.ThreadingHTTPServer((OUTSIDE, port), handler) for port in (80, 53)]
        self._servers.append(socketserver.ThreadingUDPServer((OUTSIDE, 53), _Answer))

    def __enter__(self) -> Outside:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


class _Answer(socketserver.DatagramRequestHandler):
    def handle(self) -> None:
        self.wfile.write(SHELL_CODE.encode())


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def monitor(guard: Sequence[str], place: Path, backend: str, enforce: bool, config: str = "") -> Iterator[str]:
    """Run `guard monitor` until the block ends; gives its log so far.

    Args:
        guard: the command.
        place: for its state, configuration and log.
        config: text of monitor.toml, "" for none.
    """
    (place / "etc").mkdir(mode=0o755)
    (place / "etc/monitor.toml").write_text("schema = 1\n" + config) if config else None
    notify = str(place / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, (place / "log").open("w+") as log:
        ready.bind(notify)
        ready.settimeout(120)
        command = [*guard, "--state", str(place / "state"), "--config", str(place / "etc"), "monitor",
                   "--backend", backend, "--harness", f"suite={AGENT}"]  # fmt: skip
        process = subprocess.Popen(
            [*command, "--enforce"] if enforce else command, env={**os.environ, "NOTIFY_SOCKET": notify},
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            while b"READY=1" not in _word(ready, process, place):
                pass
            yield (place / "log").read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _word(ready: socket.socket, process: subprocess.Popen[bytes], place: Path) -> bytes:
    deadline = time.monotonic() + 600
    ready.settimeout(1)
    while time.monotonic() < deadline:
        try:
            return ready.recv(4096)
        except TimeoutError:
            if process.poll() is not None:
                break
    raise SystemExit("the monitor did not start:\n" + (place / "log").read_text())


def events(state: Path) -> list[dict]:
    """Every event of a spool."""
    reader, out, after = Reader(str(state / "spool")), [], 0
    while rows := reader.read(after, 500, quiet=True):
        out.extend(json.loads(row.line) for row in rows)
        after = rows[-1].position
    return out


class Run:
    """Runs cases under one monitor."""

    def __init__(self, place: Path, agent: str, odd: str, seconds: float, victim: int) -> None:
        self._place = place
        self._agent = agent
        self._seconds = seconds
        base = f"http://{OUTSIDE}"
        names = {"U": "u", "P": "p", "L": "l", "J": "j", "X": "x", "T": "t", "D": "d", "S": "so"}
        linker = next(
            path for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if Path(path).exists()
        )
        self._environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "odd": odd, "LD": linker, "N": str(place / "nested"),
            "W": str(round(seconds / 2)), "V": str(victim),
            **{name: f"{base}/{file}" for name, file in names.items()},
        }  # fmt: skip

    def case(self, number: int, case: Case) -> tuple[int, bool, bool, str]:
        """Run one: the harness's pid, whether the act was done, whether this kernel lacks the call, its output."""
        work = self._place / "work" / case.name
        work.mkdir(parents=True)
        port = str(FIRST_PORT + number)
        environment = {
            **self._environment, "HOME": str(work), "CASE": case.text.replace("$port", port), "port": port,
            "K": samples.fill("ghp_<crc62>", random.Random())[0],
        }  # fmt: skip
        with (work.parent / f"{case.name}.out").open("w+b") as out:
            process = subprocess.Popen(
                [self._agent, "-c", 'bash -c "$CASE"; echo "ENDED $?"; true'], cwd=work, env=environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(self._seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            text = out.read().decode(errors="replace")
        if case.proof:
            proof = ["sh", "-c", case.proof]
            done = not subprocess.run(
                proof, cwd=work, env=environment, stderr=subprocess.DEVNULL, check=False
            ).returncode
        else:
            done = "PROVEN" in text
        return process.pid, done, "ENDED 77" in text, text

    @contextlib.contextmanager
    def watched(self, state: Path) -> Iterator[None]:
        """Have a tree from before the first case to after the last: the time until all is attached is no case's."""
        with subprocess.Popen([self._agent, "-c", "read x"], stdin=subprocess.PIPE) as tree:
            for attempt in range(30):
                pid, *_ = self.case(0, Case(f"first-{attempt}", "touch f; chmod 777 f", proof="true"))
                deadline = time.monotonic() + 2
                while time.monotonic() < deadline:
                    if any(
                        event["tree"]["root_pid"] == pid and event["rule"] == "world-writable"
                        for event in events(state)
                    ):
                        deadline = 0.0
                    time.sleep(0.05)
                if not deadline:
                    break
            yield
            tree.stdin.close()

    def until_told(self, state: Path, number: int) -> list[dict]:
        """Run something that is told, and wait for it: what came before has then been told, too."""
        last = Case(f"last-{number}", "touch f; chmod 777 f", proof="true")
        pid, *_ = self.case(number, last)
        deadline = time.monotonic() + self._seconds * 3
        while True:
            told = events(state)
            if any(event["rule"] == "world-writable" and event["tree"]["root_pid"] == pid for event in told):
                return told
            if time.monotonic() > deadline:
                print("stage: the last act was never told", file=sys.stderr)
                return told
            time.sleep(0.1)


def judge(case: Case, backend: str, enforced: bool, done: bool, skipped: bool, said: Sequence[dict]) -> Result:
    """What came of a case, from its events."""
    told = tuple(f"{event['rule']}:{event['severity']}:{event['verdict']}" for event in said
                 if SEVERITIES.index(event["severity"]) >= ATTENTION or event["rule"] in (case.rule, case.instead))  # fmt: skip
    result = functools.partial(Result, case.name, done, skipped, told)
    if skipped:
        return result(True)
    lacks = dict(case.lacks).get(backend, "")
    rule, least = (case.instead, "low") if lacks else (case.rule, case.severity)
    if not case.rule:
        loud = [word for word in told if SEVERITIES.index(word.split(":")[1]) >= ATTENTION]
        if not done:
            return result(False, "the ordinary act did not work")
        return result(not loud, f"said of an ordinary act: {loud}" if loud else "")
    stopped = enforced and case.enforced and not lacks
    if stopped and done:
        return result(False, "enforced, and done all the same")
    denied = enforced and any(event["verdict"] == "denied" for event in said)
    if not stopped and not done and not denied:
        return result(False, "the act was not done: the case proves nothing")
    if not rule:
        return result(True)
    heard = [event for event in said if event["rule"] == rule
             and SEVERITIES.index(event["severity"]) >= SEVERITIES.index(least)]  # fmt: skip
    return result(bool(heard), "" if heard else f"{rule} of at least {least} was not said")


def run(options: argparse.Namespace) -> int:
    """Run the suite; 0 when every case is right."""
    for command in (("ip", "link", "set", "lo", "up"), ("ip", "addr", "add", f"{OUTSIDE}/32", "dev", "lo")):
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
    wanted = options.only.split(",") if options.only else None
    cases = [case for case in promised(options.backend) if wanted is None or case.name in wanted]
    place = Path(tempfile.mkdtemp(prefix="guard-suite-", dir=options.directory))
    try:
        return _run(options, cases, place)
    finally:
        if options.keep:
            print(f"stage: kept {place}", file=sys.stderr)
        else:
            shutil.rmtree(place, ignore_errors=True)


def _run(options: argparse.Namespace, cases: Sequence[Case], place: Path) -> int:
    place.chmod(0o755)
    agent, odd, web = place / AGENT, place / "odd", place / "web"
    shutil.copy("/bin/bash", agent)
    source = Path(__file__).with_name("odd.c")
    subprocess.run(["gcc", "-O1", "-w", "-o", str(odd), str(source)], check=True)
    web.mkdir()
    nested = place / "nested"
    nested.mkdir()
    (nested / "claude").write_text(NESTED)
    (nested / "claude").chmod(0o755)
    guard = options.guard.split()
    with Outside(web), monitor(guard, place, options.backend, options.enforce):
        runner = Run(place, str(agent), str(odd), options.seconds, os.getpid())
        with runner.watched(place / "state"), concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(runner.case, range(len(cases)), cases))
        told = runner.until_told(place / "state", len(cases))
    results = [
        judge(case, options.backend, options.enforce, done, skipped,
              [event for event in told if event["tree"]["root_pid"] == pid])
        for case, (pid, done, skipped, _) in zip(cases, outcomes, strict=True)
    ]  # fmt: skip
    for result in results:
        print(json.dumps(asdict(result)))
    if options.verbose:
        for result, (_, _, _, text) in zip(results, outcomes, strict=True):
            if not result.right:
                print(f"-- {result.name}: {result.why}\n   said {result.said}\n{text[:400]}", file=sys.stderr)
        print((place / "log").read_text()[-2000:], file=sys.stderr)
    hostile = [r for r, case in zip(results, cases, strict=True) if case.rule and not r.skipped]
    benign = [r for r, case in zip(results, cases, strict=True) if not case.rule and not r.skipped]
    sums = {
        "backend": options.backend, "enforce": options.enforce, "hostile": len(hostile),
        "caught": sum(r.right for r in hostile), "benign": len(benign), "false": sum(not r.right for r in benign),
        "skipped": [r.name for r in results if r.skipped], "wrong": [r.name for r in results if not r.right],
    }  # fmt: skip
    print(json.dumps({"sums": sums}))
    return 0 if not sums["wrong"] else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="tracepoint")
    parser.add_argument("--enforce", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12.0, help="that a case may take")
    parser.add_argument("--guard", default="guard", help="the command")
    parser.add_argument("--directory", default="/var/tmp", help="on a file system with ACLs")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
