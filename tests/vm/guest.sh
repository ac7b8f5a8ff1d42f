#!/bin/bash
# Process 1 of the test machine: mount what a monitor needs, run the job, say its exit status, power off. A job that takes
# longer than LIMIT seconds since the boot is ended (124), and how idle the machine was then tells one that waits for what
# never comes from an emulation that is slow.
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
printf "\n"
echo "GUEST kernel $(uname -r) lsm $(cat /sys/kernel/security/lsm)"
idle() { # so many of so many ticks
	local name user nice system idle more
	read -r name user nice system idle more < /proc/stat
	echo "$idle $((user + nice + system + idle + ${more// /+}))"
}
read -r up _ < /proc/uptime
left=$((${LIMIT:-1000000} - ${up%.*}))
(
	sleep $((left > 20 ? left - 20 : 1))
	read -r idle0 all0 <<< "$(idle)"
	sleep 15
	read -r idle1 all1 <<< "$(idle)"
	echo "GUEST-LATE idle $(((idle1 - idle0) * 100 / (all1 - all0)))%"
	ps -eo pid,stat,etime,time,wchan:20,args | grep -v '\]$' | tail -n 30
) &
timeout -k 5 "$((left > 30 ? left : 30))" bash ./job.sh
echo "GUEST-EXIT $?"
sync
echo o > /proc/sysrq-trigger
sleep 10
