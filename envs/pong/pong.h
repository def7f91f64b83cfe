/* pong - table tennis against a machine whose bat is slow.
 *
 * The agent has the bat on the right, the machine the one on the left; both move up and down.  The
 * ball leaves a bat at an angle that depends on where it hit, and a little faster each time, up to
 * `ball_speed_max`.  A ball that gets past a bat is a point for the other side and is served again
 * from the middle, towards the side that lost it.  The machine follows the ball's height, but no
 * faster than `opponent_speed`: steep, fast balls beat it.
 *
 * Reward: 1 for a point won, -1 for a point lost.  The episode terminates when one side has
 * `points` points, and is truncated after `max_steps` steps.
 *
 * Motion is exact, not stepwise: wherever within a step the ball meets a bat or an edge, it is
 * turned back there.
 *
 * Conventions: lengths in pixels, times in seconds; x to the right, y down, origin in the top left
 * corner of the court.  For contacts the ball is a square and a bat is the line of its face.
 */
#include "puffer.h"

/* Parameters: type, name, default, lowest, highest, what it is. */
#define PONG_PARAMS(X)                                                                            \
    X(int, frameskip, 4, 1, 8, "Sixtieths of a second that a step lasts.")                        \
    X(int, max_steps, 10000, 1, 10000000, "Steps after which an episode is truncated.")           \
    X(int, points, 11, 1, 21, "Points that win the match.")                                       \
    X(float, agent_speed, 400, 60, 1000, "Pixels per second of the agent's bat.")                 \
    X(float, opponent_speed, 160, 0, 1000, "Pixels per second of the machine's bat at most.")     \
    X(float, ball_speed, 400, 60, 800, "Pixels per second of a ball when it is served.")          \
    X(float, ball_speed_max, 800, 60, 800, "Pixels per second that a ball never exceeds.")        \
    X(float, ball_speed_gain, 40, 0, 100, "Pixels per second that each touch of a bat adds.")

/* What an episode reports, beside its return and length. */
#define PONG_LOG(X)                                                                               \
    X(score, "Points won minus points lost.")                                                     \
    X(won, "1 if the agent won the match, else 0.")                                               \
    X(touches, "Balls that the agent returned.")

PUFFER_DECLARE(Pong, PONG_PARAMS, PONG_LOG, float, int32_t)

enum { PONG_STAY, PONG_UP, PONG_DOWN, PONG_ACTIONS };

#define PONG_TICK (1.0f / 60.0f) /* seconds */
#define PONG_WIDTH 600.0f        /* of the court */
#define PONG_HEIGHT 400.0f
#define PONG_BALL 6.0f           /* half a side of the ball */
#define PONG_BAT 32.0f           /* half the length of a bat */
#define PONG_LEFT_FACE 24.0f     /* x of the faces of the bats */
#define PONG_RIGHT_FACE (PONG_WIDTH - PONG_LEFT_FACE)
#define PONG_SINE_MAX 0.8f       /* of the angle to the horizontal at the very end of a bat */
#define PONG_SINE_SERVE 0.5f     /* the largest of a served ball */
#define PONG_UNIT_SPEED (1.0f / 800)
#define PONG_UNIT_POINTS (1.0f / 21)

/* The observation: index, meaning, range. */
enum {
    PONG_AGENT_Y,         /* middle of the agent's bat, -1 top .. 1 bottom of the court */
    PONG_OPPONENT_Y,      /* middle of the machine's bat, -1 top .. 1 bottom of the court */
    PONG_BALL_X,          /* middle of the ball, -1 left .. 1 right side of the court */
    PONG_BALL_Y,          /* middle of the ball, -1 top .. 1 bottom of the court */
    PONG_BALL_VX,         /* velocity to the right / 800 pixels per second, -1..1 */
    PONG_BALL_VY,         /* velocity down / 800 pixels per second, -1..1 */
    PONG_AGENT_POINTS,    /* the agent's points / 21, 0..1 */
    PONG_OPPONENT_POINTS, /* the machine's points / 21, 0..1 */
    PONG_OBSERVED,
};

typedef struct {
    PufferRng rng;
    float x, y;      /* middle of the ball, pixels */
    float vx, vy;    /* its velocity, pixels per second, vx never 0 */
    float speed;     /* its speed, pixels per second: the length of (vx, vy) */
    float agent;     /* y of the middle of the agent's bat, pixels */
    float opponent;  /* y of the middle of the machine's bat, pixels */
    int16_t won;     /* points of the agent, 0 .. p->points */
    int16_t lost;    /* points of the machine, 0 .. p->points */
    int32_t touches; /* balls that the agent returned in this episode */
    int32_t tick;    /* steps since the episode began */
} Pong;

static const char *pong_describe(const PongParams *p, PufferSpec *spec) {
    if (p->ball_speed > p->ball_speed_max) return "ball_speed must not exceed ball_speed_max";
    spec->obs_rank = 1;
    spec->obs_shape[0] = PONG_OBSERVED;
    spec->obs_low = -1;
    spec->obs_high = 1;
    spec->action_sizes[0] = PONG_ACTIONS;
    spec->keys[PONG_UP] = "up";
    spec->keys[PONG_DOWN] = "down";
    spec->width = (int)PONG_WIDTH;
    spec->height = (int)PONG_HEIGHT;
    spec->frames_per_second = puffer_max(60 / p->frameskip, 1);
    return NULL;
}

/* ---------------------------------------------------------------- rules */

/* Sends the ball to the right (1) or left (-1); `sine` is that of its angle, positive downwards. */
static inline void pong_launch(Pong *s, float direction, float sine) {
    s->vx = s->speed * puffer_sqrtf(1.0f - sine * sine) * direction;
    s->vy = s->speed * sine;
}

static inline void pong_serve(Pong *s, const PongParams *p, float direction) {
    s->x = 0.5f * PONG_WIDTH;
    s->y = 0.5f * PONG_HEIGHT;
    s->speed = p->ball_speed;
    pong_launch(s, direction, puffer_random_range(&s->rng, -PONG_SINE_SERVE, PONG_SINE_SERVE));
}

static inline float pong_within_court(float bat) {
    return puffer_clampf(bat, PONG_BAT, PONG_HEIGHT - PONG_BAT);
}

/* The ball moves up or down for `time`, mirrored at the edges of the court. */
static inline void pong_drift(Pong *s, float time) {
    const float top = PONG_BALL, bottom = PONG_HEIGHT - PONG_BALL;
    float y = s->y + s->vy * time;
    bool above = y < top, below = y > bottom;
    s->y = above ? 2.0f * top - y : below ? 2.0f * bottom - y : y;
    s->vy = (above | below) ? -s->vy : s->vy;
}

/* Turns the ball back from a bat at height `bat`; false if the bat is elsewhere. */
static inline bool pong_return(Pong *s, const PongParams *p, float bat) {
    float reach = PONG_BAT + PONG_BALL, offset = s->y - bat;
    if (puffer_absf(offset) > reach) return false;
    s->speed = puffer_minf(s->speed + p->ball_speed_gain, p->ball_speed_max);
    pong_launch(s, s->vx < 0.0f ? 1.0f : -1.0f, PONG_SINE_MAX * offset / reach);
    return true;
}

/* Within this step of `time`, in which the bats move evenly to `agent` and `opponent`, the ball
 * reaches a face: it is returned, or a point is made.  What the agent gains: 1, 0 or -1. */
static float pong_meet(Pong *s, const PongParams *p, float agent, float opponent, float time) {
    bool right = s->vx > 0.0f;
    float face = right ? PONG_RIGHT_FACE - PONG_BALL : PONG_LEFT_FACE + PONG_BALL;
    float until = puffer_maxf((face - s->x) / s->vx, 0.0f), share = until / time;
    float from = right ? s->agent : s->opponent, to = right ? agent : opponent;
    pong_drift(s, until);
    s->x = face;
    if (pong_return(s, p, from + (to - from) * share)) {
        s->touches += right;
        s->x += s->vx * (time - until);
        pong_drift(s, time - until);
        return 0.0f;
    }
    s->won += !right;
    s->lost += right;
    pong_serve(s, p, right ? 1.0f : -1.0f);
    return right ? -1.0f : 1.0f;
}

/* ---------------------------------------------------------------- environment */

static inline void pong_reset(Pong *s, const PongParams *p) {
    s->agent = s->opponent = 0.5f * PONG_HEIGHT;
    s->won = s->lost = 0;
    s->touches = s->tick = 0;
    pong_serve(s, p, puffer_random(&s->rng) >> 31 ? 1.0f : -1.0f);
}

static inline void pong_step(Pong *s, const PongParams *p, PongRows *rows) {
    int action = rows->actions[0];
    float direction = (float)((action == PONG_DOWN) - (action == PONG_UP));
    float time = (float)p->frameskip * PONG_TICK, stride = p->opponent_speed * time;
    float follow = puffer_clampf(s->y - s->opponent, -stride, stride);
    float agent = pong_within_court(s->agent + p->agent_speed * time * direction);
    float opponent = pong_within_court(s->opponent + follow);
    float x = s->x + s->vx * time;
    s->tick++;

    if (x > PONG_LEFT_FACE + PONG_BALL && x < PONG_RIGHT_FACE - PONG_BALL) {
        s->x = x;
        pong_drift(s, time);
    } else {
        rows->rewards[0] = pong_meet(s, p, agent, opponent, time);
    }
    s->agent = agent;
    s->opponent = opponent;

    bool over = s->won == p->points || s->lost == p->points;
    rows->terminals[0] = over;
    rows->truncations[0] = !over && s->tick >= p->max_steps;
    if (rows->terminals[0] | rows->truncations[0]) {
        rows->log->score += (float)(s->won - s->lost);
        rows->log->won += (float)(s->won == p->points);
        rows->log->touches += (float)s->touches;
    }
}

static inline void pong_observe(const Pong *s, const PongParams *p, int agent, float *row) {
    (void)p, (void)agent;
    row[PONG_AGENT_Y] = s->agent * (2.0f / PONG_HEIGHT) - 1.0f;
    row[PONG_OPPONENT_Y] = s->opponent * (2.0f / PONG_HEIGHT) - 1.0f;
    row[PONG_BALL_X] = s->x * (2.0f / PONG_WIDTH) - 1.0f;
    row[PONG_BALL_Y] = s->y * (2.0f / PONG_HEIGHT) - 1.0f;
    row[PONG_BALL_VX] = s->vx * PONG_UNIT_SPEED;
    row[PONG_BALL_VY] = s->vy * PONG_UNIT_SPEED;
    row[PONG_AGENT_POINTS] = (float)s->won * PONG_UNIT_POINTS;
    row[PONG_OPPONENT_POINTS] = (float)s->lost * PONG_UNIT_POINTS;
}

/* ---------------------------------------------------------------- picture */

static void pong_draw_bat(PufferCanvas *canvas, float x, float y, uint32_t colour) {
    puffer_line(canvas, x, y - PONG_BAT + 4, x, y + PONG_BAT - 4, 8, colour);
}

static void pong_draw(const Pong *s, const PongParams *p, PufferCanvas *canvas) {
    (void)p;
    const float middle = 0.5f * PONG_WIDTH;
    puffer_fill(canvas, PUFFER_BACKGROUND);
    puffer_rectangle(canvas, 0, 0, PONG_WIDTH, 4, PUFFER_MUTED);
    puffer_rectangle(canvas, 0, PONG_HEIGHT - 4, PONG_WIDTH, 4, PUFFER_MUTED);
    for (float y = 10; y < PONG_HEIGHT - 10; y += 20) {
        puffer_rectangle(canvas, middle - 2, y, 4, 10, 0x2a3a44);
    }
    puffer_number(canvas, s->lost, (int)middle - (s->lost < 10 ? 76 : 112), 28, 6, PUFFER_MUTED);
    puffer_number(canvas, s->won, (int)middle + 46, 28, 6, PUFFER_MUTED);
    pong_draw_bat(canvas, PONG_LEFT_FACE - 4, s->opponent, PUFFER_RED);
    pong_draw_bat(canvas, PONG_RIGHT_FACE + 4, s->agent, PUFFER_TEAL);
    puffer_disc(canvas, s->x, s->y, PONG_BALL + 1, PUFFER_INK);
}
