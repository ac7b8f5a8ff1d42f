# Two commands do everything on a fresh machine: `make demo` and `make test`.
.PHONY: setup demo test test-long test-vm lint bench packages clean

setup:
	@packaging/setup.sh

demo: setup
	@.venv/bin/python tests/demo/demo.py

lint: setup
	@.venv/bin/ruff check guard tests bench
	@.venv/bin/mypy

# What `guard run` promises, once more with starts that guard-exec makes (tests/conftest.py, COMPILED).
both = tests/system/test_events.py tests/system/test_ipc.py tests/system/test_processes.py \
	tests/system/test_supervised_life.py tests/system/test_private_tmp.py

# Files side by side: most tests wait for processes and not for the processor. The monitor sees the whole node: alone.
side = -n 3 --dist loadfile
steady = .venv/bin/python tests/steady.py

test: setup lint
	@$(steady) tests/monitor
	@$(steady) $(side) --ignore tests/monitor
	@GUARD_TEST_LAUNCHER=exec $(steady) $(side) $(both)

test-long: setup lint
	@GUARD_TEST_LONG=1 .venv/bin/python -m pytest -q

# The monitor's suite on Debian's own kernels in qemu, where LSM programs load: minutes, and 2 GB in /var/tmp/guard-vm.
test-vm: setup
	@tests/vm/suite.sh

bench: setup
	@.venv/bin/python bench/start.py
	@.venv/bin/python bench/steady.py
	@unshare -n .venv/bin/python bench/monitor.py
	@.venv/bin/python bench/shell.py

packages:
	@packaging/build-packages dist

clean:
	rm -rf .venv
