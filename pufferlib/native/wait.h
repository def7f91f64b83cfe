/* wait.h - waiting that costs nothing when it is long and next to nothing when it is short.
 *
 * A waiter spins for a bounded number of pauses, then sleeps on a futex; a waker makes a system
 * call only when someone sleeps.  The words may lie in memory shared between processes.
 */
#ifndef PUFFER_WAIT_H
#define PUFFER_WAIT_H

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void wait_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Sleeps while *word == value, at most timeout_ns (negative: no limit).  May return early. */
static inline void futex_sleep(_Atomic uint32_t *word, uint32_t value, int64_t timeout_ns) {
    struct timespec limit = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, timeout_ns < 0 ? NULL : &limit, NULL, 0);
}

static inline void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
