"""`guard policy …` and what every command shares: options, exit codes, one line for an error."""

import json
import os
import pwd
import subprocess
import sys
import tomllib

import pytest

from guard import __version__, cli
from guard.cli.subject import Person, reader_for
from guard.errors import PolicyError
from guard.policy.source import read_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture
def guard(tmp_path, capsys, monkeypatch):
    """Run a command line in this process; gives exit code, stdout, stderr."""
    monkeypatch.delenv("GUARD_DEBUG", raising=False)
    monkeypatch.setenv("GUARD_CONFIG_DIR", str(tmp_path / "etc"))
    monkeypatch.setenv("GUARD_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def run(*words):
        capsys.readouterr()
        code = cli.main(list(words))
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"schema = 1\n{text}")
        return str(path)

    return write


# What every command shares --------------------------------------------------------------------------


def test_the_version_is_told(guard):
    assert guard("--version") == (0, f"guard {__version__}\n", "")


def test_help_names_every_command_and_imports_none(guard):
    code, out, _ = guard("--help")
    assert code == 0
    for name in ("run", *cli.COMMANDS):
        assert f"\n  {name} " in out
    assert max(map(len, out.splitlines())) < 80


def test_usage_errors_are_one_line_and_two(guard):
    for words in (("nothing",), ("policy", "nothing"), ("policy", "list", "--nothing"), ("policy", "diff", "a")):
        code, out, err = guard(*words)
        assert (code, out) == (2, "")
        assert err.startswith("guard: ")
        assert err.count("\n") == 1


def test_no_command_is_a_usage_error_with_the_help(guard):
    code, out, err = guard()
    assert (code, out) == (2, "")
    assert "Commands:" in err


def test_a_broken_command_breaks_no_other(guard, monkeypatch):
    broken = {**cli.COMMANDS, "broken": cli.Group("guard.cli.does_not_exist", "Broken.")}
    monkeypatch.setattr(cli, "COMMANDS", broken)
    code, out, err = guard("broken")
    assert (code, out) == (3, "")
    assert err.startswith("guard: internal error: ModuleNotFoundError:")
    assert err.count("\n") == 1
    assert guard("policy", "list")[0] == 0


def test_an_uncaught_exception_is_shown_whole_on_request(guard, monkeypatch):
    monkeypatch.setattr(cli, "COMMANDS", {"broken": cli.Group("guard.cli.does_not_exist", "Broken.")})
    monkeypatch.setenv("GUARD_DEBUG", "1")
    with pytest.raises(ModuleNotFoundError):
        guard("broken")


@pytest.mark.parametrize(
    "words",
    [
        ("--config", "DIR", "policy", "list"),
        ("policy", "--config", "DIR", "list"),
        ("policy", "list", "--config=DIR"),
        ("policy", "list", "--config", "DIR"),
    ],
)
def test_the_configuration_can_be_named_on_any_command(guard, write, tmp_path, words):
    write("other/policies/mine.toml", 'description = "here"')
    code, out, _ = guard(*(word.replace("DIR", str(tmp_path / "other")) for word in words))
    assert code == 0
    assert "mine " in out


def test_what_follows_the_command_to_run_is_not_ours():
    places, rest = cli.split_places(["--state", "/s", "run", "--config", "/x", "--", "cmd", "--state", "/y"])
    assert places.state == "/s"
    assert rest == ["run", "--config", "/x", "--", "cmd", "--state", "/y"]
    places, rest = cli.split_places(["policy", "--", "--config", "/x"])
    assert rest == ["policy", "--", "--config", "/x"]


def test_a_command_may_have_an_option_of_the_same_name(monkeypatch):
    monkeypatch.setattr(cli, "COMMANDS", {"feed": cli.Group("x", "", ("--config",))})
    places, rest = cli.split_places(["--config", "/a", "feed", "run", "--config", "/b"])
    assert (places.config, rest) == ("/a", ["feed", "run", "--config", "/b"])


def test_a_configuration_that_others_may_write_is_refused(guard, tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc").chmod(0o777)
    code, out, err = guard("policy", "list")
    assert (code, out) == (3, "")
    assert "is writable by others" in err
    (tmp_path / "etc").chmod(0o755)
    tmp_path.chmod(0o777)
    assert guard("policy", "list")[0] == 3
    tmp_path.chmod(0o1777)
    assert guard("policy", "list")[0] == 0


def run_python(*words, **more):
    code = "import sys; from guard.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, check=False, **more)


def test_a_reader_that_goes_away_is_no_error_to_talk_of():
    out, into = os.pipe()
    os.close(out)
    done = run_python("policy", "show", "base", stdout=into, stderr=subprocess.PIPE)
    os.close(into)
    assert (done.returncode, done.stderr) == (141, b"")


def test_output_that_cannot_be_written_is_an_error():
    with open("/dev/full", "wb") as full:
        done = run_python("policy", "show", "base", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 3
    assert done.stderr.startswith(b"guard: [Errno 28] No space left")
    assert done.stderr.count(b"\n") == 1


# list -----------------------------------------------------------------------------------------------


def test_list_tells_name_kind_origin_and_description(guard, write):
    write("etc/policies/login-node.toml", 'extends = "login-node"\ndescription = "ours"')
    code, out, err = guard("policy", "list")
    assert (code, err) == (0, "")
    rows = [line.split(None, 3) for line in out.splitlines() if not line.startswith(" ")]
    assert rows[0] == ["NAME", "KIND", "FROM", "DESCRIPTION"]
    assert ["login-node", "policy", "site", "ours"] in rows
    assert ["claude", "harness", "shipped", "Claude Code"] in rows
    assert max(map(len, out.splitlines())) < 80
    code, out, _ = guard("policy", "list", "--json")
    assert {row["name"] for row in json.loads(out)} >= {"base", "login-node", "claude", "gpu"}


def test_a_policy_that_does_not_load_hides_no_other(guard, write):
    write("etc/policies/bad.toml", "[files]\nread = ['x']")
    code, out, err = guard("policy", "list")
    assert code == 3
    assert "login-node" in out
    assert "bad.toml:3:9:" in err


# show -----------------------------------------------------------------------------------------------


def test_show_is_toml_with_the_origin_of_each_value(guard):
    code, out, err = guard("policy", "show", "login-node")
    assert (code, err) == (0, "")
    data = tomllib.loads(out)
    assert "{project}" in data["files"]["write"]
    line = next(line for line in out.splitlines() if line.startswith('  "{project}",'))
    assert "# login-node.toml:" in line


def test_an_overlay_is_shown_as_what_it_adds(guard):
    code, out, _ = guard("policy", "show", "kerberos")
    assert code == 0
    assert tomllib.loads(out)["kernel"] == {"keyctl": "allow"}
    assert "# opens " in out


def test_show_takes_a_path_only_with_a_slash(guard, write, monkeypatch, tmp_path):
    write("work/mine.toml", '[files]\nread = ["/opt"]')
    assert guard("policy", "show", "./mine.toml")[0] == 0
    code, _, err = guard("policy", "show", "mine.toml")
    assert code == 3
    assert "there is no policy 'mine.toml'" in err


def test_effective_names_dropped_patterns_and_variables_but_no_value(guard, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-value")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "s3cr3t-value")
    code, out, err = guard("policy", "show", "--effective", "--harness", "claude")
    assert (code, err) == (0, "")
    text = " ".join(line.lstrip("# ") for line in out.splitlines() if line.startswith("#"))
    assert "*_API_KEY" in text.split("drops")[1]
    here = text.split("here drops")[1]
    assert "MY_API_KEY" in here
    assert "ANTHROPIC_API_KEY" not in here
    assert "s3cr3t" not in out
    assert "s3cr3t" not in guard("policy", "show", "--effective", "--json")[1]


def test_effective_answers_for_any_user(guard, write):
    write("etc/assign.toml", '[[assign]]\ngroup = "daemon"\nmode = "observe"\n')
    code, out, _ = guard("policy", "show", "--effective", "--user", "daemon", "--json")
    assert code == 0
    got = json.loads(out)
    assert (got["user"], got["mode"], got["assigned_by"]) == ("daemon", "observe", "assign.toml:2")
    assert json.loads(guard("policy", "show", "--effective", "--user", "nobody", "--json")[1])["mode"] == "enforce"


def test_an_unknown_user_is_told(guard):
    code, out, err = guard("policy", "show", "--effective", "--user", "no-such-user")
    assert (code, out) == (2, "")
    assert "there is no user 'no-such-user' on this host" in err


def test_effective_takes_the_project_with_it(guard, write, tmp_path):
    write("proj/.guard.toml", '[files]\nwrite = ["{project}/src"]')
    code, out, _ = guard("policy", "show", "--effective", "--project", str(tmp_path / "proj"), "--json")
    assert code == 0
    assert json.loads(out)["values"]["files.write"] == ["{project}/src"]
    assert guard("policy", "show", "--effective", "--project", "/nowhere")[0] == 2


def test_effective_says_that_the_last_good_files_are_in_force(guard, write, tmp_path):
    from guard.policy.assign import shipped_dir
    from guard.policy.last_good import keep

    write("etc/site.toml", "[limits]\nprocesses = 5")
    (tmp_path / "state").mkdir()
    assert keep(str(tmp_path / "etc"), shipped_dir(), str(tmp_path / "state" / "last-good"), 0.0) == []
    write("etc/site.toml", "broken")
    code, out, err = guard("policy", "show", "--effective", "--json")
    assert code == 0
    assert json.loads(out)["values"]["limits.processes"] == 5
    assert "site.toml:2:7" in json.loads(out)["alerts"][0]
    assert "the last good site files are in force" in err


def test_the_schema_of_every_kind_is_printed(guard):
    for words in ((), ("site",), ("assign",), ("exceptions",), ("overlay",)):
        code, out, _ = guard("policy", "show", "--schema", *words)
        assert code == 0
        assert json.loads(out)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert guard("policy", "show", "--schema", "nothing")[0] == 2


# lint, diff, compile --------------------------------------------------------------------------------


def test_lint_ends_with_one_when_there_is_something(guard, write, tmp_path):
    write("site/site.toml", "")
    assert guard("policy", "lint", str(tmp_path / "site")) == (0, "", "")
    write("site/policies/a.toml", 'reason = "r"\n[files]\nwrite = ["/"]')
    code, out, err = guard("policy", "lint", str(tmp_path / "site"))
    assert code == 1
    assert out.startswith(f"{tmp_path}/site/policies/a.toml:4:10: warning: files.write: /: ")
    assert err == "guard: 0 errors, 1 warnings\n"
    code, out, _ = guard("policy", "lint", "--json", str(tmp_path / "site"))
    assert [each["line"] for each in json.loads(out)] == [4]
    assert guard("policy", "lint", ".")[0] == 0


def test_diff_ends_with_one_when_there_is_a_difference(guard):
    assert guard("policy", "diff", "login-node", "login-node") == (0, "", "")
    code, out, err = guard("policy", "diff", "login-node", "read-only")
    assert (code, err) == (1, "")
    assert "- narrower files.write: {project}" in out
    assert "~ narrower network.bind: loopback -> deny" in out
    changes = json.loads(guard("policy", "diff", "--json", "login-node", "read-only")[1])
    assert {"key": "network.bind", "before": "loopback", "after": "deny"}.items() <= next(
        each for each in changes if each["key"] == "network.bind"
    ).items()


def test_compile_writes_a_plan_whole(guard, tmp_path):
    from guard.policy import plan

    target = tmp_path / "out.plan"
    target.write_bytes(b"old")
    code, out, err = guard("policy", "compile", "login-node", "-o", str(target))
    assert (code, out, err) == (0, "", "")
    assert plan.loads(target.read_bytes())["policy"] == "login-node"
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []
    code, _, err = guard("policy", "compile", "login-node", "-o", str(tmp_path / "no" / "out.plan"))
    assert code == 3
    assert "cannot be written" in err


# Another user's files -------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_root_reads_a_users_files_as_that_user(tmp_path):
    entry = pwd.getpwnam("nobody")
    person = Person("nobody", entry.pw_uid, entry.pw_gid, (entry.pw_gid,), "/")
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder) not in ("/", "/tmp"):
            folder.chmod(0o755)
    (tmp_path / "open").write_bytes(b"x" * 200_000)
    (tmp_path / "secret").write_text("root's")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "link").symlink_to("secret")
    os.mkfifo(tmp_path / "fifo")
    skipped = []
    read = reader_for(person, skipped)
    assert read(str(tmp_path / "open"), 1 << 20, True) == b"x" * 200_000
    for name in ("secret", "link"):
        with pytest.raises(FileNotFoundError):
            read(str(tmp_path / name), 100, True)
    assert skipped == [str(tmp_path / "secret"), str(tmp_path / "link")]
    with pytest.raises(FileNotFoundError):
        read(str(tmp_path / "none"), 100, True)
    with pytest.raises(PolicyError, match="is a FIFO"):
        read(str(tmp_path / "fifo"), 100, True)


def test_ones_own_files_are_read_directly():
    entry = pwd.getpwuid(os.geteuid())
    person = Person(entry.pw_name, entry.pw_uid, entry.pw_gid, (), entry.pw_dir)
    assert reader_for(person, []) is read_file
