#!/bin/sh
# Make .venv with guard and its test tools, from the system's Python, readable by every user.
# Debian packages that are missing are installed where we are root, and named where we are not.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-/usr/bin/python3}

# program:package, what the demo and the tests start
wanted="python3:python3 git:git gcc:gcc make:make tar:tar node:nodejs npm:npm sqlite3:sqlite3 rsync:rsync
setfacl:acl setfattr:attr strace:strace bwrap:bubblewrap firejail:firejail bindfs:bindfs xz:xz-utils unshare:util-linux
zstd:zstd clang:clang llvm-strip:llvm curl:curl ip:iproute2"
# what tests/beds, tests/system/ways and tests/system/workday start; Chromium, which is large, is tried where it is there
wanted="$wanted sshd:openssh-server ssh:openssh-client tmux:tmux crontab:cron at:at gdb:gdb unzip:unzip zip:zip
slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge mpirun:openmpi-bin mpicc:libopenmpi-dev"
files="/usr/share/lmod:lmod /usr/lib/postgresql:postgresql /usr/lib/python3/dist-packages/ipykernel:python3-ipykernel
/usr/lib/python3/dist-packages/jupyter_client:python3-jupyter-client"
missing=""
PATH=$PATH:/usr/sbin:/sbin # servers lie there, off the path of ordinary users
for pair in $wanted; do
	command -v "${pair%%:*}" > /dev/null 2>&1 || missing="$missing ${pair##*:}"
done
for pair in $files; do
	[ -e "${pair%%:*}" ] || missing="$missing ${pair##*:}"
done
"$python" -c 'import venv, ensurepip' 2> /dev/null || missing="$missing python3-venv"
ldconfig -p 2> /dev/null | grep -q libseccomp.so.2 || missing="$missing libseccomp2"
ldconfig -p 2> /dev/null | grep -q 'libbpf.so.[01]' || missing="$missing libbpf1"
[ -e /usr/include/bpf/bpf_helpers.h ] || missing="$missing libbpf-dev"
ls /usr/include/asm-generic/errno.h /usr/include/*/asm-generic/errno.h /usr/include/stdio.h > /dev/null 2>&1 ||
	{ [ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"; }
# A real receiver for the tests of feeds: modules, and a program off the path of ordinary users.
if [ "$(id -u)" = 0 ] && command -v dpkg-query > /dev/null; then
	for package in rsyslog rsyslog-gnutls rsyslog-relp; do
		dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || missing="$missing $package"
	done
fi
if [ -n "$missing" ]; then
	if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
		echo "setup: installing$missing" >&2
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -qq >&2
		# shellcheck disable=SC2086 # a list of package names
		apt-get install -y -qq --no-install-recommends $missing > .apt.log 2>&1 || { cat .apt.log >&2; exit 1; }
		rm -f .apt.log
	else
		echo "setup: missing, and only root can install it: apt-get install$missing" >&2
		echo "setup: going on; what needs them is skipped and says so" >&2
	fi
fi

# The monitor's programs are compiled here, once, and never on the node that they watch.
objects=guard/monitor/objects/$(uname -m)
if [ ! -e "$objects/lsm.bpf.o" ] || [ -n "$(find guard/monitor/bpf packaging/build-bpf -newer "$objects/lsm.bpf.o" -print -quit)" ]; then
	packaging/build-bpf || echo "setup: going on without them: \`guard monitor\` then has the backends bcc and poll" >&2
fi

# The environment must be reachable by every user. Where the clone is not (a private directory), it is
# kept outside and .venv is a link to it.
umask 022
reachable() {
	[ "$(id -u)" != 0 ] || setpriv --reuid 65534 --regid 65534 --clear-groups test -x "$1" 2> /dev/null
}
if [ ! -e .venv/bin/python ] || ! reachable "$(readlink -f .venv)"; then # or the clone has become private since
	target=$PWD/.venv
	if ! reachable "$PWD"; then
		target=/opt/guard-env-$(printf %s "$PWD" | cksum | cut -d' ' -f1)
		rm -rf "$target" .venv
		ln -s "$target" .venv
	fi
	"$python" -m venv "$target"
fi
env=$(readlink -f .venv)
stamp=$env/.installed
if [ ! -e "$stamp" ] || [ -n "$(find pyproject.toml guard policies hooks packaging/setup.sh packaging/install-entry packaging/guard-shell packaging/build-exec packaging/bundle -newer "$stamp" ! -name '*.pyc' ! -name __pycache__ -print -quit)" ]; then
	if [ ! -e "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
		"$env/bin/python" -m pip install -q --disable-pip-version-check '.[test]'
	else
		"$env/bin/python" -m pip install -q --disable-pip-version-check --no-deps --force-reinstall .
	fi
	library=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	"$env/bin/python" -m compileall -q "$library/guard" "$library/landlock" > /dev/null
	mkdir -p "$env/libexec"
	packaging/install-entry "$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')" "$library" "$env/libexec/guard"
	"$python" -IS -X no_debug_ranges packaging/bundle "$library"
	packaging/build-exec "$env/libexec/guard" "$env/bin/guard"
	touch "$stamp"
fi
# The checker of accessibility that the tests run in a browser.
if [ ! -e "$env/npm/node_modules/axe-core/axe.min.js" ] && command -v npm > /dev/null; then
	npm install --silent --no-audit --no-fund --prefix "$env/npm" axe-core@4 > "$env/npm.log" 2>&1 ||
		echo "setup: axe-core could not be had from npm; what needs it is skipped and says so" >&2
fi
