/* What data flows through, and how one such thing is told from another: files, pipes, sockets, terminals; and which peer is
 * outside. */
#pragma once
#include "state.h"

/* What a descriptor of the current process stands for; 0: nothing. */
static __always_inline struct file *file_of(u64 fd) {
    struct task_struct *t = (struct task_struct *)bpf_get_current_task_btf();
    struct fdtable *table = t->files->fdt; /* read in place: the verifier knows these types */
    u32 number = fd;
    struct file **files = table->fd, *f = 0;
    if (number >= table->max_fds)
        return 0;
    bpf_probe_read_kernel(&f, sizeof f, files + number);
    return f;
}
static __always_inline void name_of(struct file *f, char *to, u32 room) {
    const unsigned char *name = BPF_CORE_READ(f, f_path.dentry, d_name.name);
    to[0] = 0;
    bpf_probe_read_kernel_str(to, room, name);
}

/* Every program asks for names: that marks nobody. But a stream from port 53 is no question for a name, and a program
 * whose work is to ask (dig) hands on what the answer says, whoever answered. */
enum dns { DNS_NAMES, DNS_STREAM, DNS_CLIENT };
static __always_inline bool is_outside4(u32 address, u16 port, u32 dns) {
    struct address4 key = {32, address};
    u32 number = swap16(port);
    if (bpf_map_lookup_elem(&outside4, &key))
        return number != 53 || dns != DNS_NAMES;
    if (number == 53 && dns == DNS_CLIENT)
        return true;
    if ((address & 0xff) == 127)
        return bpf_map_lookup_elem(&proxies, &number) != 0;
    return address != 0 && (number != 53 || dns != DNS_NAMES);
}
static __always_inline bool is_outside6(u32 *a, u16 port, u32 dns) {
    struct address6 key = {128, {a[0], a[1], a[2], a[3]}};
    u32 number = swap16(port);
    if (!a[0] && !a[1] && a[2] == swap32(0xffff))
        return is_outside4(a[3], port, dns);
    if (bpf_map_lookup_elem(&outside6, &key))
        return number != 53 || dns != DNS_NAMES;
    if (number == 53 && dns == DNS_CLIENT)
        return true;
    if (!a[0] && !a[1] && !a[2] && (a[3] == swap32(1) || !a[3]))
        return a[3] && bpf_map_lookup_elem(&proxies, &number) != 0;
    return number != 53 || dns != DNS_NAMES;
}

/* Where a socket's data is told apart: an AF_UNIX socket by its own inode, a TCP connection over loopback by its two
 * ends as the reader sees them. `outside` is set where the peer is outside. 0: nothing that is followed. */
static __always_inline int socket_key(struct sock *sk, bool writing, struct key *key, bool *outside, u8 *peer, u32 *port,
                                      u32 program) {
    u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
    u32 dns = program & P_RESOLVER ? DNS_CLIENT : BPF_CORE_READ(sk, sk_type) == SOCK_STREAM ? DNS_STREAM : DNS_NAMES;
    u32 mine, theirs;
    *outside = false;
    if (family == AF_UNIX) {
        struct sock *end = sk;
        if (writing)
            end = BPF_CORE_READ((struct unix_sock *)sk, peer);
        if (!end)
            return 0;
        /* Until it is accepted a peer has no inode: its address stands in; the reader looks for both. */
        struct inode *inode = BPF_CORE_READ(end, sk_socket, file, f_inode);
        if (!inode) {
            key->number = (u64)end;
            key->device = 0xfffffffe;
            key->generation = 0;
            return 1;
        }
        *key = inode_key(inode);
        return 1;
    }
    if (family == AF_INET) {
        mine = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
        theirs = BPF_CORE_READ(sk, __sk_common.skc_daddr);
        *outside = is_outside4(theirs, BPF_CORE_READ(sk, __sk_common.skc_dport), dns);
        peer[10] = peer[11] = 0xff;
        __builtin_memcpy(peer + 12, &theirs, 4);
    } else if (family == AF_INET6) {
        u32 a[4] = {}, b[4] = {};
        BPF_CORE_READ_INTO(&a, sk, __sk_common.skc_v6_daddr);
        BPF_CORE_READ_INTO(&b, sk, __sk_common.skc_v6_rcv_saddr);
        mine = b[3];
        theirs = a[3];
        *outside = is_outside6(a, BPF_CORE_READ(sk, __sk_common.skc_dport), dns);
        __builtin_memcpy(peer, a, 16);
    } else {
        return 0;
    }
    u32 here = BPF_CORE_READ(sk, __sk_common.skc_num);
    u32 there = swap16(BPF_CORE_READ(sk, __sk_common.skc_dport));
    *port = there;
    if (*outside || !there)
        return *outside;
    key->device = 0xffffffff;
    if (writing) {
        key->number = (u64)theirs << 32 | mine;
        key->generation = there << 16 | here;
    } else {
        key->number = (u64)mine << 32 | theirs;
        key->generation = here << 16 | there;
    }
    return 1;
}

/* A pseudo-terminal, by its slave: what is written to that is read at the master, by script, expect, tmux. The other way,
 * what a person or a program types, is not followed: a shell in a terminal would be told of its own prompt. */
static __always_inline bool terminal_key(struct file *f, bool writing, struct key *key) {
    u32 device = BPF_CORE_READ(f, f_inode, i_rdev);
    if (writing ? (device >> 20 & ~7) != PTY_SLAVE_MAJOR : device != PTY_MASTER_DEVICE)
        return false;
    struct tty_file_private *private = BPF_CORE_READ(f, private_data);
    struct tty_struct *tty = BPF_CORE_READ(private, tty);
    key->number = writing ? (u64)tty : (u64)BPF_CORE_READ(tty, link);
    key->device = 0xfffffffd;
    key->generation = BPF_CORE_READ(tty, index);
    return key->number;
}
