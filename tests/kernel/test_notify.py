"""What the supervisor reads of a caller: what the kernel would read, from that caller, or nothing."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import signal
import threading
import time
from collections.abc import Callable

import pytest

from guard.kernel import MACHINE, notify
from guard.kernel.numbers import numbers
from tests.confine.caller import asking, calls_of

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
NUMBER = numbers(MACHINE)
PAGE = mmap.PAGESIZE


def _ask(call: str, *args: int) -> int:
    result: int = libc.syscall(ctypes.c_long(NUMBER[call]), *map(ctypes.c_long, args))
    return -ctypes.get_errno() if result < 0 else result


def _pages(content: bytes, protection: int = 3) -> int:
    """Two pages that end with this content, and none behind them."""
    start = libc.mmap(None, 3 * PAGE, 3, 0x22, -1, 0)
    libc.munmap(ctypes.c_void_p(start + 2 * PAGE), PAGE)
    ctypes.memmove(start + 2 * PAGE - len(content), content, len(content))
    libc.mprotect(ctypes.c_void_p(start), 2 * PAGE, protection)
    return int(start + 2 * PAGE - len(content))


def _one(act: Callable[[], object], look: Callable[[notify.Call], object], call: str = "umask") -> object:
    """What `look` finds, or the name of what it raises, for the first call of a child."""
    with asking(act, [call]) as (listener, _):
        one = next(calls_of(listener))
        try:
            return look(one)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        except (notify.Gone, notify.Unreadable) as state:
            return type(state).__name__
        finally:
            one.answer(0)


@pytest.mark.parametrize(
    ("address", "most", "found"),
    [
        (lambda: _pages(b"here\0"), 4096, b"here"),
        (lambda: _pages(b"\0"), 4096, b""),
        (lambda: _pages(b"x" * 4095 + b"\0"), 4096, b"x" * 4095),
        (lambda: _pages(b"x" * 4096 + b"\0"), 4096, "ENAMETOOLONG"),
        (lambda: _pages(b"no end"), 4096, "EFAULT"),
        (lambda: _pages(b"x" * PAGE), 2 * PAGE, "EFAULT"),
        (lambda: _pages(b"y" * 300 + b"\0" + b"z" * PAGE), 4096, b"y" * 300),
        (lambda: _pages(b"secret\0", 0), 4096, "EFAULT"),
        (lambda: 0, 4096, "EFAULT"),
        (lambda: 8, 4096, "EFAULT"),
        (lambda: (1 << 64) - 1, 4096, "EFAULT"),
        (lambda: 1 << 47, 4096, "EFAULT"),
    ],
)  # fmt: skip
def test_a_string_is_read_as_the_kernel_reads_it(address: Callable[[], int], most: int, found: object) -> None:
    assert _one(lambda: _ask("umask", address()), lambda call: call.string(call.args[0], most)) == found


@pytest.mark.parametrize(("length", "found"), [(0, b""), (5, b"bytes"), (6, "EFAULT"), (PAGE + 5, "EFAULT")])
def test_bytes_are_read_whole_or_not_at_all(length: int, found: object) -> None:
    assert _one(lambda: _ask("umask", _pages(b"bytes")), lambda call: call.read(call.args[0], length)) == found


def test_the_quick_way_to_read_is_the_one_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_(*_: object) -> int:
        raise AssertionError("went by /proc/PID/mem")

    monkeypatch.setattr(notify.os, "open", open_)
    assert _one(lambda: _ask("umask", _pages(b"a\0")), lambda call: call.string(call.args[0])) == b"a"


@pytest.mark.parametrize("lacking", ["_PROCESS_VM_READV", "_PIDFD_THREAD", "WAIT_KILLABLE_RECV"])
def test_older_kernels_are_served_too(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """Before 6.9 no descriptor of a thread, before 5.19 no killable wait, without CONFIG_CROSS_MEMORY_ATTACH no call."""
    monkeypatch.setattr(notify, lacking, 1 << 20)  # no such number, no such flag

    def look(call: notify.Call) -> object:
        fd = call.descriptor(1)
        os.close(fd)
        return call.string(call.args[0])

    assert _one(lambda: _ask("umask", _pages(b"a\0")), look) == b"a"


def test_more_than_a_page_is_read_whole() -> None:
    content = os.urandom(2 * PAGE)
    assert _one(lambda: _ask("umask", _pages(content)), lambda call: call.read(call.args[0], 2 * PAGE)) == content


@pytest.mark.parametrize("number", [99, -1, (1 << 31), 0xFFFFFFFF])
def test_a_descriptor_that_is_none_is_ebadf(number: int) -> None:
    assert _one(lambda: _ask("umask", 0), lambda call: call.descriptor(number)) == "EBADF"


def test_a_descriptor_of_a_thread_is_the_same_open_file() -> None:
    def act() -> None:
        read, write = os.pipe()
        thread = threading.Thread(target=lambda: _ask("umask", write))
        thread.start()
        thread.join()
        os.write(2, b"") if os.read(read, 5) == b"ours!" else os._exit(1)

    def look(call: notify.Call) -> object:
        fd = call.descriptor(call.args[0])
        os.write(fd, b"ours!")
        os.close(fd)
        return call.pid != call.status("Tgid")

    assert _one(act, look) is True


def test_who_makes_itself_unreadable_is_not_read() -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads it nevertheless")

    def act() -> None:
        libc.prctl(4, 0)
        _ask("umask", _pages(b"a\0"))

    assert _one(act, lambda call: call.string(call.args[0])) == "Unreadable"
    assert _one(act, lambda call: call.descriptor(0)) == "Unreadable"


@pytest.mark.parametrize("how", ["string", "descriptor", "status", "check", "after"])
def test_a_caller_that_was_killed_is_gone(how: str) -> None:
    with asking(lambda: _ask("umask", _pages(b"a\0")), ["umask"]) as (listener, child):
        call = next(calls_of(listener))
        os.kill(child, signal.SIGKILL)
        if how == "after":
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        looks: dict[str, Callable[[], object]] = {
            "string": lambda: call.string(call.args[0]),
            "descriptor": lambda: call.descriptor(0),
            "status": lambda: call.status("Umask", 8),
            "check": call.check,
            "after": lambda: call.read(call.args[0], 1),
        }
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                got = looks[how]()
            except notify.Gone:
                break
            if isinstance(got, int) and how == "descriptor":
                os.close(got)
        else:
            raise AssertionError("still there")
        call.answer(0)  # nobody to hear it is no error
        call.let_go()


def test_the_answer_is_the_result_or_the_error() -> None:
    def act() -> None:
        os._exit(0 if [_ask("umask", 0), _ask("umask", 1)] == [7, -errno.ETXTBSY] else 1)

    with asking(act, ["umask"]) as (listener, child):
        calls = calls_of(listener)
        next(calls).answer(7)
        next(calls).answer(0, errno.ETXTBSY)
        assert os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT).si_status == 0  # type: ignore[union-attr]


def test_signals_to_the_supervisor_lose_no_answer() -> None:
    """Each ioctl may wait for the listener's lock and be interrupted there: it is made again."""

    def act() -> None:
        def storm() -> None:
            for one in range(2000):
                if _ask("umask", one) != one % 512:
                    os._exit(1)

        threads = [threading.Thread(target=storm) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    done = threading.Event()

    def disturb(thread: int) -> None:  # no timer's signal: the one that ends a test that hangs is pytest's
        while not done.wait(0.0005):
            signal.pthread_kill(thread, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    disturbing = threading.Thread(target=disturb, args=(threading.get_ident(),), daemon=True)
    try:
        with asking(act, ["umask"]) as (listener, child):
            disturbing.start()
            answered = 0
            for call in calls_of(listener):
                call.check()
                call.answer(call.args[0] % 512)
                answered += 1
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            assert ended is not None
            assert (answered, ended.si_code, ended.si_status) == (8000, os.CLD_EXITED, 0)
    finally:
        done.set()
        disturbing.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_second_listener_below_the_first_is_busy() -> None:
    def act() -> None:
        try:
            notify.load_listener(b"\6\0\0\0\0\0\xff\x7f", 0)
        except OSError as error:
            _ask("umask", error.errno or 0)

    assert _one(act, lambda call: call.args[0]) == errno.EBUSY


def test_the_listener_tells_when_nobody_is_left() -> None:
    with asking(lambda: None, ["umask"]) as (listener, _):
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        assert poll.poll(20000)[0][1] & select.POLLHUP
