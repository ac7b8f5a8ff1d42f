"""The command gets the user's environment byte for byte, less what the policy names."""

import json
import os
import shutil
import subprocess

import pytest

from tests.conftest import GUARD, ROOT

ODD = {
    b"EMPTY": b"",
    b"LINES": b"one\ntwo\n",
    b"LATIN1": b"caf\xe9",
    b"RAW": bytes(range(1, 256)),
    b"EQUALS": b"a=b=c",
    b"SPACES": b"  a  ",
    b"lower.and-odd": b"x",
    b"A B": b"x",
    b"CAF\xc9": b"x",
    b"LONG": b"x" * 100_000,
    b"PYTHONPATH": b"/nonexistent",
    b"PYTHONHOME": b"/nonexistent",
    b"PYTHONDONTWRITEBYTECODE": b"1",
    b"PYTHONSTARTUP": b"/nonexistent",
    b"PYTHONIOENCODING": b"utf-16",
    b"BASH_ENV": b"/nonexistent",
    b"ENV": b"/nonexistent",
    b"LD_LIBRARY_PATH": b"/nonexistent:\xff",
    b"LD_BIND_NOW": b"1",
    b"GLIBC_TUNABLES": b"glibc.malloc.check=0",
    b"MALLOC_ARENA_MAX": b"1",
    b"LC_ALL": b"C",
    b"IFS": b":",
    b"BASH_FUNC_module%%": b'() {  echo "loaded $1"\n}',
    b"_LMFILES_": b"/apps/modulefiles/gcc/12",
}
DROPPED = {
    b"SSH_AUTH_SOCK": b"/run/agent",
    b"AWS_SECRET_ACCESS_KEY": b"made up",
    b"SOME_SERVICE_TOKEN": b"made up",
    b"MY_PASSWORD": b"line\nline",
    b"DBUS_SESSION_BUS_ADDRESS": b"unix:path=/run/bus",
    b"TMUX": b"/tmp/tmux,1,0",
    b"KUBECONFIG": b"\xff",
}
ADDED = {b"TMPDIR", b"TMUX_TMPDIR", b"GUARD_SESSION", b"GUARD_POLICY"}


def inside(account, cwd, more):
    """The environment that a command finds under guard, as bytes."""
    before = {os.fsencode(name): os.fsencode(value) for name, value in account.environment().items()} | more
    done = subprocess.run(
        [GUARD, "run", "--policy", "login-node", "--", "cat", "/proc/self/environ"],
        env=before, cwd=cwd, capture_output=True, check=False, stdin=subprocess.DEVNULL, **account.identity(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    entries = [entry.partition(b"=") for entry in done.stdout.split(b"\0")[:-1]]
    found = {name: value for name, _, value in entries}
    assert len(found) == len(entries), "a variable stands there twice"
    return before, found


def test_what_the_policy_does_not_name_arrives_byte_for_byte(account, project):
    before, found = inside(account, project, ODD)
    assert {name: value for name, value in found.items() if name not in ADDED} == before


@pytest.mark.parametrize("name", [name for name in ODD if name.startswith((b"LD_", b"GLIBC", b"MALLOC", b"PYTHON"))])
def test_each_variable_that_guard_itself_must_not_obey_arrives(account, project, name):
    before, found = inside(account, project, {name: ODD[name]})
    assert found[name] == before[name]


def test_what_the_policy_names_does_not_arrive(account, project):
    before, found = inside(account, project, ODD | DROPPED)
    assert set(before) - set(found) == set(DROPPED)


def test_every_dropped_variable_is_named_by_the_effective_policy(account, project):
    more = {os.fsdecode(name): os.fsdecode(value) for name, value in DROPPED.items()}
    _, found = inside(account, project, ODD | DROPPED)
    gone = sorted(os.fsdecode(name) for name in DROPPED if name not in found)
    assert gone
    shown = account.cli("policy", "show", "--effective", "login-node", cwd=project, env=more)
    assert shown.returncode == 0, shown.stderr
    listed = shown.stdout.partition("here drops")[2].partition("# note")[0].replace("#", " ").replace(",", " ").split()
    assert sorted(listed) == gone
    told = account.cli("policy", "show", "--effective", "--json", "login-node", cwd=project, env=more)
    assert sorted(json.loads(told.stdout)["env_dropped"]) == gone


def test_an_exported_function_such_as_lmods_module_works_inside(account, project):
    script = f"""
        module() {{ echo "loaded $1"; export LOADED=$1; }}; export -f module
        exec {GUARD} run --policy login-node -- bash -c 'module gcc/12; echo "$LOADED"; bash -c "module again"'
    """
    done = account.command(["bash", "-c", script], cwd=project)
    assert done.stdout.splitlines() == ["loaded gcc/12", "gcc/12", "loaded again"], done.stderr


@pytest.fixture
def library(account, project):
    """A program in the project that needs a library from a private directory."""
    if not shutil.which("gcc"):
        pytest.skip("not installed: gcc")
    private = account.directory("lib")
    shutil.copytree(ROOT / "tests/demo/app/c", project / "c")
    script = f'gcc -fPIC -shared -o "{private}/libgreet.so" c/greet.c; gcc -o greet c/main.c -L"{private}" -lgreet'
    done = account.command(["bash", "-euc", script], cwd=project)
    assert done.returncode == 0, done.stderr
    yield private
    shutil.rmtree(private)


def test_a_private_library_directory_in_ld_library_path_works_inside(account, project, library):
    assert account.guard(["./greet", "x"], cwd=project).returncode == 127, "it runs without the library"
    done = account.guard(["./greet", "x"], cwd=project, env={"LD_LIBRARY_PATH": str(library)})
    assert done.stdout == "hello, x\n", done.stderr


def test_a_preloaded_library_is_loaded_by_the_command_alone(account, project):
    """guard's interpreter starts again without it, so that it cannot change what guard does."""
    if not shutil.which("gcc"):
        pytest.skip("not installed: gcc")
    account.write(
        project / "liar.c",
        '#include <sys/types.h>\n#include <errno.h>\n#include <unistd.h>\nuid_t geteuid(void) { return 4242; }\n'
        "int setrlimit(int a, const void *b) { return 0; }\nlong syscall(long n, ...) { return 0; }\n",
    )  # fmt: skip
    built = account.command(["gcc", "-fPIC", "-shared", "-fno-builtin", "-o", "liar.so", "liar.c"], cwd=project)
    assert built.returncode == 0, built.stderr
    key = account.write(account.home / ".ssh/key", "secret")
    env = {"LD_PRELOAD": str(project / "liar.so")}
    assert account.guard(["id", "-u"], cwd=project, env=env).stdout == "4242\n"
    refused = account.guard(["cat", str(key)], cwd=project, env=env)
    assert "secret" not in refused.stdout
    assert account.command(["cat", str(key)], cwd=project, env=env).stdout == "secret"


@pytest.mark.parametrize("name", ["sitecustomize", "posix", "os", "guard", "encodings"])
def test_python_modules_of_the_users_do_not_reach_guard_itself(account, project, name):
    evil = account.write(project / f"lib/{name}.py", "import sys; sys.stderr.write('obeyed'); sys.exit(9)\n")
    done = account.guard(["true"], cwd=project, env={"PYTHONPATH": str(evil.parent)})
    assert (done.returncode, "obeyed" in done.stderr) == (0, False), done.stderr
    account.write(project / f"{name}.py", evil.read_text())
    assert account.guard(["true"], cwd=project).returncode == 0


def test_argv_arrives_byte_for_byte(account, project):
    words = ["", " ", "a\nb", "caf\udce9", "--", "--audit", "*", "$HOME", "x" * 10000]
    done = account.guard(["python3", "-c", "import sys, os; print([os.fsencode(a) for a in sys.argv[1:]])", *words],
                         cwd=project)  # fmt: skip
    assert done.stdout.strip() == str([os.fsencode(word) for word in words])
