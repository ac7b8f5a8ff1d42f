"""--tell: what the supervisor refuses is said to the session's stderr when asked, and never otherwise."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import GUARD
from tests.system.node import events
from tests.system.stage import PYTHON, Stage

REFUSED = """
import os, socket
try: os.chmod("file", 0o4755)
except OSError: pass
try: socket.create_connection(("127.0.0.1", %d), 2)
except OSError: pass
os.chmod("file", 0o666)
print("done")
"""


def _run(stage: Stage, *options: str, code: str = ""):
    code = code or REFUSED % int(stage._values["port"])
    return stage.account.guard([PYTHON, "-IS", "-c", code], *options, cwd=stage.project)


@pytest.fixture(autouse=True)
def _supervised(stage: Stage, listener: int) -> None:
    if "no supervisor" in _run(stage, "--tell", code="pass").stderr:
        pytest.skip("no supervisor here")


def test_nothing_is_said_unless_asked(stage: Stage) -> None:
    done = _run(stage)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def test_what_is_refused_is_said_with_the_reason_and_a_way_to_go_on(stage: Stage) -> None:
    done = _run(stage, "--tell")
    assert done.stdout == "done\n"
    lines = done.stderr.splitlines()
    assert all(line.startswith("guard: ") for line in lines)
    assert f"guard: denied: chmod 4755 {stage.project}/file" in lines
    assert f"guard: denied: connect 127.0.0.1:{stage._values['port']}" in lines
    assert f"guard: rewritten: chmod 0666 {stage.project}/file" in lines
    assert len(lines) == 9
    assert all(len(line) < 80 or str(stage.project) in line for line in lines)


def test_a_session_without_refusals_says_nothing(stage: Stage) -> None:
    assert _run(stage, "--tell", code="print('fine')").stderr == ""


def test_a_name_with_control_characters_is_said_harmlessly(stage: Stage) -> None:
    code = "import os; name = 'a\\x1b[2J\\ny'; open(name, 'w')\ntry: os.chmod(name, 0o4755)\nexcept OSError: pass"
    done = _run(stage, "--tell", code=code)
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) == 3


def test_a_stderr_that_nobody_reads_holds_up_nothing(stage: Stage) -> None:
    many = "import os\nfor n in range(3000):\n open(f'{n}', 'w')\n try: os.chmod(f'{n}', 0o4755)\n except OSError: pass"
    reader, writer = os.pipe()
    command = [GUARD, "run", "--policy", "login-node", "--tell", "--", PYTHON, "-IS", "-c", many]
    process = subprocess.Popen(
        command, cwd=stage.project, env=stage.account.environment(), stderr=writer, **stage.account.identity()
    )
    os.close(writer)
    try:
        assert process.wait(timeout=60) == 0
    finally:
        os.close(reader)


def test_the_command_does_not_inherit_where_it_is_said(stage: Stage) -> None:
    code = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    plain, told = (_run(stage, *options, code=code).stdout for options in ((), ("--tell",)))
    assert plain == told


def test_every_denial_on_record_says_why_and_what_would_allow_it(stage: Stage) -> None:
    _run(stage)
    judged = [each for each in events(stage.account) if each["control"] != "session"]
    found = [each for each in judged if each["verdict"] in ("denied", "rewritten")][-3:]
    assert {event["rule"] for event in found} == {"setuid-mode", "connect-address", "world-writable-mode"}
    for event in found:
        for name in ("explain", "allow"):
            assert 0 < len(event["detail"][name]) < 80
        assert str(stage.project) not in str(event)
