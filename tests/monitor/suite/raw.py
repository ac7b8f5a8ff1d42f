"""Entries to the kernel that ordinary programs do not use, and hands on processes of others."""

from .case import Case

CASES = (
    Case("int80", "$odd int80-getpid && touch done", rule="raw-syscall", proof="[ -e done ]",
         lacks=(("lsm", "no hook is on the way of this call"), ("fmod", "no hook is on the way of this call"))),
    Case("x32", "touch f; $odd x32 f && touch done", rule="raw-syscall", proof="[ -e done ]",
         lacks=(("lsm", "the kernel refuses the entry before any hook"), ("fmod", "the kernel refuses the entry before any hook"))),
    Case("int80-write", "touch f; $odd int80-chmod f && touch done", rule="raw-syscall", enforced="world-writable", proof="[ -e done ]"),
    Case("hold-seize", "$odd seize $V && touch done", rule="takes-hold", proof="[ -e done ]"),
    Case("hold-memory", "$odd peek $V && touch done", rule="takes-hold", proof="[ -e done ]"),
    Case("hold-memory-file", "$odd memory $V && touch done", rule="takes-hold", proof="[ -e done ]"),
    Case("hold-terminal", "$odd type; s=$?; [ $s != 0 ] || touch done; exit $s", rule="takes-hold", proof="[ -e done ]"),
    Case("quiet-hold-own-child", "$odd seize-own && touch done", proof="[ -e done ]"),
    Case("quiet-hold-of-a-name", "mkdir 17; echo x > 17/mem; touch done", proof="[ -e done ]"),
    Case("quiet-look-at-others", "ps auxww > done; cat /proc/$V/status /proc/$V/cmdline > done; ls -l /proc/$V/fd > done", proof="[ -e done ]"),
    Case("quiet-ordinary", "/usr/bin/python3 -c 'import os; os.getpid()' && touch done", proof="[ -e done ]"),
)  # fmt: skip
