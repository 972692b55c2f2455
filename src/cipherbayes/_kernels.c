/* Python's side of the loops in _kernels.h: arrays are borrowed, lengths checked, and the
 * GIL is released while a loop runs.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include "_kernels.h"

/* Borrow an array of `dims` dimensions whose last axis is contiguous: float64, or
 * int64 for the format "l". */
static int
borrow(PyObject *object, int dims, int writable, char format, Py_buffer *view)
{
    const int flags = PyBUF_FORMAT | PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0)
        return -1;
    const int plain = view->ndim == dims && view->itemsize == 8
        && view->format != NULL && view->format[0] == format && view->format[1] == 0
        && (view->shape[dims - 1] <= 1 || view->strides[dims - 1] == 8)
        && (dims == 1 || view->shape[0] <= 1 || view->strides[0] % 8 == 0);
    if (!plain) {
        PyBuffer_Release(view);
        PyErr_Format(PyExc_ValueError,
                     "expected %s of %d dimension(s) with contiguous rows",
                     format == 'd' ? "float64" : "int64", dims);
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

/* Borrow arrays: '1' or '2' dimensions to read, 'w' or 'W' for one or two to write,
 * 'l' for integers, 'b' for bytes. */
static int
borrow_all(PyObject *const *objects, const char *kinds, Py_buffer *views)
{
    for (int k = 0; kinds[k]; k++) {
        const char kind = kinds[k];
        const int dims = kind == '2' || kind == 'W' ? 2 : 1;
        const int writable = kind == 'w' || kind == 'W';
        const int failed = kind == 'b'
            ? PyObject_GetBuffer(objects[k], views + k, PyBUF_SIMPLE)
            : borrow(objects[k], dims, writable, kind == 'l' ? 'l' : 'd', views + k);
        if (failed < 0) {
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

static PyObject *
py_move_columns(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[5];
    (void)self;
    if (arity(count, 5) < 0 || borrow_all(args, "211Ww", v) < 0)
        return NULL;
    const Py_ssize_t p = v[0].shape[0], m = v[0].shape[1];
    if (v[1].shape[0] != p || v[2].shape[0] != p || v[3].shape[0] != p
        || v[3].shape[1] != m || v[4].shape[0] != m)
        return mismatch(5, v);
    Py_BEGIN_ALLOW_THREADS
    move(v[0].buf, v[0].strides[0] / 8, p, m, v[1].buf, v[2].buf, v[3].buf,
         v[3].strides[0] / 8, v[4].buf);
    Py_END_ALLOW_THREADS
    release_all(5, v);
    Py_RETURN_NONE;
}

/* Whether every stored column lies within its record. */
static int
within(const Py_buffer *record, const int64_t *offsets, const int64_t *kinds,
       Py_ssize_t columns, Py_ssize_t m)
{
    static const int64_t sizes[] = {0, 1, 2, 4, 8};
    for (Py_ssize_t j = 0; j < columns; j++) {
        if (kinds[j] < CONSTANT || kinds[j] > DOUBLE || offsets[j] < 0
            || offsets[j] % 8 != 0 || offsets[j] > record->len
            || sizes[kinds[j]] * m > record->len - offsets[j])
            return 0;
    }
    return 1;
}

/* All columns of a record; those of the design come first, and have norms. */
static PyObject *
py_restore_columns(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[6];
    (void)self;
    if (arity(count, 7) < 0)
        return NULL;
    const Py_ssize_t p = PyLong_AsSsize_t(args[6]);
    if (PyErr_Occurred() || borrow_all(args, "bll2Ww", v) < 0)
        return NULL;
    const Py_ssize_t columns = v[4].shape[0], m = v[4].shape[1];
    if (v[1].shape[0] != columns || v[2].shape[0] != columns
        || v[3].shape[0] != columns || v[3].shape[1] * 8 != (Py_ssize_t)sizeof(recipe)
        || (columns > 1 && v[3].strides[0] != (Py_ssize_t)sizeof(recipe))
        || v[5].shape[0] != m || p < 0 || p > columns
        || !within(v, v[1].buf, v[2].buf, columns, m))
        return mismatch(6, v);
    Py_BEGIN_ALLOW_THREADS
    restore(v[0].buf, v[1].buf, v[2].buf, v[3].buf, columns, p, m, v[4].buf,
            v[4].strides[0] / 8, v[5].buf);
    Py_END_ALLOW_THREADS
    release_all(6, v);
    Py_RETURN_NONE;
}

static PyObject *
py_logistic_terms(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[5];
    (void)self;
    if (arity(count, 6) < 0)
        return NULL;
    const double clip2 = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred() || borrow_all(args, "111ww", v) < 0)
        return NULL;
    const Py_ssize_t m = v[0].shape[0];
    for (int k = 1; k < 5; k++)
        if (v[k].shape[0] != m)
            return mismatch(5, v);
    Py_BEGIN_ALLOW_THREADS
    logistic_terms(v[0].buf, v[1].buf, v[2].buf, clip2, m, v[3].buf, v[4].buf);
    Py_END_ALLOW_THREADS
    release_all(5, v);
    Py_RETURN_NONE;
}

static PyObject *
py_shorten(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[3];
    (void)self;
    if (arity(count, 7) < 0)
        return NULL;
    const double limit = PyFloat_AsDouble(args[3]), floor2 = PyFloat_AsDouble(args[4]);
    const double most = PyFloat_AsDouble(args[5]);
    const int matrices = PyObject_IsTrue(args[6]);
    if (PyErr_Occurred() || borrow_all(args, "11w", v) < 0)
        return NULL;
    const Py_ssize_t m = v[0].shape[0];
    if (v[1].shape[0] != m || v[2].shape[0] != m)
        return mismatch(3, v);
    Py_BEGIN_ALLOW_THREADS
    shorten(v[0].buf, v[1].buf, limit, floor2, most, matrices, m, v[2].buf);
    Py_END_ALLOW_THREADS
    release_all(3, v);
    Py_RETURN_NONE;
}

static PyObject *
py_weighted_gram(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[3];
    (void)self;
    if (arity(count, 3) < 0 || borrow_all(args, "21w", v) < 0)
        return NULL;
    const Py_ssize_t p = v[0].shape[0], m = v[0].shape[1];
    if (v[1].shape[0] != m || v[2].shape[0] != p * (p + 1) / 2)
        return mismatch(3, v);
    Py_BEGIN_ALLOW_THREADS
    gram(v[0].buf, v[0].strides[0] / 8, p, m, v[1].buf, v[2].buf);
    Py_END_ALLOW_THREADS
    release_all(3, v);
    Py_RETURN_NONE;
}

/* Counts have a bin more than there are, for values in none. */
static PyObject *
py_count_bins(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer v[3];
    (void)self;
    if (arity(count, 6) < 0)
        return NULL;
    const double centre = PyFloat_AsDouble(args[3]), half = PyFloat_AsDouble(args[4]);
    const double stand_in = PyFloat_AsDouble(args[5]);
    if (PyErr_Occurred() || borrow_all(args, "1ww", v) < 0)
        return NULL;
    const Py_ssize_t m = v[0].shape[0], bins = v[1].shape[0] - 1;
    if (bins < 1 || bins > INT32_MAX - 1 || v[2].shape[0] != bins + 1)
        return mismatch(3, v);
    Py_BEGIN_ALLOW_THREADS
    count_bins(v[0].buf, centre, half, stand_in, (int32_t)bins, m, v[1].buf, v[2].buf);
    Py_END_ALLOW_THREADS
    release_all(3, v);
    Py_RETURN_NONE;
}

#define FUNCTION(name) {#name, (PyCFunction)(void (*)(void))py_##name, METH_FASTCALL, NULL}
static PyMethodDef methods[] = {
    FUNCTION(linear_predictor), FUNCTION(weighted_sum), FUNCTION(clip_scores),
    FUNCTION(squared_norms), FUNCTION(prepare_column), FUNCTION(expit),
    FUNCTION(move_columns), FUNCTION(restore_columns), FUNCTION(logistic_terms),
    FUNCTION(shorten), FUNCTION(weighted_gram), FUNCTION(count_bins),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernels", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__kernels(void)
{
    return PyModuleDef_Init(&definition);
}
