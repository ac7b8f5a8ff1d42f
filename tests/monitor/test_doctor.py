"""What doctor tells of the monitor: here, by a load; of another kernel, from its types alone."""

import json
import subprocess

import pytest

from tests.conftest import GUARD

BTF = "/sys/kernel/btf/vmlinux"


def doctor(*words):
    return subprocess.run([GUARD, "doctor", *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.root
def test_what_can_be_seen_and_refused_here_is_told_by_a_load(kernel_side):
    told = json.loads(doctor("--monitor", "--json").stdout)
    assert told["backend"] in ("lsm", "fmod", "tracepoint")
    assert "rewrite" in told["rules"]["bind"]["act"]
    if told["backend"] == "tracepoint":
        assert set(told["refused"]) == {"lsm", "fmod"}
        assert told["rules"]["world-writable"]["act"] == []
        assert told["costs"]


@pytest.mark.root
def test_people_get_lines_of_eighty_columns(kernel_side):
    done = doctor("--monitor")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_kernels_types_tell_what_would_load_and_what_they_cannot_tell(kernel_side):
    done = doctor("--btf", BTF)
    assert done.returncode == 0, done.stderr
    assert "tracepoint  would load" in done.stdout
    assert "it cannot tell" in done.stdout


@pytest.mark.parametrize("path", ["/etc/passwd", "/nowhere"])
def test_what_is_no_btf_is_an_error_that_says_what_to_give(kernel_side, path):
    done = doctor("--btf", path)
    assert done.returncode == 3
    assert path in done.stderr
    assert "/sys/kernel/btf/vmlinux" in done.stderr


def test_questions_are_asked_one_at_a_time():
    assert doctor("--btf", BTF, "--monitor").returncode == 2
