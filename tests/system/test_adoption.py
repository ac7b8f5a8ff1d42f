"""A secret seen without a service is one incident with what the service sees, once it runs."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from guard.redact import samples
from tests.conftest import GUARD, ROOT_HERE, Account
from tests.events.conftest import Node, eventually

pytestmark = [pytest.mark.root, pytest.mark.skipif(not ROOT_HERE, reason="needs root: the node's own services")]


def test_what_was_filed_without_a_service_gets_the_sites_fingerprint(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, gone = (samples.fill("ghp_<crc62>", random.Random(n))[0] for n in range(2))
    node = Node()
    try:
        address = node.top / "run" / "redact.sock"
        monkeypatch.setenv("GUARD_REDACT_SOCKET", str(address))
        places = {"GUARD_STATE_DIR": str(node.users_state(account))}
        private = account.directory("private")
        private.chmod(0o700)
        for name, secret in (("stays", key), ("goes", gone)):
            path = account.write(private / name, f"export A_TOKEN={secret}\n", 0o600)
            done = account.cli("redact", "--check", "--record", str(path), env=account.environment(places))
            assert done.returncode == 1, done.stderr
        (private / "goes").unlink()
        made = subprocess.run(
            [GUARD, "key", "init", "--config", str(node.config)], capture_output=True, text=True, check=True
        )
        site = made.stdout.split()[-1]
        command = [GUARD, "serve", "redact", "--state", str(node.state), "--config", str(node.config)]
        service = subprocess.Popen(command)
        try:
            eventually(address.exists)
            node.start()
            eventually(lambda: len(node.events("--control", "exposure")) == 2)
            rows = {Path(row["detail"]["file"]).name: row["detail"] for row in node.events("--control", "exposure")}
            assert rows["stays"]["key_id"] == site
            assert rows["stays"]["former"][0]["key_id"].startswith("local-")
            assert rows["goes"]["key_id"].startswith("local-"), "what is gone stays visibly unmatched"
            # Root sees the same key elsewhere: one fingerprint.
            root = node.top / "log.txt"
            root.write_text(f"token {key}\n")
            report = node.top / "report"
            command = [GUARD, "redact", "--check", "--report", str(report), "--config", str(node.config), str(root)]
            assert (
                subprocess.run(command, env={**os.environ, "GUARD_STATE_DIR": str(node.state)}, check=False).returncode
                == 1
            )
            assert json.loads(report.read_text())["fingerprint"] == rows["stays"]["fingerprint"]
            assert key[4:12] not in json.dumps(rows)
        finally:
            service.kill()
            service.wait()
    finally:
        node.close()
