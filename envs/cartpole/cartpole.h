/* cartpole - push the cart left or right so that the pole on it does not fall.
 *
 * A pole is hinged on a cart that rolls on a straight track.  Each step the cart is pushed to one
 * side with a fixed force.  Every step earns 1.  The episode terminates when the pole leans more
 * than 12 degrees or the cart is more than 2.4 m from the middle; after `max_steps` steps it is
 * truncated.
 *
 * The equations are those of Barto, Sutton and Anderson (1983) without friction, integrated by
 * Euler's method in double precision: step for step Gymnasium's CartPole-v1.
 *
 * Conventions: metres, kilograms, seconds, newtons, radians; x to the right, the angle of the pole
 * from the vertical, positive to the right.
 */
#include "puffer.h"

/* Parameters: type, name, default, lowest, highest, what it is. */
#define CARTPOLE_PARAMS(X) \
    X(int, max_steps, 500, 1, 1000000, "Steps after which an episode is truncated.")

/* What an episode reports, beside its return and length. */
#define CARTPOLE_LOG(X) X(score, "1 if the pole stood until the time limit, else 0.")

PUFFER_DECLARE(Cartpole, CARTPOLE_PARAMS, CARTPOLE_LOG, float, int32_t)

#define CARTPOLE_GRAVITY 9.8       /* m/s^2 */
#define CARTPOLE_MASS_CART 1.0     /* kg */
#define CARTPOLE_MASS_POLE 0.1     /* kg */
#define CARTPOLE_HALF_LENGTH 0.5   /* m, hinge to the pole's centre of mass */
#define CARTPOLE_FORCE 10.0        /* N */
#define CARTPOLE_TIMESTEP 0.02     /* s */
#define CARTPOLE_TRACK 2.4         /* m, farthest that the cart may be from the middle */
#define CARTPOLE_LEAN 0.20943951023931953 /* rad, farthest that the pole may lean: 12 degrees */
#define CARTPOLE_START 0.05f         /* each variable starts within plus or minus this */

enum { CARTPOLE_LEFT, CARTPOLE_RIGHT, CARTPOLE_ACTIONS };
enum { /* the observation */
    CARTPOLE_X,                /* m, of the cart */
    CARTPOLE_SPEED,            /* m/s */
    CARTPOLE_ANGLE,            /* rad, of the pole */
    CARTPOLE_ANGULAR_SPEED,    /* rad/s */
    CARTPOLE_OBS
};

typedef struct {
    PufferRng rng;
    double x, speed;             /* m and m/s, of the cart */
    double angle, angular_speed; /* rad and rad/s, of the pole */
    int32_t tick;                /* steps since the episode began */
    int32_t push;                /* -1, 0 or 1: where the last push went, for the picture */
} Cartpole;

static const char *cartpole_describe(const CartpoleParams *p, PufferSpec *spec) {
    (void)p;
    spec->obs_rank = 1;
    spec->obs_shape[0] = CARTPOLE_OBS;
    spec->action_sizes[0] = CARTPOLE_ACTIONS;
    spec->keys[CARTPOLE_LEFT] = "left";
    spec->keys[CARTPOLE_RIGHT] = "right";
    spec->width = 600;
    spec->height = 300;
    spec->frames_per_second = 20;
    return NULL;
}

static inline double cartpole_start(PufferRng *rng) {
    return puffer_random_range(rng, -CARTPOLE_START, CARTPOLE_START);
}

static inline void cartpole_reset(Cartpole *s, const CartpoleParams *p) {
    (void)p;
    s->x = cartpole_start(&s->rng);
    s->speed = cartpole_start(&s->rng);
    s->angle = cartpole_start(&s->rng);
    s->angular_speed = cartpole_start(&s->rng);
    s->tick = s->push = 0;
}

/* Sine and cosine of an angle that has not fallen yet: puffer_sincos without the reduction that so
 * small an angle does not need, and so arranged that all but one result in a few hundred is the
 * double nearest to the true value, as from a good C library. */
static inline void cartpole_sincos(double angle, double *sine, double *cosine) {
    double q = angle * angle, half = 0.5 * q, near = 1.0 - half;
    *sine = angle + angle * q * (-1.0 / 6 + q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880 +
            q * (-1.0 / 39916800)))));
    *cosine = near + ((1.0 - near - half) + q * q * (1.0 / 24 + q * (-1.0 / 720 +
              q * (1.0 / 40320 + q * (-1.0 / 3628800 + q * (1.0 / 479001600))))));
}

/* One timestep of the equations of motion under `force` (N).  The order of operations is that of
 * Gymnasium: the pole is unstable, and a difference in the last bit grows to all of it within an
 * episode. */
static inline void cartpole_move(Cartpole *s, double force) {
    const double mass = CARTPOLE_MASS_CART + CARTPOLE_MASS_POLE;
    const double moment = CARTPOLE_MASS_POLE * CARTPOLE_HALF_LENGTH;
    double sine, cosine;
    cartpole_sincos(s->angle, &sine, &cosine);
    double drive = (force + moment * (s->angular_speed * s->angular_speed) * sine) / mass;
    double angular_acceleration = (CARTPOLE_GRAVITY * sine - cosine * drive) /
        (CARTPOLE_HALF_LENGTH * (4.0 / 3.0 - CARTPOLE_MASS_POLE * (cosine * cosine) / mass));
    double acceleration = drive - moment * angular_acceleration * cosine / mass;
    s->x += CARTPOLE_TIMESTEP * s->speed;
    s->speed += CARTPOLE_TIMESTEP * acceleration;
    s->angle += CARTPOLE_TIMESTEP * s->angular_speed;
    s->angular_speed += CARTPOLE_TIMESTEP * angular_acceleration;
}

static inline bool cartpole_fallen(const Cartpole *s) {
    return (s->x < -CARTPOLE_TRACK) | (s->x > CARTPOLE_TRACK) |
           (s->angle < -CARTPOLE_LEAN) | (s->angle > CARTPOLE_LEAN);
}

static inline void cartpole_step(Cartpole *s, const CartpoleParams *p, CartpoleRows *rows) {
    s->push = 2 * rows->actions[0] - 1;
    cartpole_move(s, s->push * CARTPOLE_FORCE);
    s->tick++;

    bool fallen = cartpole_fallen(s), late = s->tick >= p->max_steps;
    rows->rewards[0] = 1.0f;
    rows->terminals[0] = fallen;
    rows->truncations[0] = late & !fallen;
    if (late & !fallen) rows->log->score += 1.0f;
}

static inline void cartpole_observe(const Cartpole *s, const CartpoleParams *p, int agent,
                                    float *row) {
    (void)p, (void)agent;
    row[CARTPOLE_X] = (float)s->x;
    row[CARTPOLE_SPEED] = (float)s->speed;
    row[CARTPOLE_ANGLE] = (float)s->angle;
    row[CARTPOLE_ANGULAR_SPEED] = (float)s->angular_speed;
}

/* A push: an arrow from the cart's side towards where it pushes. */
static void cartpole_draw_push(PufferCanvas *canvas, float x, float y, float direction) {
    float tip = x + direction * 30;
    puffer_line(canvas, x, y, tip, y, 4, PUFFER_YELLOW);
    puffer_line(canvas, tip - direction * 9, y - 8, tip, y, 4, PUFFER_YELLOW);
    puffer_line(canvas, tip - direction * 9, y + 8, tip, y, 4, PUFFER_YELLOW);
}

static void cartpole_draw(const Cartpole *s, const CartpoleParams *p, PufferCanvas *canvas) {
    const float metre = 110, middle = (float)canvas->width / 2, track = 236, hinge = track - 46;
    float x = middle + (float)s->x * metre, length = (float)(2.0 * CARTPOLE_HALF_LENGTH) * metre;
    float lean_x = length * puffer_sinf((float)CARTPOLE_LEAN);
    float lean_y = length * puffer_cosf((float)CARTPOLE_LEAN);
    float tip_x = x + length * puffer_sinf((float)s->angle);
    float tip_y = hinge - length * puffer_cosf((float)s->angle);
    bool leans_far = s->angle * s->angle > 0.25 * CARTPOLE_LEAN * CARTPOLE_LEAN;

    puffer_fill(canvas, PUFFER_BACKGROUND);
    puffer_rectangle(canvas, 0, track, (float)canvas->width, 3, PUFFER_MUTED);
    for (int side = -1; side <= 1; side += 2) {
        float end = middle + (float)side * (float)CARTPOLE_TRACK * metre;
        puffer_rectangle(canvas, end - 2, track - 14, 4, 31, PUFFER_RED);
        puffer_line(canvas, x, hinge, x + (float)side * lean_x, hinge - lean_y, 1.5f, PUFFER_MUTED);
    }
    puffer_rectangle(canvas, x - 40, hinge, 80, 32, PUFFER_TEAL);
    puffer_disc(canvas, x - 24, track - 10, 10, PUFFER_INK);
    puffer_disc(canvas, x + 24, track - 10, 10, PUFFER_INK);
    puffer_disc(canvas, x - 24, track - 10, 4, PUFFER_BACKGROUND);
    puffer_disc(canvas, x + 24, track - 10, 4, PUFFER_BACKGROUND);
    puffer_line(canvas, x, hinge, tip_x, tip_y, 12, leans_far ? PUFFER_RED : PUFFER_ORANGE);
    puffer_disc(canvas, x, hinge, 5, PUFFER_INK);
    if (s->push) cartpole_draw_push(canvas, x + (float)s->push * 48, hinge + 16, (float)s->push);

    float done = (float)s->tick / (float)p->max_steps;
    puffer_rectangle(canvas, 0, (float)canvas->height - 6, (float)canvas->width * done, 6,
                     PUFFER_GREEN);
    puffer_number(canvas, s->tick, 16, 16, 3, PUFFER_INK);
}
