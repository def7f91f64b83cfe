/* lanes.h - orders to worker processes and their answers, through shared memory.
 *
 * A board is one bell and a lane for each worker.  The parent counts its orders in `ordered`, the
 * worker counts its answers in `answered`; it is idle when the two are equal.  Whoever waits spins
 * for some microseconds, then sleeps on a futex: the worker on `ordered`, the parent on the bell,
 * which only workers that it watches ring.  The spin shrinks while waits outlast it.
 *
 * With as many workers as cores everybody is polite: a look is a sched_yield, so that who has work
 * gets the core without a wake-up.  Where other programs take those turns, what is waited for is
 * seen late; each order and answer bears its time, and who came late sleeps at once for a while.
 */
#ifndef PUFFER_LANES_H
#define PUFFER_LANES_H

#include "wait.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>

enum { SPIN_LEAST = 500, SPIN_LATE = 100000 };   /* nanoseconds */
enum { SLEEPS_LEAST = 64, SLEEPS_MOST = 8192 };  /* waits */

typedef struct {
    _Alignas(64) _Atomic uint32_t ordered; /* written by the parent */
    _Atomic uint32_t kind;
    _Atomic uint32_t notified;
    _Atomic uint32_t watched; /* the parent wants the bell rung at the next answer */
    _Atomic int64_t ordered_at;
    _Alignas(64) _Atomic uint32_t answered; /* written by the worker */
    _Atomic uint32_t asleep;
    _Atomic uint32_t said; /* a message comes with the answer */
    _Atomic int64_t answered_at;
} Lane;

typedef struct {
    _Alignas(64) _Atomic uint32_t bell;
    Lane lanes[];
} Board;

typedef struct {
    int64_t most, now; /* nanoseconds */
    bool polite;       /* lets others have the core between two looks */
    int sleeps, left;  /* waits without a spin after one that came late; those still to come */
} Spin;

static inline int64_t lanes_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void spin_once(const Spin *spin) {
    if (spin->polite)
        sched_yield();
    else
        for (int i = 0; i < 4; i++) wait_pause();
}

static inline void spin_learn(Spin *spin, int64_t waited) {
    int64_t least = spin->most < SPIN_LEAST ? spin->most : SPIN_LEAST;
    if (waited < spin->most)
        spin->now = spin->most;
    else
        spin->now = spin->now / 2 > least ? spin->now / 2 : least;
}

/* Whether this wait may begin with a spin. */
static inline bool spin_begins(Spin *spin) {
    if (!spin->left) return true;
    spin->left--;
    return false;
}

/* Draws the lesson from how late a polite spin saw what it waited for.  A turn of another program
 * takes milliseconds, a wake-up microseconds: being late weighs more than being in time. */
static inline void spin_judge(Spin *spin, int64_t late) {
    if (!spin->polite) return;
    if (late < SPIN_LATE) {
        if (spin->sleeps) spin->sleeps--;
        return;
    }
    spin->sleeps = 2 * spin->sleeps < SLEEPS_LEAST ? SLEEPS_LEAST : 2 * spin->sleeps;
    if (spin->sleeps > SLEEPS_MOST) spin->sleeps = SLEEPS_MOST;
    spin->left = spin->sleeps;
}

static inline bool lane_idle(const Lane *lane) {
    return atomic_load(&lane->answered) == atomic_load(&lane->ordered);
}

/* First lane of begin .. end-1 that is not idle, or end. */
static inline int lanes_busy(const Board *board, int begin, int end) {
    while (begin < end && lane_idle(&board->lanes[begin])) begin++;
    return begin;
}

/* Whether a lane of begin .. end-1 is idle. */
static inline bool lanes_idle(const Board *board, int begin, int end) {
    while (begin < end && !lane_idle(&board->lanes[begin])) begin++;
    return begin < end;
}

/* When the last of all lanes was answered. */
static inline int64_t lanes_last(const Board *board, int lanes) {
    int64_t last = 0;
    for (int i = 0; i < lanes; i++) {
        int64_t at = atomic_load(&board->lanes[i].answered_at);
        if (at > last) last = at;
    }
    return last;
}

static inline void lane_order(Lane *lane, uint32_t kind) {
    atomic_store(&lane->kind, kind);
    atomic_store(&lane->ordered_at, lanes_clock());
    atomic_fetch_add(&lane->ordered, 1);
    if (atomic_load(&lane->asleep)) futex_wake(&lane->ordered);
}

static inline void lane_notify(Lane *lane) {
    atomic_store(&lane->notified, 1);
    if (atomic_load(&lane->asleep)) futex_wake(&lane->ordered);
}

/* Index of the first of `count` groups whose lanes are all idle, or -1. */
static inline int lanes_look(const Board *board, const int32_t *groups, int count, int size) {
    for (int i = 0; i < count; i++) {
        int begin = groups[i] * size;
        if (lanes_busy(board, begin, begin + size) == begin + size) return i;
    }
    return -1;
}

/* Waits until one of the groups is idle; group g is lanes g*size .. g*size+size-1.  Returns its
 * index among the groups, or -1 when limit_ns is over.
 *
 * A polite waiter has a worker's core, so it spins for all lanes only, and beside one that is idle:
 * behind a busy one it would miss that another has answered, and alone it would take a core from
 * two that share the other. */
static int lanes_wait(Board *board, int lanes, const int32_t *groups, int count, int size,
                      Spin *spin, int64_t limit_ns) {
    int found = lanes_look(board, groups, count, size);
    if (found >= 0) return found;
    int64_t start = lanes_clock(), waited = 0;
    bool spins = (!spin->polite || size == lanes) && spin_begins(spin);
    while (spins && waited < spin->now) {
        spin_once(spin);
        found = lanes_look(board, groups, count, size);
        waited = lanes_clock() - start;
        if (found >= 0 || (spin->polite && !lanes_idle(board, 0, lanes))) break;
    }
    if (spins && found >= 0) spin_judge(spin, start + waited - lanes_last(board, lanes));
    while (found < 0) {
        uint32_t bell = atomic_load(&board->bell);
        for (int i = 0; i < count; i++) {
            int end = groups[i] * size + size, busy = lanes_busy(board, end - size, end);
            if (busy < end) atomic_store(&board->lanes[busy].watched, 1);
        }
        found = lanes_look(board, groups, count, size);
        if (found < 0) {
            futex_sleep(&board->bell, bell, limit_ns - waited);
            found = lanes_look(board, groups, count, size);
        }
        waited = lanes_clock() - start;
        if (waited >= limit_ns) break;
    }
    if (spins) spin_learn(spin, waited);
    return found;
}

static inline void lane_answer(Board *board, Lane *lane, bool says) {
    atomic_store(&lane->said, says);
    atomic_store(&lane->answered_at, lanes_clock());
    atomic_fetch_add(&lane->answered, 1);
    if (atomic_load(&lane->watched)) {
        atomic_store(&lane->watched, 0);
        atomic_fetch_add(&board->bell, 1);
        futex_wake(&board->bell);
    }
}

/* Waits for an order or a notification; false when limit_ns is over or a signal came. */
static bool lane_await(Lane *lane, Spin *spin, int64_t limit_ns) {
    int64_t start = lanes_clock(), waited = 0;
    bool due = !lane_idle(lane) || atomic_load(&lane->notified), spins = !due && spin_begins(spin);
    while (spins && !due && waited < spin->now) {
        spin_once(spin);
        due = !lane_idle(lane) || atomic_load(&lane->notified);
        waited = lanes_clock() - start;
    }
    if (spins && !lane_idle(lane))
        spin_judge(spin, start + waited - atomic_load(&lane->ordered_at));
    if (!due) {
        uint32_t ordered = atomic_load(&lane->answered);
        atomic_store(&lane->asleep, 1);
        if (lane_idle(lane) && !atomic_load(&lane->notified))
            futex_sleep(&lane->ordered, ordered, limit_ns);
        atomic_store(&lane->asleep, 0);
        due = !lane_idle(lane) || atomic_load(&lane->notified);
        waited = lanes_clock() - start;
    }
    if (spins) spin_learn(spin, waited);
    return due;
}

static void *life_watch(void *argument) {
    struct pollfd line = {.fd = (int)(intptr_t)argument, .events = POLLRDHUP};
    while (poll(&line, 1, -1) < 1) continue;
    _exit(1);
    return NULL;
}

/* Ends this process as soon as the other end of socket `descriptor` is closed; with `by_signal`
 * also as soon as the thread that started it ends, even while it is stopped.  Nonzero: no thread. */
static int life_bind(int descriptor, bool by_signal) {
    pthread_t thread;
    sigset_t all, before;
    if (by_signal) prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = pthread_create(&thread, NULL, life_watch, (void *)(intptr_t)descriptor);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_detach(thread);
    return failed;
}

#endif
