"""Entries to the kernel that ordinary programs do not use."""

from .case import Case

CASES = (
    Case("int80", "$odd int80-getpid && touch done", rule="raw-syscall", proof="[ -e done ]",
         lacks=(("lsm", "no hook is on the way of this call"), ("fmod", "no hook is on the way of this call"))),
    Case("x32", "touch f; $odd x32 f && touch done", rule="raw-syscall", proof="[ -e done ]",
         lacks=(("lsm", "the kernel refuses the entry before any hook"), ("fmod", "the kernel refuses the entry before any hook"))),
    Case("int80-write", "touch f; $odd int80-chmod f && touch done", rule="raw-syscall", enforced="world-writable", proof="[ -e done ]"),
    Case("quiet-ordinary", "/usr/bin/python3 -c 'import os; os.getpid()' && touch done", proof="[ -e done ]"),
)  # fmt: skip
