# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""Speed, memory and recall of the redactor against its peers, on the same files in one run.

    python bench/redact.py [--size MB] [--peers DIR] [--only NAME,…] [--json FILE]

`--peers` is a folder with the programs gitleaks, betterleaks, kingfisher and detect-secrets (a virtual environment's
bin); those that are missing are left out and said so. Every peer writes its report to a file of its own: as root a
report to /dev/null has replaced the device. Recall is biased towards this project: the same hands wrote the generators.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from guard.redact import client, samples
from guard.redact.rules.formats import FORMATS
from guard.redact.scan import Scanner
from guard.redact.stream import redact_bytes

TARGETS = {"strace": 150.0, "syslog": 150.0, "history": 60.0, "jsonl": 40.0, "dense": 5.0, "terminal": 25.0}
COMMANDS = (
    "ls -laR /usr/lib/python3",
    "find /etc -name '*.conf' -exec cat {} +",
    "perl -e 'use CPAN'",
    "git --version",
    f"{sys.executable} -c 'import json, ssl'",
)
WORDS = (
    "ls -la", "cd ~/project", "git status", 'git commit -m "fix the parser"', "make -j8", "python train.py --lr 0.01 --epochs {n}", "sbatch job_{n}.sh", "squeue -u bob",
    "ssh node{n}", "vim src/main{n}.c", "grep -rn foo src | head -{n}", "docker run --rm -it ubuntu:22.04 bash", "pip install numpy==1.2{n}", "export PATH=$PATH:/opt/bin",
    "tar xzf data_{n}.tar.gz", "kubectl get pods -n ns{n}", "curl -sSL https://example.org/x{n} | less", "export OMP_NUM_THREADS={n}",
)  # fmt: skip
LINES = (
    "sshd[{n}]: Accepted publickey for bob from 10.0.{n}.7 port {n} ssh2: ED25519 SHA256:0xFakeFingerprint{n}", "systemd[1]: Started Session {n} of user bob.",
    "sshd[{n}]: Failed password for root from 10.1.2.{n} port {n} ssh2", "sshd[{n}]: pam_unix(sshd:session): session opened for user bob(uid={n}) by (uid=0)",
    "CRON[{n}]: (root) CMD (cd / && run-parts --report /etc/cron.hourly)", "slurmctld[{n}]: _slurm_rpc_submit_batch_job: JobId={n} InitPrio=1 usec={n}",
)  # fmt: skip


def contents(path: str) -> str:
    """Return a file's text."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def key(rng: random.Random) -> str:
    """Return a random key of a random kind."""
    row = rng.choice(FORMATS)
    return samples.fill(rng.choice(row.samples), rng)[0]


def traces(rng: random.Random) -> Iterator[str]:
    """Yield lines of real strace output where strace may run, of a made-up one elsewhere; a key every 2000 lines."""
    lines: list[str] = []
    with tempfile.NamedTemporaryFile("r", errors="replace") as file:
        for command in COMMANDS if shutil.which("strace") else ():
            subprocess.run(
                [
                    "strace",
                    "-f",
                    "-ttt",
                    "-T",
                    "-s",
                    "256",
                    "-o",
                    file.name,
                    "sh",
                    "-c",
                    f"{command} >/dev/null 2>&1",
                ],
                check=False,
                capture_output=True,
                timeout=120,
            )
            lines += contents(file.name).splitlines()
    if len(lines) < 1000:
        lines = [
            f'9 17000000{n}.1 openat(AT_FDCWD, "/usr/lib/x{n}.so", O_RDONLY|O_CLOEXEC) = 3 <0.000012>'
            for n in range(5000)
        ]
    count = 0
    while True:
        for line in lines:
            count += 1
            yield (line if count % 2000 else f'{count} 1700000000.1 write(3, "x {key(rng)}\\n", 99) = 99 <0.000010>')


def files(folder: str, size: int) -> dict[str, tuple[str, list[str]]]:
    """Write the corpora, `size` MB the largest, and return path and planted keys of each."""
    rng = random.Random(7)
    made: dict[str, tuple[str, list[str]]] = {}

    def write(name: str, megabytes: float, lines: Callable[[], Iterator[tuple[str, str]]]) -> None:
        path = os.path.join(folder, name)
        planted: list[str] = []
        left = int(megabytes * 1e6)
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            for line, secret in lines():
                left -= file.write(line + "\n")
                if secret:
                    planted.append(secret)
                if left <= 0:
                    break
        made[name] = (path, planted)

    def strace() -> Iterator[tuple[str, str]]:
        for line in traces(rng):
            yield line, line.split('"x ')[1].split("\\n")[0] if '"x ' in line and "write(3" in line else ""

    def plain(rows: tuple[str, ...], head: str, every: int) -> Callable[[], Iterator[tuple[str, str]]]:
        def generate() -> Iterator[tuple[str, str]]:
            count = 0
            while True:
                count += 1
                if count % every == 0:
                    secret = key(rng)
                    yield head + f"export A_TOKEN='{secret}'", secret
                else:
                    yield head + rng.choice(rows).format(n=rng.randrange(1000)), ""

        return generate

    def transcripts() -> Iterator[tuple[str, str]]:
        folder = sysconfig.get_paths()["stdlib"]
        while True:
            for place, _folders, names in os.walk(folder):
                for name in names:
                    if name.endswith(".py"):
                        text = contents(os.path.join(place, name))
                        for start in range(0, len(text), 8000):
                            secret = key(rng) if rng.random() < 0.02 else ""
                            yield (
                                json.dumps(
                                    {
                                        "type": "tool_result",
                                        "content": [
                                            {
                                                "type": "text",
                                                "text": text[start : start + 8000]
                                                + (f"\nexport A={secret}\n" if secret else ""),
                                            }
                                        ],
                                    }
                                ),
                                secret,
                            )

    def terminal() -> Iterator[tuple[str, str]]:
        while True:
            n = rng.randrange(9999)
            yield (
                f"\x1b[0m\x1b[01;34mdir{n}\x1b[0m  \x1b[01;32mrun{n}.sh\x1b[0m  file{n}.txt  \x1b[31mword\x1b[0m and text {n}\r",
                "",
            )

    write("strace", size, strace)
    write("syslog", size / 4, plain(LINES, "Nov 30 12:00:00 host1 ", 5000))
    write("history", size / 8, plain(WORDS, "", 3000))
    write("jsonl", size / 4, transcripts)
    write("dense", size / 50, plain(WORDS, "", 2))
    write("terminal", size / 20, terminal)
    return made


def run(command: list[str], source: str | None = None, out: str | None = None) -> tuple[float, float, int, int]:
    """Run a program; return wall and processor seconds, peak KB (VmHWM: rusage starts at the parent's), exit code."""
    start = time.monotonic()
    with open(source or os.devnull, "rb") as stdin, open(out or os.devnull, "wb") as stdout:
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL)
        peak = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            try:
                with open(f"/proc/{process.pid}/status") as facts:
                    peak = max([peak, *(int(line.split()[1]) for line in facts if line.startswith("VmHWM"))])
            except OSError:
                pass
            time.sleep(0.01)
        process.returncode = 0
    return time.monotonic() - start, usage.ru_utime + usage.ru_stime, peak, os.waitstatus_to_exitcode(status)


HOSTILE = (
    b"eyJ", b"http://a:bcd", b"mysql -p", b"curl -u ", b"-----BEGIN RSA PRIVATE KEY-----", b"password=", b'"password":"', b"sk-ant-api03-", b"\\u0070", b"%41",
    b"\x1b[31m", b"a\0", b"echo a|sudo -S ", b"cookie: a=b;", b"LS0tLS1CRUdJTi", b'{"a":', b"\\", b"://a:b@", b"?key=", b"--token=", b"password=\\\n", b"6768705f",
    b"\\040by ", b"a\x08", b'9 write(3, "sk-ant-", 4) = 4\n', b'[1.0, "o", "sk-ant"]\n', b"&quot;", b"\\u0022", b"auth: a:bcdefgh1",
    b"00000010  74 6f 6b 65 6e 20 3d 20  67 68 70 5f 62 74 73 33  |token = ghp_bts3|\n", b"; password=a", b"secret=\\\"", b"token: ", b"tool --token \\\r\n", b"token: >-\n  abcdefgh\n",
)  # fmt: skip
"""Pieces that, repeated to 2 MiB, were made to be slow."""


def percentiles(label: str, command: list[str], count: int) -> None:
    """Print how long a program takes on one line: p50 and p99 of wall and processor milliseconds."""
    wall, cpu = [], []
    line = f"mysql -p{samples.password(random.Random(1), '')} db\n".encode()
    for _ in range(count):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, input=line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        wall.append((time.perf_counter() - start) * 1e3)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3)
    shown = [f"{sorted(each)[int(part * (count - 1))]:6.1f}" for each in (wall, cpu) for part in (0.5, 0.99)]
    print(f"{label:28} wall p50 {shown[0]} p99 {shown[1]} ms, processor p50 {shown[2]} p99 {shown[3]} ms", flush=True)


def latency(peers: str, count: int) -> None:
    """Measure one line: through the service, cold, and by a peer; and what the service holds in memory."""
    guard = shutil.which("guard", path=os.path.dirname(sys.executable)) or "guard"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GUARD_REDACT_SOCKET"] = os.path.join(folder, "redact.sock")
        os.environ["GUARD_STATE_DIR"] = os.path.join(folder, "state")
        service = subprocess.Popen([guard, "serve", "redact"])
        while not os.path.exists(os.environ["GUARD_REDACT_SOCKET"]):
            time.sleep(0.05)
        percentiles("python -I -S -c pass", ["/usr/bin/python3", "-I", "-S", "-c", "pass"], count)
        percentiles("thin client, with service", ["/usr/bin/python3", "-I", "-S", client.__file__], count)
        percentiles("guard history line, with it", [guard, "history", "line"], count)
        percentiles("guard redact, cold", [guard, "redact", "--no-service"], count)
        peer = shutil.which("betterleaks", path=peers)
        if peer:
            percentiles("betterleaks stdin", [peer, "stdin", "--no-banner", "--silent"], max(3, count // 10))
        with open(f"/proc/{service.pid}/smaps_rollup") as file:
            pss = next(int(text.split()[1]) for text in file if text.startswith("Pss:"))
        print(f"{'guard serve redact':28} {pss / 1000:.1f} MB (PSS)")
        service.terminate()
        service.wait()


def hostile() -> None:
    """Measure the processor time of texts made to be slow, 2 MiB each; print the slowest."""
    scanner = Scanner()
    scanner.engine(1 << 20)
    times = []
    for piece in HOSTILE:
        text = (piece * ((2 << 20) // len(piece) + 1))[: 2 << 20]
        start = time.process_time()
        redact_bytes(text, scanner)
        times.append((time.process_time() - start, piece))
    for seconds, piece in sorted(times, reverse=True)[:5]:
        print(f"hostile   {seconds:5.2f} s for 2 MiB of {piece!r}")


def main() -> None:
    """Run the bench and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=400, help="MB of the strace file; the others follow")
    parser.add_argument("--peers", default="", help="folder with the peers' programs")
    parser.add_argument("--only", default="", help="corpora, comma-separated")
    parser.add_argument("--calls", type=int, default=100, help="calls for the latency of one line, 0 for none")
    parser.add_argument("--no-hostile", action="store_true", help="leave out the texts made to be slow")
    parser.add_argument("--json", default="", help="also write the figures here")
    parser.add_argument(
        "--peer-size", type=int, default=4, help="MB that detect-secrets gets: it is a hundred times slower"
    )
    options = parser.parse_args()
    rows = []
    path = os.pathsep.join(filter(None, [options.peers, os.environ.get("PATH", "")]))
    with tempfile.TemporaryDirectory() as folder:
        corpora = files(folder, options.size)
        os.environ["GUARD_STATE_DIR"] = os.path.join(folder, "state")
        for name, (corpus, planted) in corpora.items():
            if options.only and name not in options.only.split(","):
                continue
            megabytes = os.path.getsize(corpus) / 1e6
            report = os.path.join(folder, "report")
            small = os.path.join(folder, "small")
            with open(corpus, "rb") as source, open(small, "wb") as target:
                target.write(source.read(options.peer_size * 1_000_000))
            programs: list[tuple[str, list[str], str | None, str | None, float]] = [
                (
                    "guard",
                    [sys.executable, "-m", "guard.redact", "--no-service"],
                    corpus,
                    os.path.join(folder, "out"),
                    megabytes,
                ),
                ("gzip -1", ["gzip", "-1", "-c"], corpus, os.path.join(folder, "gz"), megabytes),
            ]
            for peer, command, size in (
                (
                    "gitleaks",
                    ["gitleaks", "dir", corpus, "-r", report + ".json", "--exit-code", "0", "--no-banner"],
                    megabytes,
                ),
                (
                    "betterleaks",
                    ["betterleaks", corpus, "-o", report + ".jsonl", "--no-banner", "--silent"],
                    megabytes,
                ),
                (
                    "kingfisher",
                    [
                        "kingfisher",
                        "scan",
                        corpus,
                        "--no-update-check",
                        "--no-validate",
                        "--max-file-size",
                        "0",
                        "-o",
                        report + ".kf",
                        "--format",
                        "json",
                    ],
                    megabytes,
                ),
                (
                    "detect-secrets",
                    ["detect-secrets", "scan", "--all-files", small],
                    os.path.getsize(small) / 1e6,
                ),
            ):
                found = shutil.which(command[0], path=path)
                if found:
                    programs.append((peer, [found, *command[1:]], None, report + ".out", size))
                else:
                    sys.stderr.write(f"{peer}: not found, left out\n")
            for peer, command, source_path, out, size in programs:
                wall, cpu, peak, code = run(command, source_path, out)
                if code not in (0, 1, 200, 205):
                    sys.stderr.write(f"{peer}: ended with {code}, not counted\n")
                    continue
                recall = ""
                if peer == "guard" and planted:
                    text = contents(os.path.join(folder, "out"))
                    gone = sum(secret[-12:] not in text for secret in planted)
                    recall = f"{100 * gone / len(planted):.1f}"
                rows.append(
                    {
                        "corpus": name,
                        "program": peer,
                        "mb": round(size, 1),
                        "mb_per_s": round(size / wall, 1),
                        "mb_per_cpu_s": round(size / max(cpu, 1e-3), 1),
                        "peak_mb": round(peak / 1000),
                        "recall": recall,
                    }
                )
                print(
                    f"{name:9} {peer:15} {size:7.1f} MB {size / wall:8.1f} MB/s {size / max(cpu, 1e-3):8.1f} MB/cpu-s {peak / 1000:6.0f} MB peak {recall}",
                    flush=True,
                )
    if options.calls:
        latency(path, options.calls)
    if not options.no_hostile:
        hostile()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    slow = [row for row in rows if row["program"] == "guard" and row["mb_per_cpu_s"] < TARGETS[str(row["corpus"])]]
    for row in slow:
        print(f"below its target of {TARGETS[str(row['corpus'])]:.0f} MB/s: {row['corpus']}")


if __name__ == "__main__":
    main()
