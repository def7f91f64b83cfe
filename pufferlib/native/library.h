/* library.h - the one struct through which a compiled environment is driven.
 *
 * Shared by library.c, which fills it for one environment, and by the programs that load it.
 */
#ifndef PUFFER_LIBRARY_H
#define PUFFER_LIBRARY_H

#include "puffer.h"

enum { PUFFER_INT, PUFFER_FLOAT, PUFFER_BOOL };
enum { PUFFER_OBS_UINT8, PUFFER_OBS_INT8, PUFFER_OBS_INT16, PUFFER_OBS_INT32, PUFFER_OBS_FLOAT };

typedef struct {
    const char *name;
    int32_t kind; /* PUFFER_INT, PUFFER_FLOAT or PUFFER_BOOL */
    double initial, low, high;
    const char *doc;
} PufferParam;

typedef struct {
    const char *name, *doc;
} PufferLogField;

/* W worlds of A agents and the rows they write: world w owns rows w*A .. w*A+A-1. */
typedef struct {
    uint8_t *states; /* [W, spec.state_bytes] */
    const void *params;
    PufferSpec spec;
    int64_t obs_bytes;        /* of one row */
    void *observations;       /* [W*A, obs_bytes] */
    void *final_observations; /* [W*A, obs_bytes]: a row is written when its episode ends */
    const void *actions;      /* [W*A, components] int32_t or float */
    float *rewards;           /* [W*A] */
    uint8_t *terminals, *truncations, *masks; /* [W*A], 0 or 1 */
    float *returns;           /* [W*A] reward summed over the running episode */
    int32_t *lengths;         /* [W*A] steps of the running episode */
    float *logs;              /* [W, fields]: the Log struct of each world */
    const uint64_t *seeds;    /* [W], read by reset */
} PufferBatch;

typedef struct {
    int32_t abi; /* PUFFER_ABI of the header it was compiled with */
    const char *name;
    int32_t num_params, num_log_fields; /* log fields beyond the runner's own three */
    const PufferParam *params;
    const PufferLogField *log_fields;
    int32_t params_bytes, obs_kind, obs_item_bytes, continuous;
    /* Fills params (params_bytes) from num_params values and spec from them; NULL or an error. */
    const char *(*describe)(const double *values, void *params, PufferSpec *spec);
    void (*reset)(const PufferBatch *batch, int64_t begin, int64_t end); /* worlds */
    void (*step)(const PufferBatch *batch, int64_t begin, int64_t end);
    void (*draw)(const void *state, const void *params, PufferCanvas *canvas);
} PufferLibrary;

#endif
