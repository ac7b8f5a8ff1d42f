"""What a shell asks at its prompt has one answer, whether the compiled front gives it or the launcher behind it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from guard.history.line import CLEAN
from guard.redact import samples
from guard.redact.rules.formats import FORMATS
from tests.conftest import GUARD, LAUNCHER, ROOT_HERE, Account
from tests.exec import written
from tests.history.conftest import Service

SAID = tuple[int, bytes]


@pytest.fixture(scope="module")
def watched() -> Iterator[Path]:
    """The front alone, with every access to memory watched; a launcher that does not exist stands behind it."""
    path = written.build("guard", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    yield path
    shutil.rmtree(path.parent)


def ask(account: Account, program: str, words: list[str], data: bytes, env: dict[str, str] | None = None) -> SAID:
    done = subprocess.run(
        [program, "history", *words], input=data, capture_output=True, check=False, timeout=60, cwd=account.home,
        env=account.environment(env), **account.identity(),  # type: ignore[call-overload]
    )  # fmt: skip
    assert b"Sanitizer" not in done.stderr, done.stderr.decode()
    return done.returncode, done.stdout


def lines(rng: random.Random) -> list[bytes]:
    tokens = [samples.fill(row.samples[0], rng)[0] for row in rng.sample(FORMATS, 12) if row.samples]
    return [
        b"", b"\n", b"ls -la", b"mysql -u root -pS3cretPassw0rd db", b"echo [REDACTED:] [REDACTED:x] [REDACTED:X y] [REDACTED:" + b"a" * 70 + b"]",
        b"[REDACTED:", b"echo '\xff\xfe\x00'", b"rec --password=Abc9xyz1\nsecond\n", b"x" * 100_000 + b" --token " + b"Ab1" * 12,
        *(f"rec {token} tail".encode() for token in tokens),
    ]  # fmt: skip


@pytest.mark.parametrize("state", ["answers", "is absent", "hangs"])
def test_front_and_launcher_say_the_same(state: str, account: Account, service: Service) -> None:
    if state == "hangs":
        service.signal(signal.SIGSTOP)
    elif state == "is absent":
        service.stop()
    found = {}
    for line in lines(random.Random(state))[: None if state == "answers" else 5]:
        front = ask(account, GUARD, ["line"], line)
        assert front == ask(account, LAUNCHER, ["line"], line), line[:200]
        found[line] = front
    assert found[b"ls -la"] == (CLEAN, b"")
    assert found[b"mysql -u root -pS3cretPassw0rd db"] == (0, b"mysql -u root -p__REDACTED__ db")


def test_a_line_too_long_is_not_stored(account: Account, service: Service) -> None:
    assert {ask(account, program, ["line"], b"x" * ((1 << 20) + 1)) for program in (GUARD, LAUNCHER)} == {(3, b"")}


HISTORY = b"#+1700000000\n# a comment\n#+1700000001\nls\n#+1700000002\necho 'two\nlines'\n#+1700000003\n"


@pytest.mark.parametrize("program", [GUARD, LAUNCHER])
@pytest.mark.parametrize("name", ["before", "prompt"])
def test_tcshs_newest_line_goes_to_the_file_and_the_rest_comes_back(
    program: str, name: str, account: Account, service: Service
) -> None:
    file = account.write(account.directory() / "stored", "#+1600000000\nearlier\n")
    for line, stored in ((b"mysql -pS3cretPassw0rd db", b"mysql -p__REDACTED__ db"), (b"#x --password=S3cretPassw0rd", b"#x --password=__REDACTED__")):
        code, said = ask(account, program, ["tcsh", name, "0", str(file)], HISTORY + line + b"\n")
        assert code == 0
        answer, _, path = said.decode().strip().partition(" ")
        assert answer == "0"
        whole = Path(path).read_bytes()
        os.unlink(path)
        mended = stored if not stored.startswith(b"#") else b"\\" + stored  # which `history -L` would drop
        assert whole == HISTORY.replace(b"\n# a", b"\n\\# a") + mended + b"\n"
        assert file.read_bytes().endswith(b"#+1700000003\n" + stored + b"\n")
    size = file.stat().st_size
    assert ask(account, program, ["tcsh", name, "0", str(file)], HISTORY + b"ls -la\n") == (0, b"1\n")
    assert file.read_bytes()[size:] == b"#+1700000003\nls -la\n"
    ask(account, program, ["tcsh", name, "0", str(file)], HISTORY + b"ls -la\n")
    assert file.read_bytes()[size:] == b"#+1700000003\nls -la\n", "an empty line at the prompt brings nothing new"
    assert ask(account, program, ["tcsh", name, "0", str(file)], b"") == (4, b"")


@pytest.mark.parametrize("program", [GUARD, LAUNCHER])
def test_fish_reads_what_is_appended(program: str, account: Account) -> None:
    data = account.directory("data")
    file = account.write(data / "fish/fish_history", "- cmd: one\n  when: 1\n")
    env = {"XDG_DATA_HOME": str(data)}
    assert ask(account, program, ["fish", "fish"], b"two\\x\nthree", env) == (0, b"")
    assert file.read_bytes().startswith(b"- cmd: one\n  when: 1\n- cmd: two\\\\x\\nthree\n  when: 1")
    assert ask(account, program, ["fish", "../../x"], b"two", env) == (3, b"")


class Liar:
    """A service that answers whatever a test wants; closes the connection behind it."""

    def __init__(self, account: Account) -> None:
        self.place = account.directory("liar") / "socket"
        self.answer = b""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.place))
        if ROOT_HERE:
            os.chown(self.place, account.uid, account.gid)
        self.listener.listen(8)
        self.asked = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, suppress(BrokenPipeError):
                self.asked += bool(connection.recv(1 << 16))
                connection.sendall(self.answer)


@pytest.fixture
def liar(account: Account) -> Iterator[Liar]:
    made = Liar(account)
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"no\n", b"ok\n", b"ok x\n", b"ok 5\n", b"ok 5\nabc", b"ok 0\n", b"ok -1\n", b"ok 99999999999999999999\nx", b"x" * 200, b"ok 18446744073709551615\nx"],
)
def test_what_makes_no_sense_is_no_answer(answer: bytes, account: Account, liar: Liar, watched: Path) -> None:
    liar.answer = answer
    env = {"GUARD_REDACT_SOCKET": str(liar.place)}
    assert ask(account, GUARD, ["line"], b"mysql -pS3cretPassw0rd db", env) == (0, b"mysql -p__REDACTED__ db")
    code, said = ask(account, str(watched), ["line"], b"mysql -pS3cretPassw0rd db", env)
    assert (code, said) == (125, b""), "handed on to the launcher"
    assert liar.asked >= 1


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_answered_memory_stays_whole(seed: int, account: Account, liar: Liar, watched: Path) -> None:
    chance = random.Random(seed)
    parts = [b"[REDACTED:", b"[REDACTED:x]", b"]", b"a", b"-:", b"\n", b"#+12\n", b"\0", b"[REDACTED:" + b"k" * 59 + b"]", b"#+1700000000\n#"]
    env = {"GUARD_REDACT_SOCKET": str(liar.place), "ASAN_OPTIONS": "detect_leaks=0"}
    for _ in range(12):
        body = b"".join(chance.choice(parts) for _ in range(chance.randrange(12))) + b"\n"
        liar.answer = b"ok %d\n%s" % (len(body), body)
        text = b"".join(chance.choice(parts) for _ in range(chance.randrange(12)))
        assert ask(account, str(watched), ["line"], text, env)[0] in (0, CLEAN)
        code, said = ask(account, str(watched), ["tcsh", "before", "0", ""], b"#+1700000000\n" + text, env)
        assert code in (0, 4, 125)
        if said.startswith(b"0 "):
            os.unlink(said[2:-1])


@pytest.mark.root
def test_another_users_service_is_not_asked(account: Account, liar: Liar) -> None:
    """The socket may lie where a user can write: who answers is asked of the kernel."""
    liar.answer = b"ok 8\nnothing\n"  # served by root here, so it is believed
    env = {"GUARD_REDACT_SOCKET": str(liar.place)}
    assert ask(account, GUARD, ["line"], b"mysql -pS3cretPassw0rd db", env) == (0, b"nothing")
    script = (
        "import os, socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777); s.listen()\nprint(flush=True)\n"
        "while True:\n c = s.accept()[0]; c.recv(9999); c.sendall(b'ok 8\\nnothing\\n'); c.close()\n"
    )
    folder = account.directory("stranger")
    folder.chmod(0o777)
    stranger = subprocess.Popen(["/usr/bin/python3", "-c", script, str(folder / "s")], stdout=subprocess.PIPE, user=65534, group=65534, extra_groups=[])
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        env = {"GUARD_REDACT_SOCKET": str(folder / "s")}
        for program in (GUARD, LAUNCHER):
            assert ask(account, program, ["line"], b"mysql -pS3cretPassw0rd db", env) == (0, b"mysql -p__REDACTED__ db")
    finally:
        stranger.kill()
        stranger.communicate()
