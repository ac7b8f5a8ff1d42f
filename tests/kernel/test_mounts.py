"""What /proc/self/mountinfo says, read once for everybody who asks."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard.kernel import mounts
from guard.kernel.mounts import Mount

TABLE = r"""
20 1 0:20 / / rw,relatime shared:1 - ext4 /dev/x rw,errors=remount-ro
21 20 0:21 / /proc rw,nosuid - proc proc rw,hidepid=2
22 20 0:22 / /srv/two\040words\134\011x rw - nfs4 server:/export\0401 rw,vers=4.2
23 20 0:23 / /empty rw - tmpfs  rw
""".lstrip()


def test_names_come_as_they_are(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    assert list(mounts.mounts(str(table))) == [
        Mount("/", "ext4", "/dev/x", "rw,errors=remount-ro"),
        Mount("/proc", "proc", "proc", "rw,hidepid=2"),
        Mount("/srv/two words\\\tx", "nfs4", r"server:/export\0401", "rw,vers=4.2"),
        Mount("/empty", "tmpfs", "", "rw"),
    ]


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "ext4"), ("/homework", "ext4"), ("/home", "tmpfs"), ("/home/bob", "tmpfs")]
)
def test_the_deepest_and_latest_mount_holds_a_path(path: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = [Mount("/", "ext4", "/dev/x", "rw"), Mount("/home", "nfs", "h:/", "rw"), Mount("/home", "tmpfs", "t", "rw")]
    monkeypatch.setattr(mounts, "mounts", lambda: iter(table))
    monkeypatch.setattr("os.path.realpath", lambda given: given)
    assert mounts.file_system(path) == kind
