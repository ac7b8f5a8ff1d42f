/* io_uring requests of a tree, in every backend: the tracepoint has another name before 6.3, BTF decides. */
#pragma once
#include "acts.h"

/* include/uapi/linux/io_uring.h, enum io_uring_op */
enum { RING_CONNECT = 16, RING_OPENAT = 18, RING_OPENAT2 = 28, RING_MKDIRAT = 37, RING_FSETXATTR = 41, RING_SETXATTR = 42,
       RING_BIND = 56, RING_LISTEN = 57 };

/* Not for the LSM backends: there the acts themselves are seen. The request says what will be asked; whether it was
 * made is looked at by the caller of the ring. */
static __always_inline void ring_mode(struct proc *p, struct io_kiocb *req, u32 op) {
    u32 mode, umask = BPF_CORE_READ(me(), fs, umask);
    const char *name;
    s32 dfd;
    if (op == RING_MKDIRAT) {
        struct io_mkdir *r = (struct io_mkdir *)req;
        mode = BPF_CORE_READ(r, mode);
        name = BPF_CORE_READ(r, filename, name);
        dfd = BPF_CORE_READ(r, dfd);
    } else {
        struct io_open *r = (struct io_open *)req;
        if (!(BPF_CORE_READ(r, how.flags) & (O_CREAT | O_TMPFILE_BIT)))
            return;
        mode = BPF_CORE_READ(r, how.mode);
        name = BPF_CORE_READ(r, filename, name);
        dfd = BPF_CORE_READ(r, dfd);
    }
    if (!(mode & ~umask & S_IWOTH))
        return;
    struct mode_record *e = mode_record(p, mode & ~umask, op == RING_MKDIRAT ? S_IFDIR : S_IFREG, -1,
                                        op == RING_MKDIRAT ? M_MKDIR : M_OPEN);
    if (!e)
        return;
    e->io_uring = e->unsure = 1;
    bpf_probe_read_kernel_str(e->text, WORDS, name);
    relative_to(e, dfd);
    bpf_ringbuf_submit(e, 0);
}
static __always_inline int ring_request(struct io_kiocb *req) {
    struct proc *p = current_proc();
    if (!p)
        return 0;
    u32 op = BPF_CORE_READ(req, opcode);
    if (op != RING_CONNECT && op != RING_OPENAT && op != RING_OPENAT2 && op != RING_MKDIRAT && op != RING_FSETXATTR &&
        op != RING_SETXATTR && op != RING_BIND && op != RING_LISTEN)
        return 0;
#ifdef BY_CALLS
    if (op == RING_OPENAT || op == RING_OPENAT2 || op == RING_MKDIRAT)
        ring_mode(p, req, op);
#endif
    tell_number(p, K_IO_URING, op, 0, 0);
    return 0;
}
SEC("?tp_btf/io_uring_create") int ring_create(void *ctx) {
    struct proc *p = current_proc();
    if (p && !(p->flags & F_RING)) {
        p->flags |= F_RING;
        tell_number(p, K_IO_URING, 255, 0, 0);
    }
    return 0;
}
SEC("?tp_btf/io_uring_submit_req") int BPF_PROG(ring_submit, struct io_kiocb *req) {
    return ring_request(req);
}
SEC("?tp_btf/io_uring_submit_sqe") int BPF_PROG(ring_submit_old, struct io_kiocb *req) {
    return ring_request(req);
}
