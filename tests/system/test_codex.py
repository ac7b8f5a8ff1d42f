"""The real Codex CLI, from npm, under login-node and the overlay that its name brings along."""

import json
import shutil
import subprocess

import pytest

from tests.system.mask import masked
from tests.system.model_api import serving

pytestmark = pytest.mark.timeout(400)

PACKAGE = "@openai/codex@0.171.0"
"""Not whatever is published by the time that the tests run."""
OFF = ["-c", 'sandbox_mode="danger-full-access"']
"""The documented setting that switches Codex's own sandbox off."""

ACTS = "; ".join(
    ("echo inside", "echo made > made", "cat made", "cat ~/.ssh/id_ed25519", "touch ~/outside", "chmod 777 made",
     "stat -c mode=%a made")
)  # fmt: skip


@pytest.fixture(scope="module")
def codex(account):
    """The CLI installed in the user's home and used once before; gives the directory of its program."""
    if not shutil.which("npm"):
        pytest.skip("not installed: npm")
    prefix = account.directory("codex")
    # With the environment of whoever runs the tests: proxies and certificates are this machine's.
    npm = [
        "npm",
        "install",
        "--loglevel=error",
        "--no-fund",
        "--no-audit",
        "--fetch-retries=0",
        "--prefix",
        str(prefix),
    ]
    done = subprocess.run([*npm, PACKAGE], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        shutil.rmtree(prefix)
        pytest.skip(f"@openai/codex cannot be had from the npm registry: {done.stderr.strip()[:200]}")
    subprocess.run(["chmod", "-R", "a+rX", str(prefix)], check=True)
    account.write(account.home / ".codex/version.json", "{}")
    account.write(account.home / ".ssh/id_ed25519", "PRIVATE KEY\n", 0o600)
    yield prefix / "node_modules/.bin"
    for path in (prefix, account.home / ".codex", account.home / ".ssh"):
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def started(account, codex, project):
    """Run codex in the project, under guard or (`bare`) without."""

    def run(*words, bare=False, policy="login-node", **more):
        env = {"PATH": f"{codex}:/usr/local/bin:/usr/bin:/bin", **more.pop("env", {})}
        more |= {"cwd": project, "env": env, "timeout": 100}
        return (
            account.command(["codex", *words], **more)
            if bare
            else account.guard(["codex", *words], policy=policy, **more)
        )

    yield run
    (account.home / "outside").unlink(missing_ok=True)


def test_codex_starts_under_its_overlay(account, started):
    done = started("--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("codex-cli "), done.stdout
    starts = [json.loads(line) for path in account.state.rglob("*.jsonl") for line in path.read_text().splitlines()]
    last = [event for event in starts if event["rule"] == "session-start"][-1]
    assert last["tree"]["harness"] == "codex"


def test_its_sandbox_command_runs_a_command_with_its_own_sandbox_switched_off(account, started, project):
    done = started("sandbox", *OFF, "--", "sh", "-c", ACTS)
    assert done.stdout.splitlines() == ["inside", "made", "mode=775"], done.stdout + done.stderr
    assert not (account.home / "outside").exists()
    (project / "made").unlink()
    bare = started("sandbox", *OFF, "--", "sh", "-c", ACTS, bare=True)
    assert bare.stdout.splitlines() == ["inside", "made", "PRIVATE KEY", "mode=777"], bare.stdout + bare.stderr
    assert (account.home / "outside").exists()


def test_its_own_sandbox_inside_guard_fails_loudly_and_runs_nothing(started, project):
    """It needs a user namespace: whoever forgets the setting gets an error, not an unconfined command."""
    done = started("sandbox", "--", "sh", "-c", "echo inside; touch ran")
    assert done.returncode != 0
    assert "inside" not in done.stdout
    assert done.stderr.strip()
    assert not (project / "ran").exists()


def policy_with(account, port):
    """login-node with one more port: that of the stand-in for the model's API."""
    path = account.write(
        account.home / "with-model.toml",
        'schema = 1\nname = "with-model"\nextends = "login-node"\nreason = "a stand-in for the API"\n'
        f'[network]\nconnect = [{{ ports = [{port}], to = "any", reason = "the stand-in" }}]\n',
    )
    return str(path)


def execute(started, model, **more):
    provider = f'{{ name = "stand-in", base_url = "http://127.0.0.1:{model.port}/v1", wire_api = "responses" }}'
    words = [
        "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "-c", f"model_providers.local={provider}",
        "-c", 'model_provider="local"', "-m", "stand-in", "run the command",
    ]  # fmt: skip
    return started(*words, **more)


def test_a_session_carries_out_the_models_command_inside_guard(account, started, project):
    with serving(ACTS) as model:
        done = execute(started, model, policy=policy_with(account, model.port))
        assert done.returncode == 0, done.stdout + done.stderr
        assert model.outputs, done.stdout + done.stderr
        told = "".join(model.outputs)
        assert (project / "made").read_text() == "made\n"
        assert "mode=775" in told
        assert "PRIVATE KEY" not in told
        assert not (account.home / "outside").exists()
    (project / "made").unlink()
    with serving(ACTS) as model:
        execute(started, model, bare=True)
        told = "".join(model.outputs)
        assert "PRIVATE KEY" in told
        assert "mode=777" in told
        assert (account.home / "outside").exists()


def test_its_settings_cannot_be_changed_for_later_sessions(account, started):
    policy = masked(account)
    settings = account.write(account.home / ".codex/config.toml", "# mine\n")
    try:
        script = ["sh", "-c", "echo evil >> ~/.codex/config.toml"]
        assert started("sandbox", *OFF, "--", *script, policy=policy).returncode != 0
        assert settings.read_text() == "# mine\n"
        assert started("sandbox", *OFF, "--", *script, bare=True).returncode == 0
        assert settings.read_text() != "# mine\n"
    finally:
        settings.unlink()
