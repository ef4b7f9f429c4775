/* Preloaded before libc: writes and forcing to disk below one folder fail as a disk would.

   FAILING_FOLDER: only files below it. FAILING_AT: from which call on, counted from 1 over all that
   count. FAILING_ERRNO: ENOSPC fails every write from there on, EIO every forcing to disk.
   FAILING_PART: the first write that fails has written half of what it was given. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long seen;

/* Counts from 1 again. */
void failing_reset(void) { seen = 0; }

static int is_ours(int file) {
    const char *folder = getenv("FAILING_FOLDER");
    char link[64], path[PATH_MAX];
    ssize_t size;
    if (folder == NULL) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

/* 0: goes on; 1: the first that fails; 2: a later one. */
static int fails(int file, int kind) {
    const char *at = getenv("FAILING_AT"), *number = getenv("FAILING_ERRNO");
    long now;
    if (at == NULL || number == NULL || atoi(number) != kind || !is_ours(file)) return 0;
    now = __sync_add_and_fetch(&seen, 1);
    return now < atol(at) ? 0 : now == atol(at) ? 1 : 2;
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t size) {
    NEXT(write);
    int how = fails(file, ENOSPC);
    if (how == 1 && getenv("FAILING_PART") && size > 1) return next(file, data, size / 2);
    if (how) { errno = ENOSPC; return -1; }
    return next(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    NEXT(pwrite);
    if (fails(file, ENOSPC)) { errno = ENOSPC; return -1; }
    return next(file, data, size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    NEXT(pwrite64);
    if (fails(file, ENOSPC)) { errno = ENOSPC; return -1; }
    return next(file, data, size, at);
}

int fsync(int file) {
    NEXT(fsync);
    if (fails(file, EIO)) { errno = EIO; return -1; }
    return next(file);
}

int fdatasync(int file) {
    NEXT(fdatasync);
    if (fails(file, EIO)) { errno = EIO; return -1; }
    return next(file);
}
