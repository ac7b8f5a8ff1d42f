#!/bin/bash
# Boot one kernel, run JOB/job.sh as root in it, print its console, end with the job's exit status.
#   run.sh JOB SERIES [WORD…]     words go to the kernel's command line: lsm=…; what it does not know the job gets as
#                                 environment variables: BACKEND=fmod
# TIMEOUT: seconds for it all. A machine that has not come up in half of them is started once more: that is the emulation's
# fault, and nothing of guard's ran. One that came up ends its job, and says so, after three quarters (guest.sh).
# No KVM is needed; software emulation takes about ten seconds to boot. One thread emulates both processors: with two, qemu
# now and then runs into the kernel patching its own text, which attaching programs does all the time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
VMDIR=${VMDIR:-/var/tmp/guard-vm}
TIMEOUT=${TIMEOUT:-1500}
job=$1 series=$2
shift 2
stage=$(mktemp -d -p "$VMDIR")
trap 'rm -rf "$stage"' EXIT
mkdir "$stage/job"
cp -a "$job/." "$stage/job/"
cp "$here/guest.sh" "$stage/job/"
truncate -s "${JOB_SIZE:-400M}" "$stage/job.img"
mkfs.ext4 -q -F -d "$stage/job" "$stage/job.img"
mkfifo "$stage/terminal"

is_up() { # anywhere in a line: the firmware's last one has no end
	grep -q 'GUEST kernel' "$stage/console"
}
boot() { # the value: it came up
	: > "$stage/console"
	sed -u 's/\x1b[^a-zA-Z]*[a-zA-Z]//g; s/\r//g' < "$stage/terminal" | tee "$stage/console" &
	local reader=$! machine waited
	# shellcheck disable=SC2086 # words of a command line
	nice -n "${NICE:-0}" timeout "$TIMEOUT" qemu-system-x86_64 -machine q35 -accel tcg,thread=single -cpu max -smp 2 -m 2048 \
		-nographic -no-reboot -nic none ${CLOCK:-} -kernel "$VMDIR/vmlinuz-$series" -initrd "$VMDIR/initrd-$series.gz" \
		-append "console=ttyS0 quiet panic=-1 rw sysrq_always_enabled=1 mitigations=off LIMIT=$((TIMEOUT * 3 / 4)) $*" \
		-drive "file=$VMDIR/root.img,format=raw,if=virtio,snapshot=on" \
		-drive "file=$stage/job.img,format=raw,if=virtio" < /dev/null > "$stage/terminal" 2>&1 &
	machine=$!
	for ((waited = 0; waited < TIMEOUT / 2; waited++)); do
		sleep 1
		if is_up || ! kill -0 "$machine" 2> /dev/null; then break; fi
	done
	is_up || kill "$machine" 2> /dev/null || true
	wait "$machine" || true
	wait "$reader" || true
	is_up
}
boot "$@" || boot "$@" || true
# A power-off says nothing of the job: its last line does.
status=$(sed -n 's/^.*GUEST-EXIT //p' "$stage/console" | tail -n 1)
exit "${status:-1}"
