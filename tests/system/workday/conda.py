"""`conda create` of a channel of one package: solve, fetch, unpack, link, by rattler, conda's client in Rust.

    conda.py channel PLACE          make the channel
    conda.py create PLACE PREFIX CACHE

micromamba and conda themselves come from conda's own channels only; rattler is what pixi is made of.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

INDEX = {"name": "hello", "version": "1.0", "build": "0", "build_number": 0, "depends": [], "subdir": "noarch",
         "arch": None, "platform": None, "noarch": "generic"}  # fmt: skip
FILES = {"bin/hello": b"#!/bin/sh\necho done\n"}


def channel(place: Path) -> None:
    """Make it."""
    (place / "noarch").mkdir(parents=True)
    paths = [
        {"_path": name, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
        for name, data in FILES.items()
    ]
    whole = {
        **FILES,
        "info/index.json": json.dumps(INDEX).encode(),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}).encode(),
        "info/files": "".join(f"{name}\n" for name in FILES).encode(),
    }
    package = place / "noarch/hello-1.0-0.tar.bz2"
    with tarfile.open(package, "w:bz2") as tar:
        for name, data in whole.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o775 if name.startswith("bin/") else 0o664
            tar.addfile(entry, io.BytesIO(data))
    data = package.read_bytes()
    record = {**INDEX, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    repodata = {"info": {"subdir": "noarch"}, "packages": {package.name: record}, "packages.conda": {}}
    (place / "noarch/repodata.json").write_text(json.dumps(repodata))


async def create(place: str, prefix: str, cache: str) -> None:
    """Make an environment of it."""
    import rattler

    records = await rattler.solve(
        sources=[rattler.Channel(f"file://{place}")], specs=["hello"], platforms=["noarch"],
        gateway=rattler.Gateway(cache_dir=f"{cache}/repodata"),
    )  # fmt: skip
    await rattler.install(records, prefix, cache_dir=f"{cache}/pkgs", show_progress=False)


if __name__ == "__main__":
    if sys.argv[1] == "channel":
        channel(Path(sys.argv[2]))
    else:
        asyncio.run(create(*sys.argv[2:]))
