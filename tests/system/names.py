"""Make socket calls with every kind of address and print what each answered: {name: errno, or several}.

    names.py DIRECTORY

Run once bare and once under guard, so that a test can compare call by call. Nothing is asked for that a policy
refuses. Standard library only: it is copied into throw-away projects.
"""

import ctypes
import json
import os
import socket
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {"connect": 42, "sendto": 44, "bind": 49, "listen": 50}
if os.uname().machine == "aarch64":
    NUMBERS = {"bind": 200, "listen": 201, "connect": 203, "sendto": 206}
BAD = 8  # no address
NOSIGNAL = 0x4000
V4, V6, UNIX, UNSPEC, ODD = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 0, 77
STREAM, DGRAM, SEQPACKET = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET


def call(name, *args):
    held = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) for a in args]
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(NUMBERS[name]), *held) < 0 else 0


def four(port, host="127.0.0.1", family=V4):
    return struct.pack("=H", family) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)


def six(port, host="::1", scope=0):
    head = struct.pack("=H", V6) + struct.pack("!H", port) + bytes(4)
    return head + socket.inet_pton(V6, host) + struct.pack("=I", scope)


def unix(path):
    return struct.pack("=H", UNIX) + path


def addresses(closed):
    """Addresses that nobody serves, and bytes that are none; `closed` is a port that is free."""
    yield from {"v4 port 0": four(0), "v4 closed": four(closed), "v4 any port 0": four(0, "0.0.0.0")}.items()
    yield from {"v6 port 0": six(0), "v6 any port 0": six(0, "::"), "v6 scoped": six(0, scope=1)}.items()
    yield from {"mapped port 0": six(0, "::ffff:127.0.0.1"), "v4 long": four(0) + bytes(84)}.items()
    yield from {"v4 longest": four(0) + bytes(112), "odd family": four(0, family=ODD)}.items()
    yield from {"odd short": struct.pack("=H", ODD), "unspec v4": four(0, family=UNSPEC), "one byte": b"\2"}.items()
    yield from ((f"unspec {size}", bytes(size)) for size in (2, 16, 28))
    yield from ((f"v4 of {size}", four(0)[:size]) for size in (2, 4, 8, 15))
    yield from ((f"v4 closed of {size}", four(closed)[:size]) for size in (8, 15))
    yield from ((f"v6 of {size}", six(0)[:size]) for size in (16, 23, 24))
    yield from ((f"v6 closed of {size}", six(closed)[:size]) for size in (24, 27))
    for name in ("none\0", "plain\0", ".\0", "", "\0", "no nul", "plain/below\0", "no/where\0", f"\0none{closed}"):
        yield f"unix {name!r}".replace(str(closed), ""), unix(name.encode())
    yield from ((f"unix of {size}", unix(b"x" * size)) for size in (108, 109, 120))


def rows():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = free.getsockname()[1]
    kinds = [(V4, STREAM), (V4, DGRAM), (V6, STREAM), (V6, DGRAM), (UNIX, STREAM), (UNIX, SEQPACKET)]
    for kind in kinds:
        what = f"{kind[0]:d} {kind[1]:d}"
        for name, raw in (*addresses(closed), ("length 0", b"")):
            for act in ("bind", "connect"):
                yield f"{act} {what} {name}", kind, lambda fd, act=act, raw=raw: call(act, fd, raw, len(raw))
            yield (
                f"sendto {what} {name}",
                kind,
                lambda fd, raw=raw: call("sendto", fd, b"x", 1, NOSIGNAL, raw, len(raw)),
            )
        for length in (129, -1):
            for act in ("bind", "connect"):
                yield f"{act} {what} length {length}", kind, lambda fd, a=act, n=length: call(a, fd, bytes(200), n)
            yield (
                f"sendto {what} length {length}",
                kind,
                lambda fd, n=length: call("sendto", fd, b"", 0, 0, bytes(200), n),
            )
        for act in ("bind", "connect"):
            yield f"{act} {what} no address", kind, lambda fd, act=act: call(act, fd, 0, 16)
            yield f"{act} {what} bad address", kind, lambda fd, act=act: call(act, fd, BAD, 16)
            yield f"{act} {what} twice", kind, lambda fd, act=act: [call(act, fd, four(0), 16) for _ in range(2)]
            yield (
                f"{act} {what} and undone",
                kind,
                lambda fd, act=act: [call(act, fd, raw, len(raw)) for raw in (four(closed), bytes(16), bytes(2))],
            )
        yield f"sendto {what} bad address", kind, lambda fd: call("sendto", fd, b"x", 1, NOSIGNAL, BAD, 16)
        yield f"sendto {what} out of band", kind, lambda fd: call("sendto", fd, b"x", 1, NOSIGNAL | 1, four(closed), 16)
        yield f"listen {what}", kind, lambda fd: [call("listen", fd, 1), call("listen", fd, -1)]
        yield f"listen {what} and connect", kind, lambda fd: [call("listen", fd, 1), call("connect", fd, four(0), 16)]
    for act in NUMBERS:
        for what in ("closed", "a file", "a place"):
            for name, raw in (("", four(0)), *((("bad address", BAD), ("length 0", b"")) if what == "closed" else ())):
                length = len(raw) if isinstance(raw, bytes) else 16
                words = {"listen": (1,), "sendto": (b"x", 1, 0, raw, length)}.get(act, (raw, length))
                yield f"{act} {what} {name}", what, lambda fd, act=act, words=words: call(act, fd, *words)


def main():
    os.mkdir(sys.argv[1])
    os.chdir(sys.argv[1])
    open("plain", "w").close()
    files = {"closed": -1, "a file": os.open("plain", os.O_RDONLY), "a place": os.open("plain", os.O_PATH)}
    found = {}
    for name, kind, act in rows():
        assert name not in found, name
        if isinstance(kind, str):
            found[name] = act(files[kind])
            continue
        try:
            with socket.socket(*kind) as new:
                found[name] = act(new.fileno())
        except OSError as error:  # a host without IPv6
            found[name] = [error.errno]
        for left in os.listdir("."):
            if left != "plain":
                os.unlink(left)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
