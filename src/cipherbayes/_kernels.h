/* Inner loops of a pass over blocks of float64: plain C, nothing of Python.
 *
 * A block x has shape (p, m): one row per design column, each row contiguous,
 * rows any distance apart, so that a slice x[:, a:b] needs no copy.  Every loop
 * adds in one fixed order: on one machine a sum always has the same bits.  Built
 * without fused multiply-add (setup.py), so that what is computed of one record has
 * the same bits in the vectorised body of a loop and in its tail.  NaN propagates.
 * GNU C (gcc, clang); other compilers leave the work to numpy.
 */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* One copy of a loop per instruction set, chosen at load time (GNU ifunc). */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__has_attribute)
#if !defined(__clang__) && __GNUC__ >= 12
#define VECTORISED                                                                  \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif __has_attribute(target_clones)
#define VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef VECTORISED
#define VECTORISED
#endif

/* Part of each copy of the loops that call it. */
#define INLINE static inline __attribute__((always_inline))

typedef double lanes __attribute__((vector_size(32), aligned(8), may_alias));
#define LOAD(pointer) (*(const lanes *)(pointer))

/* out_i = sum_j theta_j x_ji, four columns at a time. */
VECTORISED static void
predict(const double *restrict theta, const double *restrict x, ptrdiff_t stride,
        ptrdiff_t p, ptrdiff_t m, double *restrict out)
{
    ptrdiff_t j = 0;
    memset(out, 0, (size_t)m * sizeof(double));
    for (; j + 4 <= p; j += 4) {
        const double *a = x + j * stride, *b = a + stride;
        const double *c = b + stride, *d = c + stride;
        const double ta = theta[j], tb = theta[j + 1];
        const double tc = theta[j + 2], td = theta[j + 3];
        for (ptrdiff_t i = 0; i < m; i++)
            out[i] += (ta * a[i] + tb * b[i]) + (tc * c[i] + td * d[i]);
    }
    for (; j < p; j++) {
        const double *a = x + j * stride, ta = theta[j];
        for (ptrdiff_t i = 0; i < m; i++)
            out[i] += ta * a[i];
    }
}

/* out_i = sum_j x_ji^2, four columns at a time. */
VECTORISED static void
square(const double *restrict x, ptrdiff_t stride, ptrdiff_t p, ptrdiff_t m,
       double *restrict out)
{
    ptrdiff_t j = 0;
    memset(out, 0, (size_t)m * sizeof(double));
    for (; j + 4 <= p; j += 4) {
        const double *a = x + j * stride, *b = a + stride;
        const double *c = b + stride, *d = c + stride;
        for (ptrdiff_t i = 0; i < m; i++)
            out[i] += (a[i] * a[i] + b[i] * b[i]) + (c[i] * c[i] + d[i] * d[i]);
    }
    for (; j < p; j++) {
        const double *a = x + j * stride;
        for (ptrdiff_t i = 0; i < m; i++)
            out[i] += a[i] * a[i];
    }
}

/* sum_i a_i w_i: lane l adds the terms i = l, l + 8, ...; the lanes are added last. */
INLINE double
finish(lanes low, lanes high, const double *a, const double *w, ptrdiff_t m)
{
    const ptrdiff_t whole = m - m % 8;
    double sum[8];
    memcpy(sum, &low, sizeof low);
    memcpy(sum + 4, &high, sizeof high);
    for (ptrdiff_t i = whole; i < m; i++)
        sum[i - whole] += a[i] * w[i];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6]))
         + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

INLINE double
dot(const double *a, const double *w, ptrdiff_t m)
{
    lanes low = {0}, high = {0};
    for (ptrdiff_t i = 0; i + 8 <= m; i += 8) {
        low += LOAD(a + i) * LOAD(w + i);
        high += LOAD(a + i + 4) * LOAD(w + i + 4);
    }
    return finish(low, high, a, w, m);
}

/* The same of four rows, so that w is read once for four. */
INLINE void
four_dots(const double *a, ptrdiff_t stride, const double *w, ptrdiff_t m, double *sums)
{
    const double *b = a + stride, *c = b + stride, *d = c + stride;
    lanes a0 = {0}, b0 = {0}, c0 = {0}, d0 = {0};
    lanes a1 = {0}, b1 = {0}, c1 = {0}, d1 = {0};
    for (ptrdiff_t i = 0; i + 8 <= m; i += 8) {
        const lanes w0 = LOAD(w + i), w1 = LOAD(w + i + 4);
        a0 += LOAD(a + i) * w0;
        a1 += LOAD(a + i + 4) * w1;
        b0 += LOAD(b + i) * w0;
        b1 += LOAD(b + i + 4) * w1;
        c0 += LOAD(c + i) * w0;
        c1 += LOAD(c + i + 4) * w1;
        d0 += LOAD(d + i) * w0;
        d1 += LOAD(d + i + 4) * w1;
    }
    sums[0] = finish(a0, a1, a, w, m);
    sums[1] = finish(b0, b1, b, w, m);
    sums[2] = finish(c0, c1, c, w, m);
    sums[3] = finish(d0, d1, d, w, m);
}

/* out_j = sum_i x_ji w_i. */
VECTORISED static void
weigh(const double *restrict x, ptrdiff_t stride, ptrdiff_t p, ptrdiff_t m,
      const double *restrict w, double *restrict out)
{
    ptrdiff_t j = 0;
    for (; j + 4 <= p; j += 4)
        four_dots(x + j * stride, stride, w, m, out + j);
    for (; j < p; j++)
        out[j] = dot(x + j * stride, w, m);
}

/* out_i = s_i, shortened to limit / r_i where |s_i| r_i > limit; 0 where that is
 * not finite.  r_i = sqrt(n_i + floor): floor keeps r_i > 0 and covers squares
 * that underflowed. */
VECTORISED static void
clip(const double *restrict score, const double *restrict norms2, double limit,
     double floor2, ptrdiff_t m, double *restrict out)
{
    for (ptrdiff_t i = 0; i < m; i++) {
        const double root = sqrt(norms2[i] + floor2);
        const double size = fabs(score[i]) * root;
        const double shortened = copysign(limit / root, score[i]);
        const double kept = size <= limit ? score[i] : shortened;
        out[i] = size <= DBL_MAX ? kept : 0.0;
    }
}

/* out_i = (v_i - centre) * scale held within [-1, 1]; returns how many v_i are NaN
 * or infinite. */
VECTORISED static ptrdiff_t
prepare(const double *restrict values, double centre, double scale, ptrdiff_t m,
        double *restrict out)
{
    int64_t finite = 0;
    for (ptrdiff_t i = 0; i < m; i++) {
        const double z = (values[i] - centre) * scale;
        const double above = z < -1.0 ? -1.0 : z;
        out[i] = above > 1.0 ? 1.0 : above;
        finite += fabs(values[i]) <= DBL_MAX;
    }
    return m - (ptrdiff_t)finite;
}

/* a and b with 1 / (1 + exp(-x)) = a / (a + b).  With -x = k log 2 + r,
 * |r| <= log(2) / 2, and c = r coth(r / 2), exp(r) = (c + r) / (c - r): a = c - r,
 * b = 2^k (c + r). */
INLINE void
odds(double x, double *a, double *b)
{
    /* Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits. */
    const double magic = 6755399441055744.0, log2e = 1.4426950408889634;
    const double log2_high = 0x1.62e42feep-1, log2_low = 0x1.a39ef35793c76p-33;
    double v = -x, power;
    uint64_t bits;
    v = v > 708.0 ? 708.0 : v; /* 2^k stays a normal number */
    v = v < -708.0 ? -708.0 : v;
    const double shifted = v * log2e + magic, k = shifted - magic;
    const double r = (v - k * log2_high) - k * log2_low, q = r * r;
    /* Bernoulli's series; the first term left out is below 2^-56 of c. */
    const double c = 2.0 + q * (1.0 / 6 + q * (-1.0 / 360 + q * (1.0 / 15120
        + q * (-1.0 / 604800 + q * (1.0 / 23950080 - q * (691.0 / 653837184000))))));
    memcpy(&bits, &shifted, 8);
    bits = (bits << 52) + 0x3ff0000000000000u;
    memcpy(&power, &bits, 8);
    *a = c - r;
    *b = power * (c + r);
}

/* out_i = 1 / (1 + exp(-x_i)). */
VECTORISED static void
logistic(const double *restrict x, ptrdiff_t m, double *restrict out)
{
    for (ptrdiff_t i = 0; i < m; i++) {
        double a, b;
        odds(x[i], &a, &b);
        out[i] = a / (a + b);
    }
}

/* out = (x - mean) * scale column by column, and the squared norms of the result;
 * a few hundred records at a time, which stay in the nearest cache. */
enum { TILE = 512 };

VECTORISED static void
shift(const double *restrict x, double mean, double scale, ptrdiff_t m,
      double *restrict out)
{
    for (ptrdiff_t i = 0; i < m; i++)
        out[i] = (x[i] - mean) * scale;
}

static void
move(const double *x, ptrdiff_t stride, ptrdiff_t p, ptrdiff_t m, const double *mean,
     const double *scale, double *out, ptrdiff_t out_stride, double *norms2)
{
    for (ptrdiff_t start = 0; start < m; start += TILE) {
        const ptrdiff_t size = m - start < TILE ? m - start : TILE;
        for (ptrdiff_t j = 0; j < p; j++)
            shift(x + j * stride + start, mean[j], scale[j], size,
                  out + j * out_stride + start);
        square(out + start, out_stride, p, size, norms2 + start);
    }
}

/* How a stored column becomes one of the design: z = (v - centre) * scale held within
 * [low, high], then (z - mean) * rescale. */
typedef struct {
    double centre, scale, low, high, mean, rescale;
} recipe;

#define STORED(name, type)                                                           \
    VECTORISED static void name(const type *restrict values, const recipe *own,      \
                                ptrdiff_t m, double *restrict out)                   \
    {                                                                                \
        const recipe r = *own;                                                       \
        for (ptrdiff_t i = 0; i < m; i++) {                                          \
            const double z = ((double)values[i] - r.centre) * r.scale;               \
            const double above = z < r.low ? r.low : z;                              \
            const double held = above > r.high ? r.high : above;                     \
            out[i] = (held - r.mean) * r.rescale;                                    \
        }                                                                            \
    }
STORED(restore_int8, int8_t)
STORED(restore_int16, int16_t)
STORED(restore_float, float)
STORED(restore_double, double)

/* Kinds of stored columns; a constant one is stored in its recipe's centre alone. */
enum { CONSTANT, INT8, INT16, FLOAT, DOUBLE };

static void
restore(const char *record, const int64_t *offsets, const int64_t *kinds,
        const recipe *recipes, ptrdiff_t columns, ptrdiff_t p, ptrdiff_t m, double *out,
        ptrdiff_t stride, double *norms2)
{
    for (ptrdiff_t start = 0; start < m; start += TILE) {
        const ptrdiff_t size = m - start < TILE ? m - start : TILE;
        for (ptrdiff_t j = 0; j < columns; j++) {
            const char *place = record + offsets[j];
            double *to = out + j * stride + start;
            switch (kinds[j]) {
            case INT8:
                restore_int8((const int8_t *)place + start, recipes + j, size, to);
                break;
            case INT16:
                restore_int16((const int16_t *)place + start, recipes + j, size, to);
                break;
            case FLOAT:
                restore_float((const float *)place + start, recipes + j, size, to);
                break;
            case DOUBLE:
                restore_double((const double *)place + start, recipes + j, size, to);
                break;
            default:
                for (ptrdiff_t i = 0; i < size; i++)
                    to[i] = recipes[j].centre;
            }
        }
        square(out + start, stride, p, size, norms2 + start);
    }
}

/* Of logistic regression: score = w (y - p) and information = w p (1 - p) with
 * w = c / max(norms2, c), c = clip2; p and 1 - p as in logistic(). */
VECTORISED static void
logistic_terms(const double *restrict eta, const double *restrict y,
               const double *restrict norms2, double clip2, ptrdiff_t m,
               double *restrict score, double *restrict information)
{
    for (ptrdiff_t i = 0; i < m; i++) {
        double less, more;
        odds(eta[i], &less, &more);
        const double longest = norms2[i] > clip2 ? norms2[i] : clip2;
        const double w = clip2 / (norms2[i] == norms2[i] ? longest : norms2[i]);
        const double whole = less + more;
        const double p = less / whole, q = more / whole;
        score[i] = w * (y[i] - p);
        information[i] = w * p * q;
    }
}

/* values_i times min(1, limit / n_i) and a share, n_i = sqrt(v_i^2 l_i) or, for
 * matrices, sqrt((v_i l_i)^2), l_i = norms2_i + floor2; 0 where a record cannot be
 * used: n_i or the root of norms2_i beyond `most`, or no number. */
VECTORISED static void
shorten(const double *restrict values, const double *restrict norms2, double limit,
        double floor2, double most, int matrices, ptrdiff_t m, double *restrict out)
{
    const double most2 = most * most;
    for (ptrdiff_t i = 0; i < m; i++) {
        const double length = norms2[i] + floor2, product = values[i] * length;
        const double square = matrices ? product * product
                                       : values[i] * values[i] * length;
        const double norm = sqrt(square);
        const double weight = norm > limit ? limit / norm : 1.0;
        const int usable = (norm <= most) & (norms2[i] <= most2);
        out[i] = usable ? values[i] * weight : 0.0;
    }
}

/* out = sum_i w_i x_i x_i', the upper triangle row by row: a tile as in weigh(), tiles
 * in their order. */
VECTORISED static void
gram(const double *restrict x, ptrdiff_t stride, ptrdiff_t p, ptrdiff_t m,
     const double *restrict w, double *restrict out)
{
    double weighted[TILE], sums[4];
    memset(out, 0, (size_t)(p * (p + 1) / 2) * sizeof(double));
    for (ptrdiff_t start = 0; start < m; start += TILE) {
        const ptrdiff_t size = m - start < TILE ? m - start : TILE;
        double *place = out;
        for (ptrdiff_t j = 0; j < p; j++) {
            const double *own = x + j * stride + start;
            ptrdiff_t k = j;
            for (ptrdiff_t i = 0; i < size; i++)
                weighted[i] = own[i] * w[start + i];
            for (; k + 4 <= p; k += 4, place += 4) {
                four_dots(x + k * stride + start, stride, weighted, size, sums);
                for (int l = 0; l < 4; l++)
                    place[l] += sums[l];
            }
            for (; k < p; k++, place++)
                *place += dot(x + k * stride + start, weighted, size);
        }
    }
}

/* Which bin of a window each value is in; `bins` for none: outside of the window, or
 * within 1e-12 of a stand-in (NaN where there is none). */
VECTORISED static void
bin(const double *restrict z, double centre, double half, double stand_in, int32_t bins,
    ptrdiff_t m, int32_t *restrict places)
{
    const double half_bins = 0.5 * bins;
    for (ptrdiff_t i = 0; i < m; i++) {
        const double inside = (z[i] - centre) / half;
        const double place = (inside + 1.0) * half_bins;
        const int missing = fabs(z[i] - stand_in) <= 1e-12;
        const int kept = (fabs(inside) <= 1.0) & !missing;
        const int32_t whole = (int32_t)(kept ? place : 0.0);
        const int32_t last = whole < bins - 1 ? whole : bins - 1;
        places[i] = kept ? last : bins;
    }
}

/* Count values into bins; exact, so that neighbouring ones may count apart. */
static void
count_bins(const double *z, double centre, double half, double stand_in, int32_t bins,
           ptrdiff_t m, double *counts, double *spare)
{
    int32_t places[TILE];
    for (ptrdiff_t start = 0; start < m; start += TILE) {
        const ptrdiff_t size = m - start < TILE ? m - start : TILE;
        ptrdiff_t i = 0;
        bin(z + start, centre, half, stand_in, bins, size, places);
        for (; i + 2 <= size; i += 2) {
            counts[places[i]] += 1.0;
            spare[places[i + 1]] += 1.0;
        }
        if (i < size)
            counts[places[i]] += 1.0;
    }
    for (int32_t b = 0; b < bins; b++)
        counts[b] += spare[b];
}
