#!/bin/bash
# Lay out in JOB what a test machine needs to run guard and the tests' own stage: stage.sh JOB
# There: export PYTHONPATH=/mnt/library:/mnt; python3 -m guard …
set -euo pipefail
job=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
library=$("$root/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$job/library" "$job/tests/monitor"
(cd "$library" && tar cf - --exclude=mypy --exclude=mypyc --exclude='*__mypyc*' --exclude=pip --exclude=setuptools \
	--exclude=hypothesis --exclude=ruff --exclude='*/__pycache__' .) | tar xf - -C "$job/library"
cp "$root/tests/__init__.py" "$job/tests/"
cp -r "$root/tests/monitor/suite" "$job/tests/monitor/"
