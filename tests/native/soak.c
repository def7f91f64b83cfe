/* soak.c - steps one environment with random actions, meant to run under sanitizers.
 *
 * Compiled with the -D flags of library.c, which it includes.  Every buffer is allocated at its
 * exact size, so that a row written too far is seen.  Prints one line; exits 1 when the
 * environment breaks its contract, and the sanitizers abort on everything else.
 *
 *     soak STEPS       world steps with the default parameters; a fifth of them with others
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "library.c"

enum { WORLDS = 4, DRAWS = 50, VARIANTS = 6 };

static PufferRng rng;

static void fail(const char *what, double value) {
    fprintf(stderr, "%s: %s (%g)\n", TEXT(PUFFER_env), what, value);
    exit(1);
}

static void *bytes(int64_t count) {
    void *block = malloc(count > 0 ? (size_t)count : 1);
    if (!block) fail("out of memory, bytes", (double)count);
    __builtin_memset(block, 0xA5, (size_t)count);
    return block;
}

/* Variant 0 is the defaults, 1 and 2 the lowest and the highest of each, the rest are random. */
static void choose(const PufferLibrary *library, int variant, double *values) {
    for (int i = 0; i < library->num_params; i++) {
        const PufferParam *p = &library->params[i];
        /* Far ends such as a million steps an episode tell nothing that a hundred times the default does not. */
        double reach = 100.0 * (fabs(p->initial) + 1.0);
        double low = fmax(p->low, -reach), high = fmin(p->high, reach);
        double value = low + (high - low) * puffer_random_unit(&rng);
        if (variant == 0) value = p->initial;
        if (variant == 1) value = low;
        if (variant == 2) value = high;
        values[i] = p->kind == PUFFER_FLOAT ? value : floor(value);
    }
}

static void act(const PufferLibrary *library, const PufferSpec *spec, void *actions, int64_t rows) {
    for (int64_t i = 0; i < rows * spec->action_components; i++) {
        int component = (int)(i % spec->action_components);
        if (library->continuous) {
            float low = spec->action_low[component], high = spec->action_high[component];
            ((float *)actions)[i] = puffer_random_range(&rng, low, high);
        } else {
            int choices = spec->action_sizes[component];
            ((int32_t *)actions)[i] = (int32_t)puffer_random_below(&rng, (uint32_t)choices);
        }
    }
}

static void inspect(const PufferBatch *batch, int64_t rows) {
    for (int64_t row = 0; row < rows; row++) {
        if (!isfinite(batch->rewards[row])) fail("a reward is not finite", batch->rewards[row]);
        if (batch->terminals[row] > 1) fail("a terminal is neither 0 nor 1", batch->terminals[row]);
        if (batch->truncations[row] > 1) fail("a truncation is neither 0 nor 1", batch->truncations[row]);
        if (batch->masks[row] > 1) fail("a mask is neither 0 nor 1", batch->masks[row]);
        const Obs *observation = row_of(batch->observations, batch, row);
        for (int64_t i = 0; i < batch->obs_bytes / (int64_t)sizeof(Obs); i++) {
            double element = (double)observation[i];
            if (!(element >= batch->spec.obs_low && element <= batch->spec.obs_high)) {
                fail("an observation lies outside its bounds", element);
            }
        }
    }
}

/* Runs one set of parameters; returns 0 when the environment refuses it. */
static int64_t soak(const PufferLibrary *library, const double *values, int64_t steps) {
    void *params = bytes(library->params_bytes);
    PufferSpec spec;
    if (library->describe(values, params, &spec)) {
        free(params);
        return 0;
    }
    int64_t rows = (int64_t)WORLDS * spec.num_agents, obs_bytes = library->obs_item_bytes;
    for (int axis = 0; axis < spec.obs_rank; axis++) obs_bytes *= spec.obs_shape[axis];
    uint64_t seeds[WORLDS];
    for (int world = 0; world < WORLDS; world++) seeds[world] = puffer_random(&rng);
    void *actions = bytes(rows * spec.action_components * (int64_t)sizeof(Action));
    PufferBatch batch = {
        .states = bytes(WORLDS * spec.state_bytes),
        .params = params,
        .spec = spec,
        .obs_bytes = obs_bytes,
        .observations = bytes(rows * obs_bytes),
        .final_observations = bytes(rows * obs_bytes),
        .actions = actions,
        .rewards = bytes(rows * (int64_t)sizeof(float)),
        .terminals = bytes(rows),
        .truncations = bytes(rows),
        .masks = bytes(rows),
        .returns = bytes(rows * (int64_t)sizeof(float)),
        .lengths = bytes(rows * (int64_t)sizeof(int32_t)),
        .logs = bytes(WORLDS * (int64_t)sizeof(Log)),
        .seeds = seeds,
    };
    PufferCanvas canvas = {bytes((int64_t)spec.width * spec.height * 3), spec.width, spec.height};

    int64_t calls = (steps + WORLDS - 1) / WORLDS, between_draws = calls / DRAWS + 1;
    library->reset(&batch, 0, WORLDS);
    inspect(&batch, rows);
    for (int64_t call = 0; call < calls; call++) {
        act(library, &spec, actions, rows);
        library->step(&batch, 0, WORLDS / 2);
        library->step(&batch, WORLDS / 2, WORLDS);
        inspect(&batch, rows);
        if (call % between_draws == 0) library->draw(batch.states, params, &canvas);
    }
    library->reset(&batch, WORLDS - 1, WORLDS);

    void *blocks[] = {batch.states, batch.observations, batch.final_observations, actions, batch.rewards,
                      batch.terminals, batch.truncations, batch.masks, batch.returns, batch.lengths,
                      batch.logs, canvas.pixels, params};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) free(blocks[i]);
    return calls * WORLDS;
}

int main(int count, char **words) {
    int64_t steps = count > 1 ? strtoll(words[1], NULL, 10) : 100000, done = 0;
    const PufferLibrary *library = puffer_library();
    double values[sizeof param_table / sizeof *param_table];
    puffer_seed(&rng, 1);
    int variants = 0;
    for (int variant = 0; variant < VARIANTS; variant++) {
        choose(library, variant, values);
        int64_t ran = soak(library, values, variant ? steps / 5 : steps);
        if (variant == 0 && ran == 0) fail("the default parameters are refused", 0);
        variants += ran > 0;
        done += ran;
    }
    printf("%-12s %lld steps, %d sets of parameters\n", library->name, (long long)done, variants);
    return 0;
}
