/* Polynomials modulo X^n + 1 and a prime p < 2^62: transforms, and what BFV and CKKS
 * do with coefficients.  Exact integers, no randomness.
 * Arrays are borrowed, lengths checked, and the GIL is released while a loop runs.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 wide;

/* x less m where x is not below m. */
static inline uint64_t
less(uint64_t x, uint64_t m)
{
    return x - (m & -(uint64_t)(x >= m));
}

/* x w modulo p, below 2 p, for w < p and any x, given q = floor(2^64 w / p) (Shoup). */
static inline uint64_t
nearly(uint64_t x, uint64_t w, uint64_t q, uint64_t p)
{
    return x * w - (uint64_t)(((wide)x * q) >> 64) * p;
}

static inline uint64_t
times(uint64_t x, uint64_t w, uint64_t q, uint64_t p)
{
    return less(nearly(x, w, q, p), p);
}

static inline uint64_t
plus(uint64_t a, uint64_t b, uint64_t p)
{
    return less(a + b, p);
}

/* Values at the odd powers of a root, in bit-reversed order; w_i is the root to the
 * power of i reversed, q_i its quotient (Longa and Naehrig 2016, algorithm 1).  Between
 * the steps numbers are below 4 p only (Harvey 2014). */
static void
forward(uint64_t *a, const uint64_t *w, const uint64_t *q, size_t n, uint64_t p)
{
    const uint64_t twice = 2 * p;
    size_t width = n;
    for (size_t m = 1; m < n; m <<= 1) {
        width >>= 1;
        for (size_t i = 0; i < m; i++) {
            const uint64_t root = w[m + i], quotient = q[m + i];
            uint64_t *low = a + 2 * i * width, *high = low + width;
            for (size_t j = 0; j < width; j++) {
                const uint64_t u = less(low[j], twice);
                const uint64_t v = nearly(high[j], root, quotient, p);
                low[j] = u + v;
                high[j] = u - v + twice;
            }
        }
    }
    for (size_t j = 0; j < n; j++)
        a[j] = less(less(a[j], twice), p);
}

/* The inverse, with the inverses of the roots at the same places and 1 / n at place 0
 * (algorithm 2).  Between the steps numbers are below 2 p. */
static void
inverse(uint64_t *a, const uint64_t *w, const uint64_t *q, size_t n, uint64_t p)
{
    const uint64_t twice = 2 * p;
    size_t width = 1;
    for (size_t m = n >> 1; m >= 1; m >>= 1) {
        for (size_t i = 0; i < m; i++) {
            const uint64_t root = w[m + i], quotient = q[m + i];
            uint64_t *low = a + 2 * i * width, *high = low + width;
            for (size_t j = 0; j < width; j++) {
                const uint64_t u = low[j], v = high[j];
                low[j] = less(u + v, twice);
                high[j] = nearly(u - v + twice, root, quotient, p);
            }
        }
        width <<= 1;
    }
    for (size_t j = 0; j < n; j++)
        a[j] = times(a[j], w[0], q[0], p);
}

/* Borrow arrays of n 64-bit integers each, n a power of two; the first `writable` to write. */
static Py_ssize_t
borrow(PyObject *const *objects, int count, int writable, Py_buffer *views)
{
    for (int k = 0; k < count; k++) {
        const int flags = PyBUF_FORMAT | PyBUF_ND | (k < writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(objects[k], views + k, flags) < 0) {
            while (k-- > 0)
                PyBuffer_Release(views + k);
            return -1;
        }
        const Py_buffer *v = views + k;
        const Py_ssize_t n = v->ndim == 1 ? v->shape[0] : 0;
        const int plain = v->itemsize == 8 && v->format != NULL
            && strchr("LQlq", v->format[0]) != NULL && v->format[1] == 0
            && n >= 2 && (n & (n - 1)) == 0 && n == views[0].shape[0];
        if (!plain) {
            for (; k >= 0; k--)
                PyBuffer_Release(views + k);
            PyErr_SetString(PyExc_ValueError,
                            "expected 64-bit integers, vectors of one length, a power of two");
            return -1;
        }
    }
    return views[0].shape[0];
}

static PyObject *
give_back(int count, Py_buffer *views)
{
    while (count-- > 0)
        PyBuffer_Release(views + count);
    Py_RETURN_NONE;
}

/* A modulus from 3 to 2^62, or 0 with an error. */
static uint64_t
modulus(PyObject *object)
{
    const uint64_t p = PyLong_AsUnsignedLongLong(object);
    if (PyErr_Occurred())
        return 0;
    if (p < 3 || p >> 62) {
        PyErr_SetString(PyExc_ValueError, "a modulus is from 3 to 2^62");
        return 0;
    }
    return p;
}

static int
arity(Py_ssize_t given, Py_ssize_t expected)
{
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments", expected);
    return -1;
}

/* quotients(out, values, p): floor(2^64 v / p) of values below p. */
static PyObject *
py_quotients(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[2];
    (void)self;
    if (arity(count, 3) < 0)
        return NULL;
    const uint64_t p = modulus(args[2]);
    const Py_ssize_t n = p ? borrow(args, 2, 1, v) : -1;
    if (n < 0)
        return NULL;
    uint64_t *out = v[0].buf;
    const uint64_t *values = v[1].buf;
    for (Py_ssize_t i = 0; i < n; i++)
        out[i] = (uint64_t)(((wide)(values[i] % p) << 64) / p);
    return give_back(2, v);
}

static PyObject *
transformed(PyObject *const *args, Py_ssize_t count,
            void (*loop)(uint64_t *, const uint64_t *, const uint64_t *, size_t,
                         uint64_t))
{
    Py_buffer v[3];
    if (arity(count, 4) < 0)
        return NULL;
    const uint64_t p = modulus(args[3]);
    const Py_ssize_t n = p ? borrow(args, 3, 1, v) : -1;
    if (n < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    loop(v[0].buf, v[1].buf, v[2].buf, (size_t)n, p);
    Py_END_ALLOW_THREADS
    return give_back(3, v);
}

/* forward(values, roots, quotients, p) and inverse(…), in place. */
static PyObject *
py_forward(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    return transformed(args, count, forward);
}

static PyObject *
py_inverse(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    return transformed(args, count, inverse);
}

/* multiply(values, factors, quotients, p): value by value, in place. */
static PyObject *
py_multiply(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[3];
    (void)self;
    if (arity(count, 4) < 0)
        return NULL;
    const uint64_t p = modulus(args[3]);
    const Py_ssize_t n = p ? borrow(args, 3, 1, v) : -1;
    if (n < 0)
        return NULL;
    uint64_t *a = v[0].buf;
    const uint64_t *w = v[1].buf, *q = v[2].buf;
    for (Py_ssize_t i = 0; i < n; i++)
        a[i] = times(a[i], w[i], q[i], p);
    return give_back(3, v);
}

/* reduced(out, values, p): signed integers modulo p. */
static PyObject *
py_reduced(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[2];
    (void)self;
    if (arity(count, 3) < 0)
        return NULL;
    const uint64_t p = modulus(args[2]);
    const Py_ssize_t n = p ? borrow(args, 2, 1, v) : -1;
    if (n < 0)
        return NULL;
    uint64_t *out = v[0].buf;
    const int64_t *values = v[1].buf, q = (int64_t)p;
    int64_t far = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        far |= (values[i] >= q) | (values[i] <= -q);
        out[i] = (uint64_t)values[i] + (p & -(uint64_t)(values[i] < 0));
    }
    for (Py_ssize_t i = 0; far && i < n; i++) {
        const int64_t rest = values[i] % q;
        out[i] = (uint64_t)rest + (p & -(uint64_t)(rest < 0));
    }
    return give_back(2, v);
}

/* add(total, values, p), in place. */
static PyObject *
py_add(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[2];
    (void)self;
    if (arity(count, 3) < 0)
        return NULL;
    const uint64_t p = modulus(args[2]);
    const Py_ssize_t n = p ? borrow(args, 2, 1, v) : -1;
    if (n < 0)
        return NULL;
    uint64_t *total = v[0].buf;
    const uint64_t *values = v[1].buf;
    for (Py_ssize_t i = 0; i < n; i++)
        total[i] = plus(total[i], values[i], p);
    return give_back(2, v);
}

/* add_message(total, message, q, t): total += floor(q m / t + 1/2) mod q for m < t. */
static PyObject *
py_add_message(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[2];
    (void)self;
    if (arity(count, 4) < 0)
        return NULL;
    const uint64_t q = modulus(args[2]), t = q ? modulus(args[3]) : 0;
    const Py_ssize_t n = t ? borrow(args, 2, 1, v) : -1;
    if (n < 0)
        return NULL;
    uint64_t *total = v[0].buf;
    const uint64_t *message = v[1].buf;
    const uint64_t whole = q / t, rest = q % t, half = (t + 1) / 2;
    const double slope = (double)rest / (double)t;
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint64_t m = message[i];
        /* floor((rest m + half) / t): the float is at most one off. */
        uint64_t part = (uint64_t)((double)m * slope + 0.5);
        const int64_t over = (int64_t)(rest * m + half - part * t);
        part += (uint64_t)(over >= (int64_t)t) - (uint64_t)(over < 0);
        total[i] = plus(total[i], whole * m + part, q);
    }
    return give_back(2, v);
}

/* open(phase, constant, q, t) -> the noise: with v = constant + phase mod q, phase
 * becomes m = round(t v / q) mod t, and the noise is the largest |t v - q m|. */
static PyObject *
py_open(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[2];
    (void)self;
    if (arity(count, 4) < 0)
        return NULL;
    const uint64_t q = modulus(args[2]), t = q ? modulus(args[3]) : 0;
    const Py_ssize_t n = t ? borrow(args, 2, 1, v) : -1;
    if (n < 0)
        return NULL;
    uint64_t *phase = v[0].buf, noise = 0;
    const uint64_t *constant = v[1].buf;
    const double slope = (double)t / (double)q;
    const int64_t half = (int64_t)(q / 2); /* q is odd: no ties */
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint64_t value = plus(constant[i], phase[i], q);
        uint64_t m = (uint64_t)((double)value * slope + 0.5);
        /* The float is at most one off, so this difference fits. */
        int64_t r = (int64_t)(value * t - m * q);
        const int64_t step = (r > half) - (r < -half);
        m += (uint64_t)step;
        r -= step * (int64_t)q;
        const uint64_t size = r < 0 ? -(uint64_t)r : (uint64_t)r;
        noise = size > noise ? size : noise;
        phase[i] = m == t ? 0 : m;
    }
    give_back(2, v);
    return PyLong_FromUnsignedLongLong(noise);
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FUNCTION(quotients), FUNCTION(forward), FUNCTION(inverse), FUNCTION(multiply),
    FUNCTION(reduced), FUNCTION(add), FUNCTION(add_message), FUNCTION(open),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_rings", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__rings(void)
{
    return PyModuleDef_Init(&definition);
}
