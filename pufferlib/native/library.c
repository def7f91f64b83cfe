/* library.c - turns one environment header into a library with the single symbol puffer_library.
 *
 * Compiled with  -DPUFFER_HEADER='"squared.h"' -DPUFFER_env=squared -DPUFFER_Env=Squared
 * -DPUFFER_ENV=SQUARED.  Readers who want to write an environment need puffer.h only.
 */
#include "library.h"
#include PUFFER_HEADER

#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
#define FN(name) GLUE(PUFFER_env, name)   /* FN(_step)   -> squared_step  */
#define TYPE(name) GLUE(PUFFER_Env, name) /* TYPE(Log)   -> SquaredLog    */
#define TABLE(name) GLUE(PUFFER_ENV, name) /* TABLE(_LOG) -> SQUARED_LOG   */

typedef PUFFER_Env State;
typedef TYPE(Params) Params;
typedef TYPE(Log) Log;
typedef TYPE(Rows) Rows;
typedef TYPE(Obs) Obs;
typedef TYPE(Action) Action;

#define KIND(type) _Generic((type)0, int: PUFFER_INT, float: PUFFER_FLOAT, bool: PUFFER_BOOL)
#define PARAM_ENTRY(type, name, initial, low, high, doc) {#name, KIND(type), initial, low, high, doc},
#define PARAM_READ(type, name, initial, low, high, doc) p->name = (type)*values++;
#define LOG_ENTRY(name, doc) {#name, doc},

/* The last entry keeps a table legal when an environment has no parameters or fields. */
static const PufferParam param_table[] = {TABLE(_PARAMS)(PARAM_ENTRY){0}};
static const PufferLogField log_table[] = {TABLE(_LOG)(LOG_ENTRY){0}};
enum { LOG_FIELDS = sizeof(Log) / sizeof(float) };

static const char *describe(const double *values, void *params, PufferSpec *spec) {
    Params *p = params;
    (void)values;
    TABLE(_PARAMS)(PARAM_READ)
    __builtin_memset(spec, 0, sizeof *spec);
    spec->state_bytes = sizeof(State);
    spec->num_agents = 1;
    spec->action_components = 1;
    spec->frames_per_second = 30;
    spec->obs_low = _Generic((Obs)0, uint8_t: 0.0, int8_t: -128.0, int16_t: -32768.0,
                             int32_t: -2147483648.0, float: -__builtin_inf());
    spec->obs_high = _Generic((Obs)0, uint8_t: 255.0, int8_t: 127.0, int16_t: 32767.0,
                              int32_t: 2147483647.0, float: __builtin_inf());
    const char *error = FN(_describe)(p, spec);
    spec->state_bytes = (spec->state_bytes + 15) / 16 * 16;
    return error;
}

static inline State *state_of(const PufferBatch *b, int64_t world) {
    return (State *)(b->states + world * b->spec.state_bytes);
}

static inline Obs *row_of(void *rows, const PufferBatch *b, int64_t row) {
    return (Obs *)((uint8_t *)rows + row * b->obs_bytes);
}

static inline void observe(const PufferBatch *b, const State *s, int64_t first, int agent) {
    Obs *row = row_of(b->observations, b, first + agent);
    if (b->masks[first + agent]) {
        FN(_observe)(s, b->params, agent, row);
    } else {
        __builtin_memset(row, 0, (size_t)b->obs_bytes);
    }
}

static inline Rows rows_of(const PufferBatch *b, int64_t world, int64_t first) {
    return (Rows){
        .actions = (const Action *)b->actions + first * b->spec.action_components,
        .rewards = b->rewards + first,
        .terminals = b->terminals + first,
        .truncations = b->truncations + first,
        .masks = b->masks + first,
        .log = (Log *)(b->logs + world * LOG_FIELDS),
    };
}

/* The episode of one row has ended: its figures go to the log, its last view to the final rows. */
static void finish(const PufferBatch *b, const State *s, Log *log, int64_t first, int agent) {
    int64_t row = first + agent;
    log->episodes += 1.0f;
    log->episode_return += b->returns[row];
    log->episode_length += (float)b->lengths[row];
    b->returns[row] = 0.0f;
    b->lengths[row] = 0;
    FN(_observe)(s, b->params, agent, row_of(b->final_observations, b, row));
}

static void begin_world(const PufferBatch *b, State *s, int64_t first) {
    __builtin_memset(b->masks + first, 1, (size_t)b->spec.num_agents);
    FN(_reset)(s, b->params);
}

static void reset(const PufferBatch *b, int64_t begin, int64_t end) {
    int agents = b->spec.num_agents;
    for (int64_t world = begin; world < end; world++) {
        State *s = state_of(b, world);
        int64_t first = world * agents;
        __builtin_memset(s, 0, (size_t)b->spec.state_bytes);
        __builtin_memset(b->logs + world * LOG_FIELDS, 0, sizeof(Log));
        puffer_seed(&s->rng, b->seeds[world]);
        begin_world(b, s, first);
        for (int agent = 0; agent < agents; agent++) {
            int64_t row = first + agent;
            b->rewards[row] = b->returns[row] = 0.0f;
            b->lengths[row] = 0;
            b->terminals[row] = b->truncations[row] = 0;
            observe(b, s, first, agent);
        }
    }
}

/* One agent a world.  Parameters and addresses are copied to locals that nothing can alias, so
 * that they stay in registers across the byte stores of flags and observations. */
static void step_alone(const PufferBatch *b, int64_t begin, int64_t end) {
    const Params params = *(const Params *)b->params;
    const Action *actions = (const Action *)b->actions + begin * b->spec.action_components;
    uint8_t *state = b->states + begin * b->spec.state_bytes;
    uint8_t *observation = (uint8_t *)b->observations + begin * b->obs_bytes;
    float *const rewards = b->rewards, *const returns = b->returns;
    uint8_t *const terminals = b->terminals, *const truncations = b->truncations;
    uint8_t *const masks = b->masks;
    int32_t *const lengths = b->lengths;
    Log *const logs = (Log *)b->logs;
    const int64_t components = b->spec.action_components, state_bytes = b->spec.state_bytes;
    const int64_t obs_bytes = b->obs_bytes;
    for (int64_t world = begin; world < end; world++) {
        State *s = (State *)state;
        Rows rows = {actions, rewards + world, terminals + world, truncations + world,
                     masks + world, logs + world};
        rewards[world] = 0.0f;
        terminals[world] = truncations[world] = 0;
        FN(_step)(s, &params, &rows);
        returns[world] += rewards[world];
        lengths[world] += 1;
        if (__builtin_expect(terminals[world] | truncations[world], 0)) {
            finish(b, s, rows.log, world, 0);
            begin_world(b, s, world);
        }
        FN(_observe)(s, &params, 0, (Obs *)observation);
        actions += components;
        state += state_bytes;
        observation += obs_bytes;
    }
}

/* Many agents a world, from local copies for the same reason. */
static void step_together(const PufferBatch *batch, int64_t begin, int64_t end) {
    const PufferBatch local = *batch, *b = &local;
    const Params params = *(const Params *)batch->params;
    int agents = b->spec.num_agents;
    for (int64_t world = begin; world < end; world++) {
        State *s = state_of(b, world);
        int64_t first = world * agents;
        Rows rows = rows_of(b, world, first);
        __builtin_memset(rows.rewards, 0, (size_t)agents * sizeof(float));
        __builtin_memset(rows.terminals, 0, (size_t)agents);
        __builtin_memset(rows.truncations, 0, (size_t)agents);
        FN(_step)(s, &params, &rows);
        bool any_ended = false, all_ended = true;
        for (int agent = 0; agent < agents; agent++) {
            int64_t row = first + agent;
            bool ended = rows.terminals[agent] | rows.truncations[agent];
            all_ended &= ended | !rows.masks[agent];
            if (!ended && !rows.masks[agent]) continue;
            b->returns[row] += rows.rewards[agent];
            b->lengths[row] += 1;
            if (!ended) continue;
            any_ended = true;
            finish(b, s, rows.log, first, agent);
        }
        if (any_ended) {
#if TABLE(_RESPAWN)
            for (int agent = 0; agent < agents; agent++) {
                if (rows.terminals[agent] | rows.truncations[agent]) FN(_respawn)(s, &params, agent);
            }
            (void)all_ended;
#else
            if (all_ended) begin_world(b, s, first);
#endif
        }
        for (int agent = 0; agent < agents; agent++) observe(b, s, first, agent);
    }
}

static void step(const PufferBatch *b, int64_t begin, int64_t end) {
    if (b->spec.num_agents == 1) {
        step_alone(b, begin, end);
    } else {
        step_together(b, begin, end);
    }
}

static void draw(const void *state, const void *params, PufferCanvas *canvas) {
    FN(_draw)(state, params, canvas);
}

__attribute__((visibility("default"))) const PufferLibrary *puffer_library(void) {
    static const PufferLibrary library = {
        .abi = PUFFER_ABI,
        .name = TEXT(PUFFER_env),
        .num_params = sizeof param_table / sizeof *param_table - 1,
        .num_log_fields = sizeof log_table / sizeof *log_table - 1,
        .params = param_table,
        .log_fields = log_table,
        .params_bytes = sizeof(Params),
        .obs_kind = _Generic((Obs)0, uint8_t: PUFFER_OBS_UINT8, int8_t: PUFFER_OBS_INT8,
                             int16_t: PUFFER_OBS_INT16, int32_t: PUFFER_OBS_INT32,
                             float: PUFFER_OBS_FLOAT),
        .obs_item_bytes = sizeof(Obs),
        .continuous = _Generic((Action)0, int32_t: 0, float: 1),
        .describe = describe,
        .reset = reset,
        .step = step,
        .draw = draw,
    };
    return &library;
}
