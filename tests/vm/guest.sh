#!/bin/bash
# Process 1 of the test machine: mount what a monitor needs, run the job, say its exit status, power off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
mount -o remount,rw / 2> /dev/null
mount -t tmpfs t /tmp && mount -t tmpfs t /run
mkdir -p /dev/pts /dev/shm && mount -t devpts d /dev/pts && mount -t tmpfs t /dev/shm
mount -t securityfs s /sys/kernel/security
mount -t tracefs t /sys/kernel/tracing
mount -t bpf b /sys/fs/bpf
mount -t cgroup2 c /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd && ln -sf /proc/self/fd/0 /dev/stdin && ln -sf /proc/self/fd/1 /dev/stdout && ln -sf /proc/self/fd/2 /dev/stderr
ip link set lo up
cd /mnt || exit 1
echo "GUEST kernel $(uname -r) lsm $(cat /sys/kernel/security/lsm)"
bash ./job.sh
echo "GUEST-EXIT $?"
sync
echo o > /proc/sysrq-trigger
sleep 10
