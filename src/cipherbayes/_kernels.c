/* Inner loops of a gradient pass over blocks of float64, without the GIL.
 *
 * A block x has shape (p, m): one row per design column, each row contiguous,
 * rows any distance apart, so that a slice x[:, a:b] needs no copy.  Every loop
 * adds in one fixed order: on one machine a sum always has the same bits.  Built
 * without fused multiply-add (setup.py), so that what is computed of one record has
 * the same bits in the vectorised body of a loop and in its tail.  NaN propagates.  GNU C (gcc, clang); other compilers leave the work to numpy.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <float.h>
#include <math.h>
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

typedef double lanes __attribute__((vector_size(32), aligned(8), may_alias));
#define LOAD(pointer) (*(const lanes *)(pointer))

/* out_i = sum_j theta_j x_ji, four columns at a time. */
VECTORISED static void
predict(const double *restrict theta, const double *restrict x, Py_ssize_t stride,
        Py_ssize_t p, Py_ssize_t m, double *restrict out)
{
    Py_ssize_t j = 0;
    memset(out, 0, (size_t)m * sizeof(double));
    for (; j + 4 <= p; j += 4) {
        const double *a = x + j * stride, *b = a + stride;
        const double *c = b + stride, *d = c + stride;
        const double ta = theta[j], tb = theta[j + 1];
        const double tc = theta[j + 2], td = theta[j + 3];
        for (Py_ssize_t i = 0; i < m; i++)
            out[i] += (ta * a[i] + tb * b[i]) + (tc * c[i] + td * d[i]);
    }
    for (; j < p; j++) {
        const double *a = x + j * stride, ta = theta[j];
        for (Py_ssize_t i = 0; i < m; i++)
            out[i] += ta * a[i];
    }
}

/* out_i = sum_j x_ji^2, four columns at a time. */
VECTORISED static void
square(const double *restrict x, Py_ssize_t stride, Py_ssize_t p, Py_ssize_t m,
       double *restrict out)
{
    Py_ssize_t j = 0;
    memset(out, 0, (size_t)m * sizeof(double));
    for (; j + 4 <= p; j += 4) {
        const double *a = x + j * stride, *b = a + stride;
        const double *c = b + stride, *d = c + stride;
        for (Py_ssize_t i = 0; i < m; i++)
            out[i] += (a[i] * a[i] + b[i] * b[i]) + (c[i] * c[i] + d[i] * d[i]);
    }
    for (; j < p; j++) {
        const double *a = x + j * stride;
        for (Py_ssize_t i = 0; i < m; i++)
            out[i] += a[i] * a[i];
    }
}

/* sum_i a_i w_i: lane l adds the terms i = l, l + 8, ...; the lanes are added last. */
static inline double
finish(lanes low, lanes high, const double *a, const double *w, Py_ssize_t whole,
       Py_ssize_t m)
{
    double sum[8];
    memcpy(sum, &low, sizeof low);
    memcpy(sum + 4, &high, sizeof high);
    for (Py_ssize_t i = whole; i < m; i++)
        sum[i - whole] += a[i] * w[i];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6]))
         + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/* out_j = sum_i x_ji w_i, four columns at a time so that w is read once for four. */
VECTORISED static void
weigh(const double *restrict x, Py_ssize_t stride, Py_ssize_t p, Py_ssize_t m,
      const double *restrict w, double *restrict out)
{
    const Py_ssize_t whole = m - m % 8;
    Py_ssize_t j = 0;
    for (; j + 4 <= p; j += 4) {
        const double *a = x + j * stride, *b = a + stride;
        const double *c = b + stride, *d = c + stride;
        lanes a0 = {0}, b0 = {0}, c0 = {0}, d0 = {0};
        lanes a1 = {0}, b1 = {0}, c1 = {0}, d1 = {0};
        for (Py_ssize_t i = 0; i < whole; i += 8) {
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
        out[j] = finish(a0, a1, a, w, whole, m);
        out[j + 1] = finish(b0, b1, b, w, whole, m);
        out[j + 2] = finish(c0, c1, c, w, whole, m);
        out[j + 3] = finish(d0, d1, d, w, whole, m);
    }
    for (; j < p; j++) {
        const double *a = x + j * stride;
        lanes a0 = {0}, a1 = {0};
        for (Py_ssize_t i = 0; i < whole; i += 8) {
            a0 += LOAD(a + i) * LOAD(w + i);
            a1 += LOAD(a + i + 4) * LOAD(w + i + 4);
        }
        out[j] = finish(a0, a1, a, w, whole, m);
    }
}

/* out_i = s_i, shortened to limit / r_i where |s_i| r_i > limit; 0 where that is
 * not finite.  r_i = sqrt(n_i + floor): floor keeps r_i > 0 and covers squares
 * that underflowed. */
VECTORISED static void
clip(const double *restrict score, const double *restrict norms2, double limit,
     double floor2, Py_ssize_t m, double *restrict out)
{
    for (Py_ssize_t i = 0; i < m; i++) {
        const double root = sqrt(norms2[i] + floor2);
        const double size = fabs(score[i]) * root;
        const double shortened = copysign(limit / root, score[i]);
        const double kept = size <= limit ? score[i] : shortened;
        out[i] = size <= DBL_MAX ? kept : 0.0;
    }
}

/* out_i = (v_i - centre) * scale held within [-1, 1]; returns how many v_i are NaN
 * or infinite. */
VECTORISED static Py_ssize_t
prepare(const double *restrict values, double centre, double scale, Py_ssize_t m,
        double *restrict out)
{
    int64_t finite = 0;
    for (Py_ssize_t i = 0; i < m; i++) {
        const double z = (values[i] - centre) * scale;
        const double above = z < -1.0 ? -1.0 : z;
        out[i] = above > 1.0 ? 1.0 : above;
        finite += fabs(values[i]) <= DBL_MAX;
    }
    return m - (Py_ssize_t)finite;
}

/* out_i = 1 / (1 + exp(-x_i)).  With -x = k log 2 + r, |r| <= log(2) / 2, and
 * c = r coth(r / 2), exp(r) = (c + r) / (c - r): one division does for both. */
VECTORISED static void
logistic(const double *restrict x, Py_ssize_t m, double *restrict out)
{
    /* Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits. */
    const double magic = 6755399441055744.0, log2e = 1.4426950408889634;
    const double log2_high = 0x1.62e42feep-1, log2_low = 0x1.a39ef35793c76p-33;
    for (Py_ssize_t i = 0; i < m; i++) {
        double v = -x[i], power;
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
        out[i] = (c - r) / ((c - r) + power * (c + r));
    }
}

/* ------------------------------------------------------------ Python's side */

/* Borrow a float64 array of `dims` dimensions whose last axis is contiguous. */
static int
borrow(PyObject *object, int dims, int writable, Py_buffer *view)
{
    const int flags = PyBUF_FORMAT | PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    const int plain = view->ndim == dims && view->itemsize == 8
        && view->format != NULL && strcmp(view->format, "d") == 0
        && (view->shape[dims - 1] <= 1 || view->strides[dims - 1] == 8)
        && (dims == 1 || view->shape[0] <= 1 || view->strides[0] % 8 == 0);
    if (!plain) {
        PyBuffer_Release(view);
        PyErr_Format(PyExc_ValueError,
                     "expected float64 of %d dimension(s) with contiguous rows", dims);
        return -1;
    }
    return 0;
}

static void
release_all(int count, Py_buffer *views)
{
    while (count-- > 0)
        PyBuffer_Release(views + count);
}

/* Borrow arrays: '1' or '2' dimensions to read, 'w' for one dimension to write. */
static int
borrow_all(PyObject *const *objects, const char *kinds, Py_buffer *views)
{
    for (int k = 0; kinds[k]; k++) {
        if (borrow(objects[k], kinds[k] == '2' ? 2 : 1, kinds[k] == 'w', views + k) < 0) {
            release_all(k, views);
            return -1;
        }
    }
    return 0;
}

static PyObject *
mismatch(int count, Py_buffer *views)
{
    release_all(count, views);
    PyErr_SetString(PyExc_ValueError, "the arrays' lengths do not match");
    return NULL;
}

static int
arity(Py_ssize_t given, Py_ssize_t expected)
{
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments", expected);
    return -1;
}

static PyObject *
py_linear_predictor(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[3];
    (void)self;
    if (arity(count, 3) < 0 || borrow_all(args, "12w", v) < 0)
        return NULL;
    const Py_ssize_t p = v[1].shape[0], m = v[1].shape[1];
    if (v[0].shape[0] != p || v[2].shape[0] != m)
        return mismatch(3, v);
    Py_BEGIN_ALLOW_THREADS
    predict(v[0].buf, v[1].buf, v[1].strides[0] / 8, p, m, v[2].buf);
    Py_END_ALLOW_THREADS
    release_all(3, v);
    Py_RETURN_NONE;
}

static PyObject *
py_weighted_sum(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[3];
    (void)self;
    if (arity(count, 3) < 0 || borrow_all(args, "21w", v) < 0)
        return NULL;
    const Py_ssize_t p = v[0].shape[0], m = v[0].shape[1];
    if (v[1].shape[0] != m || v[2].shape[0] != p)
        return mismatch(3, v);
    Py_BEGIN_ALLOW_THREADS
    weigh(v[0].buf, v[0].strides[0] / 8, p, m, v[1].buf, v[2].buf);
    Py_END_ALLOW_THREADS
    release_all(3, v);
    Py_RETURN_NONE;
}

static PyObject *
py_clip_scores(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[3];
    (void)self;
    if (arity(count, 5) < 0)
        return NULL;
    const double limit = PyFloat_AsDouble(args[3]), floor2 = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred() || borrow_all(args, "11w", v) < 0)
        return NULL;
    const Py_ssize_t m = v[0].shape[0];
    if (v[1].shape[0] != m || v[2].shape[0] != m)
        return mismatch(3, v);
    Py_BEGIN_ALLOW_THREADS
    clip(v[0].buf, v[1].buf, limit, floor2, m, v[2].buf);
    Py_END_ALLOW_THREADS
    release_all(3, v);
    Py_RETURN_NONE;
}

static PyObject *
py_squared_norms(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[2];
    (void)self;
    if (arity(count, 2) < 0 || borrow_all(args, "2w", v) < 0)
        return NULL;
    if (v[1].shape[0] != v[0].shape[1])
        return mismatch(2, v);
    Py_BEGIN_ALLOW_THREADS
    square(v[0].buf, v[0].strides[0] / 8, v[0].shape[0], v[0].shape[1], v[1].buf);
    Py_END_ALLOW_THREADS
    release_all(2, v);
    Py_RETURN_NONE;
}

static PyObject *
py_prepare_column(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[2];
    Py_ssize_t unusable;
    (void)self;
    if (arity(count, 4) < 0)
        return NULL;
    const double centre = PyFloat_AsDouble(args[2]), scale = PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred() || borrow_all(args, "1w", v) < 0)
        return NULL;
    if (v[1].shape[0] != v[0].shape[0])
        return mismatch(2, v);
    Py_BEGIN_ALLOW_THREADS
    unusable = prepare(v[0].buf, centre, scale, v[0].shape[0], v[1].buf);
    Py_END_ALLOW_THREADS
    release_all(2, v);
    return PyLong_FromSsize_t(unusable);
}

static PyObject *
py_expit(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[2];
    (void)self;
    if (arity(count, 2) < 0 || borrow_all(args, "1w", v) < 0)
        return NULL;
    if (v[1].shape[0] != v[0].shape[0])
        return mismatch(2, v);
    Py_BEGIN_ALLOW_THREADS
    logistic(v[0].buf, v[0].shape[0], v[1].buf);
    Py_END_ALLOW_THREADS
    release_all(2, v);
    Py_RETURN_NONE;
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FUNCTION(linear_predictor), FUNCTION(weighted_sum), FUNCTION(clip_scores),
    FUNCTION(squared_norms), FUNCTION(prepare_column), FUNCTION(expit), {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__kernels(void)
{
    return PyModuleDef_Init(&definition);
}
