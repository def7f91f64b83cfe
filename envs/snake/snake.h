/* snake - eat, grow, and run into nothing: many snakes on one walled map.
 *
 * Each step every snake turns as it likes and moves on by one cell, the lower number first.  On a
 * piece of food it earns 1 and grows by a cell; there are always at least `food` pieces on the map.
 * A snake that runs into a wall, a rival or itself earns -1 and its episode terminates; after
 * `max_steps` steps of its own it is truncated.  Every fourth cell of what it had grown by then turns
 * into food where it lies, so that a map on which many died is hardly richer than a fresh one, and a
 * new snake begins on a random empty cell while the others play on.
 *
 * A new snake is a head alone and uncoils to `start_length` cells.  The end of a body that moves on
 * is free for its own head.  A turn straight back is no turn: the snake goes on ahead.
 *
 * Conventions: x to the right, y down.  The map is one array of cells; a row is followed by
 * SNAKE_VIEW cells of wall, which serve as the right margin of this row and the left of the next,
 * so that every window lies in the array.
 */
#include "puffer.h"

#define SNAKE_VIEW 5                    /* cells that a snake sees to each side of its head */
#define SNAKE_WINDOW (2 * SNAKE_VIEW + 1) /* cells along one side of what it sees */
#define SNAKE_REMAINS 4                 /* one cell of so many of a dead snake's is food */
#define SNAKE_LANES 16                  /* cells translated at once, at least SNAKE_WINDOW */
#define SNAKE_MOST 31                   /* snakes whose segments have codes below 256 */

/* Parameters: type, name, default, lowest, highest, what it is. */
#define SNAKE_PARAMS(X)                                                              \
    X(int, width, 48, 8, 250, "Cells of the map from left to right.")                \
    X(int, height, 32, 8, 250, "Cells of the map from top to bottom.")               \
    X(int, snakes, 8, 1, SNAKE_MOST, "Snakes on the map, each an agent.")            \
    X(int, food, 32, 1, 10000, "Pieces of food that are always there.")              \
    X(int, start_length, 4, 1, 100, "Cells of a snake that has eaten nothing.")      \
    X(int, max_steps, 1000, 1, 1000000, "Steps after which an episode is truncated.")

/* What an episode reports, beside its return and length. */
#define SNAKE_LOG(X) X(score, "Pieces of food eaten.")

PUFFER_DECLARE(Snake, SNAKE_PARAMS, SNAKE_LOG, uint8_t, int32_t)
#define SNAKE_RESPAWN 1

enum { SNAKE_FORWARD, SNAKE_UP, SNAKE_DOWN, SNAKE_LEFT, SNAKE_RIGHT, SNAKE_ACTIONS };
enum { /* what an observed cell holds */
    SNAKE_EMPTY,
    SNAKE_FOOD,
    SNAKE_WALL,
    SNAKE_OWN,        /* a segment of the snake that looks */
    SNAKE_RIVAL,      /* a segment of another */
    SNAKE_RIVAL_HEAD,
    SNAKE_CLASSES
};

/* A direction is an action less 1: 0 up, 1 down, 2 left, 3 right; the opposite differs in the last
 * bit.  A cell of the map is SNAKE_EMPTY, SNAKE_FOOD, SNAKE_WALL or a segment: SNAKE_SEGMENT times
 * (the snake's number + 1), plus SNAKE_HEAD or the direction in which the next segment lies. */
enum { SNAKE_HEAD = 4, SNAKE_SEGMENT = 8 };

typedef struct {
    int32_t head, tail; /* cells of the two ends, the same one if the length is 1 */
    int32_t length;     /* cells covered, at least 1 */
    int32_t growth;     /* cells by which it is still to grow, at least 0 */
    int32_t heading;    /* direction of the last move, 0 .. 3 */
    int32_t eaten;      /* pieces of food since the episode began */
    int32_t age;        /* steps since the episode began */
} SnakeBody;

typedef struct {
    PufferRng rng;
    int32_t food;                 /* pieces on the map */
    SnakeBody bodies[SNAKE_MOST]; /* of which the first p->snakes are used */
    uint8_t map[];                /* snake_cells(p) */
} Snake;

static inline int snake_stride(const SnakeParams *p) { return p->width + SNAKE_VIEW; }

static inline int snake_cells(const SnakeParams *p) {
    return (p->height + 2 * SNAKE_VIEW) * snake_stride(p) + SNAKE_LANES;
}

static inline int snake_cell(const SnakeParams *p, int x, int y) {
    return (y + SNAKE_VIEW) * snake_stride(p) + SNAKE_VIEW + x;
}

/* The cell next to `cell` in a direction: up, down, left, right. */
static inline int snake_next(const SnakeParams *p, int cell, int direction) {
    int span = direction & 2 ? 1 : snake_stride(p);
    return cell + (direction & 1 ? span : -span);
}

static const char *snake_describe(const SnakeParams *p, PufferSpec *spec) {
    if (2 * (p->food + p->snakes * p->start_length) > p->width * p->height) {
        return "food and new snakes would fill more than half of the map: fewer, or a larger map";
    }
    spec->state_bytes += snake_cells(p);
    spec->num_agents = p->snakes;
    spec->obs_rank = 2;
    spec->obs_shape[0] = spec->obs_shape[1] = SNAKE_WINDOW;
    spec->obs_high = SNAKE_CLASSES - 1;
    spec->action_sizes[0] = SNAKE_ACTIONS;
    spec->keys[SNAKE_UP] = "up";
    spec->keys[SNAKE_DOWN] = "down";
    spec->keys[SNAKE_LEFT] = "left";
    spec->keys[SNAKE_RIGHT] = "right";
    int pixels = puffer_clamp(640 / p->width, 4, 20); /* along a cell; a rim of wall is drawn too */
    spec->width = pixels * (p->width + 2);
    spec->height = pixels * (p->height + 2);
    spec->frames_per_second = 10;
    return NULL;
}

/* The first empty cell from a random one on; 0, which is wall, if the map is full. */
static inline int snake_find_empty(Snake *s, const SnakeParams *p) {
    int x = puffer_random_below(&s->rng, p->width), y = puffer_random_below(&s->rng, p->height);
    int cells = snake_cells(p), cell = snake_cell(p, x, y);
    for (int tried = 0; tried < cells; tried++) {
        if (s->map[cell] == SNAKE_EMPTY) return cell;
        cell = cell + 1 < cells ? cell + 1 : 0;
    }
    return 0;
}

static inline void snake_sprout_food(Snake *s, const SnakeParams *p) {
    while (s->food < p->food) {
        int cell = snake_find_empty(s, p);
        if (!cell) return;
        s->map[cell] = SNAKE_FOOD;
        s->food++;
    }
}

static inline void snake_hatch(Snake *s, const SnakeParams *p, int agent) {
    int cell = snake_find_empty(s, p);
    s->map[cell] = (uint8_t)(SNAKE_SEGMENT * (agent + 1) + SNAKE_HEAD);
    s->bodies[agent] = (SnakeBody){
        .head = cell,
        .tail = cell,
        .length = 1,
        .growth = p->start_length - 1,
        .heading = puffer_random_below(&s->rng, 4),
    };
}

static inline void snake_reset(Snake *s, const SnakeParams *p) {
    __builtin_memset(s->map, SNAKE_WALL, (size_t)snake_cells(p));
    for (int y = 0; y < p->height; y++) {
        __builtin_memset(s->map + snake_cell(p, 0, y), SNAKE_EMPTY, (size_t)p->width);
    }
    s->food = 0;
    for (int agent = 0; agent < p->snakes; agent++) snake_hatch(s, p, agent);
    snake_sprout_food(s, p);
}

/* The end of the body vanishes, `start_length` cells; every SNAKE_REMAINS-th cell of what it had grown
 * turns into food.  The cells that vanish leave room for at least the new head. */
static inline void snake_dissolve(Snake *s, const SnakeParams *p, int agent) {
    const SnakeBody *body = &s->bodies[agent];
    int cell = body->tail;
    for (int k = 0; k < body->length; k++) {
        int next = snake_next(p, cell, s->map[cell] & 3);
        int grown = k - p->start_length;
        bool remains = (grown >= 0) & (grown % SNAKE_REMAINS == 0);
        s->map[cell] = remains ? SNAKE_FOOD : SNAKE_EMPTY;
        s->food += remains;
        cell = next;
    }
}

static inline void snake_respawn(Snake *s, const SnakeParams *p, int agent) {
    snake_dissolve(s, p, agent);
    snake_hatch(s, p, agent);
}

static inline void snake_turn(SnakeBody *body, int action) {
    int direction = action - 1;
    bool keeps = (action == SNAKE_FORWARD) | (direction == (body->heading ^ 1));
    body->heading = keeps ? body->heading : direction;
}

/* The cell ahead, or 0 if what is there kills. */
static inline int snake_look_ahead(const Snake *s, const SnakeParams *p, const SnakeBody *body) {
    int ahead = snake_next(p, body->head, body->heading);
    bool leaves = (ahead == body->tail) & (body->growth == 0);
    bool kills = (s->map[ahead] >= SNAKE_WALL) & !leaves;
    return kills ? 0 : ahead;
}

/* Moves the head to `ahead`; the end of the body follows unless the snake grows. */
static inline void snake_advance(Snake *s, const SnakeParams *p, int agent, int ahead) {
    SnakeBody *body = &s->bodies[agent];
    int segment = SNAKE_SEGMENT * (agent + 1);
    s->map[body->head] = (uint8_t)(segment + body->heading);
    if (body->growth > 0) {
        body->growth--;
        body->length++;
    } else {
        int second = snake_next(p, body->tail, s->map[body->tail] & 3);
        s->map[body->tail] = SNAKE_EMPTY;
        body->tail = second;
    }
    s->map[ahead] = (uint8_t)(segment + SNAKE_HEAD);
    body->head = ahead;
}

static inline void snake_step(Snake *s, const SnakeParams *p, SnakeRows *rows) {
    for (int agent = 0; agent < p->snakes; agent++) {
        SnakeBody *body = &s->bodies[agent];
        snake_turn(body, rows->actions[agent]);
        int ahead = snake_look_ahead(s, p, body);
        bool eats = s->map[ahead] == SNAKE_FOOD, crashes = !ahead;
        bool late = ++body->age >= p->max_steps;
        s->food -= eats;
        body->eaten += eats;
        body->growth += eats;
        if (!crashes) snake_advance(s, p, agent, ahead);
        rows->rewards[agent] = (float)(eats - crashes);
        rows->terminals[agent] = crashes;
        rows->truncations[agent] = late & !crashes;
        if (late | crashes) rows->log->score += (float)body->eaten;
    }
    snake_sprout_food(s, p);
}

/* A cell of the map as the snake sees it whose segments begin at `own`. */
static inline uint8_t snake_class(uint8_t cell, uint8_t own) {
    uint8_t difference = cell ^ own;
    uint8_t rival = cell & SNAKE_HEAD ? SNAKE_RIVAL_HEAD : SNAKE_RIVAL;
    uint8_t segment = difference < SNAKE_SEGMENT ? SNAKE_OWN : rival;
    return cell < SNAKE_SEGMENT ? cell : segment;
}

/* The window around the head, row by row.  Whole vectors are translated: what the last lanes write
 * beyond their row is overwritten by the next, and the last row is cut. */
static inline void snake_observe(const Snake *s, const SnakeParams *p, int agent, uint8_t *row) {
    int stride = snake_stride(p);
    uint8_t own = (uint8_t)(SNAKE_SEGMENT * (agent + 1));
    const uint8_t *map = s->map + s->bodies[agent].head - SNAKE_VIEW * stride - SNAKE_VIEW;
    for (int y = 0; y < SNAKE_WINDOW; y++, map += stride, row += SNAKE_WINDOW) {
        uint8_t lanes[SNAKE_LANES];
        __builtin_memcpy(lanes, map, SNAKE_LANES);
        for (int x = 0; x < SNAKE_LANES; x++) lanes[x] = snake_class(lanes[x], own);
        __builtin_memcpy(row, lanes, y < SNAKE_WINDOW - 1 ? SNAKE_LANES : SNAKE_WINDOW);
    }
}

static inline float snake_pixel_x(const SnakeParams *p, int cell, float size) {
    return ((float)((cell - SNAKE_VIEW) % snake_stride(p)) + 1.5f) * size;
}

static inline float snake_pixel_y(const SnakeParams *p, int cell, float size) {
    return ((float)((cell - SNAKE_VIEW) / snake_stride(p) - SNAKE_VIEW) + 1.5f) * size;
}

/* The body as a string of round segments from the tail to the head, and a head that looks ahead. */
static void snake_draw_body(const Snake *s, const SnakeParams *p, int agent, float size,
                            PufferCanvas *canvas) {
    static const uint32_t colours[8] = {PUFFER_TEAL, PUFFER_ORANGE, PUFFER_PURPLE, PUFFER_GREEN,
                                        PUFFER_BLUE, PUFFER_RED, 0xe58fb1, 0xa3b18a};
    const SnakeBody *body = &s->bodies[agent];
    uint32_t colour = colours[agent % 8];
    int cell = body->tail;
    float x = snake_pixel_x(p, cell, size), y = snake_pixel_y(p, cell, size);
    for (int k = 1; k < body->length; k++) {
        cell = snake_next(p, cell, s->map[cell] & 3);
        float next_x = snake_pixel_x(p, cell, size), next_y = snake_pixel_y(p, cell, size);
        puffer_line(canvas, x, y, next_x, next_y, size * 0.7f, colour);
        x = next_x;
        y = next_y;
    }
    float side = body->heading & 1 ? 1.0f : -1.0f;
    float ahead_x = body->heading & 2 ? side : 0.0f, ahead_y = body->heading & 2 ? 0.0f : side;
    puffer_disc(canvas, x, y, size * 0.52f, colour);
    for (int eye = -1; eye <= 1; eye += 2) {
        float eye_x = x + (0.15f * ahead_x + 0.24f * (float)eye * ahead_y) * size;
        float eye_y = y + (0.15f * ahead_y + 0.24f * (float)eye * ahead_x) * size;
        puffer_disc(canvas, eye_x, eye_y, size * 0.17f, PUFFER_INK);
        puffer_disc(canvas, eye_x + 0.06f * ahead_x * size, eye_y + 0.06f * ahead_y * size,
                    size * 0.09f, PUFFER_BACKGROUND);
    }
}

/* The map inside its rim of wall; what the first snake sees is lighter. */
static void snake_draw(const Snake *s, const SnakeParams *p, PufferCanvas *canvas) {
    float size = (float)canvas->width / (float)(p->width + 2);
    float head_x = snake_pixel_x(p, s->bodies[0].head, size);
    float head_y = snake_pixel_y(p, s->bodies[0].head, size);
    puffer_fill(canvas, PUFFER_MUTED);
    puffer_rectangle(canvas, size, size, (float)p->width * size, (float)p->height * size,
                     PUFFER_BACKGROUND);
    for (int y = 0; y < p->height; y++) {
        for (int x = 0; x < p->width; x++) {
            int cell = snake_cell(p, x, y);
            float cell_x = snake_pixel_x(p, cell, size), cell_y = snake_pixel_y(p, cell, size);
            float far = puffer_maxf(puffer_absf(cell_x - head_x), puffer_absf(cell_y - head_y));
            bool seen = far < (SNAKE_VIEW + 0.5f) * size;
            uint32_t tile = seen ? 0x24343f : 0x16212a;
            puffer_rectangle(canvas, cell_x - size * 0.5f + 1, cell_y - size * 0.5f + 1, size - 1,
                             size - 1, tile);
            if (s->map[cell] != SNAKE_FOOD) continue;
            puffer_disc(canvas, cell_x, cell_y, size * 0.27f, PUFFER_YELLOW);
        }
    }
    for (int agent = 0; agent < p->snakes; agent++) snake_draw_body(s, p, agent, size, canvas);
    puffer_text(canvas, "eaten", 4, 3, 1, PUFFER_INK);
    puffer_number(canvas, s->bodies[0].eaten, 40, 3, 1, PUFFER_INK);
}
