"""The session's own temporary directory where somebody else took its place first."""

import os
import shutil
from pathlib import Path

import pytest

from tests.system.test_supervised_life import _until

pytestmark = pytest.mark.root


@pytest.fixture
def squatted(account):
    """The name that the user's sessions would use, taken by another."""
    path = Path(f"/tmp/guard-{account.uid}")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    os.chown(path, 65534, 65534)
    yield path
    shutil.rmtree(path)


def shelves(account):
    return {path for path in Path("/tmp").glob(f"guard-{account.uid}-*") if path.stat().st_uid == account.uid}


def test_a_name_taken_by_another_user_is_not_used_and_nothing_piles_up(account, project, squatted):
    script = 'echo x > "$TMPDIR/left"; stat -c "%a %u" "$TMPDIR"; echo "$TMPDIR"'
    places = []
    for _ in range(10):
        done = account.guard(["sh", "-ec", script], cwd=project)
        mode, place = done.stdout.splitlines()
        assert mode == f"700 {account.uid}"
        places.append(Path(place))
    assert not list(squatted.iterdir())
    assert len(shelves(account)) == 1
    # The last sessions' own may still be there: eight are swept at once, in the background of the next.
    _until(lambda: not places[0].exists())
    shutil.rmtree(shelves(account).pop())
