"""Both engines give the same result, and the fast one's cache is not trusted blindly."""

import os
import pathlib
import random

import pytest

from guard.redact import engine
from guard.redact.engine import HyperscanEngine, PlainEngine
from guard.redact.scan import Scanner
from guard.redact.stream import redact_bytes

hyperscan = pytest.importorskip("hyperscan")


@pytest.fixture(scope="session")
def fast(scanner, tmp_path_factory):
    return Scanner(HyperscanEngine(scanner.patterns, str(tmp_path_factory.mktemp("db"))))


@pytest.mark.parametrize("seed", range(30))
def test_both_engines_redact_the_same(seed, scanner, fast, carriers):
    from guard.redact import samples
    from guard.redact.rules.commands import COMMANDS
    from guard.redact.rules.formats import FORMATS
    from guard.redact.rules.table import CONTEXTS

    rng = random.Random(seed)
    templates = [t for row in (*FORMATS, *CONTEXTS, *COMMANDS) for t in row.samples]
    text = b"".join(rng.choice(list(carriers.values()))(samples.fill(rng.choice(templates), rng)[0]) for _ in range(20))
    assert redact_bytes(text, Scanner(PlainEngine(scanner.patterns))) == redact_bytes(text, fast)


def test_a_damaged_database_is_compiled_anew(scanner, tmp_path):
    HyperscanEngine(scanner.patterns[:3], str(tmp_path / "db"))
    (path,) = (tmp_path / "db").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    assert HyperscanEngine(scanner.patterns[:3], str(tmp_path / "db")).scan(b"nothing") == []


def test_a_database_that_others_can_write_is_not_loaded(scanner, tmp_path):
    HyperscanEngine(scanner.patterns[:3], str(tmp_path / "db"))
    (path,) = (tmp_path / "db").iterdir()
    path.write_bytes(b"planted")
    os.chmod(path, 0o666)
    assert HyperscanEngine(scanner.patterns[:3], str(tmp_path / "db")).scan(b"nothing") == []


def test_without_hyperscan_the_plain_engine_serves(scanner):
    def refuse():
        raise ImportError

    assert engine.best_engine(scanner.patterns, refuse).name == "re"


def test_ordinary_text_has_few_hits(fast):
    """The hit rate decides the speed: 80 hits a MB of C source were measured, a careless rule has 100,000."""
    import sysconfig

    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    names = ("argparse.py", "typing.py", "tarfile.py", "zipfile.py", "turtle.py")
    text = b"".join((folder / name).read_bytes() for name in names if (folder / name).exists())
    assert len(fast.engine(1 << 20).scan(text)) < 600 * len(text) / 1e6 + 50
