/* squared - walk to the target, do not leave the board.
 *
 * The agent starts in the middle of a square board; the target stands on a random cell of the
 * rim.  Each step the agent stays or moves one cell.  Reaching the target: reward 1, the episode
 * terminates.  Stepping off the board: reward -1, the episode terminates.  After `max_steps` steps
 * the episode is truncated.
 *
 * Conventions: cells are numbered row by row from the top left corner; x to the right, y down.
 */
#include "puffer.h"

/* Parameters: type, name, default, lowest, highest, what it is. */
#define SQUARED_PARAMS(X)                                                     \
    X(int, size, 11, 3, 63, "Cells along one side of the board; odd.")        \
    X(int, max_steps, 64, 1, 100000, "Steps after which an episode is truncated.")

/* What an episode reports, beside its return and length. */
#define SQUARED_LOG(X) X(score, "1 if the target was reached, else 0.")

PUFFER_DECLARE(Squared, SQUARED_PARAMS, SQUARED_LOG, uint8_t, int32_t)

enum { SQUARED_STAY, SQUARED_DOWN, SQUARED_UP, SQUARED_LEFT, SQUARED_RIGHT, SQUARED_ACTIONS };
enum { SQUARED_EMPTY, SQUARED_AGENT, SQUARED_TARGET }; /* what an observed cell holds */

typedef struct {
    PufferRng rng;
    int32_t x, y;   /* the agent's cell, 0 .. size-1 */
    int32_t target; /* the target's cell, 0 .. size*size-1 */
    int32_t tick;   /* steps since the episode began */
} Squared;

static const char *squared_describe(const SquaredParams *p, PufferSpec *spec) {
    if (p->size % 2 == 0) return "size must be odd, so that the board has a middle";
    spec->obs_rank = 1;
    spec->obs_shape[0] = p->size * p->size;
    spec->obs_high = SQUARED_TARGET;
    spec->action_sizes[0] = SQUARED_ACTIONS;
    spec->keys[SQUARED_DOWN] = "down";
    spec->keys[SQUARED_UP] = "up";
    spec->keys[SQUARED_LEFT] = "left";
    spec->keys[SQUARED_RIGHT] = "right";
    spec->width = spec->height = 33 * p->size;
    spec->frames_per_second = 8;
    return NULL;
}

/* The k-th of the 4*(size-1) cells of the rim, clockwise from the top left corner. */
static inline int squared_rim_cell(int size, int k) {
    int side = size - 1, along = k % side;
    switch (k / side) {
    case 0: return along;
    case 1: return along * size + side;
    case 2: return side * size + (side - along);
    default: return (side - along) * size;
    }
}

static inline void squared_reset(Squared *s, const SquaredParams *p) {
    s->x = s->y = p->size / 2;
    s->tick = 0;
    s->target = squared_rim_cell(p->size, puffer_random_below(&s->rng, 4 * (p->size - 1)));
}

static inline void squared_step(Squared *s, const SquaredParams *p, SquaredRows *rows) {
    int action = rows->actions[0];
    s->x += (action == SQUARED_RIGHT) - (action == SQUARED_LEFT);
    s->y += (action == SQUARED_DOWN) - (action == SQUARED_UP);
    s->tick++;

    bool off_board = ((unsigned)s->x >= (unsigned)p->size) | ((unsigned)s->y >= (unsigned)p->size);
    bool reached = !off_board & (s->y * p->size + s->x == s->target);
    bool late = s->tick >= p->max_steps;
    if (!(reached | off_board | late)) return;
    rows->rewards[0] = (float)(reached - off_board);
    rows->terminals[0] = reached | off_board;
    rows->truncations[0] = !rows->terminals[0];
    rows->log->score += (float)reached;
}

static inline void squared_observe(const Squared *s, const SquaredParams *p, int agent,
                                   uint8_t *row) {
    (void)agent;
    puffer_zero(row, (size_t)(p->size * p->size)); /* SQUARED_EMPTY */
    row[s->target] = SQUARED_TARGET;
    if ((unsigned)s->x < (unsigned)p->size && (unsigned)s->y < (unsigned)p->size) {
        row[s->y * p->size + s->x] = SQUARED_AGENT;
    }
}

static void squared_draw(const Squared *s, const SquaredParams *p, PufferCanvas *canvas) {
    float cell = (float)canvas->width / (float)p->size;
    int target_x = s->target % p->size, target_y = s->target / p->size;
    puffer_fill(canvas, PUFFER_BACKGROUND);
    for (int y = 0; y < p->size; y++) {
        for (int x = 0; x < p->size; x++) {
            bool is_target = (x == target_x) & (y == target_y);
            puffer_rectangle(canvas, (float)x * cell + 1, (float)y * cell + 1, cell - 2, cell - 2,
                             is_target ? PUFFER_RED : 0x1d2b35);
        }
    }
    puffer_disc(canvas, ((float)s->x + 0.5f) * cell, ((float)s->y + 0.5f) * cell, cell * 0.36f,
                PUFFER_TEAL);
}
