/* loop.c - the floor of an environment: its step in a plain C loop, nothing around it.
 *
 * Compiled like library.c, with -DPUFFER_HEADER and the names.  usage: loop WORLDS SECONDS
 * Prints agent steps per second.  Default parameters, random actions drawn beforehand.
 */
#include "library.c"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RING = 64 };

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *zeros(int64_t bytes) {
    size_t size = ((size_t)bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, size);
    if (!memory) exit(1);
    __builtin_memset(memory, 0, size);
    return memory;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int64_t worlds = atoll(argv[1]);
    double seconds = atof(argv[2]);
    const PufferLibrary *library = puffer_library();
    double values[64];
    for (int i = 0; i < library->num_params; i++) values[i] = library->params[i].initial;
    PufferBatch b = {0};
    void *params = zeros(library->params_bytes + 8);
    const char *error = library->describe(values, params, &b.spec);
    if (error) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    int64_t rows = worlds * b.spec.num_agents, components = b.spec.action_components;
    b.params = params;
    b.obs_bytes = library->obs_item_bytes;
    for (int i = 0; i < b.spec.obs_rank; i++) b.obs_bytes *= b.spec.obs_shape[i];
    b.states = zeros(worlds * b.spec.state_bytes);
    b.observations = zeros(rows * b.obs_bytes);
    b.final_observations = zeros(rows * b.obs_bytes);
    b.rewards = zeros(rows * 4);
    b.terminals = zeros(rows);
    b.truncations = zeros(rows);
    b.masks = zeros(rows);
    b.returns = zeros(rows * 4);
    b.lengths = zeros(rows * 4);
    b.logs = zeros(worlds * (int64_t)sizeof(Log));
    uint64_t *seeds = zeros(worlds * 8);
    for (int64_t i = 0; i < worlds; i++) seeds[i] = puffer_mix((uint64_t)i);
    b.seeds = seeds;
    PufferRng rng;
    puffer_seed(&rng, 1);
    int32_t *actions = zeros(RING * rows * components * 4);
    for (int64_t i = 0; i < RING * rows * components; i++) {
        int k = (int)(i % components);
        if (library->continuous) {
            ((float *)actions)[i] = puffer_random_range(&rng, b.spec.action_low[k], b.spec.action_high[k]);
        } else {
            actions[i] = puffer_random_below(&rng, b.spec.action_sizes[k]);
        }
    }
    library->reset(&b, 0, worlds);
    int64_t calls = 0;
    double start = 0, end = now_s() + 0.1 * seconds;
    for (int counted = 0; counted < 2; counted++) {
        for (calls = 0, start = now_s(); now_s() < end;) {
            for (int i = 0; i < 16; i++, calls++) {
                b.actions = actions + (calls % RING) * rows * components;
                library->step(&b, 0, worlds);
            }
        }
        if (!counted) end = now_s() + seconds;
    }
    printf("%.1f\n", (double)(calls * rows) / (now_s() - start));
    return 0;
}
