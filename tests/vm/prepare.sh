#!/bin/bash
# Fetch and lay out the test machine: stock Debian kernels, unpacked and never installed, and a Debian root disk.
# Root, apt and a Debian mirror. Once; kept in $VMDIR (about 2 GB).
set -euo pipefail
VMDIR=${VMDIR:-/var/tmp/guard-vm}
SUITE=bookworm
MIRROR=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | head -n 1)}
INCLUDE=python3,curl,wget,git,perl,nodejs,rsync,acl,attr,gcc,libc6-dev,make,iproute2,procps,kmod,libbpf1,libelf1,zlib1g,xz-utils
MODULES="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk
	crc32c_generic libcrc32c crc16 mbcache jbd2 ext4"
umask 022
mkdir -p "$VMDIR"
exec 9> "$VMDIR/lock" # two that prepare wait for each other
flock 9

missing=""
for pair in qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap cpio:cpio busybox:busybox-static mkfs.ext4:e2fsprogs xz:xz-utils; do
	command -v "${pair%%:*}" > /dev/null 2>&1 || missing="$missing ${pair##*:}"
done
[ -e /bin/busybox ] || missing="$missing busybox-static"
if [ -n "$missing" ]; then
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of package names
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing > /dev/null
fi
cd "$VMDIR"

newest() { # of a series, e.g. 6.12: the release that uname -r will tell
	apt-cache search --names-only "^linux-image-$1\..*-cloud-amd64-unsigned\$" | sed 's/^linux-image-//; s/-unsigned .*//' | sort -V | tail -n 1
}
for series in ${SERIES:-6.12 6.1}; do
	release=$(newest "$series")
	[ -n "$release" ] || { echo "prepare: no kernel of $series at the mirror" >&2; exit 1; }
	if [ ! -e "vmlinuz-$series" ]; then
		rm -rf kernel.new && mkdir kernel.new
		(cd kernel.new && apt-get download -qq "linux-image-$release-unsigned" && dpkg-deb -x ./*.deb .)
		# The cloud kernels carry ext4 and virtio as modules: a small initrd loads them.
		init=kernel.new/initrd
		mkdir -p "$init"/{bin,proc,sys,dev,modules,root}
		cp /bin/busybox "$init/bin/busybox"
		for module in $MODULES; do
			file=$(find "kernel.new/lib/modules/$release" -name "$module.ko*" | head -n 1)
			case $file in
				'') ;; # built in, or not of this kernel
				*.xz) xz -dc "$file" > "$init/modules/$module.ko" ;;
				*) cp "$file" "$init/modules/" ;;
			esac
		done
		{
			echo '#!/bin/busybox sh'
			echo 'b=/bin/busybox; $b mount -t proc p /proc; $b mount -t sysfs s /sys; $b mount -t devtmpfs d /dev'
			echo "for m in $(echo $MODULES); do [ -f /modules/\$m.ko ] && \$b insmod /modules/\$m.ko 2>/dev/null; done"
			echo '$b mount -t ext4 /dev/vda /root || exec $b sh; $b mount -t ext4 /dev/vdb /root/mnt'
			echo 'for d in proc sys dev; do $b mount --move /$d /root/$d; done; exec $b switch_root /root /bin/bash /mnt/guest.sh'
		} > "$init/init"
		chmod +x "$init/init"
		(cd "$init" && find . | cpio -o -H newc --quiet | gzip -1) > "initrd-$series.gz"
		cp "kernel.new/boot/vmlinuz-$release" "vmlinuz-$series.new"
		rm -rf kernel.new
		mv "vmlinuz-$series.new" "vmlinuz-$series"
	fi
done
if [ ! -e root.img ]; then
	rm -rf root
	debootstrap --variant=minbase --include="$INCLUDE" "$SUITE" root "$MIRROR" > debootstrap.log 2>&1 || { tail -n 5 debootstrap.log >&2; exit 1; }
	rm -rf root/var/cache/apt/archives/*.deb
	truncate -s 2600M root.img.new
	mkfs.ext4 -q -F -d root root.img.new # neither a loop device nor a mount
	rm -rf root
	mv root.img.new root.img
fi
