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

/* Copies rows of discrete actions; the first row with a component outside 0 .. sizes[k]-1, or -1. */
WIDE static int64_t copy_discrete(int32_t *to, const int32_t *from, int64_t rows, int components,
                             const int32_t *sizes) {
    uint32_t bad = 0;
    if (components == 1) {
        uint32_t size = (uint32_t)sizes[0];
        for (int64_t i = 0; i < rows; i++) {
            to[i] = from[i];
            bad |= (uint32_t)from[i] >= size;
        }
    } else {
        for (int64_t i = 0; i < rows; i++) {
            for (int k = 0; k < components; k++) {
                int32_t action = from[i * components + k];
                to[i * components + k] = action;
                bad |= (uint32_t)action >= (uint32_t)sizes[k];
            }
        }
    }
    if (!bad) return -1;
    for (int64_t i = 0; i < rows * components; i++) {
        if ((uint32_t)from[i] >= (uint32_t)sizes[i % components]) return i / components;
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

/* The PPO loss of discrete actions and its gradient, as ppo.loss defines them, in one pass.
 *
 * logits [B, stride] of which the first P = sum(sizes) of a row count, actions [B, D], the other
 * inputs [B]; grad_logits [B, P] and grad_values [B] are those of the mean over rows.  sums gets
 * the means of policy loss, value loss, entropy, divergence and clipped share. */
typedef struct {
    float clip, value_clip, value_weight, entropy_weight;
} LossWeights;

static void ppo_loss(const float *logits, int64_t stride, const float *values, int64_t value_stride,
                     const int32_t *actions, const float *old_logprobs, const float *advantages,
                     const float *old_values, const float *returns, int64_t rows, int components,
                     const int32_t *sizes, LossWeights w, float *grad_logits, float *grad_values,
                     double *sums) {
    int width = 0;
    for (int k = 0; k < components; k++) width += sizes[k];
    float share = 1.0f / (float)rows, log_totals[32], spreads[32];
    for (int64_t i = 0; i < rows; i++) {
        const float *row = logits + i * stride;
        float *grad = grad_logits + i * width;
        float logprob = 0.0f, entropy = 0.0f;
        for (int k = 0, first = 0; k < components; first += sizes[k++]) {
            float most = row[first], total = 0.0f, spread = 0.0f;
            for (int j = 1; j < sizes[k]; j++) most = row[first + j] > most ? row[first + j] : most;
            for (int j = 0; j < sizes[k]; j++) total += expf(row[first + j] - most);
            log_totals[k] = most + logf(total);
            for (int j = first; j < first + sizes[k]; j++) {
                float logp = row[j] - log_totals[k];
                grad[j] = expf(logp);
                spread -= grad[j] * logp;
            }
            logprob += row[first + actions[i * components + k]] - log_totals[k];
            entropy += spreads[k] = spread;
        }
        float log_ratio = logprob - old_logprobs[i], ratio = expf(log_ratio);
        float clipped = ratio < 1 - w.clip ? 1 - w.clip : ratio > 1 + w.clip ? 1 + w.clip : ratio;
        float gain = advantages[i] * ratio, clipped_gain = advantages[i] * clipped;
        float pull = gain <= clipped_gain ? -gain * share : 0.0f;
        for (int k = 0, first = 0; k < components; first += sizes[k++]) {
            for (int j = first; j < first + sizes[k]; j++) {
                float logp = row[j] - log_totals[k], p = grad[j];
                grad[j] = w.entropy_weight * share * p * (logp + spreads[k]) - pull * p;
            }
            grad[first + actions[i * components + k]] += pull;
        }
        float value = values[i * value_stride], change = value - old_values[i];
        float error = value - returns[i], slope = error, square = error * error;
        if (w.value_clip > 0.0f && fabsf(change) > w.value_clip) {
            float near = old_values[i] + copysignf(w.value_clip, change) - returns[i];
            if (near * near > square) {
                square = near * near;
                slope = 0.0f;
            }
        }
        grad_values[i] = w.value_weight * slope * share;
        sums[0] -= gain < clipped_gain ? gain : clipped_gain;
        sums[1] += 0.5 * square;
        sums[2] += entropy;
        sums[3] += ratio - 1 - log_ratio;
        sums[4] += ratio != clipped;
    }
    for (int k = 0; k < 5; k++) sums[k] /= (double)rows;
}

#endif
