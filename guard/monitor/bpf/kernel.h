/* The kernel's types, only the fields that are read. CO-RE finds their real offsets at load time in the running
 * kernel's BTF, so this file is for every kernel and both architectures, and no vmlinux.h is needed to build. */
#pragma once
#include <linux/bpf.h>
#include <linux/types.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef unsigned short umode_t;
typedef _Bool bool;
#define true 1
#define false 0

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
    int counter;
} atomic_t;
struct qstr {
    const unsigned char *name;
};
struct posix_acl_entry {
    short e_tag;
    unsigned short e_perm;
};
struct posix_acl {
    u32 a_count;
    struct posix_acl_entry a_entries[];
};
typedef struct {
    u32 val;
} kuid_t;
struct super_block {
    u32 s_dev;
    unsigned long s_magic;
};
struct inode {
    umode_t i_mode;
    kuid_t i_uid;
    struct posix_acl *i_default_acl;
    struct super_block *i_sb;
    unsigned long i_ino;
    u32 i_rdev, i_nlink;
    s64 i_size;
    u32 i_generation;
};
struct dentry {
    struct dentry *d_parent;
    struct qstr d_name;
    struct inode *d_inode;
};
struct vfsmount {
    struct dentry *mnt_root;
};
struct mount {
    struct mount *mnt_parent;
    struct dentry *mnt_mountpoint;
    struct vfsmount mnt;
};
struct path {
    struct vfsmount *mnt;
    struct dentry *dentry;
};
struct file {
    u32 f_mode;
    u32 f_flags;
    struct inode *f_inode;
    struct path f_path;
    void *private_data;
};
struct fdtable {
    u32 max_fds;
    struct file **fd;
};
struct files_struct {
    struct fdtable *fdt;
};
struct fs_struct {
    int umask;
    struct path root, pwd;
};
struct ns_common {
    u32 inum;
};
struct net {
    struct ns_common ns;
};
typedef struct {
    struct net *net;
} possible_net_t;
struct in6_addr {
    union {
        u8 u6_addr8[16];
        u32 u6_addr32[4];
    } in6_u;
};
struct sock_common {
    u32 skc_daddr, skc_rcv_saddr;
    u16 skc_dport, skc_num, skc_family;
    possible_net_t skc_net;
    struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
};
struct socket;
struct sock {
    struct sock_common __sk_common;
    u16 sk_type, sk_protocol;
    struct socket *sk_socket;
};
struct socket {
    short type;
    struct file *file;
    struct sock *sk;
};
struct unix_sock {
    struct sock sk;
    struct path path;
    struct sock *peer;
};
struct sockaddr {
    u16 sa_family;
};
struct msghdr;
struct upid {
    int nr;
};
struct pid {
    struct upid numbers[1];
};
struct tty_driver {
    int major, minor_start;
};
struct tty_struct {
    struct tty_driver *driver;
    int index;
    struct tty_struct *link;
};
struct tty_file_private {
    struct tty_struct *tty;
};
struct signal_struct {
    atomic_t live;
    struct pid *pids[4];
    struct tty_struct *tty;
};
struct cred {
    kuid_t uid;
};
struct mm_struct {
    unsigned long arg_start, arg_end;
};
struct thread_info {
    u32 status;
};
struct task_struct {
    struct thread_info thread_info;
    int pid, tgid, exit_code;
    u64 start_boottime;
    struct task_struct *real_parent, *group_leader;
    struct signal_struct *signal;
    const struct cred *real_cred;
    struct mm_struct *mm;
    struct fs_struct *fs;
    struct files_struct *files;
};
struct linux_binprm {
    struct file *file;
    const char *filename, *interp;
};
struct mnt_idmap;
struct filename {
    const char *name;
};
struct open_how {
    u64 flags, mode, resolve;
};
struct io_kiocb {
    u8 opcode;
};
/* What an io_uring request carries: it lies at the beginning of io_kiocb. */
struct io_open {
    int dfd;
    struct filename *filename;
    struct open_how how;
};
struct io_mkdir {
    int dfd;
    umode_t mode;
    struct filename *filename;
};
struct seq_file;
struct bpf_iter_meta {
    struct seq_file *seq;
} __attribute__((preserve_access_index));
struct bpf_iter__task {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
} __attribute__((preserve_access_index));
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
    unsigned long bp, bx, r10, r9, r8, ax, cx, dx, si, di, orig_ax, cs;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
    u64 regs[31];
    u64 orig_x0;
    s32 syscallno;
};
#endif

#pragma clang attribute pop

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define swap16(x)  __builtin_bswap16(x) /* both architectures are little-endian */
#define swap32(x)  __builtin_bswap32(x)
#define EPERM      1
#define EINPROGRESS 115
#define S_IFMT     00170000
#define S_IFSOCK   0140000
#define S_IFLNK    0120000
#define S_IFREG    0100000
#define S_IFDIR    0040000
#define S_IFCHR    0020000
#define S_IFIFO    0010000
#define S_IWOTH    0000002
#define SOCK_STREAM 1
#define AF_UNIX    1
#define AF_INET    2
#define AF_INET6   10
#define FMODE_WRITE   0x2
#define FMODE_CREATED 0x100000
#define O_CREAT       00000100
#define O_LARGEFILE_X 00100000 /* as kept in f_flags on x86-64; arm64 has 0400000 */
#define O_TMPFILE_BIT 020000000
#define PROT_READ  1
#define PROT_WRITE 2
#define PROT_EXEC  4
#define MAP_SHARED 1
#define MAP_TYPE   0xf
#define ACL_OTHER  0x20
#define MAY_WRITE  2
#define PTY_MASTER_DEVICE (5 << 20 | 2) /* ptmx; the other ends have the majors 136 to 143 (Documentation/admin-guide/devices.txt) */
#define PTY_SLAVE_MAJOR 136
#define PROC_SUPER_MAGIC 0x9fa0
#define PTRACE_MODE_ATTACH 2 /* include/linux/ptrace.h */
#define PTRACE_ATTACH 16
#define TIOCSTI 0x5412
#define FICLONE 0x40049409 /* include/uapi/linux/fs.h */
#define FICLONERANGE 0x4020940d
#define CSH_INPUT 16
#define PTRACE_SEIZE  0x4206
#define MAY_READ   4
