/* puffer.h - what a native environment and its runners agree on.
 *
 * An environment is one header, envs/<name>/<name>.h, that includes this file and nothing else.
 * For a folder `squared` it declares, under the names shown:
 *
 *     #define SQUARED_PARAMS(X)  X(type, name, default, low, high, "One sentence.") ...
 *     #define SQUARED_LOG(X)     X(name, "One sentence.") ...
 *     PUFFER_DECLARE(Squared, SQUARED_PARAMS, SQUARED_LOG, uint8_t, int32_t)
 *         makes the structs SquaredParams, SquaredLog and SquaredRows from the two tables, for
 *         observations of the first type and actions of the second (int32_t: discrete, float:
 *         continuous).  A parameter's type is int, float or bool.
 *
 *     typedef struct { PufferRng rng; ... } Squared;
 *         the whole state of one world: no pointers, so that copying its bytes copies the world.
 *
 *     const char *squared_describe(const SquaredParams *p, PufferSpec *spec);
 *         spaces and sizes; NULL, or a sentence saying why these parameters do not fit together.
 *     void squared_reset(Squared *s, const SquaredParams *p);
 *         begins an episode for every agent.
 *     void squared_step(Squared *s, const SquaredParams *p, SquaredRows *rows);
 *         one step of every agent: reads rows->actions, adds to rows->rewards, sets
 *         rows->terminals or rows->truncations of an agent whose episode ends, and then adds the
 *         episode's figures to *rows->log.  Rewards and flags arrive cleared.
 *     void squared_observe(const Squared *s, const SquaredParams *p, int agent, uint8_t *row);
 *         writes all of one agent's observation.
 *     void squared_draw(const Squared *s, const SquaredParams *p, PufferCanvas *canvas);
 *         paints the whole canvas.
 *
 * The runner does the rest, so that no environment can get it wrong: it seeds the generator,
 * clears rewards and flags, counts episode_return and episode_length, writes the last observation
 * of an episode to the final observations, resets in the same step, and then observes.
 *
 * Many agents.  A world is reset when the episode of each of its agents has ended.  An agent that
 * ended and waits for the others must have rows->masks[agent] set to 0; its rows are zeroed.  With
 * `#define SQUARED_RESPAWN 1` agents end one by one instead, and the runner calls
 * squared_respawn(s, p, agent) for each one that ended.
 *
 * Rules.  No allocation, no files, no globals, no C library: reset and step use what is in the
 * state, and the helpers of this file.  Then the same header runs on a CPU, on a GPU and in a
 * browser with the same results.  Floating point is compiled without contraction.
 */
#ifndef PUFFER_H
#define PUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PUFFER_ABI 1

/* ---------------------------------------------------------------- specification */

#define PUFFER_MAX_RANK 4        /* axes of an observation */
#define PUFFER_MAX_COMPONENTS 32 /* components of an action */
#define PUFFER_MAX_KEYS 16       /* keys of a keyboard player */

typedef struct {
    int64_t state_bytes;  /* of one world; preset to sizeof the state, larger for a flexible tail */
    int32_t num_agents;   /* of one world; preset to 1 */
    int32_t obs_rank;     /* axes used of obs_shape */
    int64_t obs_shape[PUFFER_MAX_RANK];
    double obs_low, obs_high; /* bounds of every element; preset to the range of the type */
    int32_t action_components; /* preset to 1 */
    int32_t action_sizes[PUFFER_MAX_COMPONENTS]; /* discrete: choices of each component */
    float action_low[PUFFER_MAX_COMPONENTS], action_high[PUFFER_MAX_COMPONENTS]; /* continuous */
    int32_t width, height; /* of the canvas, pixels */
    int32_t frames_per_second; /* for a human player; preset to 30 */
    const char *keys[PUFFER_MAX_KEYS]; /* keys[a]: the key that plays action a; NULL: the rest */
} PufferSpec;

typedef struct {
    uint8_t *pixels; /* [height, width, 3] red, green, blue */
    int32_t width, height;
} PufferCanvas;

/* ---------------------------------------------------------------- declarations from tables */

#define PUFFER_PARAM_FIELD_(type, name, initial, low, high, doc) type name;
#define PUFFER_LOG_FIELD_(name, doc) float name;

#define PUFFER_DECLARE(Env, PARAMS, LOG, obs_type, action_type)                                   \
    typedef obs_type Env##Obs;                                                                    \
    typedef action_type Env##Action;                                                              \
    typedef struct {                                                                              \
        PARAMS(PUFFER_PARAM_FIELD_)                                                               \
    } Env##Params;                                                                                \
    typedef struct {                                                                              \
        float episodes;       /* ended since the last read; all fields below are sums over them */ \
        float episode_return; /* kept by the runner */                                            \
        float episode_length; /* kept by the runner */                                            \
        LOG(PUFFER_LOG_FIELD_)                                                                    \
    } Env##Log;                                                                                   \
    typedef struct {                                                                              \
        const action_type *actions; /* [num_agents, components] */                                \
        float *rewards;             /* [num_agents], arrives 0 */                                 \
        uint8_t *terminals;         /* [num_agents], arrives 0 */                                 \
        uint8_t *truncations;       /* [num_agents], arrives 0 */                                 \
        uint8_t *masks;             /* [num_agents], stays as the environment left it */          \
        Env##Log *log;                                                                            \
    } Env##Rows;

/* ---------------------------------------------------------------- random numbers
 * PCG32 (O'Neill 2014, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms
 * for Random Number Generation"), one independent stream per world. */

typedef struct {
    uint64_t state;
    uint64_t stream; /* odd */
} PufferRng;

/* SplitMix64's finaliser: neighbouring inputs give unrelated outputs. */
static inline uint64_t puffer_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline void puffer_seed(PufferRng *rng, uint64_t seed) {
    rng->state = puffer_mix(seed);
    rng->stream = puffer_mix(rng->state) | 1u;
}

/* Uniform over all 32-bit integers. */
static inline uint32_t puffer_random(PufferRng *rng) {
    uint64_t old = rng->state;
    rng->state = old * 6364136223846793005ull + rng->stream;
    uint32_t shifted = (uint32_t)(((old >> 18) ^ old) >> 27);
    uint32_t turn = (uint32_t)(old >> 59);
    return (shifted >> turn) | (shifted << ((32u - turn) & 31u));
}

/* Uniform over 0 .. bound-1 (bias below bound / 2^32). */
static inline int puffer_random_below(PufferRng *rng, int bound) {
    return (int)(((uint64_t)puffer_random(rng) * (uint32_t)bound) >> 32);
}

/* Uniform over [0, 1), a multiple of 2^-24. */
static inline float puffer_random_unit(PufferRng *rng) {
    return (float)(puffer_random(rng) >> 8) * 0x1p-24f;
}

/* Uniform over [low, high). */
static inline float puffer_random_range(PufferRng *rng, float low, float high) {
    return low + (high - low) * puffer_random_unit(rng);
}

/* ---------------------------------------------------------------- arithmetic */

static inline int puffer_min(int a, int b) { return a < b ? a : b; }
static inline int puffer_max(int a, int b) { return a > b ? a : b; }
static inline int puffer_clamp(int x, int low, int high) { return puffer_max(low, puffer_min(x, high)); }
static inline float puffer_minf(float a, float b) { return a < b ? a : b; }
static inline float puffer_maxf(float a, float b) { return a > b ? a : b; }
static inline float puffer_clampf(float x, float low, float high) {
    return puffer_maxf(low, puffer_minf(x, high));
}
static inline float puffer_absf(float x) { return x < 0.0f ? -x : x; }
static inline float puffer_sqrtf(float x) { return __builtin_sqrtf(x); } /* exact by IEEE 754 */

/* Zeroes a row; for the hundred bytes of a small observation this beats a call to memset. */
static inline void puffer_zero(void *row, size_t bytes) {
    uint8_t *at = row, *end = at + bytes;
    if (bytes < 32) {
        for (; at < end; at++) *at = 0;
        return;
    }
    for (; end - at > 32; at += 32) {
        __builtin_memset(at, 0, 32);
#ifdef __GNUC__
        __asm__("" : "+r"(at)); /* Keeps the compiler from making this loop a call to memset. */
#endif
    }
    __builtin_memset(end - 32, 0, 32);
}

/* Sine and cosine of x (radians, |x| < 1e5) to within a few units in the last place of a double,
 * from additions and multiplications alone, so that every target agrees to the bit.  Taylor
 * polynomials on [-pi/4, pi/4] after subtracting a multiple of pi/2 in two parts. */
static inline void puffer_sincos(double x, double *sine, double *cosine) {
    double turns = x * 0.63661977236758134308;
    int64_t quadrant = (int64_t)(turns + (turns < 0.0 ? -0.5 : 0.5));
    double r = (x - (double)quadrant * 1.57079632673412561417) - (double)quadrant * 6.07710050650619224932e-11;
    double q = r * r;
    double s = r + r * q * (-1.0 / 6 + q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880 +
               q * (-1.0 / 39916800 + q * (1.0 / 6227020800.0 + q * (-1.0 / 1307674368000.0)))))));
    double c = 1.0 + q * (-0.5 + q * (1.0 / 24 + q * (-1.0 / 720 + q * (1.0 / 40320 + q * (-1.0 / 3628800 +
               q * (1.0 / 479001600.0 + q * (-1.0 / 87178291200.0 + q * (1.0 / 20922789888000.0))))))));
    double swap = s;
    if (quadrant & 1) { s = c; c = swap; }
    *sine = quadrant & 2 ? -s : s;
    *cosine = (quadrant + 1) & 2 ? -c : c;
}

static inline float puffer_sinf(float x) {
    double sine, cosine;
    puffer_sincos(x, &sine, &cosine);
    return (float)sine;
}

static inline float puffer_cosf(float x) {
    double sine, cosine;
    puffer_sincos(x, &sine, &cosine);
    return (float)cosine;
}

#include "draw.h"

#endif
