/* draw.h - a software rasteriser: everything an environment needs to paint itself.
 *
 * Coordinates are pixels, x to the right, y down, fractions allowed; whatever lies outside the
 * canvas is cut off.  A colour is 0xRRGGBB.  Included by puffer.h.
 */
#ifndef PUFFER_DRAW_H
#define PUFFER_DRAW_H

#define PUFFER_BACKGROUND 0x101820
#define PUFFER_INK 0xf1f1f1
#define PUFFER_MUTED 0x56707a
#define PUFFER_TEAL 0x00bbbb
#define PUFFER_RED 0xd9414e
#define PUFFER_YELLOW 0xf0c24b
#define PUFFER_GREEN 0x59b56b
#define PUFFER_BLUE 0x4a7fd6
#define PUFFER_ORANGE 0xe8853d
#define PUFFER_PURPLE 0x9a6fd0

static inline void puffer_pixel(PufferCanvas *canvas, int x, int y, uint32_t colour) {
    if (x < 0 || y < 0 || x >= canvas->width || y >= canvas->height) return;
    uint8_t *p = canvas->pixels + ((size_t)y * (size_t)canvas->width + (size_t)x) * 3;
    p[0] = (uint8_t)(colour >> 16);
    p[1] = (uint8_t)(colour >> 8);
    p[2] = (uint8_t)colour;
}

/* The axis-aligned rectangle from (x, y), width and height given. */
static inline void puffer_rectangle(PufferCanvas *canvas, float x, float y, float width,
                                    float height, uint32_t colour) {
    int left = puffer_max((int)(x + 0.5f), 0), right = puffer_min((int)(x + width + 0.5f), canvas->width);
    int top = puffer_max((int)(y + 0.5f), 0), bottom = puffer_min((int)(y + height + 0.5f), canvas->height);
    for (int row = top; row < bottom; row++) {
        for (int column = left; column < right; column++) puffer_pixel(canvas, column, row, colour);
    }
}

static inline void puffer_fill(PufferCanvas *canvas, uint32_t colour) {
    puffer_rectangle(canvas, 0, 0, (float)canvas->width, (float)canvas->height, colour);
}

static inline void puffer_disc(PufferCanvas *canvas, float x, float y, float radius, uint32_t colour) {
    int left = puffer_max((int)(x - radius), 0), right = puffer_min((int)(x + radius) + 1, canvas->width);
    int top = puffer_max((int)(y - radius), 0), bottom = puffer_min((int)(y + radius) + 1, canvas->height);
    for (int row = top; row < bottom; row++) {
        for (int column = left; column < right; column++) {
            float dx = (float)column + 0.5f - x, dy = (float)row + 0.5f - y;
            if (dx * dx + dy * dy <= radius * radius) puffer_pixel(canvas, column, row, colour);
        }
    }
}

/* The straight line between two points, `thickness` pixels wide, with round ends. */
static inline void puffer_line(PufferCanvas *canvas, float x0, float y0, float x1, float y1,
                               float thickness, uint32_t colour) {
    float half = thickness * 0.5f, dx = x1 - x0, dy = y1 - y0, length2 = dx * dx + dy * dy;
    int left = puffer_max((int)(puffer_minf(x0, x1) - half), 0);
    int right = puffer_min((int)(puffer_maxf(x0, x1) + half) + 1, canvas->width);
    int top = puffer_max((int)(puffer_minf(y0, y1) - half), 0);
    int bottom = puffer_min((int)(puffer_maxf(y0, y1) + half) + 1, canvas->height);
    for (int row = top; row < bottom; row++) {
        for (int column = left; column < right; column++) {
            float px = (float)column + 0.5f - x0, py = (float)row + 0.5f - y0;
            float t = length2 > 0.0f ? puffer_clampf((px * dx + py * dy) / length2, 0.0f, 1.0f) : 0.0f;
            float ex = px - t * dx, ey = py - t * dy;
            if (ex * ex + ey * ey <= half * half) puffer_pixel(canvas, column, row, colour);
        }
    }
}

/* 5x7 glyphs for ASCII 32..95; a byte is a column, its lowest bit the top pixel.  Lower-case
 * letters are shown as capitals. */
static const uint8_t puffer_font[64][5] = {
    {0x00,0x00,0x00,0x00,0x00},{0x00,0x00,0x5f,0x00,0x00},{0x00,0x07,0x00,0x07,0x00},{0x14,0x7f,0x14,0x7f,0x14},
    {0x24,0x2a,0x7f,0x2a,0x12},{0x23,0x13,0x08,0x64,0x62},{0x36,0x49,0x55,0x22,0x50},{0x00,0x05,0x03,0x00,0x00},
    {0x00,0x1c,0x22,0x41,0x00},{0x00,0x41,0x22,0x1c,0x00},{0x14,0x08,0x3e,0x08,0x14},{0x08,0x08,0x3e,0x08,0x08},
    {0x00,0x50,0x30,0x00,0x00},{0x08,0x08,0x08,0x08,0x08},{0x00,0x60,0x60,0x00,0x00},{0x20,0x10,0x08,0x04,0x02},
    {0x3e,0x51,0x49,0x45,0x3e},{0x00,0x42,0x7f,0x40,0x00},{0x42,0x61,0x51,0x49,0x46},{0x21,0x41,0x45,0x4b,0x31},
    {0x18,0x14,0x12,0x7f,0x10},{0x27,0x45,0x45,0x45,0x39},{0x3c,0x4a,0x49,0x49,0x30},{0x01,0x71,0x09,0x05,0x03},
    {0x36,0x49,0x49,0x49,0x36},{0x06,0x49,0x49,0x29,0x1e},{0x00,0x36,0x36,0x00,0x00},{0x00,0x56,0x36,0x00,0x00},
    {0x08,0x14,0x22,0x41,0x00},{0x14,0x14,0x14,0x14,0x14},{0x00,0x41,0x22,0x14,0x08},{0x02,0x01,0x51,0x09,0x06},
    {0x32,0x49,0x79,0x41,0x3e},{0x7e,0x11,0x11,0x11,0x7e},{0x7f,0x49,0x49,0x49,0x36},{0x3e,0x41,0x41,0x41,0x22},
    {0x7f,0x41,0x41,0x22,0x1c},{0x7f,0x49,0x49,0x49,0x41},{0x7f,0x09,0x09,0x09,0x01},{0x3e,0x41,0x49,0x49,0x7a},
    {0x7f,0x08,0x08,0x08,0x7f},{0x00,0x41,0x7f,0x41,0x00},{0x20,0x40,0x41,0x3f,0x01},{0x7f,0x08,0x14,0x22,0x41},
    {0x7f,0x40,0x40,0x40,0x40},{0x7f,0x02,0x0c,0x02,0x7f},{0x7f,0x04,0x08,0x10,0x7f},{0x3e,0x41,0x41,0x41,0x3e},
    {0x7f,0x09,0x09,0x09,0x06},{0x3e,0x41,0x51,0x21,0x5e},{0x7f,0x09,0x19,0x29,0x46},{0x46,0x49,0x49,0x49,0x31},
    {0x01,0x01,0x7f,0x01,0x01},{0x3f,0x40,0x40,0x40,0x3f},{0x1f,0x20,0x40,0x20,0x1f},{0x3f,0x40,0x38,0x40,0x3f},
    {0x63,0x14,0x08,0x14,0x63},{0x07,0x08,0x70,0x08,0x07},{0x61,0x51,0x49,0x45,0x43},{0x00,0x7f,0x41,0x41,0x00},
    {0x02,0x04,0x08,0x10,0x20},{0x00,0x41,0x41,0x7f,0x00},{0x04,0x02,0x01,0x02,0x04},{0x40,0x40,0x40,0x40,0x40},
};

/* Text whose top left corner is (x, y); a glyph takes 6 x 8 pixels times `scale`. */
static inline void puffer_text(PufferCanvas *canvas, const char *text, int x, int y, int scale,
                               uint32_t colour) {
    for (; *text; text++, x += 6 * scale) {
        int code = (unsigned char)*text;
        if (code >= 'a' && code <= 'z') code -= 32;
        if (code < 32 || code > 95) code = '?';
        for (int column = 0; column < 5; column++) {
            for (int row = 0; row < 7; row++) {
                if (!(puffer_font[code - 32][column] >> row & 1)) continue;
                puffer_rectangle(canvas, (float)(x + column * scale), (float)(y + row * scale),
                                 (float)scale, (float)scale, colour);
            }
        }
    }
}

/* A whole number in decimal, as puffer_text. */
static inline void puffer_number(PufferCanvas *canvas, int value, int x, int y, int scale,
                                 uint32_t colour) {
    char digits[12];
    int end = 11;
    unsigned rest = value < 0 ? 0u - (unsigned)value : (unsigned)value;
    digits[end] = 0;
    do {
        digits[--end] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (value < 0) digits[--end] = '-';
    puffer_text(canvas, digits + end, x, y, scale, colour);
}

#endif
