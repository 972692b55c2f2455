/* exp(S) of a symmetric S, and the gradient by S of what has a known one by exp(S).
 *
 * exp(S) = T(S / 2^s)^(2^s) with T the Taylor polynomial of degree 8, in three products
 * (Bader, Blanes and Casas 2019, Computing the matrix exponential with an optimized
 * Taylor polynomial approximation), which is quicker than eigenvalues; the gradient goes
 * back through the same products.  All of them are of matrices that commute, so that
 * everything stays symmetric.  Where S is large eigenvalues are found after all, and
 * held within e^+-12; the gradient is then Daleckii and Krein's.
 */
#include <math.h>
#include <string.h>

#include "loops.h"

#define LARGEST_LOG 12.0
/* Largest norm of S / 2^s: what T leaves out is below 2e-14 of exp. */
#define SMALL_NORM 0.125
#define LARGEST_NORM (SMALL_NORM * (1 << MOST_SQUARINGS))

/* With r = sqrt(177): 2 (1 + r) / 264, and so on. */
static const double X1 = 0.1083646567852278, X2 = 0.02709116419630695;
static const double X3 = 0.6666666666666666, X4 = 0.546761457970724;
static const double X5 = 0.16112557339541758, X6 = 0.014090917158378206;
static const double X7 = 0.0337927970108705, Y2 = 0.13549236135285073;

static size_t
cells_of(const Exponential *x)
{
    return (size_t)x->n * x->n;
}

void
lay_out_exponential(Exponential *x, Arena *arena, int n)
{
    const size_t cells = (size_t)n * n;
    x->n = n;
    x->eigen_size = (int)(1 + 6 * n + 2 * cells);
    x->whole_size = 3 + 5 * n;
    x->scaled = piece(arena, cells);
    x->square = piece(arena, cells);
    x->fourth = piece(arena, cells);
    x->left = piece(arena, cells);
    x->right = piece(arena, cells);
    x->factor = piece(arena, cells);
    x->spare = piece(arena, cells);
    for (int k = 0; k < 5; k++)
        x->by[k] = piece(arena, cells);
    for (int k = 0; k <= MOST_SQUARINGS; k++)
        x->power[k] = piece(arena, cells);
    x->values = piece(arena, n);
    x->eigen = piece(arena, x->eigen_size);
    x->whole = (int *)piece(arena, x->whole_size);
}

/* An upper bound of the largest absolute eigenvalue of S, from S squared. */
static double
norm_bound(const double *square, int n)
{
    double largest = 0.0;
    for (int i = 0; i < n; i++) {
        double sum = 0.0;
        for (int j = 0; j < n; j++)
            sum += fabs(square[(size_t)i * n + j]);
        largest = fmax(largest, sum);
    }
    return sqrt(largest);
}

/* T(S / 2^s), squared s times. */
static void
by_series(Exponential *x, const double *s)
{
    const int n = x->n;
    const size_t cells = cells_of(x);
    const double scale = ldexp(1.0, -x->squarings);
    for (size_t i = 0; i < cells; i++) {
        x->scaled[i] = scale * s[i];
        x->square[i] *= scale * scale;
        x->factor[i] = X1 * x->scaled[i] + X2 * x->square[i];
    }
    product(x->square, x->factor, n, n, n, x->fourth);
    for (size_t i = 0; i < cells; i++) {
        x->left[i] = X3 * x->square[i] + x->fourth[i];
        x->right[i] = X5 * x->scaled[i] + X6 * x->square[i] + X7 * x->fourth[i];
    }
    for (int i = 0; i < n; i++)
        x->right[(size_t)i * n + i] += X4;
    product(x->left, x->right, n, n, n, x->power[0]);
    for (size_t i = 0; i < cells; i++)
        x->power[0][i] += x->scaled[i] + Y2 * x->square[i];
    for (int i = 0; i < n; i++)
        x->power[0][(size_t)i * n + i] += 1.0;
    for (int k = 0; k < x->squarings; k++)
        product(x->power[k], x->power[k], n, n, n, x->power[k + 1]);
}

/* Row k of x->scaled becomes the k-th eigenvector. */
static int
by_eigenvalues(Exponential *x, const double *s, double *out)
{
    int info = 0, n = x->n;
    memcpy(x->scaled, s, cells_of(x) * sizeof(double));
    library.syevd("V", "U", &n, x->scaled, &n, x->values, x->eigen, &x->eigen_size,
                  x->whole, &x->whole_size, &info);
    if (info != 0)
        return info;
    for (int k = 0; k < n; k++) {
        x->values[k] = fmin(fmax(x->values[k], -LARGEST_LOG), LARGEST_LOG);
        const double root = exp(0.5 * x->values[k]);
        for (int j = 0; j < n; j++)
            x->spare[(size_t)k * n + j] = root * x->scaled[(size_t)k * n + j];
    }
    gram(x->spare, n, n, out);
    return 0;
}

int
exponential(Exponential *x, const double *s, double *out)
{
    const int n = x->n;
    product(s, s, n, n, n, x->square);
    const double bound = norm_bound(x->square, n);
    x->squarings = -1;
    if (!(bound <= LARGEST_NORM))
        return by_eigenvalues(x, s, out);
    x->squarings = 0;
    for (double norm = bound; norm > SMALL_NORM; norm *= 0.5)
        x->squarings++;
    by_series(x, s);
    memcpy(out, x->power[x->squarings], cells_of(x) * sizeof(double));
    return 0;
}

/* out += weight (A B + B A) / 2 of symmetric A and B. */
static void
add_product(Exponential *x, const double *a, const double *b, double weight, double *out)
{
    const int n = x->n;
    product(a, b, n, n, n, x->spare);
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            const size_t at = (size_t)i * n + j, across = (size_t)j * n + i;
            const double sum = 0.5 * weight * (x->spare[at] + x->spare[across]);
            out[at] += sum;
            if (at != across)
                out[across] += sum;
        }
}

/* Back through the products of by_series(); `by` becomes the gradient by S. */
static void
back_through_series(Exponential *x, double *by)
{
    const size_t cells = cells_of(x), bytes = cells * sizeof(double);
    double *by_left = x->by[0], *by_right = x->by[1], *by_square = x->by[2];
    double *by_fourth = x->by[3], *by_factor = x->by[4];
    for (int k = x->squarings - 1; k >= 0; k--) {
        memset(by_left, 0, bytes);
        add_product(x, by, x->power[k], 2.0, by_left);
        memcpy(by, by_left, bytes);
    }
    for (int k = 0; k < 5; k++)
        memset(x->by[k], 0, bytes);
    add_product(x, x->right, by, 1.0, by_left);
    add_product(x, x->left, by, 1.0, by_right);
    for (size_t i = 0; i < cells; i++) {
        by_square[i] = Y2 * by[i] + X3 * by_left[i] + X6 * by_right[i];
        by_fourth[i] = by_left[i] + X7 * by_right[i];
        by[i] += X5 * by_right[i];
    }
    add_product(x, x->factor, by_fourth, 1.0, by_square);
    add_product(x, x->square, by_fourth, 1.0, by_factor);
    for (size_t i = 0; i < cells; i++) {
        by_square[i] += X2 * by_factor[i];
        by[i] += X1 * by_factor[i];
    }
    add_product(x, x->scaled, by_square, 2.0, by);
    const double scale = ldexp(1.0, -x->squarings);
    for (size_t i = 0; i < cells; i++)
        by[i] *= scale;
}

/* (e^a - e^b) / (a - b) of two eigenvalues. */
static double
divided_difference(double a, double b)
{
    const double half = 0.5 * (a - b), middle = exp(0.5 * (a + b));
    if (fabs(half) < 1e-4)
        return middle * (1.0 + half * half / 6.0);
    return middle * (sinh(half) / half);
}

/* The formula of Daleckii and Krein, in the eigenbasis of S. */
static void
back_through_eigenvalues(Exponential *x, double *by)
{
    const int n = x->n;
    const double *vectors = x->scaled;
    double *turned = x->by[0], *inner = x->by[1];
    product(vectors, by, n, n, n, turned);
    product_transposed(turned, vectors, n, n, n, inner);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            inner[(size_t)i * n + j] *= divided_difference(x->values[i], x->values[j]);
    transposed_product(vectors, inner, n, n, n, turned);
    product(turned, vectors, n, n, n, by);
}

void
back_through_exponential(Exponential *x, double *by)
{
    if (x->squarings < 0)
        back_through_eigenvalues(x, by);
    else
        back_through_series(x, by);
}
