/* A draw of theta given H and the mean of the score, for one chain.
 *
 * The same as slice_theta in slicing.py, which has the formulas, with the means of
 * saturation.py and tilting.py.  Random numbers come in: the draw is a function of
 * its arguments.
 */
#include <math.h>
#include <string.h>

#include "loops.h"

#define NEWTON_STEPS 3
#define NEAR_ENOUGH 0.1
#define HALVINGS 6
#define LARGEST_EXPONENT 3.0
#define LEAST_SKEWED (-0.9)
#define TWO_PI 6.283185307179586

typedef struct {
    double *derivative, *precision, *lower, *total;
    double *mean, *residual, *solved, *away, *step, *mode, *theta, *other, *proposed;
    double *rest, *along, *moved, *growth, *slope, *weighted, *spread;
} Memory;

static void
lay_out_slicing(Memory *m, Arena *arena, int d)
{
    const size_t n = d;
    double **squares[] = {&m->derivative, &m->precision, &m->lower, &m->total,
                          &m->moved, &m->weighted, &m->spread};
    double **lines[] = {&m->mean, &m->residual, &m->solved, &m->away, &m->step,
                        &m->mode, &m->theta, &m->other, &m->proposed, &m->rest,
                        &m->along, &m->growth, &m->slope};
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++)
        *squares[i] = piece(arena, n * n);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        *lines[i] = piece(arena, n);
}

size_t
slicing_memory(int d)
{
    Memory m;
    Arena counting = {NULL, 0};
    lay_out_slicing(&m, &counting, d);
    return counting.used;
}

/* exp of the exponent, which tanh keeps within +-LARGEST_EXPONENT, and the derivative of
 * the kept exponent by the given one. */
static double
held_exponential(double exponent, double *slope)
{
    const double bent = tanh(exponent / LARGEST_EXPONENT);
    *slope = 1.0 - bent * bent;
    return exp(LARGEST_EXPONENT * bent);
}

/* ------------------------------------------------------------- saturating */

/* Returns k(theta); A theta goes to m->along, the denominator in the root to `below`. */
static double
saturating_factor(const Score *s, Memory *m, const double *theta, double *below)
{
    times_vector(s->matrix, theta, s->d, s->d, m->along);
    *below = 1.0 + s->strength * dot(m->along, theta, s->d);
    return sqrt((1.0 + s->bend) / *below);
}

static void
saturating_mean(const Score *s, Memory *m, const double *theta, double *out)
{
    double below;
    const double k = saturating_factor(s, m, theta, &below);
    for (int i = 0; i < s->d; i++)
        out[i] = k * m->along[i] - s->pull[i];
}

static void
saturating_derivative(const Score *s, Memory *m, const double *theta, double *out)
{
    const int d = s->d;
    double below;
    const double k = saturating_factor(s, m, theta, &below);
    const double c = s->strength / below;
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++)
            out[(size_t)i * d + j] =
                k * (s->matrix[(size_t)i * d + j] - c * m->along[i] * m->along[j]);
}

/* ---------------------------------------------------- saturating, by site */

static double
logistic(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* SaturatingBySite._parts: E g_k goes to m->growth, its derivative by the level to
 * m->slope, W gamma to m->along.  Returns k(gamma). */
static double
bent_by_site(const Score *s, Memory *m, const double *theta, double *below)
{
    const int e = s->e;
    const double steep = 1.0 / sqrt(1.0 + s->bend);
    for (int j = 0; j < e; j++)
        m->rest[j] = theta[s->others[j]] - s->place[s->others[j]];
    for (int c = 0; c < s->b; c++) {
        const int64_t at = s->constants[c];
        const double moved =
            theta[at] - s->place[at] + dot(s->means + (size_t)c * e, m->rest, e);
        const double here = logistic(steep * s->levels[c]);
        const double there = logistic(steep * (s->levels[c] + s->values[c] * moved));
        const double curve = here * (1.0 - here);
        m->growth[c] = s->masses[c] * (there - here) / (steep * s->values[c] * curve);
        m->slope[c] = s->masses[c] * there * (1.0 - there) / curve;
    }
    for (int j = 0; j < e; j++)
        m->rest[j] = theta[s->others[j]];
    times_vector(s->matrix, m->rest, e, e, m->along);
    *below = 1.0 + s->strength * dot(m->along, m->rest, e);
    return sqrt((1.0 + s->bend) / *below);
}

static void
bent_by_site_mean(const Score *s, Memory *m, const double *theta, double *out)
{
    const int e = s->e;
    double below;
    const double k = bent_by_site(s, m, theta, &below);
    for (int i = 0; i < s->d; i++)
        out[i] = -s->origin[i];
    for (int j = 0; j < e; j++)
        out[s->others[j]] += k * m->along[j];
    for (int c = 0; c < s->b; c++) {
        out[s->constants[c]] += m->growth[c];
        for (int j = 0; j < e; j++)
            out[s->others[j]] += m->growth[c] * s->means[(size_t)c * e + j];
    }
}

static void
bent_by_site_derivative(const Score *s, Memory *m, const double *theta, double *out)
{
    const int d = s->d, b = s->b, e = s->e;
    double below, *spread = m->spread;
    const double k = bent_by_site(s, m, theta, &below);
    const double by = s->strength / below;
    memset(out, 0, (size_t)d * d * sizeof(double));
    for (int c = 0; c < b; c++) {
        const int64_t at = s->constants[c];
        out[at * d + at] = m->slope[c];
        for (int j = 0; j < e; j++) {
            const double weighted = m->slope[c] * s->means[(size_t)c * e + j];
            m->weighted[(size_t)c * e + j] = weighted;
            out[at * d + s->others[j]] = out[s->others[j] * d + at] = weighted;
        }
    }
    transposed_product(s->means, m->weighted, e, b, e, spread);
    for (int i = 0; i < e; i++)
        for (int j = 0; j < e; j++) {
            const size_t at = (size_t)i * e + j;
            out[s->others[i] * d + s->others[j]] =
                spread[at] + k * (s->matrix[at] - by * m->along[i] * m->along[j]);
        }
}

/* ----------------------------------------------------------------- tilted */

/* TiltedScore._parts, with x = log E exp(u).  Returns exp(x), x kept within a limit; M
 * times the gradient of x goes to m->moved.  `slope` is the derivative of the kept x by
 * x, `bulge` what the skew adds to M times the Hessian along it, and `grown` is e^change
 * of the straightening. */
static double
tilted_parts(const Score *s, Memory *m, const double *theta, double *slope,
             double *bulge, double *grown)
{
    const int d = s->d;
    double *away = m->rest;
    for (int i = 0; i < d; i++)
        away[i] = theta[i] - s->place[i];
    *grown = 1.0;
    if (s->along != NULL) {
        const double change = dot(s->along, away, d);
        const double clipped = fmin(fmax(change, -s->limit), s->limit);
        *grown = exp(clipped);
        const double low = clipped - *grown + 1.0, high = *grown - 1.0 - change;
        for (int i = 0; i < d; i++)
            away[i] += low * s->first[i] + high * s->last[i];
    }
    times_vector(s->matrix, away, d, d, m->along);
    const double mean = dot(s->pull, away, d) / s->mass;
    const double square = dot(m->along, away, d) / s->mass;
    double exponent = mean + 0.5 * fmax(square - mean * mean, 0.0);
    for (int i = 0; i < d; i++)
        m->moved[i] = s->pull[i] + m->along[i] - s->pull[i] * mean;
    *bulge = 0.0;
    if (s->skew != NULL) {
        const double t = fmax(dot(away, s->skew, d), LEAST_SKEWED);
        exponent += t - log1p(t) - 0.5 * t * t;
        const double by = s->mass * (t / (1.0 + t) - t);
        for (int i = 0; i < d; i++)
            m->moved[i] += by * s->skew[i];
        *bulge = s->mass * (1.0 / ((1.0 + t) * (1.0 + t)) - 1.0);
    }
    return held_exponential(exponent, slope);
}

static double
tilted_mean(const Score *s, Memory *m, const double *theta, double *out)
{
    double slope, bulge, grown;
    const double growth = tilted_parts(s, m, theta, &slope, &bulge, &grown);
    for (int i = 0; i < s->d; i++)
        out[i] = growth * m->moved[i] - s->origin[i];
    return growth;
}

static void
tilted_derivative(const Score *s, Memory *m, const double *theta, double *out)
{
    const int d = s->d;
    double slope, bulge, grown;
    const double growth = tilted_parts(s, m, theta, &slope, &bulge, &grown);
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++) {
            const double tilt = m->moved[i] * m->moved[j] * slope;
            double found = s->matrix[(size_t)i * d + j]
                + (tilt - s->pull[i] * s->pull[j]) / s->mass;
            if (s->skew != NULL)
                found += bulge * s->skew[i] * s->skew[j];
            out[(size_t)i * d + j] = growth * found;
        }
    if (s->along == NULL)
        return;
    /* Times d delta / d theta = I + (1 - e^change) first along'
     * + (e^change - 1) last along'. */
    for (int i = 0; i < d; i++) {
        double *row = out + (size_t)i * d;
        const double by = (grown - 1.0) * (dot(row, s->last, d) - dot(row, s->first, d));
        for (int j = 0; j < d; j++)
            row[j] += by * s->along[j];
    }
}

/* ------------------------------------------------------- tilted, by site */

/* TiltedBySite._parts: m_c + V delta goes to m->moved, M_c times the exponential to
 * m->growth, and the derivative of the kept exponent to m->slope. */
static void
by_site_parts(const Score *s, Memory *m, const double *theta)
{
    const int b = s->b, e = s->e;
    for (int j = 0; j < e; j++)
        m->rest[j] = theta[s->others[j]] - s->place[s->others[j]];
    times_vector(s->matrix, m->rest, e, e, m->along);
    const double square = fmax(dot(m->along, m->rest, e), 0.0);
    for (int c = 0; c < b; c++) {
        const double *means = s->means + (size_t)c * e;
        const int64_t at = s->constants[c];
        const double exponent = s->values[c] * (theta[at] - s->place[at])
            + dot(means, m->rest, e) + 0.5 * square;
        m->growth[c] = s->masses[c] * held_exponential(exponent, m->slope + c);
        for (int j = 0; j < e; j++)
            m->moved[(size_t)c * e + j] = means[j] + m->along[j];
    }
}

static void
by_site_mean(const Score *s, Memory *m, const double *theta, double *out)
{
    const int e = s->e;
    by_site_parts(s, m, theta);
    for (int i = 0; i < s->d; i++)
        out[i] = -s->origin[i];
    for (int c = 0; c < s->b; c++) {
        out[s->constants[c]] += s->values[c] * m->growth[c];
        for (int j = 0; j < e; j++)
            out[s->others[j]] += m->growth[c] * m->moved[(size_t)c * e + j];
    }
}

static void
by_site_derivative(const Score *s, Memory *m, const double *theta, double *out)
{
    const int d = s->d, b = s->b, e = s->e;
    double whole = 0.0, *spread = m->spread;
    by_site_parts(s, m, theta);
    memset(out, 0, (size_t)d * d * sizeof(double));
    for (int c = 0; c < b; c++) {
        const double tilted = m->growth[c] * m->slope[c];
        const int64_t at = s->constants[c];
        whole += m->growth[c];
        out[at * d + at] = s->values[c] * s->values[c] * tilted;
        for (int j = 0; j < e; j++) {
            const double moved = m->moved[(size_t)c * e + j];
            m->weighted[(size_t)c * e + j] = tilted * moved;
            out[at * d + s->others[j]] = out[s->others[j] * d + at] =
                s->values[c] * tilted * moved;
        }
    }
    transposed_product(m->moved, m->weighted, e, b, e, spread);
    for (int i = 0; i < e; i++)
        for (int j = 0; j < e; j++)
            out[s->others[i] * d + s->others[j]] =
                spread[(size_t)i * e + j] + whole * s->matrix[(size_t)i * e + j];
}

/* The mean of the score sum goes to m->mean.  Returns gamma: how many times as much the
 * scores vary as at the place. */
static double
mean_of(const Score *s, Memory *m, const double *theta)
{
    if (s->kind == TILTED)
        return tilted_mean(s, m, theta, m->mean);
    if (s->kind == SATURATING)
        saturating_mean(s, m, theta, m->mean);
    else if (s->kind == SATURATING_BY_SITE)
        bent_by_site_mean(s, m, theta, m->mean);
    else
        by_site_mean(s, m, theta, m->mean);
    return 1.0;
}

static void
derivative_of(const Score *s, Memory *m, const double *theta, double *out)
{
    if (s->kind == SATURATING)
        saturating_derivative(s, m, theta, out);
    else if (s->kind == TILTED)
        tilted_derivative(s, m, theta, out);
    else if (s->kind == SATURATING_BY_SITE)
        bent_by_site_derivative(s, m, theta, out);
    else
        by_site_derivative(s, m, theta, out);
}

/* ----------------------------------------------------------------- slices */

/* The Cholesky factor L of the covariance of the score sum goes to m->total. */
static int
spread_at(const Target *t, const ThetaChain *c, Memory *m, double growth)
{
    const int d = t->d;
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++) {
            const size_t at = (size_t)i * d + j;
            m->total[at] = growth * t->variation[i] * t->variation[j] * c->information[at];
        }
    for (int i = 0; i < d; i++)
        m->total[(size_t)i * d + i] += t->variance;
    return factor(m->total, d);
}

/* L^-1 times the residual goes to m->residual, L as of spread_at(). */
static int
residual_at(const Target *t, const Score *s, const ThetaChain *c, Memory *m,
            const double *theta)
{
    const double growth = mean_of(s, m, theta);
    if (s->kind == TILTED && spread_at(t, c, m, growth) != 0)
        return -1;
    for (int i = 0; i < t->d; i++)
        m->residual[i] = t->gradient[i] - m->mean[i];
    solve_lower(m->total, m->residual, t->d);
    return 0;
}

static double
log_density(const Target *t, const Score *s, const ThetaChain *c, Memory *m,
            const double *theta)
{
    const int d = t->d;
    if (residual_at(t, s, c, m, theta) != 0)
        return -INFINITY;
    double value = dot(m->residual, m->residual, d);
    if (s->kind == TILTED)
        value += log_determinant(m->total, d);
    for (int i = 0; i < d; i++)
        m->away[i] = theta[i] - t->prior_mean[i];
    times_vector(c->prior_precision, m->away, d, d, m->solved);
    return -0.5 * (value + dot(m->away, m->solved, d));
}

/* The normal that approximates the posterior at `theta`: its precision goes to
 * m->precision, the Cholesky factor of that to m->lower, the Newton step from `theta` to
 * its mean to m->step, and the step's squared length in that precision to `squared`. */
static int
normal_at(const Target *t, const Score *s, const ThetaChain *c, Memory *m,
          const double *theta, double *squared)
{
    const int d = t->d;
    const size_t cells = (size_t)d * d;
    derivative_of(s, m, theta, m->derivative);
    if (residual_at(t, s, c, m, theta) != 0)
        return -1;
    solve_upper(m->total, m->residual, d);
    transposed_times_vector(m->derivative, m->residual, d, d, m->step);
    for (int i = 0; i < d; i++)
        m->away[i] = theta[i] - t->prior_mean[i];
    times_vector(c->prior_precision, m->away, d, d, m->solved);
    for (int i = 0; i < d; i++)
        m->step[i] -= m->solved[i];
    solve_lower_matrix(m->total, m->derivative, d, d);
    gram(m->derivative, d, d, m->precision);
    for (size_t i = 0; i < cells; i++)
        m->precision[i] += c->prior_precision[i];
    memcpy(m->lower, m->precision, cells * sizeof(double));
    if (factor(m->lower, d) != 0)
        return -1;
    solve_lower(m->lower, m->step, d);
    *squared = dot(m->step, m->step, d);
    solve_upper(m->lower, m->step, d);
    return 0;
}

static void
add(const double *a, const double *b, int n, double *out)
{
    for (int i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

/* Moves m->mode by Newton steps, each halved while it leads down, until one is short.
 * m->precision is then that at the place before the last step. */
static int
find_mode(const Target *t, const Score *s, const ThetaChain *c, Memory *m)
{
    const int d = t->d;
    double height = log_density(t, s, c, m, m->mode), squared = 0.0;
    for (int k = 0; k < NEWTON_STEPS; k++) {
        double value = NAN;
        if (normal_at(t, s, c, m, m->mode, &squared) != 0)
            return -1;
        for (int halving = 0; halving <= HALVINGS; halving++) {
            add(m->mode, m->step, d, m->proposed);
            value = log_density(t, s, c, m, m->proposed);
            if (value >= height)
                break;
            for (int i = 0; i < d; i++)
                m->step[i] *= 0.5;
        }
        if (value >= height) {
            memcpy(m->mode, m->proposed, (size_t)d * sizeof(double));
            height = value;
        }
        if (squared < NEAR_ENOUGH)
            return 0;
    }
    return normal_at(t, s, c, m, m->mode, &squared);
}

static double
log_ratio(const Target *t, const Score *s, const ThetaChain *c, Memory *m,
          const double *away, double kept)
{
    add(m->mode, away, t->d, m->other);
    const double value = log_density(t, s, c, m, m->other);
    times_vector(m->precision, away, t->d, t->d, m->solved);
    return value + 0.5 * kept * dot(away, m->solved, t->d);
}

/* One elliptical slice update of m->theta, which is theta less the mode. */
static void
slice(const Target *t, const Score *s, const ThetaChain *c, Memory *m, int which)
{
    const int d = t->d;
    const double kept = t->kept[which], *angles = c->angles + (size_t)which * t->tries;
    const double level = log_ratio(t, s, c, m, m->theta, kept) + log(c->levels[which]);
    double *ellipse = m->step;
    memcpy(ellipse, c->white + (size_t)which * d, (size_t)d * sizeof(double));
    solve_upper(m->lower, ellipse, d);
    for (int i = 0; i < d; i++)
        ellipse[i] /= sqrt(kept);
    double angle = TWO_PI * angles[0], low = angle - TWO_PI, high = angle;
    for (int k = 1; k <= t->tries; k++) {
        const double cosine = cos(angle), sine = sin(angle);
        for (int i = 0; i < d; i++)
            m->proposed[i] = m->theta[i] * cosine + ellipse[i] * sine;
        if (log_ratio(t, s, c, m, m->proposed, kept) > level) {
            memcpy(m->theta, m->proposed, (size_t)d * sizeof(double));
            return;
        }
        if (k == t->tries)
            return;
        if (angle < 0.0)
            low = angle;
        else
            high = angle;
        angle = low + (high - low) * angles[k];
    }
}

int
slice_chain(const Target *t, const Score *s, const ThetaChain *c, double *memory)
{
    const int d = t->d;
    Memory m;
    Arena arena = {memory, 0};
    lay_out_slicing(&m, &arena, d);
    if (spread_at(t, c, &m, 1.0) != 0)
        return -1;
    memcpy(m.mode, c->mode, (size_t)d * sizeof(double));
    if (find_mode(t, s, c, &m) != 0)
        return -1;
    for (int i = 0; i < d; i++)
        m.theta[i] = c->theta[i] - m.mode[i];
    for (int which = 0; which < t->slices; which++)
        slice(t, s, c, &m, which);
    add(m.mode, m.theta, d, c->theta);
    memcpy(c->mode, m.mode, (size_t)d * sizeof(double));
    return 0;
}
