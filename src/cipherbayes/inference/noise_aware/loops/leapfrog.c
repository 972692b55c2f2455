/* Trajectories of HMC, of chains side by side.
 *
 * With M M' the inverse of the mass and z the momentum in its units,
 *     z += step / 2 M'g,   x += step M z,   z += step / 2 M'g.
 * Chains share a metric that is too large for a near cache: it is kept in single
 * precision (any M is as right as any other), and each of its rows is read once for all
 * chains.  What is computed of one chain does not depend on the others.
 */
#include <math.h>
#include <string.h>

#include "loops.h"

#define LARGEST_COORDINATE 1e3
/* Rows of the metric taken together. */
#define ROWS 4

/* sum_j a_j v_j of ROWS rows at once. */
VECTORISED static void
dots(const float *restrict a, size_t stride, const double *restrict v, int n,
     double *restrict out)
{
    double lanes[ROWS][8] = {{0}};
    const int whole = n - n % 8;
    for (int j = 0; j < whole; j += 8)
        for (int r = 0; r < ROWS; r++)
            for (int l = 0; l < 8; l++)
                lanes[r][l] += a[r * stride + j + l] * v[j + l];
    for (int r = 0; r < ROWS; r++) {
        double sum = 0.0;
        for (int j = whole; j < n; j++)
            lanes[r][j - whole] += a[r * stride + j] * v[j];
        for (int l = 0; l < 8; l++)
            sum += lanes[r][l];
        out[r] = sum;
    }
}

/* out += sum_r w_r a_r of ROWS rows at once. */
VECTORISED static void
add_rows(const float *restrict a, size_t stride, const double *restrict w, int n,
         double *restrict out)
{
    const float *b = a + stride, *c = b + stride, *d = c + stride;
    for (int j = 0; j < n; j++)
        out[j] += (w[0] * a[j] + w[1] * b[j]) + (w[2] * c[j] + w[3] * d[j]);
}

/* out = M v of every chain. */
static void
forward(const float *metric, int n, int chains, const double *v, double *out)
{
    int i = 0;
    for (; i + ROWS <= n; i += ROWS)
        for (int c = 0; c < chains; c++)
            dots(metric + (size_t)i * n + i, n, v + (size_t)c * n + i, n - i,
                 out + (size_t)c * n + i);
    for (; i < n; i++)
        for (int c = 0; c < chains; c++) {
            double sum = 0.0;
            for (int j = i; j < n; j++)
                sum += metric[(size_t)i * n + j] * v[(size_t)c * n + j];
            out[(size_t)c * n + i] = sum;
        }
}

/* out = M'v of every chain. */
static void
backward(const float *metric, int n, int chains, const double *v, double *out)
{
    int i = 0;
    memset(out, 0, (size_t)chains * n * sizeof(double));
    for (; i + ROWS <= n; i += ROWS)
        for (int c = 0; c < chains; c++)
            add_rows(metric + (size_t)i * n + i, n, v + (size_t)c * n + i, n - i,
                     out + (size_t)c * n + i);
    for (; i < n; i++)
        for (int c = 0; c < chains; c++)
            for (int j = i; j < n; j++)
                out[(size_t)c * n + j] += v[(size_t)c * n + i] * metric[(size_t)i * n + j];
}

static size_t
lay_out_all(const Problem *q, int chains, double *memory, Work *work, double **gradient,
            double **way)
{
    Arena arena = {memory, 0};
    lay_out(work, &arena, q);
    *gradient = piece(&arena, (size_t)chains * q->moved);
    *way = piece(&arena, (size_t)chains * q->moved);
    return arena.used;
}

size_t
trajectory_memory(const Problem *q, int chains)
{
    Work work;
    double *gradient, *way;
    return lay_out_all(q, chains, NULL, &work, &gradient, &way);
}

/* A chain whose density is zero somewhere on its trajectory is lost and will be refused.
 * That is right: the trajectory back from its end would be refused too.  From then on no
 * force moves it. */
static void
evaluate(const Problem *q, const Trajectories *t, int c, Work *work, double *gradient,
         double *value)
{
    const size_t cells = (size_t)q->d * q->d;
    double *slope = gradient + (size_t)c * q->moved;
    *value = NAN;
    if (!isnan(t->gain[c])) {
        *value = density(q, t->law + c, work, t->moved + (size_t)c * q->moved, slope,
                         t->built + c * cells);
        if (isfinite(*value))
            return;
        t->gain[c] = NAN;
    }
    memset(slope, 0, (size_t)q->moved * sizeof(double));
}

static void
push(const Trajectories *t, int n, const double *force)
{
    for (int c = 0; c < t->chains; c++)
        for (int j = 0; j < n; j++)
            t->momentum[(size_t)c * n + j] += 0.5 * t->step[c] * force[(size_t)c * n + j];
}

static void
go(const Trajectories *t, int n, const double *way)
{
    for (int c = 0; c < t->chains; c++)
        for (int j = 0; j < n; j++) {
            double *x = t->moved + (size_t)c * n + j;
            *x += t->step[c] * way[(size_t)c * n + j];
            if (!(fabs(*x) < LARGEST_COORDINATE)) {
                *x = 0.0;
                t->gain[c] = NAN;
            }
        }
}

void
leapfrog(const Problem *q, const Trajectories *t, double *memory)
{
    const int n = q->moved;
    Work work;
    double *gradient, *way, value;
    lay_out_all(q, t->chains, memory, &work, &gradient, &way);
    for (int c = 0; c < t->chains; c++) {
        const double *z = t->momentum + (size_t)c * n;
        t->gain[c] = 0.0;
        evaluate(q, t, c, &work, gradient, &value);
        t->gain[c] -= value - 0.5 * dot(z, z, n);
    }
    backward(t->metric, n, t->chains, gradient, way);
    for (int leap = 0; leap < t->leaps; leap++) {
        push(t, n, way);
        forward(t->metric, n, t->chains, t->momentum, way);
        go(t, n, way);
        for (int c = 0; c < t->chains; c++) {
            evaluate(q, t, c, &work, gradient, &value);
            if (leap == t->leaps - 1)
                t->gain[c] += value;
        }
        backward(t->metric, n, t->chains, gradient, way);
        push(t, n, way);
    }
    for (int c = 0; c < t->chains; c++) {
        const double *z = t->momentum + (size_t)c * n;
        t->gain[c] -= 0.5 * dot(z, z, n);
    }
}
