/* Runs a program and stands at each of its calls that change a file beneath some folders.
 *
 *     points PROGRAM ARGUMENT...
 *
 * The program replaces this one, so that it has the process id its starter knows. A second process
 * is told of each call by the kernel (seccomp user notification), whoever makes it: the C library,
 * SQLite or a raw system call. Only calls of the program itself count, not those of its children.
 *
 *     POINTS_UNDER   the folders, separated by ':'
 *     POINTS_LOG     each point is written here: "CALL FILE"
 *     POINTS_AT      the point that is meant, by its line in the log
 *     POINTS_NTH     which of the points with that line, from 1
 *     POINTS_DO      kill: before the call; tear: after the first half of a write; or an errno
 *     POINTS_WHILE   from that point on every call fails that can with this errno, as long as this
 *                    file is there; without it only one call fails
 *     POINTS_HIT     made when the point is reached
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

#define OPENS_FOR_CHANGE (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)

/* How a call names its file. */
enum names { BY_FD, BY_PATH, BY_PATH_AT, BY_OPEN, BY_OPEN_AT, BY_OPEN_AT2 };

/* TAKES_SPACE fails on a full disk; SYNCS only on a broken one; REMOVES on neither. */
enum does { TAKES_SPACE, REMOVES, SYNCS };

static const struct call {
    int number;
    const char *name;
    enum names names;
    int argument;
    enum does does;
} calls[] = {
    {SYS_write, "write", BY_FD, 0, TAKES_SPACE},
    {SYS_pwrite64, "pwrite", BY_FD, 0, TAKES_SPACE},
    {SYS_writev, "writev", BY_FD, 0, TAKES_SPACE},
    {SYS_pwritev, "pwritev", BY_FD, 0, TAKES_SPACE},
    {SYS_copy_file_range, "copy", BY_FD, 2, TAKES_SPACE},
    {SYS_fallocate, "fallocate", BY_FD, 0, TAKES_SPACE},
    {SYS_ftruncate, "truncate", BY_FD, 0, REMOVES},
    {SYS_fsync, "sync", BY_FD, 0, SYNCS},
    {SYS_fdatasync, "sync", BY_FD, 0, SYNCS},
    {SYS_openat, "create", BY_OPEN_AT, 0, TAKES_SPACE},
    {SYS_openat2, "create", BY_OPEN_AT2, 0, TAKES_SPACE},
    {SYS_mkdirat, "mkdir", BY_PATH_AT, 0, TAKES_SPACE},
    {SYS_symlinkat, "symlink", BY_PATH_AT, 1, TAKES_SPACE},
    {SYS_linkat, "link", BY_PATH_AT, 2, TAKES_SPACE},
    {SYS_renameat, "rename", BY_PATH_AT, 2, TAKES_SPACE},
    {SYS_renameat2, "rename", BY_PATH_AT, 2, TAKES_SPACE},
    {SYS_unlinkat, "unlink", BY_PATH_AT, 0, REMOVES},
#ifdef SYS_open
    {SYS_open, "create", BY_OPEN, 0, TAKES_SPACE},
    {SYS_mkdir, "mkdir", BY_PATH, 0, TAKES_SPACE},
    {SYS_rmdir, "unlink", BY_PATH, 0, REMOVES},
    {SYS_symlink, "symlink", BY_PATH, 1, TAKES_SPACE},
    {SYS_link, "link", BY_PATH, 1, TAKES_SPACE},
    {SYS_rename, "rename", BY_PATH, 1, TAKES_SPACE},
    {SYS_unlink, "unlink", BY_PATH, 0, REMOVES},
#endif
};
#define CALLS (sizeof calls / sizeof *calls)

static struct {
    pid_t program;
    int pidfd;
    const char *under, *at, *what, *while_file, *hit;
    unsigned long nth, seen;
    int log, broken;
} plan;

static void must(int done, const char *what) {
    if (!done) {
        perror(what);
        exit(125);
    }
}

static int install(void) {
    struct sock_filter filter[CALLS + 3];
    size_t n = 0;
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < CALLS; i++)
        filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, CALLS - i, 0);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
    struct sock_fprog program = {.len = n, .filter = filter};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    int fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                     SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program);
    must(fd >= 0, "seccomp");
    return fd;
}

static int peek(unsigned long from, void *to, size_t size) {
    struct iovec here = {to, size}, there = {(void *)from, size};
    return process_vm_readv(plan.program, &here, 1, &there, 1, 0);
}

/* A path that is in another process, up to its NUL; a page at a time, because the next may not be there. */
static int peek_path(unsigned long from, char *to, size_t size) {
    size_t got = 0;
    while (got + 1 < size) {
        size_t step = 4096 - (from + got) % 4096;
        if (step > size - 1 - got)
            step = size - 1 - got;
        int n = peek(from + got, to + got, step);
        if (n <= 0)
            return 0;
        if (memchr(to + got, 0, n))
            return 1;
        got += n;
    }
    return 0;
}

static int descriptor(int fd, char *path, size_t size) {
    char link[64];
    if (fd == AT_FDCWD)
        snprintf(link, sizeof link, "/proc/%d/cwd", plan.program);
    else
        snprintf(link, sizeof link, "/proc/%d/fd/%d", plan.program, fd);
    ssize_t n = readlink(link, path, size - 1);
    if (n <= 0)
        return 0;
    path[n] = 0;
    return 1;
}

static int named(int folder, unsigned long path, char *to, size_t size) {
    char relative[2048];
    if (!peek_path(path, relative, sizeof relative))
        return 0;
    if (relative[0] == '/')
        return snprintf(to, size, "%s", relative), 1;
    if (!descriptor(folder, to, size))
        return 0;
    size_t length = strlen(to);
    snprintf(to + length, size - length, "/%s", relative);
    return 1;
}

/* The file that a call changes; 0 when it changes none. */
static int file_of(const struct call *call, const unsigned long long *a, char *path, size_t size, int *only_opens) {
    unsigned long long flags;
    *only_opens = 0;
    switch (call->names) {
    case BY_FD:
        return descriptor(a[call->argument], path, size);
    case BY_PATH:
        return named(AT_FDCWD, a[call->argument], path, size);
    case BY_PATH_AT:
        return named(a[call->argument], a[call->argument + 1], path, size);
    case BY_OPEN:
        flags = a[1];
        break;
    case BY_OPEN_AT:
        flags = a[2];
        break;
    default:
        if (peek(a[2], &flags, sizeof flags) != sizeof flags)
            return 0;
    }
    if (!(flags & OPENS_FOR_CHANGE))
        return 0;
    *only_opens = !(flags & (O_CREAT | O_TRUNC));
    return call->names == BY_OPEN ? named(AT_FDCWD, a[0], path, size) : named(a[0], a[1], path, size);
}

/* Whether a part of a name differs from run to run: hashes, ids, what is random. */
static int differs(const char *part, size_t length) {
    return length >= 2 && strspn(part, "0123456789abcdef") == length && strncmp(part, "db", length);
}

/* The path beneath one of the folders, with everything that differs from run to run as '#'. */
static int label(const char *path, char *to, size_t size) {
    for (const char *folder = plan.under; *folder;) {
        size_t length = strcspn(folder, ":");
        if (!strncmp(path, folder, length) && path[length] == '/') {
            const char *from = path + length + 1;
            size_t n = 0;
            while (*from && n + 1 < size) {
                size_t part = strcspn(from, "/.-");
                int temporary = !strncmp(from, "quintet-", 8) && from[-1] == '.';
                if (temporary || differs(from, part)) {
                    n += snprintf(to + n, size - n, temporary ? "quintet-#" : "#");
                    from += temporary ? strcspn(from, "/.") : part;
                } else {
                    for (; part && n + 1 < size; part--, from++)
                        if (!isdigit((unsigned char)*from))
                            to[n++] = *from;
                        else if (!n || to[n - 1] != '#')
                            to[n++] = '#';
                }
                if (*from && n + 1 < size)
                    to[n++] = *from++;
            }
            to[n] = 0;
            return 1;
        }
        folder += length + (folder[length] == ':');
    }
    return 0;
}

/* Does the first half of a write in the program's place. */
static void tear(const struct call *call, const unsigned long long *a) {
    static char bytes[1 << 20];
    size_t half = a[2] / 2;
    if (call->number != SYS_write && call->number != SYS_pwrite64)
        return;
    if (half > sizeof bytes)
        half = sizeof bytes;
    int fd = pidfd_getfd(plan.pidfd, a[0], 0);
    if (fd < 0 || peek(a[1], bytes, half) != (int)half)
        return;
    if (call->number == SYS_write)
        half = write(fd, bytes, half);
    else
        half = pwrite(fd, bytes, half, a[3]);
    close(fd);
}

static int fails(const struct call *call, int error, int only_opens) {
    if (error == ENOSPC)
        return call->does == TAKES_SPACE && !only_opens;
    if (error == EIO)
        return call->names == BY_FD;
    return 1;
}

/* What becomes of a call: 0 when the kernel is to do it, -1 when nothing is, else an errno. */
static int decide(const struct seccomp_data *data) {
    const struct call *call = calls;
    while (call->number != data->nr)
        call++;
    char path[4096], name[4096], line[4200];
    int only_opens;
    if (!file_of(call, data->args, path, sizeof path, &only_opens) || !label(path, name, sizeof name))
        return 0;
    if (plan.broken && (!plan.while_file || access(plan.while_file, F_OK)))
        plan.broken = 0;
    if (plan.broken)
        return fails(call, plan.broken, only_opens) ? plan.broken : 0;
    if (only_opens)
        return 0;
    int length = snprintf(line, sizeof line, "%s %s\n", call->name, name);
    if (plan.log >= 0 && write(plan.log, line, length) != length)
        return 0;
    line[length - 1] = 0;
    if (!plan.at || strcmp(line, plan.at) || ++plan.seen != plan.nth)
        return 0;
    close(open(plan.hit, O_CREAT | O_WRONLY, 0600));
    int error = atoi(plan.what);
    if (!error) {
        if (!strcmp(plan.what, "tear"))
            tear(call, data->args);
        kill(plan.program, SIGKILL);
        return -1;
    }
    if (plan.while_file)
        plan.broken = error;
    return fails(call, error, 0) ? error : 0;
}

static void watch(int listener) {
    for (;;) {
        struct pollfd poll_for = {listener, POLLIN, 0};
        poll(&poll_for, 1, -1);
        if (!(poll_for.revents & POLLIN)) {
            if (poll_for.revents)
                return;
            continue;
        }
        struct seccomp_notif asked = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked)) {
            if (errno == ENOENT || errno == EINTR)
                continue;
            return;
        }
        char task[64];
        snprintf(task, sizeof task, "/proc/%d/task/%d", plan.program, asked.pid);
        int error = access(task, F_OK) ? 0 : decide(&asked.data);
        if (error < 0)
            continue;
        struct seccomp_notif_resp answer = {
            .id = asked.id,
            .error = -error,
            .flags = error ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE,
        };
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

static char *take(const char *name) {
    char *value = getenv(name);
    value = value ? strdup(value) : NULL;
    unsetenv(name);
    return value;
}

int main(int count, char **words) {
    must(count > 1, "no program");
    plan.program = getpid();
    plan.under = take("POINTS_UNDER");
    plan.at = take("POINTS_AT");
    plan.what = take("POINTS_DO");
    plan.while_file = take("POINTS_WHILE");
    plan.hit = take("POINTS_HIT");
    char *nth = take("POINTS_NTH"), *log = take("POINTS_LOG");
    plan.nth = nth ? strtoul(nth, NULL, 10) : 1;
    plan.log = log ? open(log, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600) : -1;
    int pair[2];
    must(plan.under && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    int listener;
    pid_t child = fork();
    if (child == 0) {
        /* A grandchild, so that the program has no child that it did not start. */
        if (fork())
            _exit(0);
        setsid();
        plan.pidfd = pidfd_open(plan.program, 0);
        must(read(pair[1], &listener, sizeof listener) == sizeof listener, "read");
        listener = pidfd_getfd(plan.pidfd, listener, 0);
        must(listener >= 0, "pidfd_getfd");
        int nowhere = open("/dev/null", O_RDWR);
        dup2(nowhere, 0);
        dup2(nowhere, 1);
        dup2(nowhere, 2);
        must(send(pair[1], "", 1, 0) == 1, "send");
        close(pair[0]);
        close(pair[1]);
        watch(listener);
        _exit(0);
    }
    must(waitpid(child, NULL, 0) == child, "wait");
    listener = install();
    char ready;
    /* Not write: that one already waits for the other process. */
    must(send(pair[0], &listener, sizeof listener, 0) == sizeof listener, "send");
    must(recv(pair[0], &ready, 1, 0) == 1, "recv");
    fcntl(listener, F_SETFD, FD_CLOEXEC);
    execvp(words[1], words + 1);
    perror(words[1]);
    return 127;
}
