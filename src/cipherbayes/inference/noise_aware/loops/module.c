/* Python's side of the loops: arrays borrowed, their sizes checked, the GIL released. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "loops.h"

#define MOST_VIEWS 48
#define ANY (-1)

/* ------------------------------------------------------------------ arrays */

/* All arrays that a call has borrowed; `wrong` is set once one did not fit. */
typedef struct {
    Py_buffer view[MOST_VIEWS];
    int count, wrong;
} Views;

static void
release(Views *views)
{
    while (views->count > 0)
        PyBuffer_Release(views->view + --views->count);
}

static void *
misfit(Views *views, const char *name, const char *what)
{
    if (!views->wrong)
        PyErr_Format(PyExc_ValueError, "%s: %s", name, what);
    views->wrong = 1;
    return NULL;
}

static int
is_type(const Py_buffer *view, char type)
{
    const char *formats = type == 'i' ? "lq" : type == 'f' ? "f" : "d";
    return view->itemsize == (type == 'f' ? 4 : 8) && view->format != NULL
        && strlen(view->format) == 1 && strchr(formats, *view->format) != NULL;
}

/* Borrow an array in rows without gaps: of type 'd' (float64), 'w' (the same, to
 * write), 'f' (float32) or 'i' (int64), of `dims` dimensions that follow, ANY for any. */
static void *
take(Views *views, PyObject *object, const char *name, char type, int dims, ...)
{
    va_list sizes;
    if (views->wrong)
        return NULL;
    if (views->count == MOST_VIEWS)
        return misfit(views, name, "too many arrays");
    Py_buffer *view = views->view + views->count;
    const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS;
    if (PyObject_GetBuffer(object, view, flags | (type == 'w' ? PyBUF_WRITABLE : 0)) < 0) {
        views->wrong = 1;
        return NULL;
    }
    views->count++;
    if (view->ndim != dims || !is_type(view, type))
        return misfit(views, name, "wrong type or number of dimensions");
    va_start(sizes, dims);
    for (int k = 0; k < dims; k++) {
        const Py_ssize_t size = va_arg(sizes, Py_ssize_t);
        if (view->shape[k] > 1 << 20 || (size != ANY && view->shape[k] != size))
            misfit(views, name, "wrong size");
    }
    va_end(sizes);
    return views->wrong ? NULL : view->buf;
}

/* take(), or NULL for None. */
#define TAKE_OR_NONE(views, object, ...) \
    ((object) == Py_None ? NULL : take(views, object, __VA_ARGS__))

static int
size_of(const Views *views, int dimension)
{
    return views->wrong ? 0 : (int)views->view[views->count - 1].shape[dimension];
}

static double
number(Views *views, PyObject *object)
{
    const double found = views->wrong ? 0.0 : PyFloat_AsDouble(object);
    if (!views->wrong && PyErr_Occurred())
        views->wrong = 1;
    return found;
}

static void
within(Views *views, const char *name, const int64_t *index, int count, int64_t least,
       int64_t end)
{
    for (int i = 0; !views->wrong && i < count; i++)
        if (index[i] < least || index[i] >= end)
            misfit(views, name, "an index is out of range");
}

static double *
memory_of(Views *views, size_t count)
{
    double *found = views->wrong ? NULL : malloc((count + 1) * sizeof(double));
    if (!views->wrong && found == NULL) {
        PyErr_NoMemory();
        views->wrong = 1;
    }
    return found;
}

static int
arity(PyObject *tuple, const char *name, Py_ssize_t expected, PyObject **items)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != expected) {
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple of %zd", name, expected);
        return -1;
    }
    for (Py_ssize_t k = 0; k < expected; k++)
        items[k] = PyTuple_GetItem(tuple, k);
    return 0;
}

/* ------------------------------------------------------------- information */

static void
check_laws(Views *views, const Problem *q)
{
    for (int k = 0; !views->wrong && k < q->laws; k++) {
        const double *law = q->law + k * LAW_WIDTH;
        if (!(law[SCALE] >= 0.0 && law[SCALE] < q->moved)
            || !(law[CENTRE] >= -1.0 && law[CENTRE] < q->moved))
            misfit(views, "law", "an index is out of range");
    }
}

/* Fields in the order of Loops._problem in compiled.py. */
static int
take_problem(Views *views, PyObject *tuple, Problem *q)
{
    enum { FIELDS = 27 };
    PyObject *f[FIELDS];
    if (arity(tuple, "problem", FIELDS, f) < 0) {
        views->wrong = 1;
        return -1;
    }
    q->order = take(views, f[0], "order", 'i', 1, (Py_ssize_t)ANY);
    const Py_ssize_t d = q->d = size_of(views, 0);
    q->b = (int)number(views, f[1]);
    if (!views->wrong && (q->b < 0 || q->b > q->d || q->d > 4096))
        misfit(views, "constants", "out of range");
    const Py_ssize_t e = q->e = q->d - q->b;
    within(views, "order", q->order, q->d, 0, q->d);
    q->frame = TAKE_OR_NONE(views, f[2], "frame", 'd', 2, d, d);
    q->power = TAKE_OR_NONE(views, f[3], "power", 'd', 2, e, e);
    const Py_ssize_t size = q->b + q->b * e + e + (q->power ? 0 : e * (e - 1) / 2);
    q->size = (int)size;
    q->reference = take(views, f[4], "reference", 'd', 1, size);
    q->pulled_by = take(views, f[5], "pulled_by", 'i', 1, (Py_ssize_t)ANY);
    q->moved = size_of(views, 0);
    if (q->moved < q->size)
        misfit(views, "pulled_by", "too short");
    within(views, "pulled_by", q->pulled_by, q->moved, -1, q->moved);
    q->law = take(views, f[6], "law", 'd', 2, (Py_ssize_t)ANY, (Py_ssize_t)LAW_WIDTH);
    q->laws = size_of(views, 0);
    check_laws(views, q);
    q->law_of = take(views, f[7], "law_of", 'i', 1, size);
    within(views, "law_of", q->law_of, q->size, -1, q->laws);
    q->scaled_by = take(views, f[8], "scaled_by", 'i', 2, size, (Py_ssize_t)2);
    within(views, "scaled_by", q->scaled_by, 2 * q->size, -1, q->moved);
    q->place = take(views, f[9], "place", 'd', 1, d);
    q->gradient = take(views, f[10], "gradient", 'd', 1, d);
    q->away = take(views, f[11], "away", 'd', 1, d);
    q->information = take(views, f[12], "information", 'd', 2, d, d);
    q->linear = take(views, f[13], "linear", 'd', 2, d, d);
    q->contrasts = take(views, f[14], "contrasts", 'd', 2, (Py_ssize_t)ANY, d);
    q->rank = size_of(views, 0);
    q->variation = take(views, f[15], "variation", 'd', 1, d);
    q->variance = number(views, f[16]);
    q->information_sd = number(views, f[17]);
    q->direct = number(views, f[18]) != 0.0;
    q->diagonal = number(views, f[19]) != 0.0;
    q->columns = take(views, f[20], "columns", 'i', 2, (Py_ssize_t)ANY, (Py_ssize_t)ANY);
    q->sites = size_of(views, 0);
    q->followed = size_of(views, 1);
    q->units = take(views, f[21], "units", 'd', 1, d);
    q->follow = take(views, f[22], "follow", 'd', 1, (Py_ssize_t)q->followed);
    q->tilts = take(views, f[23], "tilts", 'd', 2, (Py_ssize_t)q->sites,
                    (Py_ssize_t)q->followed);
    q->vectors = TAKE_OR_NONE(views, f[24], "vectors", 'd', 2, e, (Py_ssize_t)ANY);
    const Py_ssize_t m = q->seen_columns = q->vectors ? size_of(views, 1) : 0;
    q->seen = TAKE_OR_NONE(views, f[25], "seen", 'd', 2, m, m);
    q->seen_precision = TAKE_OR_NONE(views, f[26], "seen_precision", 'd', 2, m, m);
    if (!views->wrong && (q->vectors == NULL) != (q->seen == NULL || !q->seen_precision))
        misfit(views, "seen", "all of it or nothing");
    if (!views->wrong && m > e)
        misfit(views, "vectors", "too many");
    if (!views->wrong && q->followed > 0 && (q->sites < 1 || q->b % q->sites != 0))
        misfit(views, "columns", "not of the sites of the constants");
    within(views, "columns", q->columns, q->sites * q->followed, 0, q->e);
    return views->wrong ? -1 : 0;
}

/* mean, precision, along, prior_covariance, bend and following of every chain. */
static ChainLaw *
take_laws(Views *views, PyObject *tuple, const Problem *q, Py_ssize_t *chains)
{
    PyObject *f[6];
    if (views->wrong || arity(tuple, "laws", 6, f) < 0) {
        views->wrong = 1;
        return NULL;
    }
    const Py_ssize_t n = q->moved, d = q->d, means = (Py_ssize_t)q->b * q->e;
    const double *bend = take(views, f[4], "bend", 'd', 1, (Py_ssize_t)ANY);
    *chains = size_of(views, 0);
    const double *mean = take(views, f[0], "mean", 'd', 2, *chains, n);
    const double *precision = take(views, f[1], "precision", 'd', 2, *chains, n);
    const double *along = take(views, f[2], "along", 'd', 2, *chains, means);
    const double *covariance =
        take(views, f[3], "prior_covariance", 'd', 3, *chains, d, d);
    const double *following = take(views, f[5], "following", 'd', 1, *chains);
    ChainLaw *found = (ChainLaw *)memory_of(views, *chains * sizeof(ChainLaw) / 8 + 1);
    for (Py_ssize_t c = 0; !views->wrong && c < *chains; c++)
        found[c] = (ChainLaw){mean + c * n, precision + c * n, along + c * means,
                              covariance + c * d * d, bend[c], following[c]};
    return found;
}

static PyObject *
finish(Views *views, void *one, void *other)
{
    const int wrong = views->wrong;
    free(one);
    free(other);
    release(views);
    if (wrong)
        return NULL;
    Py_RETURN_NONE;
}

/* density(problem, laws, moved, value, gradient, built) */
static PyObject *
py_density(PyObject *self, PyObject *args)
{
    PyObject *a[6];
    Views views = {.count = 0, .wrong = 0};
    Problem q;
    Work work;
    Arena counting = {NULL, 0};
    Py_ssize_t chains = 0;
    (void)self;
    if (arity(args, "density", 6, a) < 0)
        return NULL;
    take_problem(&views, a[0], &q);
    ChainLaw *laws = take_laws(&views, a[1], &q, &chains);
    const Py_ssize_t n = views.wrong ? 0 : q.moved, d = views.wrong ? 0 : q.d;
    const double *moved = take(&views, a[2], "moved", 'd', 2, chains, n);
    double *value = take(&views, a[3], "value", 'w', 1, chains);
    double *gradient = take(&views, a[4], "gradient", 'w', 2, chains, n);
    double *built = take(&views, a[5], "built", 'w', 3, chains, d, d);
    if (!views.wrong)
        lay_out(&work, &counting, &q);
    double *memory = memory_of(&views, counting.used);
    if (!views.wrong) {
        Arena arena = {memory, 0};
        lay_out(&work, &arena, &q);
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t c = 0; c < chains; c++)
            value[c] = density(&q, laws + c, &work, moved + c * n, gradient + c * n,
                               built + c * d * d);
        Py_END_ALLOW_THREADS
    }
    return finish(&views, laws, memory);
}

/* leapfrog(problem, laws, metric, step, leaps, moved, momentum, built, gain) */
static PyObject *
py_leapfrog(PyObject *self, PyObject *args)
{
    PyObject *a[9];
    Views views = {.count = 0, .wrong = 0};
    Problem q;
    Py_ssize_t chains = 0;
    (void)self;
    if (arity(args, "leapfrog", 9, a) < 0)
        return NULL;
    take_problem(&views, a[0], &q);
    ChainLaw *laws = take_laws(&views, a[1], &q, &chains);
    const Py_ssize_t n = views.wrong ? 0 : q.moved, d = views.wrong ? 0 : q.d;
    Trajectories t = {.chains = (int)chains, .law = laws};
    t.metric = take(&views, a[2], "metric", 'f', 2, n, n);
    t.step = take(&views, a[3], "step", 'd', 1, chains);
    t.leaps = (int)number(&views, a[4]);
    t.moved = take(&views, a[5], "moved", 'w', 2, chains, n);
    t.momentum = take(&views, a[6], "momentum", 'w', 2, chains, n);
    t.built = take(&views, a[7], "built", 'w', 3, chains, d, d);
    t.gain = take(&views, a[8], "gain", 'w', 1, chains);
    double *memory =
        memory_of(&views, views.wrong ? 0 : trajectory_memory(&q, (int)chains));
    if (!views.wrong) {
        Py_BEGIN_ALLOW_THREADS
        leapfrog(&q, &t, memory);
        Py_END_ALLOW_THREADS
    }
    return finish(&views, laws, memory);
}

/* ----------------------------------------------------------------- slicing */

/* The score of all chains: for chain c each pointer of `first` is moved on by c times its
 * stride. */
typedef struct {
    Score first;
    Py_ssize_t matrix, pull, origin, masses, means;
    const double *bend, *strength, *mass;
} Scores;

static Score
score_of(const Scores *all, Py_ssize_t c)
{
    Score s = all->first;
    s.matrix += c * all->matrix;
    if (s.pull != NULL)
        s.pull += c * all->pull;
    if (s.origin != NULL)
        s.origin += c * all->origin;
    if (s.masses != NULL)
        s.masses += c * all->masses;
    if (s.levels != NULL)
        s.levels += c * all->masses;
    if (s.means != NULL)
        s.means += c * all->means;
    if (all->bend != NULL) {
        s.bend = all->bend[c];
        s.strength = all->strength[c];
    }
    if (all->mass != NULL)
        s.mass = all->mass[c];
    return s;
}

/* (slope, strength, bend, fixed) */
static void
take_saturating(Views *views, PyObject *tuple, Py_ssize_t chains, Py_ssize_t d, Scores *s)
{
    PyObject *f[4];
    if (views->wrong || arity(tuple, "saturating", 4, f) < 0) {
        views->wrong = 1;
        return;
    }
    s->first.matrix = take(views, f[0], "slope", 'd', 3, chains, d, d);
    s->strength = take(views, f[1], "strength", 'd', 1, chains);
    s->bend = take(views, f[2], "bend", 'd', 1, chains);
    s->first.pull = take(views, f[3], "fixed", 'd', 2, chains, d);
    s->matrix = d * d;
    s->pull = d;
}

/* (information, pull, mass, origin, place, skew, straightening): the last two or None,
 * a straightening is (along, first, last, limit). */
static void
take_tilted(Views *views, PyObject *tuple, Py_ssize_t chains, Py_ssize_t d, Scores *s)
{
    PyObject *f[7], *g[4];
    if (views->wrong || arity(tuple, "tilted", 7, f) < 0
        || (f[6] != Py_None && arity(f[6], "straightening", 4, g) < 0)) {
        views->wrong = 1;
        return;
    }
    s->first.matrix = take(views, f[0], "information", 'd', 3, chains, d, d);
    s->first.pull = take(views, f[1], "pull", 'd', 2, chains, d);
    s->mass = take(views, f[2], "mass", 'd', 1, chains);
    s->first.origin = take(views, f[3], "origin", 'd', 2, chains, d);
    s->first.place = take(views, f[4], "place", 'd', 1, d);
    s->first.skew = TAKE_OR_NONE(views, f[5], "skew", 'd', 1, d);
    if (f[6] != Py_None) {
        s->first.along = take(views, g[0], "along", 'd', 1, d);
        s->first.first = take(views, g[1], "first", 'd', 1, d);
        s->first.last = take(views, g[2], "last", 'd', 1, d);
        s->first.limit = number(views, g[3]);
    }
    s->matrix = d * d;
    s->pull = s->origin = d;
}

/* (constants, others, values, place, masses, means, within, origin), and (levels,
 * strength, bend) where saturating */
static void
take_by_site(Views *views, PyObject *tuple, Py_ssize_t chains, Py_ssize_t d, Scores *s)
{
    PyObject *f[11];
    Score *one = &s->first;
    const int saturating = one->kind == SATURATING_BY_SITE;
    if (views->wrong || arity(tuple, "by_site", saturating ? 11 : 8, f) < 0) {
        views->wrong = 1;
        return;
    }
    one->constants = take(views, f[0], "constants", 'i', 1, (Py_ssize_t)ANY);
    const Py_ssize_t b = one->b = size_of(views, 0);
    within(views, "constants", one->constants, one->b, 0, d);
    one->others = take(views, f[1], "others", 'i', 1, d - b);
    const Py_ssize_t e = one->e = (int)(d - b);
    within(views, "others", one->others, one->e, 0, d);
    one->values = take(views, f[2], "values", 'd', 1, b);
    one->place = take(views, f[3], "place", 'd', 1, d);
    one->masses = take(views, f[4], "masses", 'd', 2, chains, b);
    one->means = take(views, f[5], "means", 'd', 3, chains, b, e);
    one->matrix = take(views, f[6], "within", 'd', 3, chains, e, e);
    one->origin = take(views, f[7], "origin", 'd', 2, chains, d);
    if (saturating) {
        one->levels = take(views, f[8], "levels", 'd', 2, chains, b);
        s->strength = take(views, f[9], "strength", 'd', 1, chains);
        s->bend = take(views, f[10], "bend", 'd', 1, chains);
    }
    s->masses = b;
    s->means = b * e;
    s->matrix = e * e;
    s->origin = d;
}

/* slice_theta(kind, score, (gradient, variation, variance, prior_mean, kept),
 *             (information, prior_precision), (white, levels, angles), theta, mode) */
static PyObject *
py_slice_theta(PyObject *self, PyObject *args)
{
    PyObject *a[7], *f[5], *g[2], *r[3];
    Views views = {.count = 0, .wrong = 0};
    int failed = 0;
    (void)self;
    if (arity(args, "slice_theta", 7, a) < 0 || arity(a[2], "target", 5, f) < 0
        || arity(a[3], "chains", 2, g) < 0 || arity(a[4], "random", 3, r) < 0)
        return NULL;
    Target t;
    t.gradient = take(&views, f[0], "gradient", 'd', 1, (Py_ssize_t)ANY);
    const Py_ssize_t d = t.d = size_of(&views, 0);
    t.variation = take(&views, f[1], "variation", 'd', 1, d);
    t.variance = number(&views, f[2]);
    t.prior_mean = take(&views, f[3], "prior_mean", 'd', 1, d);
    t.kept = take(&views, f[4], "kept", 'd', 1, (Py_ssize_t)ANY);
    const Py_ssize_t slices = t.slices = size_of(&views, 0);
    double *theta = take(&views, a[5], "theta", 'w', 2, (Py_ssize_t)ANY, d);
    const Py_ssize_t chains = size_of(&views, 0);
    double *mode = take(&views, a[6], "mode", 'w', 2, chains, d);
    const double *information = take(&views, g[0], "information", 'd', 3, chains, d, d);
    const double *precision = take(&views, g[1], "prior_precision", 'd', 3, chains, d, d);
    const double *white = take(&views, r[0], "white", 'd', 3, chains, slices, d);
    const double *levels = take(&views, r[1], "levels", 'd', 2, chains, slices);
    const double *angles = take(&views, r[2], "angles", 'd', 3, chains, slices, (Py_ssize_t)ANY);
    t.tries = size_of(&views, 2);
    if (!views.wrong && t.tries < 1)
        misfit(&views, "angles", "none");
    Scores scores;
    memset(&scores, 0, sizeof scores);
    scores.first.d = t.d;
    const double kind = number(&views, a[0]);
    scores.first.kind = kind == 0.0   ? SATURATING
                        : kind == 1.0 ? TILTED
                        : kind == 2.0 ? TILTED_BY_SITE
                                      : SATURATING_BY_SITE;
    if (scores.first.kind == SATURATING)
        take_saturating(&views, a[1], chains, d, &scores);
    else if (scores.first.kind == TILTED)
        take_tilted(&views, a[1], chains, d, &scores);
    else
        take_by_site(&views, a[1], chains, d, &scores);
    double *memory = memory_of(&views, views.wrong ? 0 : slicing_memory(t.d));
    if (!views.wrong) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t c = 0; c < chains && !failed; c++) {
            const Score score = score_of(&scores, c);
            const ThetaChain chain = {
                information + c * d * d, precision + c * d * d,
                white + c * slices * d, levels + c * slices,
                angles + c * slices * t.tries, theta + c * d, mode + c * d,
            };
            failed = slice_chain(&t, &score, &chain, memory) != 0;
        }
        Py_END_ALLOW_THREADS
    }
    if (failed) {
        PyErr_SetString(PyExc_ArithmeticError, "a matrix is not positive definite");
        views.wrong = 1;
    }
    return finish(&views, memory, NULL);
}

/* ------------------------------------------------------------------ module */

/* A routine of scipy.linalg.cython_blas or cython_lapack, whose integers are C's. */
static int
routine(PyObject *module, const char *name, void *found)
{
    PyObject *table = PyObject_GetAttrString(module, "__pyx_capi__");
    PyObject *capsule = table == NULL ? NULL : PyMapping_GetItemString(table, name);
    const char *signature = capsule == NULL ? NULL : PyCapsule_GetName(capsule);
    void *pointer = NULL;
    if (signature != NULL && strstr(signature, "int *") != NULL
        && strstr(signature, "long") == NULL)
        pointer = PyCapsule_GetPointer(capsule, signature);
    Py_XDECREF(capsule);
    Py_XDECREF(table);
    memcpy(found, &pointer, sizeof pointer);
    if (pointer != NULL)
        return 0;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ImportError, "SciPy has no routine %s of this kind", name);
    return -1;
}

static int
find_library(PyObject *module)
{
    int wrong = -1;
    (void)module;
    PyObject *blas = PyImport_ImportModule("scipy.linalg.cython_blas");
    PyObject *lapack = blas ? PyImport_ImportModule("scipy.linalg.cython_lapack") : NULL;
    if (lapack != NULL)
        wrong = routine(blas, "dgemm", &library.gemm) || routine(blas, "dsyrk", &library.syrk)
            || routine(blas, "dtrsm", &library.trsm) || routine(lapack, "dpotrf", &library.potrf)
            || routine(lapack, "dpotri", &library.potri)
            || routine(lapack, "dsyevd", &library.syevd);
    Py_XDECREF(blas);
    Py_XDECREF(lapack);
    return wrong ? -1 : 0;
}

static PyMethodDef methods[] = {
    {"density", py_density, METH_VARARGS, NULL},
    {"leapfrog", py_leapfrog, METH_VARARGS, NULL},
    {"slice_theta", py_slice_theta, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, find_library},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_loops", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__loops(void)
{
    return PyModuleDef_Init(&definition);
}
