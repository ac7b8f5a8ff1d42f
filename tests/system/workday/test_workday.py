"""The rows of `jobs`: each ends with 0 under login-node and its overlays, without a denial on record."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.beds.slurm import SRUN_PORTS, slurm
from tests.beds.sshd import client_config, sshd
from tests.conftest import ROOT, Account
from tests.system.workday.jobs import JOBS, Job


def missing(job: Job) -> str:
    """What a job needs and this host lacks."""
    path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"
    return ", ".join(n for n in job.needs if not (os.path.exists(n) if n[0] == "/" else shutil.which(n, path=path)))


def policy(account: Account, *overlays: str, extra: str = "") -> str:
    """login-node with overlays, a mask whatever groups there are."""
    named = ", ".join(f'"{name}"' for name in overlays)
    text = f'schema = 1\nname = "work"\nextends = "login-node"\noverlays = [{named}]\nreason = "a day\'s work"\n{extra}\n'
    return str(account.write(account.state.parent / f"work-{abs(hash(text))}.toml", text))


@contextmanager
def recorded(account: Account) -> Iterator[list[dict[str, object]]]:
    """The events of what runs meanwhile."""
    spool = account.state / "events.jsonl"
    before = spool.read_text().count("\n") if spool.exists() else 0
    found: list[dict[str, object]] = []
    yield found
    found += [json.loads(line) for line in spool.read_text().splitlines()[before:]]


def denials(events: list[dict[str, object]]) -> list[object]:
    return [(event["rule"], event["detail"]) for event in events if event["verdict"] == "denied"]


@pytest.fixture
def outside(account: Account) -> Iterator[Path]:
    place = account.directory("outside")
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_work_goes_on(account: Account, project: Path, outside: Path, job: Job) -> None:
    if missing(job):
        pytest.skip(f"not installed: {missing(job)}")
    env = {"HERE": str(project), "OUTSIDE": str(outside)}
    if job.before:
        made = account.command(["bash", "-euc", job.before], cwd=project, env=env)
        assert made.returncode == 0, made.stderr
    with recorded(account) as events:
        done = account.guard(
            ["bash", "-euc", f"cd {project}; {job.script}"], "--no-project-policy", policy=policy(account, *job.overlays),
            cwd=project, env=env, timeout=180,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.says in done.stdout, done.stdout + done.stderr
    assert denials(events) == []


# What reaches out: the overlay that opens it is named in the denial ----------------------------------------


def named(events: list[dict[str, object]]) -> str:
    return " ".join(str(event["detail"]["allow"]) for event in events if event["verdict"] == "denied")  # type: ignore[index]


LICENCE = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as server:
    server.sendall(b"h" + bytes(146))
    print(server.recv(64).decode())
"""


def test_a_licence_client_reaches_a_flexlm_server(account: Account, project: Path, own_address: str) -> None:
    server = socket.socket()
    for port in range(27000, 27051):
        try:
            server.bind((own_address, port))
            break
        except OSError:
            continue
    server.listen()

    def serve() -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(147)
            peer.sendall(b"checked out: done")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    command = ["/usr/bin/python3", "-c", LICENCE, own_address, str(server.getsockname()[1])]
    with recorded(account) as events:
        assert account.guard(command, policy=policy(account), cwd=project).returncode != 0
    assert "licences" in named(events)
    with recorded(account) as events:
        done = account.guard(command, policy=policy(account, "licences"), cwd=project)
    assert (done.stdout, denials(events)) == ("checked out: done\n", []), done.stderr
    thread.join(5)
    server.close()


GIT = """
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_SSH_COMMAND="ssh -F ssh_config"
eval "$(ssh-agent -a $TMPDIR/agent)" > /dev/null; trap 'kill $SSH_AGENT_PID' EXIT
ssh-add -q key
git clone -q ssh://here/{bare} work; cd work; export GIT_SSH_COMMAND="ssh -F ../ssh_config"
echo x > f; git add f; git commit -qm x; git push -q origin HEAD
git ls-remote origin | grep -q refs/heads && echo done
"""


def test_git_over_ssh_with_an_agent_of_the_session_s(account: Account, project: Path, own_address: str) -> None:
    bare = account.directory("bare", account.state.parent)
    account.command(["git", "init", "-q", "--bare", str(bare)])
    place = account.directory("keys", account.state.parent)
    with sshd(account, place, host=own_address, ports=(2222, 7999, 29418)) as server:
        for name in ("key", "key.pub"):
            account.write(project / name, (place / name).read_bytes(), 0o600)
        client_config(account, project / "ssh_config", server.port, None, own_address)
        script = ["bash", "-euc", GIT.format(bare=bare)]
        with recorded(account) as events:
            done = account.guard(script, "--no-project-policy", policy=policy(account), cwd=project)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "done" in done.stdout
        assert denials(events) == []
    assert account.command(["git", "-C", str(bare), "log", "--oneline", "--all"]).stdout.count("\n") == 1
    shutil.rmtree(place)
    shutil.rmtree(bare)


# Slurm: a job is a door, and is opened by its overlay ------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(own_address: str) -> Iterator[Path]:
    with slurm(own_address) as conf:
        yield conf


def slurm_policy(account: Account, own_address: str, conf: Path) -> str:
    """login-node with srun's ports, as a site sets them with its {cluster}; Slurm's settings lie not in /etc here."""
    entry = f'{{ addr = "{own_address}/32", ports = ["{SRUN_PORTS}"], exec = "/usr/bin/srun", reason = "SrunPortRange" }}'
    return policy(account, "slurm-client", extra=f'[files]\nread = ["{conf.parent}"]\n[network]\nbind_allow = [{entry}]')


JOBS_OF_SLURM = """
sinfo -h | grep -q normal
squeue -h > queue; cat queue
printf '#!/bin/sh\\necho from the job > %s/out\\n' $HERE > job.sh
id=$(sbatch --parsable -o $HERE/log job.sh)
for i in $(seq 1000); do [ -s out ] && break; sleep 0.05; done
grep -q 'from the job' out
squeue -h -j $id > /dev/null
test "$(srun -N1 -t1 sh -c 'echo done')" = done && echo done
"""


def test_jobs_are_submitted_watched_and_run(
    account: Account, project: Path, cluster: Path, own_address: str
) -> None:
    env = {"SLURM_CONF": str(cluster), "HERE": str(project)}
    with recorded(account) as events:
        done = account.guard(
            ["bash", "-euc", JOBS_OF_SLURM], "--no-project-policy", policy=slurm_policy(account, own_address, cluster),
            cwd=project, env=env,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert denials(events) == []


def test_while_srun_works_a_web_server_at_the_same_address_is_refused(
    account: Account, project: Path, cluster: Path, own_address: str
) -> None:
    """`bind_allow` names the program: srun's ports are srun's."""
    script = f"""
    srun -N1 -t1 sh -c 'touch {project}/running; while [ ! -e {project}/stop ]; do sleep 0.05; done; echo done' > said &
    for i in $(seq 1000); do [ -e running ] && break; sleep 0.05; done
    [ -e running ]
    code=0; timeout 5 python3 -m http.server --bind {own_address} 60030 2> error || code=$?
    touch stop; wait; cat said; echo "server $code"; tail -1 error
    """
    env = {"SLURM_CONF": str(cluster)}
    done = account.guard(
        ["bash", "-uc", script], "--no-project-policy", policy=slurm_policy(account, own_address, cluster), cwd=project, env=env
    )
    assert "done\nserver 1\n" in done.stdout, done.stdout + done.stderr
    assert "Permission denied" in done.stdout
    for name in ("running", "stop"):
        (project / name).unlink()
    bare = account.command(["bash", "-uc", script], cwd=project, env=env)
    assert "done\nserver 124\n" in bare.stdout, bare.stdout + bare.stderr  # it served until it was ended


CLOSED = """
schema = 1
name = "closed"
extends = "base"
reason = "login-node without the overlay slurm-client"
[files]
read = ["{home}", "CONF"]
write = ["{project}"]
"""


def test_without_the_overlay_no_job_is_submitted_and_the_denial_names_it(
    account: Account, project: Path, cluster: Path
) -> None:
    """A job runs outside: sbatch is a way out, and closed where the overlay is not there."""
    env = {"SLURM_CONF": str(cluster), "TRIES": "40"}
    account.write(project / "job.sh", f"#!/bin/sh\ntouch {project}/escaped\n", 0o755)
    script = f"sbatch -o {project}/log job.sh; for i in $(seq $TRIES); do [ -e escaped ] && exit 0; sleep 0.1; done; exit 9"
    closed = str(account.write(account.state.parent / "closed.toml", CLOSED.replace("CONF", str(cluster.parent))))
    with recorded(account) as events:
        done = account.guard(["bash", "-c", script], "--no-project-policy", policy=closed, cwd=project, env=env)
    assert done.returncode == 9, done.stdout + done.stderr
    assert "slurm-client" in named(events)
    assert account.command(["bash", "-c", script], cwd=project, env={**env, "TRIES": "500"}).returncode == 0


def test_conda_creates_an_environment(account: Account, project: Path, outside: Path) -> None:
    pytest.importorskip("rattler")
    script = account.write(project / "conda.py", Path(__file__).with_name("conda.py").read_bytes())
    interpreter = str((ROOT / ".venv").resolve() / "bin/python")  # the clone itself may be private
    assert account.command([interpreter, "-I", str(script), "channel", str(project / "channel")]).returncode == 0
    account.command(["mkdir", "-p", ".conda/envs", ".conda/pkgs"])  # a grant of what does not exist is skipped
    where = [str(project / "channel"), str(account.home / ".conda/envs/work"), str(account.home / ".conda/pkgs")]
    extra = f'[files]\nread = ["{(ROOT / ".venv").resolve()}"]'
    with recorded(account) as events:
        done = account.guard(
            [interpreter, "-I", str(script), "create", *where], "--no-project-policy", cwd=project,
            policy=policy(account, "conda-spack-pip", extra=extra),
        )  # fmt: skip
    # The library's threads can trip the interpreter's own end, with or without guard; its work is done by then.
    assert done.returncode == 0 or "state: finalizing" in done.stderr, done.stdout + done.stderr
    assert denials(events) == []
    assert account.command([f"{where[1]}/bin/hello"]).stdout == "done\n"
