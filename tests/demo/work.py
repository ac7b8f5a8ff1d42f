"""A session's ordinary work, one shell script a row, and the program that goes through it.

`python work.py` runs in the project, under `guard run` or without it, and says how each step went, a JSON
object a line. It imports the standard library alone: it is copied beside the project and run by the system's
Python.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from typing import NamedTuple


class Step(NamedTuple):
    """One piece of work.

    Args:
        name: said to people.
        needs: the programs it starts; without one of them it is skipped.
        script: for `bash -euo pipefail`, in the clone but for the first, which makes it.
    """

    name: str
    needs: tuple[str, ...]
    script: str


CLONE = Step(
    "git clone from a repository in the home",
    ("git",),
    'git clone -q "$HOME/origin.git" app; test -e app/c/main.c',
)

STEPS = (
    Step(
        "git branch, commit, log, diff, stash",
        ("git",),
        """
        git switch -q -c feature
        echo '// a change' >> c/greet.c
        git add c/greet.c
        git commit -q -m 'Change a file'
        echo '// another' >> c/greet.c
        git diff --stat
        git stash -q; git stash pop -q; git checkout -q c/greet.c
        git log --oneline
        git gc -q
        """,
    ),
    Step(
        "git worktree add, commit in it, merge",
        ("git",),
        """
        git worktree add -q -b fix .worktrees/fix
        (cd .worktrees/fix; echo fixed > fixed.txt; git add fixed.txt; git commit -q -m 'Fix it')
        git merge -q fix
        test -e fixed.txt
        git worktree remove .worktrees/fix
        """,
    ),
    Step(
        "gcc and make: build, check, install",
        ("gcc", "make"),
        """
        make -s -C c -j2
        make -s -C c check
        make -s -C c install DESTDIR="$PWD/prefix"
        test "$(stat -c %a prefix/bin/greet prefix/include/greet.h | xargs)" = '755 644'
        """,
    ),
    Step(
        "python venv, pip install of a local package",
        ("/usr/bin/python3",),
        """
        /usr/bin/python3 -m venv venv
        venv/bin/pip install -q --disable-pip-version-check --no-index ./python
        test "$(venv/bin/greet)" = 'hello from pip'
        """,
    ),
    Step(
        "npm pack, npm install of a local package",
        ("npm",),
        """
        cd node
        npm pack -s ./greet
        npm install -s --no-audit --no-fund ./greet-1.0.0.tgz
        test "$(npx --no-install greet)" = 'hello, npm'
        """,
    ),
    Step("node: worker threads and children", ("node",), "node node/workers.js"),
    Step(
        "sqlite: WAL, two connections",
        ("sqlite3",),
        """
        sqlite3 data.db 'pragma journal_mode=wal; create table t(x); insert into t values (1), (2)'
        sqlite3 data.db 'insert into t values (39)'
        test "$(sqlite3 data.db 'select sum(x) from t')" = 42
        """,
    ),
    Step(
        "tar create and extract, modes 755 and 644",
        ("tar",),
        """
        mkdir -p tree/sub; echo a > tree/file; echo b > tree/sub/tool
        chmod 644 tree/file; chmod 755 tree/sub/tool
        tar czf tree.tar.gz tree; rm -r tree; tar xzpf tree.tar.gz
        test "$(stat -c %a tree/file tree/sub/tool | xargs)" = '644 755'
        """,
    ),
    Step("python: threads", ("/usr/bin/python3",), "/usr/bin/python3 parallel.py threads"),
    Step("python: multiprocessing, fork and spawn", ("/usr/bin/python3",), "/usr/bin/python3 parallel.py processes"),
    Step("python: asyncio, children, own sockets", ("/usr/bin/python3",), "/usr/bin/python3 parallel.py asyncio"),
    Step(
        "cp -a, install, mv, ln, mktemp, here-doc",
        (),
        """
        cp -a c copied; mv copied moved; ln moved/main.c linked.c; ln -s moved here
        install -m 755 c/Makefile installed; umask 002; mkdir -p made/by/umask
        at=$(mktemp); cat > "$at" <<-END
			text
		END
        read -r word < "$at"; test "$word" = text; rm "$at"
        echo a | cat > out 3>&1; test "$(cat < out)" = a; cat < /dev/null > /dev/null
        """,
    ),
)


def run(step: Step, directory: str) -> dict[str, object]:
    """Run one step; says `done`, `failed` or `skipped`, seconds, and what it wrote."""
    missing = [program for program in step.needs if not shutil.which(program)]
    if missing:
        return {"name": step.name, "how": "skipped", "seconds": 0.0, "text": f"{', '.join(missing)}: not here"}
    since = time.monotonic()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", step.script], cwd=directory, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, timeout=120,
    )  # fmt: skip
    how = "failed" if done.returncode else "done"
    return {"name": step.name, "how": how, "seconds": time.monotonic() - since, "text": done.stdout}


def main() -> None:
    """Clone, then work in the clone; ends at the first step that the others need."""
    for step, directory in [(CLONE, "."), *((step, "app") for step in STEPS)]:
        if os.path.isdir(directory):
            print(json.dumps(run(step, directory)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
