# ruff: noqa: E501 - tables of lines and long literals read better unbroken
"""Histories of every shell and client: the secret goes, records, times and syntax stay."""

import random
import subprocess

import pytest

from guard.redact import samples

PASSWORD = samples.password(random.Random(7), "", 10)

FORMATS = {
    "bash": b"#1700000000\nmysql -p%s db\n#1700000001\nls -la\n",
    "zsh": b": 1700000000:0;mysql -p%s db\n: 1700000001:0;ls -la \xe2\x86\xa6\xb2\n",
    "zsh metafied": b": 1700000000:0;echo \xe2\x86\x83\xb2; mysql -p%s db\n",
    "zsh continued": b": 1700000000:0;mysql \\\n  -p%s db\n: 1700000001:0;ls\n",
    "fish": b"- cmd: mysql -p%s db\n  when: 1700000000\n- cmd: ls -la\n  when: 1700000001\n",
    "fish lines": b"- cmd: begin\\n  mysql -p%s db\\nend\n  when: 1700000000\n",
    "fish variable": b"- cmd: set -gx DB_PASSWORD %s\n  when: 1700000000\n",
    "tcsh": b"#+1700000000\nsetenv DB_PASSWORD %s\n#+1700000001\nls\n",
    "python": b"import x\nx.connect(password='%s')\n",
    "psql": b"ALTER ROLE bob WITH PASSWORD '%s';\n",
    "libedit": b"_HiStOrY_V2_\nCREATE\\040USER\\040bob\\040IDENTIFIED\\040BY\\040'%s';\nselect\\0401;\n",
    "mysql": b"CREATE USER bob IDENTIFIED BY '%s';\n",
    "sqlite": b".open x.db\nPRAGMA key = '%s';\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_secret_goes_and_the_records_stay(name, redact):
    text = FORMATS[name] % PASSWORD.encode()
    out = redact(text)
    before, _, after = FORMATS[name].partition(b"%s")
    assert PASSWORD.encode() not in out
    assert out.startswith(before.rstrip(b"'"))
    assert out.endswith(after)


@pytest.mark.parametrize(
    "line",
    [
        "mysql -p{} db", "curl -u bob:{} https://h.example", "export A_TOKEN={}", "A_TOKEN='{}' cmd", 'A_TOKEN="{}" cmd', "echo {} | sudo -S ls",
        "sshpass -p '{}' ssh h", "kinit bob <<< '{}'", "tool --password={} x", "docker login -u bob -p {} r.example",
    ],
)  # fmt: skip
def test_a_redacted_command_is_shell_syntax(line, redact, tmp_path):
    script = tmp_path / "s"
    script.write_bytes(redact(line.format(PASSWORD).encode() + b"\n"))
    assert PASSWORD not in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("quoted", ["pa$$w0rd{x}", "two words 9", "semi;colon 1&2", 'q\\"uote1x', "it`s1!"])
def test_a_password_with_shell_characters_in_quotes_goes_whole(quoted, redact):
    out = redact(f'DB_PASSWORD="{quoted}" cmd\n'.encode())
    assert quoted[3:].encode() not in out
    assert out.endswith(b'" cmd\n')


def test_a_command_is_redacted_and_never_dropped(redact):
    line = b"python /opt/tools/multitool.py --all\n"
    assert redact(line) == line
