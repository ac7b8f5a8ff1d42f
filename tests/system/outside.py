"""Try to change the metadata of what lies outside, in every way; print what each answered.

    outside.py ways DIRECTORY     {way: errno}, each for a file of its own made there beforehand
    outside.py race HOW DIRECTORY TRIES

Copied into a throw-away project beside `calls.py`. Standard library only.
"""

import ctypes
import json
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from calls import AT_FDCWD, EMPTY, NOFOLLOW, call, times

OTHERS_MAY_WRITE = b"".join(
    int.to_bytes(word, size, "little")
    for word, size in (
        (2, 4), (1, 2), (6, 2), (0xFFFFFFFF, 4), (4, 2), (4, 2), (0xFFFFFFFF, 4), (0x20, 2), (6, 2), (0xFFFFFFFF, 4),
    )
)  # fmt: skip


def ways(where):
    """(name, call): every call of each family, and every road to the file."""
    relative = os.path.relpath(where).encode()
    path = f"{where}/file".encode()
    os.symlink(path, "to-outside")
    os.symlink(where, "to-directory")
    reading = os.open(path, os.O_RDONLY)
    naming = os.open(path, os.O_PATH)
    directory = os.open(where, os.O_PATH)
    inner = os.open(".", os.O_PATH)
    roads = {
        "absolute": path, "relative": relative + b"/file", "link": b"to-outside",
        "linked directory": b"to-directory/file",
        "fd": b"/proc/self/fd/%d" % reading, "naming fd": b"/proc/thread-self/fd/%d" % naming,
        "dev fd": b"/dev/fd/%d" % reading, "root": b"/proc/self/root" + path,
        "cwd": b"/proc/self/cwd/" + relative + b"/file",
        "dots": b"./nothing/../../" + relative + b"/file" if os.path.isdir("nothing") else b"./" + relative + b"/file",
        "directory fd": b"/proc/self/fd/%d/file" % directory,
    }  # fmt: skip
    for road, at in roads.items():
        yield f"chmod {road}", lambda at=at: call("chmod", at, 0o600)
        yield f"fchmodat2 {road}", lambda at=at: call("fchmodat2", AT_FDCWD, at, 0o600, 0)
        yield f"chown {road}", lambda at=at: call("chown", at, -1, os.getgid())
        yield f"utimensat {road}", lambda at=at: call("utimensat", AT_FDCWD, at, times(1, 0, 1, 0), 0)
        yield f"utimensat now {road}", lambda at=at: call("utimensat", AT_FDCWD, at, 0, 0)
        yield f"setxattr {road}", lambda at=at: call("setxattr", at, b"user.a", b"v", 1, 0)
    for number, how in ((reading, "reading"),):
        yield f"fchmod {how}", lambda number=number: call("fchmod", number, 0o600)
        yield f"fchown {how}", lambda number=number: call("fchown", number, -1, os.getgid())
        yield f"futimens {how}", lambda number=number: call("utimensat", number, 0, 0, 0)
        yield f"futimesat {how}", lambda number=number: call("futimesat", number, 0, 0)
        yield f"fsetxattr {how}", lambda number=number: call("fsetxattr", number, b"user.a", b"v", 1, 0)
        yield f"fremovexattr {how}", lambda number=number: call("fremovexattr", number, b"user.there")
    yield "fchmodat2 empty", lambda: call("fchmodat2", naming, b"", 0o600, EMPTY)
    yield "fchownat empty", lambda: call("fchownat", naming, b"", -1, os.getgid(), EMPTY)
    yield "utimensat empty", lambda: call("utimensat", naming, b"", 0, EMPTY)
    yield "fchmodat directory", lambda: call("fchmodat", directory, b"file", 0o600)
    yield "fchmodat dots", lambda: call("fchmodat", inner, relative + b"/file", 0o600)
    yield "fchownat nofollow", lambda: call("fchownat", directory, b"file", -1, os.getgid(), NOFOLLOW)
    yield "lchown", lambda: call("lchown", path, -1, os.getgid())
    yield "utime", lambda: call("utime", path, times(1, 1))
    yield "utimes", lambda: call("utimes", path, times(1, 0, 1, 0))
    yield "removexattr", lambda: call("removexattr", path, b"user.there")
    yield "lremovexattr", lambda: call("lremovexattr", path, b"user.there")
    yield "lsetxattr", lambda: call("lsetxattr", path, b"user.a", b"v", 1, 0)
    yield "acl", lambda: call("setxattr", path, b"system.posix_acl_access", OTHERS_MAY_WRITE, len(OTHERS_MAY_WRITE), 0)
    yield "the directory", lambda: call("chmod", where.encode(), 0o755)
    yield "the directory fd", lambda: call("chmod", b"/proc/self/fd/%d" % directory, 0o755)
    yield "a high half", lambda: call("chmod", path, (1 << 32) | 0o600)


def race(how, where, tries):
    """Change the mode of an inside file while a thread makes its name mean an outside one."""
    outside = f"{where}/file"
    stop = threading.Event()
    os.makedirs("a", exist_ok=True)
    open("a/file", "w").close()
    if how == "memory":
        inside, target = b"a/file\0" + bytes(200), outside.encode() + b"\0"
        buffer = ctypes.create_string_buffer(bytes(inside), 256)

        def swap():
            while not stop.is_set():
                ctypes.memmove(buffer, target, len(target))
                ctypes.memmove(buffer, inside, 8)

        path = ctypes.c_void_p(ctypes.addressof(buffer))
    elif how == "link":
        os.symlink("a/file", "inner-link")
        os.symlink(outside, "outer-link")

        def swap():
            while not stop.is_set():
                for one in ("inner-link", "outer-link"):
                    os.link(one, "next", follow_symlinks=False)
                    os.rename("next", "link")
                    if os.path.lexists("next"):
                        os.unlink("next")

        os.symlink("a/file", "link")
        path = ctypes.c_char_p(b"link")
    else:  # a descriptor that dup2 replaces
        inner, outer = os.open("a/file", os.O_RDONLY), os.open(outside, os.O_RDONLY)
        number = os.dup(inner)

        def swap():
            while not stop.is_set():
                os.dup2(outer, number)
                os.dup2(inner, number)

        path = None
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for attempt in range(tries):
            if path is None:
                call("fchmod", number, 0o611)
            else:
                call("chmod", path, 0o611)
            if os.stat(outside).st_mode & 0o777 == 0o611:
                print(json.dumps({"won": attempt + 1}))
                return
        print(json.dumps({"won": 0}))
    finally:
        stop.set()
        thread.join()


def main():
    if sys.argv[1] == "race":
        race(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    found = {}
    for name, act in ways(sys.argv[2]):
        assert name not in found, name
        answer = act()
        if answer is not None:
            found[name] = answer
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
