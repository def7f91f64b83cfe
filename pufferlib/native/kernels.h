/* kernels.h - loops over rows that must not cost anything beside a step or an update. */
#ifndef PUFFER_KERNELS_H
#define PUFFER_KERNELS_H

#include <math.h>
#include <stdint.h>

/* One binary, the widest vectors that the machine has; results do not depend on the choice. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE
#endif

/* The first row of discrete actions with a component outside 0 .. sizes[k]-1, or -1. */
WIDE static int64_t check_discrete(const int32_t *actions, int64_t rows, int components,
                                   const int32_t *sizes) {
    uint32_t bad = 0;
    if (components == 1) {
        uint32_t size = (uint32_t)sizes[0];
        for (int64_t i = 0; i < rows; i++) bad |= (uint32_t)actions[i] >= size;
    } else {
        for (int64_t i = 0; i < rows; i++)
            for (int k = 0; k < components; k++)
                bad |= (uint32_t)actions[i * components + k] >= (uint32_t)sizes[k];
    }
    if (!bad) return -1;
    for (int64_t i = 0; i < rows * components; i++) {
        if ((uint32_t)actions[i] >= (uint32_t)sizes[i % components]) return i / components;
    }
    return -1;
}

/* Copies rows of continuous actions, cut to their bounds; the first row that holds a NaN, or -1. */
static int64_t copy_continuous(float *to, const float *from, int64_t rows, int components,
                               const float *low, const float *high) {
    for (int64_t i = 0; i < rows; i++) {
        for (int k = 0; k < components; k++) {
            float action = from[i * components + k];
            if (isnan(action)) return i;
            to[i * components + k] = action < low[k] ? low[k] : action > high[k] ? high[k] : action;
        }
    }
    return -1;
}

/* The index of the first NaN or infinity among count floats, or -1. */
WIDE static int64_t find_nonfinite(const float *values, int64_t count) {
    const uint32_t *bits = (const uint32_t *)values;
    for (int64_t block = 0; block < count; block += 1024) {
        int64_t end = block + 1024 < count ? block + 1024 : count;
        uint32_t bad = 0;
        for (int64_t i = block; i < end; i++) bad |= (bits[i] & 0x7f800000u) == 0x7f800000u;
        if (!bad) continue;
        for (int64_t i = block; i < end; i++) {
            if ((bits[i] & 0x7f800000u) == 0x7f800000u) return i;
        }
    }
    return -1;
}

/* Generalized advantage estimation (Schulman et al. 2016, arXiv 1506.02438), time-major.
 *
 * rewards, values, bootstraps, advantages [T, A] float; terminals, truncations, masks [T, A];
 * last_values [A] is the value of the observation after the last step.  bootstraps holds the
 * value of the final observation of a truncated episode.  Row t is the step from observation t:
 *     next  = 0 at a terminal, bootstraps[t] at a truncation, else values[t+1]
 *     delta = rewards[t] + gamma * next - values[t]
 *     A[t]  = delta + gamma * lambda * A[t+1] unless an episode ended at t
 * Rows whose mask is 0 get advantage 0. */
WIDE static void gae(const float *rewards, const float *values, const float *last_values,
                const float *bootstraps, const uint8_t *terminals, const uint8_t *truncations,
                const uint8_t *masks, float *advantages, int64_t steps, int64_t rows, float gamma,
                float lambda) {
    for (int64_t t = steps - 1; t >= 0; t--) {
        const float *next_value = t == steps - 1 ? last_values : values + (t + 1) * rows;
        const float *later = t == steps - 1 ? 0 : advantages + (t + 1) * rows;
        for (int64_t i = 0; i < rows; i++) {
            int64_t k = t * rows + i;
            float next = truncations[k] ? bootstraps[k] : next_value[i];
            next = terminals[k] ? 0.0f : next;
            float carry = later ? later[i] : 0.0f;
            carry = terminals[k] | truncations[k] ? 0.0f : carry;
            float advantage = rewards[k] + gamma * next - values[k] + gamma * lambda * carry;
            advantages[k] = masks[k] ? advantage : 0.0f;
        }
    }
}

#endif
