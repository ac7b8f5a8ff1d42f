"""`guard explain` as a command: exit codes, its few lines, its JSON, and that what it proposes does open the act."""

import json
import tomllib

import pytest

from tests.conftest import GUARD, ROOT_HERE

ACTS = [
    ("write", "{home}/.bashrc"), ("write", "{project}/new"), ("read", "{home}/.ssh/id"), ("read", "/etc/shadow"),
    ("exec", "/usr/bin/su"), ("chmod", "0777", "{project}"), ("chmod", "4755", "{project}/file"),
    ("bind", "0.0.0.0:8080"), ("bind", "10.1.2.3:8080"), ("connect", "10.1.2.3:25"), ("connect", "10.1.2.3:27000"),
    ("connect", "169.254.169.254:80"), ("unix", "/run/docker.sock"), ("unix", "{home}/tools/socket"),
]  # fmt: skip


@pytest.fixture
def ground(account, project):
    """A project with a file, and a place beside it."""
    account.write(project / "file", "x")
    account.write(account.home / ".ssh" / "id", "x")
    if not (account.home / ".bashrc").exists():
        account.write(account.home / ".bashrc", "#")
    beside = account.directory("beside")
    account.write(beside / "file", "x")
    return {"home": str(account.home), "project": str(project), "beside": str(beside)}


def _explain(account, ground, *words, **more):
    return account.cli("explain", *(word.format(**ground) for word in words), cwd=ground["project"], **more)


def _asked(account, ground, *words, **more):
    done = _explain(account, ground, "--json", *words, **more)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("words", ACTS, ids=" ".join)
def test_an_answer_is_a_few_lines_and_says_who_decides(account, ground, words):
    done = _explain(account, ground, *words)
    lines = done.stdout.splitlines()
    assert lines[0].partition(":")[0] in ("allowed", "denied", "rewritten")
    assert lines[1].startswith("  why ")
    answer, _, proposed = done.stdout.partition("schema = 1")
    assert len(answer.splitlines()) <= 8
    assert len(proposed.splitlines()) <= 8
    assert all(len(line) < 80 for line in answer.splitlines())
    assert done.returncode == (lines[0].startswith("denied"))
    if lines[0].startswith("denied"):
        assert any(line.startswith("  by ") for line in lines)
        assert any(line.startswith("  allow ") for line in lines)
    assert done.stderr == ""


def test_the_deciding_line_is_a_line_of_a_policy(account, ground):
    said = _asked(account, ground, "read", "{home}/.ssh/id")
    with open(said["rule"]["file"], encoding="utf-8") as file:
        assert '"{home}/.ssh"' in file.readlines()[said["rule"]["line"] - 1]


@pytest.mark.parametrize(
    "words",
    [("frob", "/x"), ("write",), ("write", "/x", "/y"), ("bind", "nonsense"), ("bind", "127.0.0.1:99999"),
     ("chmod", "rubbish", "{project}/file"), ("connect", "[::1:80")],
    ids=" ".join,
)  # fmt: skip
def test_wrong_words_are_usage(account, ground, words):
    done = _explain(account, ground, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("guard: ")
    assert done.stdout == ""


def test_what_cannot_be_answered_ends_with_three(account, ground):
    done = _explain(account, ground, "--policy", "no-such-policy", "write", "x")
    assert (done.returncode, done.stdout) == (3, "")
    done = _explain(account, ground, "chmod", "644", "{project}/nothing")
    assert (done.returncode, done.stdout) == (3, "")


def test_a_name_is_looked_up(account, ground):
    assert _asked(account, ground, "bind", "localhost:8080")["verdict"] == "allowed"


def test_modes_are_read_as_chmod_reads_them(account, ground):
    for mode, verdict in (("o+w", "rewritten"), ("g+w", "allowed"), ("u+s", "denied"), ("a=rwx", "rewritten")):
        assert _asked(account, ground, "chmod", mode, "{project}/file")["verdict"] == verdict, mode


def test_the_working_directory_and_the_project_are_those_of_guard_run(account, ground):
    assert _asked(account, ground, "write", "file")["verdict"] == "allowed"
    elsewhere = account.cli("explain", "--json", "write", ground["project"] + "/file", cwd=ground["beside"])
    assert json.loads(elsewhere.stdout)["verdict"] == "denied"
    named = account.cli(
        "explain", "--json", "--project", ground["project"], "write", ground["project"] + "/file", cwd=ground["beside"]
    )
    assert json.loads(named.stdout)["verdict"] == "allowed"


# What would allow it ------------------------------------------------------------------------------------

PROPOSED = [
    ("write", "{beside}/file"), ("write", "{beside}/new"), ("bind", "10.1.2.3:8080"), ("connect", "10.1.2.3:25"),
    ("chmod", "4755", "{project}/file"), ("chmod", "0644", "{beside}/file"),
]  # fmt: skip


@pytest.mark.parametrize("words", PROPOSED, ids=" ".join)
def test_a_policy_that_it_proposes_allows_it(account, ground, words):
    said = _asked(account, ground, *words)
    assert said["verdict"] == "denied"
    proposed = account.write(account.home / "mine.toml", said["allow"]["text"])
    assert _asked(account, ground, "--policy", str(proposed), *words)["verdict"] in ("allowed", "observed")


@pytest.fixture
def site(account):
    """Root's part: a site that assigns login-node."""
    account.write(account.config / "site.toml", 'schema = 1\n[site]\ndefault_policy = "login-node"\n')
    yield account.config
    for path in (account.config / "site.toml", account.config / "exceptions.d" / "one.toml"):
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("words", [*PROPOSED, ("read", "{home}/.ssh/id"), ("write", "{home}/.bashrc")], ids=" ".join)
def test_an_exception_that_it_proposes_allows_it(account, ground, site, words):
    said = _asked(account, ground, *words)
    assert said["verdict"] == "denied"
    text = said["allow"]["text"]
    if not text:
        # An ordinary user's home of these tests is not the one that the user database names, which {home} stands for.
        assert said["allow"]["danger"] or not ROOT_HERE, "what nothing is proposed for is a danger"
        return
    assert tomllib.loads(text)["exception"][0]["user"] == account.name
    account.write(site / "exceptions.d" / "one.toml", text)
    assert _asked(account, ground, *words)["verdict"] in ("allowed", "observed")


@pytest.mark.parametrize(
    ("words", "overlay"),
    [(("connect", "10.1.2.3:27000"), "licences"), (("connect", "10.1.2.3:88"), "kerberos"),
     (("unix", "/run/.heim_org.h5l.kcm-socket"), "kerberos"), (("write", "{home}/.cache/pip"), "conda-spack-pip")],
    ids=str,
)  # fmt: skip
def test_the_overlay_that_it_names_allows_it(account, ground, words, overlay):
    account.write(account.home / ".cache/pip/x", "")
    said = _asked(account, ground, *words)
    assert (said["verdict"], said["allow"]["overlay"]) == ("denied", overlay)
    text = f'schema = 1\nname = "mine"\nextends = "login-node"\noverlays = ["{overlay}"]\nreason = "a test"\n'
    proposed = account.write(account.home / "mine.toml", text)
    assert _asked(account, ground, "--policy", str(proposed), *words)["verdict"] == "allowed"


def test_no_overlay_that_turns_a_control_off_is_named(account, ground):
    said = _asked(account, ground, "read", "{home}/.ssh/id")
    assert said["allow"]["overlay"] == ""


def test_nothing_is_proposed_that_lint_would_warn_of(account, ground):
    said = _asked(account, ground, "unix", "/run/docker.sock")
    assert (said["allow"]["text"], bool(said["allow"]["danger"])) == ("", True)


def test_what_the_host_itself_refuses_is_not_put_down_to_guard(account, ground):
    said = _asked(account, ground, "read", "/etc/shadow")
    assert (said["verdict"], said["layer"], said["allow"]["text"]) == ("denied", "host", "")


def test_control_characters_in_a_name_do_no_harm(account, ground):
    done = _explain(account, ground, "write", "/x\x1b[2J\ny")
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[1].startswith("  why ")


def test_the_command_is_listed(account):
    assert "explain" in account.command([GUARD, "--help"]).stdout
