"""Decides in a few lines: launcher and filter, which must start quickly, the monitor, which stays, or the rest.

`packaging/install-entry` puts these lines behind an interpreter line of their own into `libexec/guard`, which
`bin/guard` (guard/exec) executes for all but the starts that it makes by itself: a console script of pip's would load
`site` first, at a quarter of the launcher's whole time.
"""

import sys


def main() -> int:
    """Run guard; returns the exit code (docs/commands.md)."""
    words = sys.argv[1:]
    if words[:1] == ["run"] and words[1:2] not in (["--help"], ["-h"]):
        from guard.confine.launch import main as launch

        return launch(words[1:], [sys.executable, "-I", "-S", __file__])
    if words[:1] == ["redact"]:
        from guard.redact.command import main as redact

        return redact(words[1:])
    if words[:1] == ["monitor"]:
        from guard.monitor.command import main as monitor

        return monitor(words[1:])
    if words[:1] == ["history"] and words[1:2] in (["line"], ["fish"], ["tcsh"], ["end"]):
        from importlib import import_module

        code: int = import_module(f"guard.history.{words[1].replace('end', 'scrub')}").main(words[2:])
        return code
    if words[:1] == ["shell"]:
        from guard.entry.shell import main as shell

        return shell(words[1:])
    if words[:1] == ["hooks"] and words[1:2] in (["run"], ["git"]):
        from importlib import import_module

        ended: int = import_module(f"guard.hooks.{words[1]}").main(words[2:])
        return ended
    if words == ["shim", "ready"]:
        return 0  # a shim and guard-shell ask whether guard can be started at all
    if words[:2] == ["shim", "exec"]:
        from guard.entry.shim import main as shim

        return shim(words[2:])
    from guard.cli import main as full

    return full(words)


if __name__ == "__main__":
    sys.exit(main())
