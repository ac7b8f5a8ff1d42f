"""No client of ssh notices guard between sshd and the shell, and the shell is confined."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import LONG, ROOT_HERE
from tests.entry.conftest import Way
from tests.system.terminal import Terminal


def test_the_shell_is_confined_and_nothing_of_guard_stands_between(way: Way) -> None:
    told = way.ssh("cat /proc/$$/status; echo policy=$GUARD_POLICY; cat /proc/$PPID/comm; echo shell=$SHELL; readlink /proc/$$/exe; true").stdout.decode()
    assert "NoNewPrivs:\t1" in told
    assert "Seccomp:\t2" in told
    assert "policy=shell" in told
    assert "\nsshd\n" in told
    assert "shell=/bin/bash" in told
    assert told.endswith("/usr/bin/bash\n")


def test_a_set_user_id_bit_is_refused_and_the_home_is_written(way: Way) -> None:
    done = way.ssh("cp /bin/true ~/t; chmod 755 ~/t; echo $?; chmod 4755 ~/t; echo $?; stat -c %a ~/t")
    assert done.stdout.decode().split() == ["0", "1", "755"]


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("exit 7", 7), ("kill -9 $$", 255), ("/nonexistent", 127)])
def test_exit_codes(way: Way, command: str, code: int) -> None:
    assert way.ssh(command).returncode == code


def test_every_byte_arrives_both_ways(way: Way) -> None:
    every = bytes(range(256)) * 4
    done = way.ssh("cat", input=every)
    assert (done.stdout, done.stderr, done.returncode) == (every, b"", 0)


def test_quoting_is_the_real_shells(way: Way) -> None:
    done = way.ssh("""printf '<%s>' "a  b" 'c$HOME' \\$x; echo err >&2""")
    assert (done.stdout, done.stderr) == (b"<a  b><c$HOME><$x>", b"err\n")


def test_a_hundred_megabytes_through_a_pipe(way: Way) -> None:
    size = (100 if LONG else 20) << 20
    block = os.urandom(1 << 20)
    whole = block * (size >> 20)
    done = way.ssh("cat", input=whole, timeout=300)
    assert len(done.stdout) == size
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(whole).digest()


def test_signals_are_as_a_login_gives_them(way: Way) -> None:
    """Python ignores SIGPIPE and SIGXFSZ, and what is ignored stays so over exec."""
    ignored = way.ssh("grep SigIgn /proc/$$/status").stdout.split()[1]
    assert int(ignored, 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)) == 0
    assert way.ssh("yes | head -n 1").stdout == b"y\n"


def test_a_script_on_standard_input_as_vs_code_starts(way: Way) -> None:
    """The bootstrap of Remote-SSH: a shell that reads a script from stdin and answers between marks."""
    from tests.beds.ports import free_port

    for shell in ("sh", "bash -s", "bash --login -c bash"):
        script = b"echo a1b2: running\nuname -m\necho 'listeningOn==1234=='\nexit 0\n"
        done = way.ssh(shell, options=("-T", "-D", str(free_port())), input=script)
        assert done.stdout.startswith(b"a1b2: running\n"), done
        assert done.stdout.endswith(b"listeningOn==1234==\n")


@pytest.mark.parametrize("protocol", ["-s", "-O"])
def test_scp(way: Way, protocol: str) -> None:
    data = os.urandom(300_000)
    way.account.write(way.place / "out", data)
    done = way.client("scp", "-F", str(way.server.config), protocol, str(way.place / "out"), "here:in")
    assert done.returncode == 0, done.stderr
    assert (way.account.home / "in").read_bytes() == data
    done = way.client("scp", "-F", str(way.server.config), protocol, "here:in", str(way.place / "back"))
    assert done.returncode == 0, done.stderr
    assert (way.place / "back").read_bytes() == data


@pytest.mark.parametrize("protocol", ["-s", "-O"])
@pytest.mark.parametrize("choice", ["plain", "refuse"])
def test_scp_where_the_policy_is_broken_is_what_the_site_chose(way: Way, choice: str, protocol: str) -> None:
    """The faults of test_faults.py come by a stand-in for ssh; this one by the real client and the real sshd."""
    data = os.urandom(50_000)
    way.account.write(way.place / "out", data)
    files = [
        way.account.write(way.config / "entry.toml", f'on_fault = "{choice}"\n'),
        way.account.write(way.config / "site.toml", "this is = = no toml\n"),
    ]
    name = f"{choice}{protocol}"
    try:
        done = way.client("scp", "-F", str(way.server.config), protocol, str(way.place / "out"), f"here:{name}")
    finally:
        for file in files:
            file.unlink()
    assert (done.returncode == 0) is (choice == "plain"), done.stderr
    if protocol == "-O":  # a subsystem's standard error stays with sshd
        assert "site.toml" in done.stderr, "and who comes in is told"
    copied = way.account.home / name
    assert (copied.read_bytes() if copied.exists() else b"") == (data if choice == "plain" else b"")


def test_sftp(way: Way) -> None:
    way.account.write(way.place / "put", b"x" * 70_000)
    done = way.client(
        "sftp", "-F", str(way.server.config), "-b", "-", "here",
        input=f"put {way.place}/put a\nrename a b\nget b {way.place}/got\nls -l b\n",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (way.place / "got").read_bytes() == b"x" * 70_000


def test_rsync(way: Way) -> None:
    if not shutil.which("rsync"):
        pytest.skip("not installed: rsync")
    for number in range(5):
        way.account.write(way.place / "tree" / str(number), os.urandom(5000))
    done = way.client("rsync", "-a", "--delete", f"{way.place}/tree/", "here:tree/")
    assert done.returncode == 0, done.stderr
    done = way.client("rsync", "-a", "here:tree/", f"{way.place}/again/")
    assert done.returncode == 0, done.stderr
    assert (way.place / "again/3").read_bytes() == (way.place / "tree/3").read_bytes()


def test_git_clone_and_push(way: Way) -> None:
    made = way.account.command(["sh", "-c", "rm -rf repo.git work && git init -q --bare -b main repo.git"])
    assert made.returncode == 0, made.stderr
    done = way.client("sh", "-c", (
        f"cd {way.place} && rm -rf work && git clone -q here:repo.git work && cd work && git checkout -qb main && echo x > f && git add f"
        " && git -c user.name=a -c user.email=a@b commit -qm one && git push -q origin main && git ls-remote here:repo.git main"
    ))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "refs/heads/main" in done.stdout


def test_fifty_sessions_at_once(way: Way) -> None:
    count = 50 if LONG else 20
    running = [
        subprocess.Popen(
            ["ssh", "-F", str(way.server.config), "here", f"cat; exit {number % 7}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=way.account.environment(), cwd=way.account.home, **way.account.identity(),  # type: ignore[call-overload]
        )
        for number in range(count)
    ]  # fmt: skip
    for number, process in enumerate(running):
        out, _ = process.communicate(f"{number}".encode(), timeout=120)
        assert (out, process.returncode) == (f"{number}".encode(), number % 7)


def test_ports_are_forwarded_as_sshd_allows(way: Way) -> None:
    """sshd forwards itself; -N starts no shell at all."""
    import socket
    import threading

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        threading.Thread(target=lambda: listener.accept()[0].sendall(b"through"), daemon=True).start()
        from tests.beds.ports import free_port

        port = free_port()
        client = subprocess.Popen(
            ["ssh", "-F", str(way.server.config), "-N", "-L", f"127.0.0.1:{port}:127.0.0.1:{listener.getsockname()[1]}", "here"],
            env=way.account.environment(), cwd=way.account.home, **way.account.identity(),  # type: ignore[call-overload]
        )  # fmt: skip
        try:
            end = time.monotonic() + 20
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as end_point:
                    assert end_point.recv(100) == b"through"
                    break
                assert time.monotonic() < end
                time.sleep(0.05)
        finally:
            client.kill()  # ssh may overlook a SIGTERM that comes as it begins to wait
            client.wait()


class Remote(Terminal):
    """An interactive session: ssh -tt on a terminal of ours."""

    def __init__(self, way: Way) -> None:
        if not ROOT_HERE:
            pytest.skip("needs root: an ordinary user's sshd gives no terminal")
        argv = ["ssh", "-F", str(way.server.config), "-tt", "here"]
        super().__init__(way.account, argv, way.account.home, {"TERM": "dumb"})

    def expect(self, text: str, seconds: float = 30) -> str:
        return super().expect(text, seconds)


def test_an_interactive_session(way: Way) -> None:
    """A prompt, ^C, ^Z and fg, a window that changes its size, and the exit code."""
    way.account.write(way.account.home / ".bash_profile", "PS1='@@> '\n")
    remote = Remote(way)
    try:
        remote.expect("@@> ")
        remote.type("echo $0-$-; shopt login_shell\r")
        told = remote.expect("@@> ")
        assert "-bash-" in told
        assert "m" in told.split("-bash-")[1].split("\r")[0], "job control"
        assert "login_shell    \ton" in told
        remote.type("sh -c 'echo be\"\"gun; exec sleep 60'\r")
        remote.expect("begun")
        remote.type("\x03")
        remote.expect("@@> ")
        remote.type("echo code=$?\r")
        assert "code=130" in remote.expect("@@> ")
        remote.type("sh -c 'echo be\"\"gun; exec sleep 8'\r")  # no fork: who is stopped in a vfork keeps its parent from stopping
        remote.expect("begun")
        remote.type("\x1a")
        remote.expect("Stopped")
        remote.expect("@@> ")
        remote.type("fg; echo back=$?\r")
        remote.expect("back=0")
        remote.expect("@@> ")
        termios.tcsetwinsize(remote.master, (33, 111))  # the kernel tells ssh
        end = time.monotonic() + 20
        while True:
            remote.type("stty size\r")
            if "33 111" in remote.expect("@@> "):
                break
            assert time.monotonic() < end
        remote.type("exit 42\r")
        remote.expect("logout")
        assert remote.wait(20) == 42
    finally:
        remote.close()
        for name in (".bash_profile", "gate"):
            (way.account.home / name).unlink(missing_ok=True)


def test_the_history_is_the_persons_and_the_hooks_are_in_force(way: Way) -> None:
    """Agents' policies hide histories; a person's shell reads and writes its own."""
    import random

    from guard.redact import samples

    home = way.account.home
    way.account.write(home / ".bashrc", "PS1='@@> '\n")
    way.account.write(home / ".bash_profile", ". ~/.bashrc\n")
    way.account.write(home / ".bash_history", "echo from-before\n", 0o600)
    assert way.account.cli("history", "install", "--shell", "bash").returncode == 0
    key = samples.fill("ghp_<crc62>", random.Random())[0]
    remote = Remote(way)
    try:
        remote.expect("@@> ")
        remote.type("history\r")
        assert "from-before" in remote.expect("@@> ")
        remote.type(f"echo {key}\r")
        remote.expect("@@> ")
        remote.type("exit\r")
        remote.wait(20)
    finally:
        remote.close()
    text = (home / ".bash_history").read_text()
    assert key[4:12] not in text
    assert "echo __REDACTED__" in text
    for name in (".bashrc", ".bash_profile", ".bash_history"):
        (home / name).unlink()


def test_forwarding_of_keys_and_displays_is_the_sites_to_decide(way: Way) -> None:
    env = {"SSH_AUTH_SOCK": "/tmp/agent", "DISPLAY": "localhost:10.0"}
    shown = way.account.command([str(way.config / "login"), "-c", "echo $SSH_AUTH_SOCK $DISPLAY"], env=env)
    assert shown.stdout == "/tmp/agent localhost:10.0\n", shown.stderr
    settings = way.account.write(way.config / "entry.toml", "forward_agent = false\nforward_x11 = false\n")
    hidden = way.account.command([str(way.config / "login"), "-c", "echo $SSH_AUTH_SOCK $DISPLAY"], env=env)
    settings.unlink()
    assert hidden.stdout == "\n"


def test_an_agents_account_is_fenced_whole(way: Way, tmp_path: Path) -> None:
    """`policy = "login-node"`: the recommended way for accounts that no person logs in to."""
    settings = way.account.write(way.config / "entry.toml", 'policy = "login-node"\n')
    try:
        done = way.ssh("echo x > ~/.bashrc; echo $?; cat ~/.ssh/id 2>/dev/null; echo $GUARD_POLICY; mkdir -p ~/guard-work 2>/dev/null; echo done")
        out = done.stdout.decode().split()
        assert out[0] == "1"
        assert "login-node" in out
        assert out[-1] == "done"
    finally:
        settings.unlink()
