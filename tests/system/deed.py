"""Do what `guard explain` is asked about, and say how it ended: done, rewritten or refused.

    deed.py FILE

FILE holds a JSON list of [act, word...]; the answer is a JSON list of words. Each act in a child of its own.
"""

import errno
import json
import os
import socket
import subprocess
import sys

REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS)


def write(path):
    if os.path.isdir(path):
        path = os.path.join(path, ".made-by-deed")
    there = os.path.lexists(os.path.realpath(path))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600)
    os.write(fd, b"x")
    if not there:
        os.unlink(os.path.realpath(path))


def read(path):
    if os.path.isdir(path):
        return "done" if os.listdir(path) else "refused"
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        return "done" if file.read(1) else "refused"  # a covered file is there, and empty


def execute(path):
    subprocess.run([path], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def chmod(mode, path):
    os.chmod(path, int(mode, 8))
    return "done" if os.stat(path).st_mode & 0o7777 == int(mode, 8) else "rewritten"


def _split(text):
    host, _, port = text.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    return family, host.strip("[]") or "0.0.0.0", int(port)


def bind(text):
    family, host, port = _split(text)
    with socket.socket(family) as new:
        try:
            new.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
                return "done"  # nobody forbids it
            raise
        new.listen(1)
        return "done" if new.getsockname()[0] == host else "rewritten"


def connect(text):
    family, host, port = _split(text)
    with socket.socket(family) as new:
        new.setblocking(False)
        code = new.connect_ex((host, port))
        return "refused" if code in REFUSALS else "done"


def unix(path):
    with socket.socket(socket.AF_UNIX) as new:
        if not path.startswith("@"):
            os.chdir(os.path.dirname(path))
        name = "\0" + path[1:] if path.startswith("@") else os.path.basename(path)
        code = new.connect_ex(name)
        if code == errno.ENOENT and os.path.dirname(path).endswith("/.ssh"):
            raise OSError(code, "")  # a mask is over it
        return "refused" if code in REFUSALS else "done"


DEEDS = {"write": write, "read": read, "exec": execute, "chmod": chmod, "bind": bind, "connect": connect, "unix": unix}


def perform(words):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = DEEDS[words[0]](*words[1:]) or "done"
        except OSError as error:
            said = "refused" if error.errno in REFUSALS else f"{errno.errorcode.get(error.errno)}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, "rb") as file:
        return file.read().decode() or "died"


if __name__ == "__main__":
    with open(sys.argv[1]) as given:
        cases = json.load(given)
    json.dump([perform(words) for words in cases], sys.stdout)
