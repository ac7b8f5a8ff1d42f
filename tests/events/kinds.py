"""One event of every kind that guard makes, with nothing in them that differs from run to run."""

from __future__ import annotations

from guard.events.model import CONTROLS, Event

SESSION = "018f2d5e-0000-7000-8f62-3aaa5840726a"
WORLD = {"object": "/home/ann/x y", "count": 3, "explain": "other-write lets anybody change it", "allow": "chmod o-w"}
EXPOSURE = {
    "fingerprint": "ab" * 32, "key_id": "k1", "kind": "github-pat", "incident": True, "confidence": "high",
    "file": "/home/ann/.bash_history", "line": 7, "offset": 12, "length": 40, "advice": "revoke it at the provider",
}  # fmt: skip
LOW, MEDIUM, HIGH, CRITICAL, INFO = "low", "medium", "high", "critical", "info"

# name → (control, rule, severity, verdict, detail, message)
ROWS: dict[str, tuple[str, str, str, str, dict[str, object], str]] = {
    "files-denied": ("files", "read-denied", MEDIUM, "denied", {"object": "/home/ann/.ssh/id", "allow": "[files] read"}, "files: a read was denied"),
    "files-log": ("files", "read", INFO, "observed", {"object": "/usr/bin/x"}, "files: read"),
    "metadata": ("metadata", "metadata-outside", MEDIUM, "would_deny", {"object": "[PATH:0123456789ab]"}, "metadata: would be denied"),
    "world-writable": ("world-writable", "chmod", MEDIUM, "rewritten", WORLD, "world-writable: done without the bit"),
    "world-writable-low": ("world-writable", "sticky", LOW, "observed", WORLD, "world-writable: a sticky directory"),
    "setuid": ("setuid", "chmod", HIGH, "denied", {"object": "/tmp/sh"}, "setuid: denied"),
    "bind": ("bind", "bind-wildcard", MEDIUM, "rewritten", {"address": "0.0.0.0", "port": 8080}, "bind: a wildcard became loopback"),
    "bind-log": ("bind", "bind-loopback", INFO, "observed", {"object": "[::1]:9000"}, "bind: loopback"),
    "connect": ("connect", "connect-refused", HIGH, "denied", {"address": "169.254.169.254", "port": 80}, "connect: refused"),
    "unix-sockets": ("unix-sockets", "outside", LOW, "denied", {"object": "/run/docker.sock"}, "unix-sockets: refused"),
    "pipe-to-shell": ("pipe-to-shell", "curl-sh", CRITICAL, "killed", {"command": "bash", "explain": "code from outside"}, "pipe-to-shell: killed"),
    "processes": ("processes", "signal-outside", MEDIUM, "denied", {"object": "pid 4"}, "processes: refused"),
    "kernel-surface": ("kernel-surface", "bpf", MEDIUM, "denied", {"object": "bpf"}, "kernel-surface: refused"),
    "limits": ("limits", "processes", LOW, "observed", {"limit": 400}, "limits: reached"),
    "hand-off": ("hand-off", "sbatch", MEDIUM, "observed", {"command": "sbatch"}, "hand-off: a job was submitted"),
    "rates": ("rates", "squeue", LOW, "observed", {"count": 400}, "rates: the scheduler was asked often"),
    "flood": ("rates", "flood", MEDIUM, "observed",
              {"count": 996, "first": "2026-11-30T10:00:00.000000Z", "last": "2026-11-30T11:00:00.000000Z",
               "counts": {"world-writable/chmod": 996}, "objects": ["/home/ann/1"]}, "996 more findings of 1 rules in one tree"),
    "exposure": ("exposure", "secret", HIGH, "observed", EXPOSURE, "a github-pat was seen"),
    "exposure-unsure": ("exposure", "secret", LOW, "observed", {"kind": "password", "fingerprint": None, "object": "stdin"}, "a password was seen"),
    "incident": ("exposure", "incident-opened", CRITICAL, "observed", {**EXPOSURE, "status": "new", "assignee": "bob"}, "an incident was opened"),
    "harness": ("harness", "unwrapped", MEDIUM, "observed", {"command": "claude"}, "an agent runs without guard"),
    "session-start": ("session", "session-start", INFO, "observed", {"version": "0.1.0", "layers": ["base.toml"], "audit": False}, "claude started under login-node"),
    "session-stop": ("session", "session-stop", INFO, "observed", {"exit": 3}, "session ended, exit 3"),
    "start-refused": ("session", "start-refused", MEDIUM, "denied", {"control": "files", "reason": "[WITHHELD]"}, "a start was refused"),
    "heartbeat": ("telemetry", "heartbeat", INFO, "observed", {"every_s": 300, "position": 9, "chain": "00" * 32}, "this node's events are kept"),
    "loss": ("telemetry", "events-lost", MEDIUM, "observed", {"lost": 12, "stages": {"ration": {"uid 7": 12}}}, "12 events were lost"),
    "odd": ("files", "read-denied", HIGH, "denied", {"object": "/a|b=c\\d\ne", "deep": [{"x": None, "y": 1.5, "z": [True]}]}, "odd | = \\ text"),
}  # fmt: skip
BARE = ("loss", "heartbeat", "flood", "harness")


def event(name: str) -> Event:
    """The event of that name."""
    control, rule, severity, verdict, detail, message = ROWS[name]
    process: dict[str, object] = {"pid": 4242, "ppid": 4241, "exe": "/usr/bin/chmod", "argv": ["chmod", "777", "a b"], "argc": 3, "cwd": "/home/ann/p"}
    tree: dict[str, object] = {"session": SESSION, "harness": "claude", "root_pid": 4200, "uid": 1000, "user": "ann", "slurm_job_id": 12}
    if name in BARE:
        process, tree = {}, {}
    number = list(ROWS).index(name) + 1
    return Event.from_plain({
        "schema": 1, "id": f"018f2d5e-0000-7000-8000-{number:012x}", "time": "2026-11-30T16:24:32.123456Z", "host": "login1",
        "boot": "7d6b2f6e-6f0f-4c53-8d9d-0c3a4b1e2f30", "producer": "monitor", "seq": number, "origin": "kernel",
        "control": control, "rule": rule, "severity": severity, "verdict": verdict, "tree": tree, "process": process,
        "policy": {} if name in BARE else {"name": "login-node", "digest": "cd" * 32}, "detail": detail,
        "mitre": ["T1222.002", "T1059", "TA0002"] if severity != INFO else [], "message": message,
    })  # fmt: skip


assert {row[0] for row in ROWS.values()} == set(CONTROLS), "a kind of event has no row"
