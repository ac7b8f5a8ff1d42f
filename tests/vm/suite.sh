#!/bin/bash
# The monitor's suite on kernels that this one is not: `make test-vm`.
#   suite.sh [SERIES/BACKEND[/enforce] …]      default: 6.12 and 6.1, each on lsm, fmod and tracepoint, and enforced
# fmod runs on a kernel whose lsm= leaves bpf out: there the LSM backend must fall through to it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
VMDIR=${VMDIR:-/var/tmp/guard-vm}
"$here/prepare.sh"
job=$(mktemp -d -p "$VMDIR")
trap 'rm -rf "$job"' EXIT
"$here/stage.sh" "$job"
cat > "$job/job.sh" << 'J'
export PYTHONPATH=/mnt/library:/mnt PYTHONDONTWRITEBYTECODE=1
mkdir -p /var/tmp/suite
python3 -m guard monitor --check --backend "$BACKEND" --expect "$BACKEND" ${ENFORCE:+--enforce} > /tmp/check 2>&1
checked=$?
# What a tracepoint cannot refuse is a fault of a check that asks for it.
[ "$checked" = 0 ] || { cat /tmp/check; [ "$BACKEND$ENFORCE" = tracepoint1 ] || bad=1; }
python3 -m tests.monitor.suite.stage --guard "python3 -m guard" --backend "$BACKEND" ${ENFORCE:+--enforce} \
	--seconds 60 --jobs 2 --directory /var/tmp/suite ${ONLY:+--only "$ONLY"} > /tmp/out 2> /tmp/err
status=$?
grep -v '"right": true' /tmp/out
tail -c 3000 /tmp/err
exit $((status | ${bad:-0}))
J
failed=0
for run in ${*:-6.12/lsm 6.12/lsm/enforce 6.12/fmod 6.12/fmod/enforce 6.12/tracepoint 6.1/lsm 6.1/fmod 6.1/tracepoint}; do
	IFS=/ read -r series backend enforce <<< "$run"
	words="BACKEND=$backend ${enforce:+ENFORCE=1} ${ONLY:+ONLY=$ONLY}"
	if [ "$backend" = fmod ]; then
		words="$words lsm=lockdown,capability,yama,apparmor"
	else
		words="$words lsm=lockdown,capability,yama,apparmor,bpf"
	fi
	echo "== $run"
	# shellcheck disable=SC2086 # words of a command line
	"$here/run.sh" "$job" "$series" $words || { failed=1; echo "== $run: not as it must be"; }
done
exit $failed
