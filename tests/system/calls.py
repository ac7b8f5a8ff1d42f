"""Make every call of a table and print what each answered: {name: [errno, what the file is like afterwards]}.

    calls.py DIRECTORY

Run once bare and once under guard in equal directories, so that a test can compare call by call. Standard
library only: it is copied into throw-away projects.
"""

import ctypes
import json
import os
import socket
import stat
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS = {
    "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "utime": 132, "setxattr": 188,
    "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "utimes": 235,
    "fchownat": 260, "futimesat": 261, "fchmodat": 268, "utimensat": 280, "fchmodat2": 452, "umask": 95,
    "sched_setaffinity": 203, "setpriority": 141,
}  # fmt: skip
if os.uname().machine == "aarch64":
    NUMBERS = {
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "utimensat": 88, "fchmodat2": 452, "umask": 166,
        "sched_setaffinity": 122, "setpriority": 140,
    }  # fmt: skip
AT_FDCWD, NOFOLLOW, EMPTY = -100, 0x100, 0x1000
BAD = 8  # no address
NOW, OMIT = 0x3FFFFFFF, 0x3FFFFFFE


def call(name, *args):
    if name not in NUMBERS:
        return None
    held = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(NUMBERS[name]), *held)
    return ctypes.get_errno() if result < 0 else 0


def times(*parts):
    return (ctypes.c_long * len(parts))(*parts)


def at_page_end(text):
    """The address of a string whose NUL is the last byte before memory that is not there."""
    import mmap

    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    size = mmap.PAGESIZE
    start = libc.mmap(None, 3 * size, 3, 0x22, -1, 0)
    libc.munmap(ctypes.c_void_p(start + 2 * size), size)
    ctypes.memmove(start + 2 * size - len(text), text, len(text))
    return start + 2 * size - len(text)


def furnish():
    for name in ("file", "other", "inner/file", "setup"):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w") as file:
            file.write("x")
        os.chmod(name, 0o640)
    os.mkdir("directory", 0o755)
    os.mkdir("closed")
    os.makedirs("closed/below")
    os.symlink("file", "link")
    os.symlink("link", "link-to-link")
    os.symlink("nothing", "dangling")
    os.symlink("round", "round")
    os.symlink("inner/", "slash-link")
    os.symlink("file/", "file-slash-link")
    os.symlink(os.path.abspath("inner"), "absolute-link")
    os.symlink("/proc/self/cwd/file", "proc-link")
    os.symlink("../" + os.path.basename(os.getcwd()) + "/file", "dotted-link")
    for number in range(45):
        os.symlink(f"chain-{number + 1}" if number < 44 else "file", f"chain-{number}")
    os.link("other", "hard")
    os.mkfifo("fifo", 0o600)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
    os.chmod("closed", 0)


def rows():
    """(name, file to look at afterwards or None, call)."""
    fd = os.open("file", os.O_RDWR)
    path_only = os.open("file", os.O_PATH)
    link_fd = os.open("link", os.O_PATH | os.O_NOFOLLOW)
    here = os.open(".", os.O_RDONLY)
    inner = os.open("inner", os.O_PATH)
    reading, _ = os.pipe()
    memory = os.memfd_create("m")
    one = socket.socketpair()[0].detach()
    gone = os.open("gone", os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink("gone")
    full = os.path.abspath("file").encode()
    for mode in (0o600, 0o755, 0o400, 0, 0o664, 0o1750, 0o100644, 0o7000_0640):
        yield f"chmod {mode:o}", "file", lambda mode=mode: call("chmod", b"file", mode)
    paths = [
        b"file", full, b"./file", b"inner/../file", b"inner//file", b"link", b"link-to-link", b"dangling", b"round",
        b"nothing", b"file/", b"file/.", b"file/..", b"file/x", b"inner/", b"inner/.", b".", b"..", b"", b"directory/",
        b"closed/below", b"closed/.", b"closed/nothing", b"closed", b"x" * 255, b"x" * 256, b"x/" * 2047 + b"x",
        b"x/" * 2048 + b"x", b"./" * 2000 + b"file", b"absolute-link/file", b"slash-link", b"slash-link/file",
        b"file-slash-link", b"proc-link", b"dotted-link", b"chain-44", b"chain-5", b"chain-4", b"chain-0", b"link/",
        b"link/x", b"hard", b"fifo", b"socket", b"/proc/self/cwd/file", b"/proc/thread-self/cwd/file",
        b"/proc/self/root" + full, b"/proc/self/fd/%d" % fd, b"/proc/thread-self/fd/%d" % fd, b"/dev/fd/%d" % fd,
        b"/proc/self/fd/%d" % path_only, b"/proc/self/fd/%d" % link_fd, b"/proc/self/fd/%d/file" % here,
        b"/proc/self/fd/%d" % gone, b"/proc/self/fd/%d" % reading, b"/proc/self/fd/%d" % memory,
        b"/proc/self/fd/%d" % one, b"/proc/self/fd/999", b"/proc/self/fd", b"/proc/%d/cwd/file" % os.getpid(),
        b"/proc/self/task/%d/cwd/file" % threading.get_native_id(), b"/proc/self/nothing", b"/nothing/x", b"//" + full,
        b"/proc/999999999/cwd/file", b"/proc/self/cwd/../" + os.path.basename(os.getcwd()).encode() + b"/file",
    ]  # fmt: skip
    for number, path in enumerate(paths):
        name = "/proc" if b"proc" in path or b"/dev" in path else path[:24].decode() if path[:1] != b"/" else "absolute"
        mode = 0o700 if number % 2 else 0o750
        yield f"chmod {number} {name}", None, lambda path=path, mode=mode: call("chmod", path, mode)
        yield f"utimensat {number} {name}", None, lambda path=path: call(
            "utimensat", AT_FDCWD, path, times(5, 0, 6, 0), 0
        )
        yield f"lutimes {number} {name}", None, lambda path=path: call(
            "utimensat", AT_FDCWD, path, times(7, 0, 8, 0), NOFOLLOW
        )
        yield f"lchown {number} {name}", None, lambda path=path: call("fchownat", AT_FDCWD, path, -1, -1, NOFOLLOW)
        yield f"lsetxattr {number} {name}", None, lambda path=path: call("lsetxattr", path, b"user.a", b"v", 1, 0)
        yield f"fchmodat {number} {name}", None, lambda path=path: call("fchmodat", inner, path, 0o700)
        yield f"fchmodat2 nofollow {number} {name}", None, lambda path=path: call(
            "fchmodat2", AT_FDCWD, path, 0o700, NOFOLLOW
        )
    yield "page end", "file", lambda: call("chmod", at_page_end(b"file\0"), 0o604)
    yield "page end without NUL", "file", lambda: call("chmod", at_page_end(b"file"), 0o640)
    yield "chmod null", None, lambda: call("chmod", 0, 0o600)
    yield "chmod bad address", None, lambda: call("chmod", BAD, 0o600)
    yield "chmod high address", None, lambda: call("chmod", -1, 0o600)
    for name, number in (("fd", fd), ("path", path_only), ("link", link_fd), ("directory", here), ("pipe", reading),
                         ("memfd", memory), ("socket", one), ("gone", gone), ("none", 999), ("minus", -1),
                         ("cwd", AT_FDCWD), ("high", (1 << 32) + fd)):  # fmt: skip
        yield f"fchmod {name}", None, lambda number=number: call("fchmod", number, 0o700)
        yield f"fchown {name}", None, lambda number=number: call("fchown", number, -1, -1)
        yield f"futimens {name}", None, lambda number=number: call("utimensat", number, 0, times(5, 0, 6, 0), 0)
        yield f"futimens null {name}", None, lambda number=number: call("utimensat", number, 0, 0, 0)
        yield f"futimens flags {name}", None, lambda number=number: call("utimensat", number, 0, 0, NOFOLLOW)
        yield f"futimesat {name}", None, lambda number=number: call("futimesat", number, 0, times(5, 0, 6, 0))
        yield f"fsetxattr {name}", None, lambda number=number: call("fsetxattr", number, b"user.b", b"v", 1, 0)
        yield f"fremovexattr {name}", None, lambda number=number: call("fremovexattr", number, b"user.b")
        yield f"fchmodat2 empty {name}", None, lambda number=number: call("fchmodat2", number, b"", 0o700, EMPTY)
        yield f"fchownat empty {name}", None, lambda number=number: call("fchownat", number, b"", -1, -1, EMPTY)
        yield f"utimensat empty {name}", None, lambda number=number: call("utimensat", number, b"", 0, EMPTY)
        yield f"fchmodat relative {name}", None, lambda number=number: call("fchmodat", number, b"file", 0o640)
        yield f"fchmodat absolute {name}", None, lambda number=number: call("fchmodat", number, full, 0o640)
    yield "fchmodat2 flags", None, lambda: call("fchmodat2", AT_FDCWD, b"file", 0o600, 0x800)
    yield "fchownat flags", None, lambda: call("fchownat", AT_FDCWD, b"file", -1, -1, 0x800)
    yield "utimensat flags", None, lambda: call("utimensat", AT_FDCWD, b"file", 0, 0x800)
    yield "chown to root", None, lambda: call("chown", b"file", 0, -1)
    yield "chown to root's group", None, lambda: call("chown", b"file", -1, 0)
    yield "chown to oneself", None, lambda: call("chown", b"file", os.getuid(), os.getgid())
    yield "lchown", None, lambda: call("lchown", b"dangling", -1, -1)
    for name, value in (("now", times(0, NOW, 0, NOW)), ("omit", times(0, OMIT, 0, OMIT)),
                        ("wrong", times(0, -1, 0, 0)), ("nanoseconds", times(5, 999999999, 6, 1)),
                        ("too many", times(0, 10**9, 0, 0)),
                        ("one", times(9, 0, 0, OMIT)), ("now, omit", times(0, NOW, 0, OMIT))):  # fmt: skip
        yield f"utimensat {name}", None, lambda value=value: call("utimensat", AT_FDCWD, b"file", value, 0)
        yield f"utimensat {name} nothing", None, lambda value=value: call("utimensat", AT_FDCWD, b"nothing", value, 0)
        yield f"utimes {name}", None, lambda value=value: call("utimes", b"file", value)
    yield "utimensat bad times", None, lambda: call("utimensat", AT_FDCWD, b"file", BAD, 0)
    yield "utimensat bad path", None, lambda: call("utimensat", AT_FDCWD, BAD, 0, 0)
    yield "utimensat null path", None, lambda: call("utimensat", AT_FDCWD, 0, 0, 0)
    yield "utime", None, lambda: call("utime", b"file", times(3, 4))
    yield "utime null", None, lambda: call("utime", b"file", 0)
    yield "utime bad", None, lambda: call("utime", b"file", BAD)
    yield "utimes microseconds", None, lambda: call("utimes", b"file", times(3, 999999, 4, 1000000))
    for path in (b"file", b"link", b"directory", b"fifo", b"dangling", b"nothing", b""):
        for how in ("setxattr", "lsetxattr"):
            yield f"{how} {path.decode()}", None, lambda path=path, how=how: call(how, path, b"user.c", b"value", 5, 0)
        for how in ("removexattr", "lremovexattr"):
            for name in (b"user.c", b"user.none"):
                yield f"{how} {path.decode()} {name.decode()}", None, lambda path=path, how=how, name=name: call(
                    how, path, name
                )
    yield "setxattr create", None, lambda: call("setxattr", b"file", b"user.d", b"v", 1, 1)
    yield "setxattr create again", None, lambda: call("setxattr", b"file", b"user.d", b"v", 1, 1)
    yield "setxattr replace", None, lambda: call("setxattr", b"file", b"user.e", b"v", 1, 2)
    yield "setxattr flags", None, lambda: call("setxattr", b"file", b"user.e", b"v", 1, 4)
    yield "setxattr empty", None, lambda: call("setxattr", b"file", b"user.f", b"", 0, 0)
    yield "setxattr no name", None, lambda: call("setxattr", b"file", b"", b"v", 1, 0)
    yield "setxattr user.", None, lambda: call("setxattr", b"file", b"user.", b"v", 1, 0)
    yield "setxattr long name", None, lambda: call("setxattr", b"file", b"user." + b"x" * 250, b"v", 1, 0)
    yield "setxattr too long a name", None, lambda: call("setxattr", b"file", b"user." + b"x" * 251, b"v", 1, 0)
    yield "setxattr bad name", None, lambda: call("setxattr", b"file", BAD, b"v", 1, 0)
    yield "setxattr bad value", None, lambda: call("setxattr", b"file", b"user.g", BAD, 1, 0)
    yield "setxattr large", None, lambda: call("setxattr", b"file", b"user.h", b"x" * 3000, 3000, 0)
    yield "setxattr too large", None, lambda: call("setxattr", b"file", b"user.h", b"x" * 65537, 65537, 0)
    yield "setxattr no name space", None, lambda: call("setxattr", b"file", b"nothing.a", b"v", 1, 0)
    yield "acl empty", None, lambda: call("setxattr", b"file", b"system.posix_acl_access", b"\2\0\0\0", 4, 0)
    yield "acl short", None, lambda: call("setxattr", b"file", b"system.posix_acl_access", b"\2\0\0\0\1", 5, 0)
    yield "acl default of a file", None, lambda: call(
        "setxattr", b"file", b"system.posix_acl_default", ACL, len(ACL), 0
    )
    yield "acl", "file", lambda: call("setxattr", b"file", b"system.posix_acl_access", ACL, len(ACL), 0)
    yield "acl through a link", "file", lambda: call("lsetxattr", b"link", b"system.posix_acl_access", ACL, len(ACL), 0)
    yield "acl default", None, lambda: call("setxattr", b"directory", b"system.posix_acl_default", ACL, len(ACL), 0)
    yield "acl removed", "file", lambda: call("removexattr", b"file", b"system.posix_acl_access")
    yield "umask 077", None, lambda: os.umask(0o077)
    yield "umask told", None, lambda: os.umask(0o022)
    yield "umask 022", None, lambda: os.umask(0o027)
    yield "umask 027", None, lambda: os.umask(0o022)
    yield "affinity of oneself", None, lambda: call("sched_setaffinity", os.getpid(), 8, times(-1))
    yield "affinity of a thread", None, lambda: call("sched_setaffinity", threading.get_native_id(), 8, times(-1))
    yield "affinity of nobody", None, lambda: call("sched_setaffinity", 999999999, 8, times(-1))
    yield "priority of nobody", None, lambda: call("setpriority", 0, 999999999, 5)
    yield "priority of oneself", None, lambda: call("setpriority", 0, os.getpid(), 1)
    yield "priority back", None, lambda: call("setpriority", 0, os.getpid(), 0)
    # What belongs to others is refused by the kernel itself.
    for path in (b"/etc/passwd", b"/etc", b"/proc/1", b"/proc/self", b"/proc/self/status", b"/dev/null", b"/bin/env"):
        yield f"chmod {path.decode()}", None, lambda path=path: call("chmod", path, 0o644)
        yield f"chown {path.decode()}", None, lambda path=path: call("chown", path, os.getuid(), -1)
        yield f"utimes {path.decode()}", None, lambda path=path: call("utimensat", AT_FDCWD, path, times(1, 0, 1, 0), 0)
        yield f"setxattr {path.decode()}", None, lambda path=path: call("setxattr", path, b"user.a", b"v", 1, 0)


# user::rw-, group::r--, mask::r--, other::r--, and named user 12345 r--
ACL = b"".join(
    int.to_bytes(word, size, "little")
    for word, size in (
        (2, 4),
        (1, 2), (6, 2), (0xFFFFFFFF, 4), (2, 2), (4, 2), (12345, 4), (4, 2), (4, 2), (0xFFFFFFFF, 4),
        (0x10, 2), (4, 2), (0xFFFFFFFF, 4), (0x20, 2), (4, 2), (0xFFFFFFFF, 4),
    )
)  # fmt: skip


def look(name):
    about = os.lstat(name)
    return [oct(stat.S_IMODE(about.st_mode)), about.st_uid, about.st_gid]


def main():
    os.makedirs(sys.argv[1])
    os.chdir(sys.argv[1])
    os.umask(0o022)
    furnish()
    found = {}
    for name, after, act in rows():
        assert name not in found, name
        answer = act()
        if answer is not None:
            found[name] = [answer, look(after) if after else None]
    for name in ("file", "other", "inner", "inner/file", "directory", "fifo", "socket", "closed", "link", "dangling"):
        about = os.lstat(name)
        found["in the end " + name] = [*look(name), about.st_mtime if "closed" not in name else 0]
    found["in the end xattrs"] = sorted(os.listxattr("file")), sorted(os.listxattr("directory"))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
