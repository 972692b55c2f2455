/* Small dense linear algebra in rows, by BLAS and LAPACK or by plain loops.
 *
 * LAPACK counts in columns: a matrix in rows is its transpose there, so factors
 * change sides ("U" there is the lower half here).
 */
#include <math.h>
#include <string.h>

#include "loops.h"

/* Up to this size a loop is quicker than a call. */
#define SMALL 12

Library library;

VECTORISED double
dot(const double *restrict a, const double *restrict b, int n)
{
    double lanes[8] = {0};
    const int whole = n - n % 8;
    for (int i = 0; i < whole; i += 8)
        for (int l = 0; l < 8; l++)
            lanes[l] += a[i + l] * b[i + l];
    for (int i = whole; i < n; i++)
        lanes[i - whole] += a[i] * b[i];
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6]))
         + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void
times_vector(const double *a, const double *v, int n, int m, double *out)
{
    for (int i = 0; i < n; i++)
        out[i] = dot(a + (size_t)i * m, v, m);
}

VECTORISED void
transposed_times_vector(const double *restrict a, const double *restrict v, int n,
                        int m, double *restrict out)
{
    memset(out, 0, (size_t)m * sizeof(double));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            out[j] += v[i] * a[(size_t)i * m + j];
}

VECTORISED static void
small_product(const double *restrict a, const double *restrict b, int n, int k, int m,
            int step, int jump, double *restrict out)
{
    for (int i = 0; i < n; i++) {
        double *row = out + i * m;
        memset(row, 0, (size_t)m * sizeof(double));
        for (int l = 0; l < k; l++) {
            const double left = a[i * step + l * jump];
            for (int j = 0; j < m; j++)
                row[j] += left * b[l * m + j];
        }
    }
}

void
product(const double *a, const double *b, int n, int k, int m, double *out)
{
    double one = 1.0, zero = 0.0;
    if (k <= SMALL && m <= SMALL) {
        small_product(a, b, n, k, m, k, 1, out);
        return;
    }
    library.gemm("N", "N", &m, &n, &k, &one, (double *)b, &m, (double *)a, &k, &zero,
                 out, &m);
}

void
product_transposed(const double *a, const double *b, int n, int k, int m, double *out)
{
    double one = 1.0, zero = 0.0;
    library.gemm("T", "N", &m, &n, &k, &one, (double *)b, &k, (double *)a, &k, &zero,
                 out, &m);
}

void
transposed_product(const double *a, const double *b, int n, int k, int m, double *out)
{
    double one = 1.0, zero = 0.0;
    if (k <= SMALL && m <= SMALL) {
        small_product(a, b, n, k, m, 1, n, out);
        return;
    }
    library.gemm("N", "T", &m, &n, &k, &one, (double *)b, &m, (double *)a, &n, &zero,
                 out, &m);
}

void
gram(const double *a, int k, int n, double *out)
{
    double one = 1.0, zero = 0.0;
    if (n <= SMALL && k <= SMALL) {
        small_product(a, a, n, k, n, 1, n, out);
        return;
    }
    library.syrk("U", "N", &n, &k, &one, (double *)a, &n, &zero, out, &n);
    mirror(out, n);
}

/* The upper half becomes the lower one. */
void
mirror(double *a, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = 0; j < i; j++)
            a[(size_t)j * n + i] = a[(size_t)i * n + j];
}

int
factor(double *a, int n)
{
    int info = 0;
    library.potrf("U", &n, a, &n, &info);
    return info;
}

double
log_determinant(const double *lower, int n)
{
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += log(lower[(size_t)i * n + i]);
    return 2.0 * sum;
}

int
inverse_of_factor(double *a, int n)
{
    int info = 0;
    library.potri("U", &n, a, &n, &info);
    mirror(a, n);
    return info;
}

void
solve_lower(const double *lower, double *v, int n)
{
    for (int i = 0; i < n; i++) {
        const double *row = lower + (size_t)i * n;
        v[i] = (v[i] - dot(row, v, i)) / row[i];
    }
}

void
solve_upper(const double *lower, double *v, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        const double *row = lower + (size_t)i * n;
        const double x = v[i] /= row[i];
        for (int j = 0; j < i; j++)
            v[j] -= row[j] * x;
    }
}

void
solve_lower_matrix(const double *lower, double *a, int n, int m)
{
    double one = 1.0;
    /* L X = A in rows is X'L' = A' in columns. */
    library.trsm("R", "U", "N", "N", &m, &n, &one, (double *)lower, &n, a, &m);
}
