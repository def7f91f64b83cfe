/* categorical.h - discrete actions of a policy: sampling them, and the PPO loss of those taken.
 *
 * Rows are handled in tiles of LANES, turned so that a choice of all rows of a tile lies side by
 * side: every loop runs over lanes and becomes vector code.  Sums keep one term for each lane, so
 * that results do not depend on how wide the machine's vectors are.
 */
#ifndef PUFFER_CATEGORICAL_H
#define PUFFER_CATEGORICAL_H

#include "kernels.h"
#include <stdbool.h>
#include <string.h>

/* Inlined, so that each clone of its callers compiles it for its own vectors. */
#define ALWAYS static inline __attribute__((always_inline))

enum { LANES = 64, MOST_COMPONENTS = 32 };

typedef struct {
    int components;
    int32_t sizes[MOST_COMPONENTS]; /* choices of each component */
    int width;                      /* their sum, P */
} Choices;

ALWAYS float float_of_bits(int32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ALWAYS int32_t bits_of_float(float value) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* e**x within 2 units in the last place; 0 below -87, infinite above 88.  exp(x) = 2**n exp(r) with r in
 * [-ln 2 / 2, ln 2 / 2] and the Taylor series of the latter to r**7 / 7!. */
ALWAYS float lane_exp(float x) {
    float clamped = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float shifted = clamped * 1.44269504f + 12582912.0f; /* 1.5 * 2**23 rounds to an integer */
    float n = shifted - 12582912.0f;
    float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
    float sum = 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r * r + r + 1.0f;
    float power = float_of_bits((bits_of_float(shifted) - 0x4b400000 + 127) << 23);
    sum *= power;
    sum = x < -87.0f ? 0.0f : x > 88.0f ? INFINITY : sum;
    return x == x ? sum : x;
}

/* ln x for normal x > 0, within 2 units in the last place.  x = 2**n m with m in [0.7, 1.4], and
 * ln m = 2 artanh(s) with s = (m - 1) / (m + 1). */
ALWAYS float lane_log(float x) {
    int32_t bits = bits_of_float(x), n = (bits - 0x3f3504f3) >> 23;
    float m = float_of_bits(bits - n * (1 << 23));
    float s = (m - 1) / (m + 1), q = s * s;
    float sum = 1.0f / 9;
    sum = sum * q + 1.0f / 7;
    sum = sum * q + 1.0f / 5;
    sum = sum * q + 1.0f / 3;
    float log_m = 2 * s + 2 * s * q * sum;
    return x == x ? (float)n * 0.693359375f + ((float)n * -2.12194440e-4f + log_m) : x;
}

/* Turns `count` rows of `width` floats, `stride` apart, into to[width][LANES]. */
ALWAYS void turn_in(float *to, const float *from, int64_t stride, int64_t count, int width) {
    for (int64_t i = 0; i < count; i++)
        for (int j = 0; j < width; j++) to[j * LANES + i] = from[i * stride + j];
}

/* Of one component z[size][LANES] of logits: p gets probabilities, log_total the logarithm of the
 * sum of exponentials. */
ALWAYS void softmax_lanes(const float *restrict z, int size, float *restrict p,
                                 float *restrict log_total) {
    float most[LANES], total[LANES];
    for (int i = 0; i < LANES; i++) most[i] = z[i];
    for (int j = 1; j < size; j++)
        for (int i = 0; i < LANES; i++)
            most[i] = z[j * LANES + i] > most[i] ? z[j * LANES + i] : most[i];
    for (int i = 0; i < LANES; i++) total[i] = 0.0f;
    for (int j = 0; j < size; j++) {
        for (int i = 0; i < LANES; i++) {
            float e = lane_exp(z[j * LANES + i] - most[i]);
            p[j * LANES + i] = e;
            total[i] += e;
        }
    }
    for (int i = 0; i < LANES; i++) {
        log_total[i] = most[i] + lane_log(total[i]);
        total[i] = 1.0f / total[i];
    }
    for (int j = 0; j < size; j++)
        for (int i = 0; i < LANES; i++) p[j * LANES + i] *= total[i];
}

/* Samples B rows: of each component the largest logit plus noise.
 *
 * logits [B, stride] of which the first P of a row count, noise [B, P] standard Gumbel samples;
 * actions [B, D] and logprobs [B] are written.  scratch has 2 * P * LANES floats. */
WIDE static void sample_discrete(const float *logits, int64_t stride, const float *noise,
                                 int64_t rows, const Choices *choices, int32_t *actions,
                                 float *logprobs, float *scratch) {
    int width = choices->width, components = choices->components;
    float *z = scratch, *p = scratch + width * LANES;
    memset(scratch, 0, (size_t)(2 * width) * LANES * sizeof(float));
    for (int64_t begin = 0; begin < rows; begin += LANES) {
        int64_t count = rows - begin < LANES ? rows - begin : LANES;
        float logprob[LANES] = {0}, log_total[LANES], best[LANES], picked[LANES];
        int32_t choice[LANES];
        turn_in(z, logits + begin * stride, stride, count, width);
        turn_in(p, noise + begin * width, width, count, width);
        for (int k = 0, first = 0; k < components; first += choices->sizes[k++]) {
            const float *part = z + first * LANES;
            float *chances = p + first * LANES;
            for (int i = 0; i < LANES; i++) {
                best[i] = part[i] + chances[i];
                picked[i] = part[i];
                choice[i] = 0;
            }
            for (int j = 1; j < choices->sizes[k]; j++) {
                for (int i = 0; i < LANES; i++) {
                    float score = part[j * LANES + i] + chances[j * LANES + i];
                    bool better = score > best[i];
                    best[i] = better ? score : best[i];
                    picked[i] = better ? part[j * LANES + i] : picked[i];
                    choice[i] = better ? j : choice[i];
                }
            }
            softmax_lanes(part, choices->sizes[k], chances, log_total);
            for (int i = 0; i < LANES; i++) logprob[i] += picked[i] - log_total[i];
            for (int64_t i = 0; i < count; i++) actions[(begin + i) * components + k] = choice[i];
        }
        memcpy(logprobs + begin, logprob, (size_t)count * sizeof(float));
    }
}

typedef struct {
    float clip, value_clip, value_weight, entropy_weight;
} LossWeights;

/* The rows of a minibatch: what was taken and known when it was, and returns to learn from. */
typedef struct {
    const int32_t *actions; /* [B, D] */
    const float *logprobs, *advantages, *values, *returns; /* [B] */
} Taken;

/* The PPO loss of discrete actions and its gradient, as ppo.loss defines them, in one pass.
 *
 * logits [B, stride] of which the first P of a row count; values [B], value_stride apart.
 * grad_logits [B, P] and grad_values [B] are those of the mean over rows.  sums gets the means of
 * policy loss, value loss, entropy, divergence and clipped share.  scratch has 2 * P * LANES. */
WIDE static void ppo_loss(const float *logits, int64_t stride, const float *values,
                          int64_t value_stride, Taken taken, int64_t rows, const Choices *choices,
                          LossWeights w, float *grad_logits, float *grad_values, double *sums,
                          float *scratch) {
    int width = choices->width, components = choices->components;
    float *z = scratch, *p = scratch + width * LANES, share = 1.0f / (float)rows;
    float log_totals[MOST_COMPONENTS][LANES], spreads[MOST_COMPONENTS][LANES];
    double totals[5][LANES] = {{0}};
    memset(scratch, 0, (size_t)(2 * width) * LANES * sizeof(float));
    for (int64_t begin = 0; begin < rows; begin += LANES) {
        int64_t count = rows - begin < LANES ? rows - begin : LANES;
        float logprob[LANES] = {0}, entropy[LANES] = {0}, pull[LANES];
        float old[LANES] = {0}, advantage[LANES] = {0}, before[LANES] = {0}, target[LANES] = {0};
        float value[LANES] = {0}, here[LANES] = {0}, slopes[LANES];
        size_t bytes = (size_t)count * sizeof(float);
        turn_in(z, logits + begin * stride, stride, count, width);
        turn_in(value, values + begin * value_stride, value_stride, count, 1);
        memcpy(old, taken.logprobs + begin, bytes);
        memcpy(advantage, taken.advantages + begin, bytes);
        memcpy(before, taken.values + begin, bytes);
        memcpy(target, taken.returns + begin, bytes);
        for (int64_t i = 0; i < count; i++) here[i] = 1.0f; /* the lane holds a row */
        for (int k = 0, first = 0; k < components; first += choices->sizes[k++]) {
            float *chances = p + first * LANES, *spread = spreads[k];
            const float *part = z + first * LANES;
            softmax_lanes(part, choices->sizes[k], chances, log_totals[k]);
            for (int i = 0; i < LANES; i++) spread[i] = 0.0f;
            for (int j = 0; j < choices->sizes[k]; j++)
                for (int i = 0; i < LANES; i++)
                    spread[i] -= chances[j * LANES + i] * (part[j * LANES + i] - log_totals[k][i]);
            for (int i = 0; i < LANES; i++) entropy[i] += spread[i];
            for (int64_t i = 0; i < count; i++) {
                int32_t action = taken.actions[(begin + i) * components + k];
                logprob[i] += part[action * LANES + i] - log_totals[k][i];
            }
        }
        for (int i = 0; i < LANES; i++) {
            float log_ratio = logprob[i] - old[i], ratio = lane_exp(log_ratio);
            float low = 1 - w.clip, high = 1 + w.clip;
            float clipped = ratio < low ? low : ratio > high ? high : ratio;
            float gain = advantage[i] * ratio, clipped_gain = advantage[i] * clipped;
            pull[i] = gain <= clipped_gain ? -gain * share : 0.0f;
            float change = value[i] - before[i], error = value[i] - target[i];
            float bounded = change < -w.value_clip ? -w.value_clip
                            : change > w.value_clip ? w.value_clip : change;
            float near = before[i] + bounded - target[i];
            bool outside = w.value_clip > 0.0f && fabsf(change) > w.value_clip;
            bool flat = outside && near * near > error * error;
            float square = flat ? near * near : error * error;
            slopes[i] = flat ? 0.0f : w.value_weight * error * share;
            totals[0][i] -= here[i] * (gain < clipped_gain ? gain : clipped_gain);
            totals[1][i] += 0.5f * here[i] * square;
            totals[2][i] += here[i] * entropy[i];
            totals[3][i] += here[i] * (ratio - 1 - log_ratio);
            totals[4][i] += ratio != clipped ? here[i] : 0.0f;
        }
        memcpy(grad_values + begin, slopes, bytes);
        for (int k = 0, first = 0; k < components; first += choices->sizes[k++]) {
            const float *part = z + first * LANES, *chances = p + first * LANES;
            float *grad = p + first * LANES;
            for (int j = 0; j < choices->sizes[k]; j++) {
                for (int i = 0; i < LANES; i++) {
                    float chance = chances[j * LANES + i], logp = part[j * LANES + i] - log_totals[k][i];
                    float less = w.entropy_weight * share * chance * (logp + spreads[k][i]);
                    grad[j * LANES + i] = less - pull[i] * chance;
                }
            }
            for (int64_t i = 0; i < count; i++)
                grad[taken.actions[(begin + i) * components + k] * LANES + i] += pull[i];
        }
        for (int64_t i = 0; i < count; i++)
            for (int j = 0; j < width; j++) grad_logits[(begin + i) * width + j] = p[j * LANES + i];
    }
    for (int k = 0; k < 5; k++) {
        sums[k] = 0.0;
        for (int i = 0; i < LANES; i++) sums[k] += totals[k][i];
        sums[k] /= (double)rows;
    }
}

#endif
