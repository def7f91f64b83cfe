/* pool.h - a thread pool that runs ranges of a fixed set of jobs.
 *
 * A job is a range 0 .. total-1 cut into chunks that threads take one after another; the thread
 * that waits for a job helps.  Threads spin for some microseconds when they run dry, then sleep;
 * the spin shrinks while it does not pay and grows when it does.
 */
#ifndef PUFFER_POOL_H
#define PUFFER_POOL_H

#include "wait.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { POOL_SPIN_LEAST = 64, POOL_SPIN_MOST = 4096 }; /* pauses */

typedef struct {
    _Alignas(64) _Atomic int64_t next; /* first index that nobody has taken */
    _Atomic int64_t left;              /* indices that are not finished */
    _Atomic uint32_t running;          /* 1 from submit until left is 0; the futex word */
    _Atomic uint32_t waiting;          /* threads asleep on `running` */
    int64_t total, chunk;
    void (*run)(void *context, int64_t begin, int64_t end);
    void *context;
} PoolJob;

typedef struct {
    _Alignas(64) _Atomic uint32_t generation; /* counts submits; the futex word of idle threads */
    _Atomic uint32_t sleepers;
    _Atomic bool closing;
    PoolJob *jobs;
    int num_jobs, num_threads;
    pthread_t *threads;
} Pool;

/* Takes chunks of one job until none is left; true if it took any. */
static bool pool_help(PoolJob *job) {
    bool took = false;
    while (atomic_load(&job->next) < job->total) {
        int64_t begin = atomic_fetch_add(&job->next, job->chunk);
        if (begin >= job->total) break;
        int64_t end = begin + job->chunk < job->total ? begin + job->chunk : job->total;
        job->run(job->context, begin, end);
        took = true;
        if (atomic_fetch_sub(&job->left, end - begin) == end - begin) {
            atomic_store(&job->running, 0);
            if (atomic_load(&job->waiting)) futex_wake(&job->running);
        }
    }
    return took;
}

static void *pool_thread(void *argument) {
    Pool *pool = argument;
    int spin = POOL_SPIN_MOST;
    while (!atomic_load(&pool->closing)) {
        uint32_t generation = atomic_load(&pool->generation);
        bool took = false;
        for (int i = 0; i < pool->num_jobs; i++) took |= pool_help(&pool->jobs[i]);
        if (took) continue;
        int pauses = 0;
        while (pauses < spin && atomic_load(&pool->generation) == generation) {
            wait_pause();
            pauses++;
        }
        if (pauses < spin) {
            spin = spin * 2 < POOL_SPIN_MOST ? spin * 2 : POOL_SPIN_MOST;
            continue;
        }
        spin = spin / 2 > POOL_SPIN_LEAST ? spin / 2 : POOL_SPIN_LEAST;
        atomic_fetch_add(&pool->sleepers, 1);
        futex_sleep(&pool->generation, generation, -1);
        atomic_fetch_sub(&pool->sleepers, 1);
    }
    return NULL;
}

/* Starts up to num_threads threads over num_jobs jobs, whose run, context, total and chunk the
 * caller has set and keeps alive.  NULL: out of memory. */
static Pool *pool_open(int num_threads, PoolJob *jobs, int num_jobs) {
    Pool *pool = aligned_alloc(64, (sizeof(Pool) + 63) / 64 * 64);
    if (!pool) return NULL;
    *pool = (Pool){.jobs = jobs, .num_jobs = num_jobs};
    pool->threads = calloc((size_t)num_threads + 1, sizeof(pthread_t));
    for (int i = 0; pool->threads && i < num_threads; i++) {
        if (pthread_create(&pool->threads[i], NULL, pool_thread, pool)) break;
        pool->num_threads++;
    }
    return pool;
}

static void pool_submit(Pool *pool, PoolJob *job) {
    atomic_store(&job->running, 1);
    atomic_store(&job->left, job->total);
    atomic_store(&job->next, 0);
    if (pool->num_threads == 0) return;
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers)) futex_wake(&pool->generation);
}

static void pool_wait(PoolJob *job) {
    pool_help(job);
    for (int pauses = 0; pauses < POOL_SPIN_MOST && atomic_load(&job->running); pauses++) wait_pause();
    while (atomic_load(&job->running)) {
        atomic_fetch_add(&job->waiting, 1);
        futex_sleep(&job->running, 1, -1);
        atomic_fetch_sub(&job->waiting, 1);
    }
}

static void pool_close(Pool *pool) {
    if (!pool) return;
    atomic_store(&pool->closing, true);
    atomic_fetch_add(&pool->generation, 1);
    futex_wake(&pool->generation);
    for (int i = 0; i < pool->num_threads; i++) pthread_join(pool->threads[i], NULL);
    free(pool->threads);
    free(pool);
}

#endif
