/* System calls by number, and where a call's arguments lie, for each architecture.
 * Sources: arch/x86/entry/syscalls/syscall_{64,32}.tbl, include/uapi/asm-generic/unistd.h. */
#pragma once
#include "state.h"

#if defined(__TARGET_ARCH_x86)
#define NR_read 0
#define NR_write 1
#define NR_open 2
#define NR_mmap 9
#define NR_pread64 17
#define NR_pwrite64 18
#define NR_readv 19
#define NR_writev 20
#define NR_sendfile 40
#define NR_connect 42
#define NR_sendto 44
#define NR_recvfrom 45
#define NR_sendmsg 46
#define NR_recvmsg 47
#define NR_bind 49
#define NR_listen 50
#define NR_mkdir 83
#define NR_creat 85
#define NR_chmod 90
#define NR_fchmod 91
#define NR_mknod 133
#define NR_setxattr 188
#define NR_lsetxattr 189
#define NR_fsetxattr 190
#define NR_openat 257
#define NR_mkdirat 258
#define NR_mknodat 259
#define NR_fchmodat 268
#define NR_splice 275
#define NR_tee 276
#define NR_vmsplice 278
#define NR_preadv 295
#define NR_pwritev 296
#define NR_recvmmsg 299
#define NR_sendmmsg 307
#define NR_copy_file_range 326
#define NR_preadv2 327
#define NR_pwritev2 328
#define NR_stat 4
#define NR_lstat 6
#define NR_getdents64 217
#define NR_ptrace 101
#define NR_ioctl 16
#define NR_process_vm_readv 310
#define NR_process_vm_writev 311
#define NR_fstatat 262
#elif defined(__TARGET_ARCH_arm64)
#define NR_setxattr 5
#define NR_lsetxattr 6
#define NR_fsetxattr 7
#define NR_mknodat 33
#define NR_mkdirat 34
#define NR_fchmod 52
#define NR_fchmodat 53
#define NR_openat 56
#define NR_getdents64 61
#define NR_ptrace 117
#define NR_ioctl 29
#define NR_process_vm_readv 270
#define NR_process_vm_writev 271
#define NR_read 63
#define NR_write 64
#define NR_readv 65
#define NR_writev 66
#define NR_pread64 67
#define NR_pwrite64 68
#define NR_preadv 69
#define NR_pwritev 70
#define NR_sendfile 71
#define NR_vmsplice 75
#define NR_splice 76
#define NR_tee 77
#define NR_fstatat 79
#define NR_bind 200
#define NR_listen 201
#define NR_connect 203
#define NR_sendto 206
#define NR_recvfrom 207
#define NR_sendmsg 211
#define NR_recvmsg 212
#define NR_mmap 222
#define NR_recvmmsg 243
#define NR_sendmmsg 269
#define NR_copy_file_range 285
#define NR_preadv2 286
#define NR_pwritev2 287
#else
#error "guard knows the system calls of x86-64 and aarch64"
#endif
/* The same on both. */
#define NR_statx 332
#if defined(__TARGET_ARCH_arm64)
#undef NR_statx
#define NR_statx 291
#endif
#define NR_openat2 437
#define NR_fchmodat2 452
#define NR_setxattrat 463

enum entry { ENTRY_USUAL, ENTRY_INT80, ENTRY_X32 };
struct call {
    s64 number;
    u64 a[6];
    u32 entry;   /* ENTRY_* */
    u32 number32; /* as asked, of an entry that has its own numbers */
    u32 program32;
};

#if defined(__TARGET_ARCH_x86)
#define TS_COMPAT 2 /* thread_info.status while a 32-bit call is served */
#define X32_BIT 0x40000000
#define USER32_CS 0x23

/* What an i386 call is called here; -1: none that matters. socketcall (102) is unfolded by the caller. */
static __always_inline s64 of_i386(u32 n) {
    switch (n) {
    case 3: return NR_read;
    case 4: return NR_write;
    case 5: return NR_open;
    case 8: return NR_creat;
    case 14: return NR_mknod;
    case 15: return NR_chmod;
    case 26: return NR_ptrace;
    case 54: return NR_ioctl;
    case 39: return NR_mkdir;
    case 94: return NR_fchmod;
    case 187: case 239: return NR_sendfile;
    case 226: return NR_setxattr;
    case 227: return NR_lsetxattr;
    case 228: return NR_fsetxattr;
    case 295: return NR_openat;
    case 296: return NR_mkdirat;
    case 297: return NR_mknodat;
    case 306: return NR_fchmodat;
    case 313: return NR_splice;
    case 315: return NR_tee;
    case 316: return NR_vmsplice;
    case 361: return NR_bind;
    case 362: return NR_connect;
    case 363: return NR_listen;
    case 371: return NR_recvfrom;
    case 377: return NR_copy_file_range;
    case 437: return NR_openat2;
    case 452: return NR_fchmodat2;
    default: return -1;
    }
}
/* x32 has own numbers for calls whose structures differ. */
static __always_inline s64 of_x32(u32 n) {
    switch (n) {
    case 514: return NR_ioctl;
    case 515: return NR_readv;
    case 521: return NR_ptrace;
    case 516: return NR_writev;
    case 517: return NR_recvfrom;
    case 518: return NR_sendmsg;
    case 519: return NR_recvmsg;
    case 534: return NR_preadv;
    case 535: return NR_pwritev;
    default: return n;
    }
}
/* `r` is a pointer that the verifier knows: its fields are read in place, without a helper's call. */
static __always_inline void read_call(struct call *c, struct pt_regs *r) {
    u64 number = r->orig_ax;
    c->entry = ENTRY_USUAL;
    c->number = (s64)number;
    c->number32 = (u32)number;
    c->program32 = 0;
    if (((struct task_struct *)bpf_get_current_task_btf())->thread_info.status & TS_COMPAT) {
        c->entry = ENTRY_INT80;
        c->program32 = (r->cs & 0xffff) == USER32_CS;
        c->number = of_i386(number);
        c->a[0] = (u32)r->bx;
        c->a[1] = (u32)r->cx;
        c->a[2] = (u32)r->dx;
        c->a[3] = (u32)r->si;
        c->a[4] = (u32)r->di;
        c->a[5] = (u32)r->bp;
        if (number == 102) { /* socketcall: which, and a pointer to 32-bit arguments */
            u32 words[3] = {};
            bpf_probe_read_user(words, sizeof words, (void *)c->a[1]);
            u32 which = c->a[0];
            c->number = which == 2 ? NR_bind : which == 3 ? NR_connect : which == 4 ? NR_listen
                      : which == 10 || which == 12 ? NR_recvfrom : which == 9 || which == 11 ? NR_sendto : -1;
            c->a[0] = words[0];
            c->a[1] = words[1];
            c->a[2] = words[2];
        }
        return;
    }
    if (number < 2ull * X32_BIT && (number & X32_BIT)) { /* -1 stands for no call: a return from a signal */
        c->entry = ENTRY_X32;
        c->number = of_x32(number & ~X32_BIT);
    }
    c->a[0] = r->di;
    c->a[1] = r->si;
    c->a[2] = r->dx;
    c->a[3] = r->r10;
    c->a[4] = r->r8;
    c->a[5] = r->r9;
}
#else
static __always_inline void read_call(struct call *c, struct pt_regs *r) {
    c->entry = ENTRY_USUAL; /* a 32-bit program's calls have other numbers and are left out: see docs/monitor.md */
    c->number = r->syscallno;
    c->number32 = c->number;
    c->program32 = 0;
    c->a[0] = r->orig_x0;
    c->a[1] = r->regs[1];
    c->a[2] = r->regs[2];
    c->a[3] = r->regs[3];
    c->a[4] = r->regs[4];
    c->a[5] = r->regs[5];
}
#endif
