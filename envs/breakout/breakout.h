/* breakout - knock down a wall of bricks with a ball that must not get past the paddle.
 *
 * The wall has 6 rows of 18 bricks, worth 7, 7, 4, 4, 1 and 1 points from top to bottom; a brick
 * that is hit is gone and turns the ball back.  The ball leaves the paddle at an angle that depends
 * on where it landed, and a little faster each time; once it has touched the ceiling the paddle is
 * half as wide, until the next ball.  Every ball is served from the paddle towards the bricks.
 * Behind a cleared wall stands a new one, up to `walls`; it appears when the ball is back at the
 * paddle.
 *
 * Reward: a tenth of the points made in the step, less 1 for a ball lost.  The episode terminates
 * when the last ball is lost or the last wall is cleared, and is truncated after `max_steps` steps.
 *
 * Motion is exact: the ball flies straight from one contact to the next, whenever within a step
 * that is.  Nothing is tunnelled through, and `frameskip` decides only how often the agent acts.
 *
 * Conventions: lengths in pixels, times in seconds; x to the right, y down, origin in the top left
 * corner of the court.  The court is a grid of cells, and a brick fills one.  For contacts the ball
 * is a square.  Axis 0 is x, axis 1 is y; a line of axis a is a border between cells along it.
 */
#include "puffer.h"

/* Parameters: type, name, default, lowest, highest, what it is. */
#define BREAKOUT_PARAMS(X)                                                                        \
    X(int, frameskip, 4, 1, 16, "Sixtieths of a second that a step lasts.")                       \
    X(int, max_steps, 10000, 1, 10000000, "Steps after which an episode is truncated.")           \
    X(int, lives, 5, 1, 10, "Balls of an episode.")                                               \
    X(int, walls, 2, 1, 10, "Walls of an episode.")                                               \
    X(float, paddle_width, 64, 24, 256, "Pixels; half as many after a touch of the ceiling.")     \
    X(float, paddle_speed, 480, 60, 1000, "Pixels per second.")                                   \
    X(float, ball_speed, 260, 60, 512, "Pixels per second of a ball when it is served.")          \
    X(float, ball_speed_max, 460, 60, 512, "Pixels per second that a ball never exceeds.")        \
    X(float, ball_speed_gain, 8, 0, 64, "Pixels per second that each touch of the paddle adds.")

/* What an episode reports, beside its return and length. */
#define BREAKOUT_LOG(X)                                                                           \
    X(score, "Points made; 432 a wall.")                                                          \
    X(bricks, "Bricks knocked down; 108 a wall.")

PUFFER_DECLARE(Breakout, BREAKOUT_PARAMS, BREAKOUT_LOG, float, int32_t)

enum { BREAKOUT_STAY, BREAKOUT_LEFT, BREAKOUT_RIGHT, BREAKOUT_ACTIONS };

enum {
    BREAKOUT_CELL_WIDTH = 32,
    BREAKOUT_CELL_HEIGHT = 16,
    BREAKOUT_COLUMNS = 18,    /* of the court, hence of the wall */
    BREAKOUT_ROWS = 6,        /* of the wall */
    BREAKOUT_TOP_ROW = 4,     /* row of cells that holds the wall's top bricks */
    BREAKOUT_PADDLE_ROW = 23, /* row of cells in which the paddle moves, at its upper border */
    BREAKOUT_BRICKS = BREAKOUT_ROWS * BREAKOUT_COLUMNS,
    BREAKOUT_WIDTH = BREAKOUT_COLUMNS * BREAKOUT_CELL_WIDTH,
    BREAKOUT_WALL_BOTTOM = (BREAKOUT_TOP_ROW + BREAKOUT_ROWS) * BREAKOUT_CELL_HEIGHT,
    BREAKOUT_PADDLE_TOP = BREAKOUT_PADDLE_ROW * BREAKOUT_CELL_HEIGHT,
};

#define BREAKOUT_TICK (1.0f / 60.0f)      /* seconds */
#define BREAKOUT_BALL 5.0f                /* half a side; it fits between two bricks */
#define BREAKOUT_SINE_MAX 0.86f           /* of the angle at the very end of the paddle */
#define BREAKOUT_SINE_MIN 0.05f           /* never straight up, to leave the column */
#define BREAKOUT_SINE_SERVE 0.6f          /* the largest of a served ball */
#define BREAKOUT_SLACK (1.0f / 256)       /* behind an edge is ahead still: rounding */
#define BREAKOUT_REWARD 0.1f              /* per point */
#define BREAKOUT_UNIT_SPEED (1.0f / 512)  /* velocities are observed in this */
#define BREAKOUT_UNIT_OFFSET (1.0f / 128) /* and the offset in this */

/* The observation: index, meaning, range. */
enum {
    BREAKOUT_PADDLE_X,     /* middle of the paddle, -1 left .. 1 right side of the court */
    BREAKOUT_PADDLE_SHARE, /* width of the paddle as a share of the full one, 0.5 or 1 */
    BREAKOUT_BALL_X,       /* middle of the ball, -1 left .. 1 right side of the court */
    BREAKOUT_BALL_Y,       /* middle of the ball, -1 ceiling .. 1 top of the paddle */
    BREAKOUT_BALL_VX,      /* velocity to the right / 512 pixels per second, -1..1 */
    BREAKOUT_BALL_VY,      /* velocity down / 512 pixels per second, -1..1 */
    BREAKOUT_OFFSET,       /* ball to the right of the paddle / 128 pixels, cut to -1..1 */
    BREAKOUT_BALLS_LEFT,   /* balls left, the one in play included / 10, 0..1 */
    BREAKOUT_WALLS_LEFT,   /* walls to come after this one / 10, 0..1 */
    BREAKOUT_BRICKS_LEFT,  /* bricks that stand / 108, 0..1 */
    BREAKOUT_FIRST_BRICK,  /* from here, row by row from the top left: 1 if the brick stands */
    BREAKOUT_OBSERVED = BREAKOUT_FIRST_BRICK + BREAKOUT_BRICKS,
};

typedef struct {
    PufferRng rng;
    float at[2];        /* middle of the ball, pixels, within the court */
    float velocity[2];  /* of the ball, pixels per second, neither ever 0 */
    float speed;        /* of the ball, pixels per second: the length of velocity */
    float paddle;       /* middle of the paddle, pixels, the whole paddle within the court */
    float reach;        /* half the paddle's width now, pixels */
    int32_t lives;      /* balls left, the one in play included, 0 .. p->lives */
    int32_t wall;       /* walls cleared before this one, 0 .. p->walls-1 */
    int32_t left;       /* bricks that stand, 0 .. 108 */
    int32_t score;      /* points of the episode */
    int32_t tick;       /* steps since the episode began */
    uint32_t bricks[4]; /* bit i % 32 of word i / 32: brick i stands, as in the observation */
} Breakout;

static const char *breakout_describe(const BreakoutParams *p, PufferSpec *spec) {
    if (p->ball_speed > p->ball_speed_max) return "ball_speed must not exceed ball_speed_max";
    spec->obs_rank = 1;
    spec->obs_shape[0] = BREAKOUT_OBSERVED;
    spec->obs_low = -1;
    spec->obs_high = 1;
    spec->action_sizes[0] = BREAKOUT_ACTIONS;
    spec->keys[BREAKOUT_LEFT] = "left";
    spec->keys[BREAKOUT_RIGHT] = "right";
    spec->width = BREAKOUT_WIDTH + 24;
    spec->height = BREAKOUT_PADDLE_TOP + 72;
    spec->frames_per_second = puffer_max(60 / p->frameskip, 1);
    return NULL;
}

/* ---------------------------------------------------------------- rules */

static inline void breakout_raise_wall(Breakout *s) {
    s->left = BREAKOUT_BRICKS;
    s->bricks[0] = s->bricks[1] = s->bricks[2] = 0xffffffffu;
    s->bricks[3] = (1u << (BREAKOUT_BRICKS % 32)) - 1;
}

static inline void breakout_raise_next_wall(Breakout *s) {
    if (s->left) return;
    s->wall++;
    breakout_raise_wall(s);
}

/* Sends the ball up; `sine` is that of its angle to the vertical, positive to the right. */
static inline void breakout_launch(Breakout *s, float sine) {
    if (puffer_absf(sine) < BREAKOUT_SINE_MIN) {
        sine = s->velocity[0] < 0.0f ? -BREAKOUT_SINE_MIN : BREAKOUT_SINE_MIN;
    }
    s->at[1] = BREAKOUT_PADDLE_TOP - BREAKOUT_BALL;
    s->velocity[0] = s->speed * sine;
    s->velocity[1] = -s->speed * puffer_sqrtf(1.0f - sine * sine);
}

/* Puts a new ball on the paddle, as wide as ever, and sends it up. */
static inline void breakout_serve(Breakout *s, const BreakoutParams *p) {
    s->speed = p->ball_speed;
    s->reach = 0.5f * p->paddle_width;
    s->paddle = puffer_clampf(s->paddle, s->reach, BREAKOUT_WIDTH - s->reach);
    s->at[0] = s->paddle;
    breakout_launch(s, puffer_random_range(&s->rng, -BREAKOUT_SINE_SERVE, BREAKOUT_SINE_SERVE));
}

/* The ball has come down to the paddle's height; false if the paddle is elsewhere. */
static inline bool breakout_return(Breakout *s, const BreakoutParams *p) {
    float reach = s->reach + BREAKOUT_BALL, offset = s->at[0] - s->paddle;
    if (puffer_absf(offset) > reach) return false;
    s->speed = puffer_minf(s->speed + p->ball_speed_gain, p->ball_speed_max);
    breakout_launch(s, BREAKOUT_SINE_MAX * offset / reach);
    breakout_raise_next_wall(s);
    return true;
}

static inline bool breakout_stands(const Breakout *s, int brick) {
    return s->bricks[brick / 32] >> brick % 32 & 1;
}

/* Knocks down the brick in a cell; false if none stands there. */
static inline bool breakout_break(Breakout *s, int column, int row) {
    row -= BREAKOUT_TOP_ROW;
    if ((unsigned)column >= BREAKOUT_COLUMNS || (unsigned)row >= BREAKOUT_ROWS) return false;
    int brick = row * BREAKOUT_COLUMNS + column;
    if (!breakout_stands(s, brick)) return false;
    s->bricks[brick / 32] ^= 1u << brick % 32;
    s->left--;
    s->score += 7 - row / 2 * 3;
    return true;
}

static inline float breakout_cell(int axis) {
    return axis ? BREAKOUT_CELL_HEIGHT : BREAKOUT_CELL_WIDTH;
}

/* The ball's leading edge enters a column (axis 0) or row (axis 1) of cells, of which it touches
 * one or two; the cell under its middle comes first.  Is there something to bounce off? */
static inline bool breakout_bump(Breakout *s, const BreakoutParams *p, int axis, int cell) {
    if (axis == 0 && (unsigned)cell >= BREAKOUT_COLUMNS) return true; /* a side of the court */
    if (axis == 1 && cell < 0) {                                      /* the ceiling */
        s->reach = 0.25f * p->paddle_width;
        return true;
    }
    float across = s->at[!axis], scale = 1.0f / breakout_cell(!axis);
    int middle = (int)(across * scale);
    int first = (int)((across - BREAKOUT_BALL) * scale);
    int last = (int)((across + BREAKOUT_BALL) * scale);
    int other = first == middle ? last : first;
    if (axis == 0) return breakout_break(s, cell, middle) || breakout_break(s, cell, other);
    return breakout_break(s, middle, cell) || breakout_break(s, other, cell);
}

/* Ball and paddle move on, unhindered. */
static inline void breakout_advance(Breakout *s, float paddle_velocity, float time) {
    s->at[0] += s->velocity[0] * time;
    s->at[1] += s->velocity[1] * time;
    s->paddle += paddle_velocity * time;
    s->paddle = puffer_clampf(s->paddle, s->reach, BREAKOUT_WIDTH - s->reach);
}

/* Where the ball's motion along one axis leads. */
typedef struct {
    int sign; /* 1 or -1: towards higher or lower coordinates */
    int line; /* the next line that the leading edge reaches */
    float seconds_per_pixel;
} BreakoutCourse;

static inline BreakoutCourse breakout_course(const Breakout *s, int axis) {
    bool back = s->velocity[axis] < 0.0f;
    float scale = 1.0f / breakout_cell(axis);
    float lead = BREAKOUT_BALL - BREAKOUT_SLACK, edge = s->at[axis] + (back ? -lead : lead);
    return (BreakoutCourse){
        .sign = back ? -1 : 1,
        .line = (int)(edge * scale) + !back,
        .seconds_per_pixel = 1.0f / puffer_absf(s->velocity[axis]),
    };
}

/* Flies from line to line for `time`, bouncing off what is solid; false once the ball is lost. */
static bool breakout_fly(Breakout *s, const BreakoutParams *p, float paddle_velocity, float time) {
    BreakoutCourse course[2] = {breakout_course(s, 0), breakout_course(s, 1)};
    for (;;) {
        float until[2];
        for (int axis = 0; axis < 2; axis++) {
            const BreakoutCourse *c = &course[axis];
            float edge = s->at[axis] + (float)c->sign * BREAKOUT_BALL;
            float gap = ((float)c->line * breakout_cell(axis) - edge) * (float)c->sign;
            until[axis] = puffer_maxf(gap, 0.0f) * c->seconds_per_pixel;
        }
        int axis = until[1] < until[0];
        if (until[axis] >= time) break;
        breakout_advance(s, paddle_velocity, until[axis]);
        time -= until[axis];

        BreakoutCourse *c = &course[axis];
        s->at[axis] = (float)c->line * breakout_cell(axis) - (float)c->sign * BREAKOUT_BALL;
        int cell = c->sign > 0 ? c->line : c->line - 1;
        if (axis == 1 && cell == BREAKOUT_PADDLE_ROW) {
            if (!breakout_return(s, p)) return false;
            course[0] = breakout_course(s, 0);
            course[1] = breakout_course(s, 1);
        } else if (breakout_bump(s, p, axis, cell)) {
            s->velocity[axis] = -s->velocity[axis];
            course[axis] = breakout_course(s, axis);
        } else {
            c->line += c->sign;
        }
    }
    breakout_advance(s, paddle_velocity, time);
    return true;
}

/* Whether a ball there touches nothing: below the wall, above the paddle, between the sides. */
static inline bool breakout_in_the_open(float x, float y) {
    return x >= BREAKOUT_BALL && x <= BREAKOUT_WIDTH - BREAKOUT_BALL &&
           y >= BREAKOUT_WALL_BOTTOM + BREAKOUT_BALL && y <= BREAKOUT_PADDLE_TOP - BREAKOUT_BALL;
}

/* As breakout_fly, at once where there is nothing to hit on the way. */
static inline bool breakout_play(Breakout *s, const BreakoutParams *p, float paddle_velocity,
                                 float time) {
    float x = s->at[0] + s->velocity[0] * time, y = s->at[1] + s->velocity[1] * time;
    if (breakout_in_the_open(s->at[0], s->at[1]) && breakout_in_the_open(x, y)) {
        breakout_advance(s, paddle_velocity, time);
        return true;
    }
    return breakout_fly(s, p, paddle_velocity, time);
}

/* ---------------------------------------------------------------- environment */

static inline void breakout_reset(Breakout *s, const BreakoutParams *p) {
    s->lives = p->lives;
    s->wall = s->score = s->tick = 0;
    s->paddle = 0.5f * BREAKOUT_WIDTH;
    breakout_raise_wall(s);
    breakout_serve(s, p);
}

static inline void breakout_step(Breakout *s, const BreakoutParams *p, BreakoutRows *rows) {
    int action = rows->actions[0], score = s->score;
    int direction = (action == BREAKOUT_RIGHT) - (action == BREAKOUT_LEFT);
    float time = (float)p->frameskip * BREAKOUT_TICK;
    s->tick++;

    bool lost = !breakout_play(s, p, p->paddle_speed * (float)direction, time);
    s->lives -= lost;
    bool cleared = s->left == 0 && s->wall + 1 == p->walls;
    bool over = s->lives == 0 || cleared;
    if (lost && !over) {
        breakout_raise_next_wall(s);
        breakout_serve(s, p);
    }

    rows->rewards[0] = BREAKOUT_REWARD * (float)(s->score - score) - (float)lost;
    rows->terminals[0] = over;
    rows->truncations[0] = !over && s->tick >= p->max_steps;
    if (rows->terminals[0] | rows->truncations[0]) {
        rows->log->score += (float)s->score;
        rows->log->bricks += (float)(BREAKOUT_BRICKS * (s->wall + 1) - s->left);
    }
}

static inline void breakout_observe(const Breakout *s, const BreakoutParams *p, int agent,
                                    float *row) {
    (void)agent;
    float offset = (s->at[0] - s->paddle) * BREAKOUT_UNIT_OFFSET;
    row[BREAKOUT_PADDLE_X] = s->paddle * (2.0f / BREAKOUT_WIDTH) - 1.0f;
    row[BREAKOUT_PADDLE_SHARE] = 2.0f * s->reach < p->paddle_width ? 0.5f : 1.0f;
    row[BREAKOUT_BALL_X] = s->at[0] * (2.0f / BREAKOUT_WIDTH) - 1.0f;
    row[BREAKOUT_BALL_Y] = s->at[1] * (2.0f / BREAKOUT_PADDLE_TOP) - 1.0f;
    row[BREAKOUT_BALL_VX] = s->velocity[0] * BREAKOUT_UNIT_SPEED;
    row[BREAKOUT_BALL_VY] = s->velocity[1] * BREAKOUT_UNIT_SPEED;
    row[BREAKOUT_OFFSET] = puffer_clampf(offset, -1.0f, 1.0f);
    row[BREAKOUT_BALLS_LEFT] = 0.1f * (float)s->lives;
    row[BREAKOUT_WALLS_LEFT] = 0.1f * (float)(p->walls - 1 - s->wall);
    row[BREAKOUT_BRICKS_LEFT] = (1.0f / BREAKOUT_BRICKS) * (float)s->left;
    row += BREAKOUT_FIRST_BRICK;
    for (int word = 0; word < BREAKOUT_BRICKS / 32; word++) {
        for (int bit = 0; bit < 32; bit++) *row++ = (float)(s->bricks[word] >> bit & 1);
    }
    for (int bit = 0; bit < BREAKOUT_BRICKS % 32; bit++) *row++ = (float)(s->bricks[3] >> bit & 1);
}

/* ---------------------------------------------------------------- picture */

enum { BREAKOUT_LEFT_MARGIN = 12, BREAKOUT_TOP_MARGIN = 52 }; /* of the court, on the canvas */

/* From one colour (share 0) to another (share 1). */
static inline uint32_t breakout_mix(uint32_t from, uint32_t to, float share) {
    uint32_t mixed = 0;
    for (int shift = 0; shift < 24; shift += 8) {
        float a = (float)(from >> shift & 255), b = (float)(to >> shift & 255);
        mixed |= (uint32_t)(a + (b - a) * share + 0.5f) << shift;
    }
    return mixed;
}

/* A rectangle with its corners cut, lit from above. */
static void breakout_draw_block(PufferCanvas *canvas, float x, float y, float width, float height,
                                uint32_t colour) {
    puffer_rectangle(canvas, x + 1, y, width - 2, height, colour);
    puffer_rectangle(canvas, x, y + 1, width, height - 2, colour);
    uint32_t light = breakout_mix(colour, 0xffffff, 0.45f);
    uint32_t shade = breakout_mix(colour, 0x000000, 0.35f);
    puffer_rectangle(canvas, x + 1, y, width - 2, 2, light);
    puffer_rectangle(canvas, x + 1, y + height - 2, width - 2, 2, shade);
}

/* Light that fades with the distance from (x, y). */
static void breakout_draw_glow(PufferCanvas *canvas, float x, float y, float radius,
                               uint32_t colour) {
    int left = puffer_max((int)(x - radius), 0), top = puffer_max((int)(y - radius), 0);
    for (int row = top; row < canvas->height && (float)row < y + radius; row++) {
        for (int column = left; column < canvas->width && (float)column < x + radius; column++) {
            float dx = (float)column + 0.5f - x, dy = (float)row + 0.5f - y;
            float light = 1.0f - puffer_sqrtf(dx * dx + dy * dy) / radius;
            if (light <= 0.0f) continue;
            uint8_t *pixel = canvas->pixels + (row * canvas->width + column) * 3;
            uint32_t lit = (uint32_t)pixel[0] << 16 | (uint32_t)pixel[1] << 8 | pixel[2];
            puffer_pixel(canvas, column, row, breakout_mix(lit, colour, 0.5f * light * light));
        }
    }
}

static void breakout_draw_ball(PufferCanvas *canvas, float x, float y) {
    breakout_draw_glow(canvas, x, y, 30.0f, 0xbfe8ff);
    puffer_disc(canvas, x, y, BREAKOUT_BALL + 1.0f, PUFFER_INK);
    puffer_disc(canvas, x - 1.5f, y - 1.5f, 2.0f, 0xffffff);
}

static void breakout_draw_header(const Breakout *s, const BreakoutParams *p,
                                 PufferCanvas *canvas) {
    const float radius = BREAKOUT_BALL + 1.0f;
    puffer_number(canvas, s->score, BREAKOUT_LEFT_MARGIN, 14, 3, PUFFER_INK);
    puffer_text(canvas, "WALL", BREAKOUT_LEFT_MARGIN + 252, 18, 2, PUFFER_MUTED);
    puffer_number(canvas, s->wall + 1, BREAKOUT_LEFT_MARGIN + 312, 18, 2, PUFFER_INK);
    for (int ball = 0; ball < p->lives; ball++) {
        float x = (float)(canvas->width - BREAKOUT_LEFT_MARGIN - 8 - 20 * ball);
        puffer_disc(canvas, x, 25, radius, ball < s->lives ? PUFFER_INK : 0x26343d);
    }
}

static void breakout_draw_court(PufferCanvas *canvas, float left, float top) {
    float height = (float)canvas->height - top;
    puffer_fill(canvas, 0x0b1117);
    for (float y = 0; y < height; y += 1.0f) {
        uint32_t colour = breakout_mix(0x1d2c3b, 0x0f161d, y / height);
        puffer_rectangle(canvas, left, top + y, BREAKOUT_WIDTH, 1, colour);
    }
    puffer_rectangle(canvas, left - 4, top - 4, BREAKOUT_WIDTH + 8, 4, PUFFER_MUTED);
    puffer_rectangle(canvas, left - 4, top, 4, height, PUFFER_MUTED);
    puffer_rectangle(canvas, left + BREAKOUT_WIDTH, top, 4, height, PUFFER_MUTED);
}

static void breakout_draw(const Breakout *s, const BreakoutParams *p, PufferCanvas *canvas) {
    static const uint32_t colours[BREAKOUT_ROWS] = {0xe0405e, 0xef6a4c, 0xf39a3d,
                                                    0xf0c24b, 0x6cbf6a, 0x2fa8b8};
    const float left = BREAKOUT_LEFT_MARGIN, top = BREAKOUT_TOP_MARGIN;
    const float floor = top + BREAKOUT_PADDLE_TOP, paddle = left + s->paddle;
    breakout_draw_court(canvas, left, top);
    for (int brick = 0; brick < BREAKOUT_BRICKS; brick++) {
        if (!breakout_stands(s, brick)) continue;
        int column = brick % BREAKOUT_COLUMNS, row = brick / BREAKOUT_COLUMNS;
        breakout_draw_block(canvas, left + (float)(column * BREAKOUT_CELL_WIDTH) + 1,
                            top + (float)((BREAKOUT_TOP_ROW + row) * BREAKOUT_CELL_HEIGHT) + 1,
                            BREAKOUT_CELL_WIDTH - 2, BREAKOUT_CELL_HEIGHT - 2, colours[row]);
    }
    breakout_draw_glow(canvas, paddle, floor + 5, s->reach + 16, PUFFER_TEAL);
    breakout_draw_block(canvas, paddle - s->reach, floor, 2 * s->reach, 10, PUFFER_TEAL);
    breakout_draw_ball(canvas, left + s->at[0], top + s->at[1]);
    breakout_draw_header(s, p, canvas);
}
