/* Makes the disk fail as a test says. Preloaded into a process. Reads the file that FAULTS names before each call: lines
   of "call errno path [offset]", where `path` is a part of the file's path and `errno` -1 hangs. `pread`, which stands for
   each read of a file, fails where `offset` is among the bytes that are read. A line "kill n path" kills the process
   before the n-th sync of such a path. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether `part` is in the path; with `$` behind it, at its end. */
static int is_in(const char *path, const char *part) {
    size_t all = strlen(path), len = strlen(part) - 1;
    if (part[len] != '$') return strstr(path, part) != NULL;
    return all >= len && !strncmp(path + all - len, part, len);
}

static int fails(const char *call, int fd, off_t from, size_t len) {
    const char *faults = getenv("FAULTS");
    if (!faults) return 0;
    char text[4096], path[4096], link[64];
    int file = syscall(SYS_openat, AT_FDCWD, faults, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t got = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    if (got <= 0) return 0;
    text[got] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    char *rest;
    static int syncs;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char name[32], part[1024];
        int error;
        long long offset = -1;
        if (sscanf(line, "%31s %d %1023s %lld", name, &error, part, &offset) < 3) continue;
        if (!strcmp(name, "kill") && !strcmp(call, "sync") && is_in(path, part))
            if (__sync_add_and_fetch(&syncs, 1) == error) kill(getpid(), SIGKILL);
        if (strcmp(name, call) || !is_in(path, part)) continue;
        if (from < 0) from = syscall(SYS_lseek, fd, 0, SEEK_CUR);
        if (offset >= 0 && (offset < from || offset >= from + (off_t)len)) continue;
        while (error < 0) sleep(1);
        errno = error;
        return 1;
    }
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pread64(int fd, void *to, size_t len, off64_t from) {
    if (fails("pread", fd, from, len)) return -1;
    return syscall(SYS_pread64, fd, to, len, from);
}

ssize_t read(int fd, void *to, size_t len) {
    if (fails("pread", fd, -1, len)) return -1;
    return syscall(SYS_read, fd, to, len);
}

ssize_t write(int fd, const void *from, size_t len) {
    if (fails("write", fd, 0, 0)) return -1;
    return syscall(SYS_write, fd, from, len);
}

ssize_t pwrite64(int fd, const void *from, size_t len, off64_t at) {
    if (fails("write", fd, at, len)) return -1;
    return syscall(SYS_pwrite64, fd, from, len, at);
}

int fsync(int fd) {
    if (fails("sync", fd, 0, 0)) return -1;
    return syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
    if (fails("sync", fd, 0, 0)) return -1;
    return syscall(SYS_fdatasync, fd);
}
