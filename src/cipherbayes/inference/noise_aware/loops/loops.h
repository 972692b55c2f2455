/* Inner loops of the noise-aware posterior: what its files share.
 *
 * Matrices are float64 in rows.  Nothing here knows of Python but module.c, and
 * nothing allocates but its callers: a chain's work needs memory of a size that is
 * known before, taken from one piece (Arena).
 */
#ifndef CIPHERBAYES_LOOPS_H
#define CIPHERBAYES_LOOPS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* One copy of a loop per instruction set, chosen at load time (GNU ifunc). */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12 \
    && !defined(__SANITIZE_ADDRESS__)
#define VECTORISED                                                                  \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORISED
#endif

/* ------------------------------------------------------------------ memory */

/* Pieces of one block.  With `start` NULL it only counts, so that the function
 * that lays out a chain's memory also says how much of it there is. */
typedef struct {
    double *start;
    size_t used;
} Arena;

static inline double *
piece(Arena *arena, size_t count)
{
    double *found = arena->start == NULL ? NULL : arena->start + arena->used;
    arena->used += (count + 7) / 8 * 8;
    return found;
}

/* ---------------------------------------------------------- linear algebra */

/* The routines that SciPy exports to Cython; no library is linked. */
typedef struct {
    void (*gemm)(char *, char *, int *, int *, int *, double *, double *, int *,
                 double *, int *, double *, double *, int *);
    void (*syrk)(char *, char *, int *, int *, double *, double *, int *, double *,
                 double *, int *);
    void (*trsm)(char *, char *, char *, char *, int *, int *, double *, double *,
                 int *, double *, int *);
    void (*potrf)(char *, int *, double *, int *, int *);
    void (*potri)(char *, int *, double *, int *, int *);
    void (*syevd)(char *, char *, int *, double *, int *, double *, double *, int *,
                  int *, int *, int *);
} Library;

extern Library library;

double dot(const double *a, const double *b, int n);
/* out = A v, A of n rows and m columns. */
void times_vector(const double *a, const double *v, int n, int m, double *out);
/* out = A'v, A of n rows and m columns. */
void transposed_times_vector(const double *a, const double *v, int n, int m,
                             double *out);
/* out (n, m) = A B, A B' or A'B with k terms to a sum. */
void product(const double *a, const double *b, int n, int k, int m, double *out);
void product_transposed(const double *a, const double *b, int n, int k, int m,
                      double *out);
void transposed_product(const double *a, const double *b, int n, int k, int m,
                      double *out);
/* out (n, n) = A'A of A with k rows. */
void gram(const double *a, int k, int n, double *out);
void mirror(double *a, int n);
/* A = L L', L in the lower half; 0 where A is positive definite. */
int factor(double *a, int n);
double log_determinant(const double *lower, int n);
/* A inverse of its L, both halves. */
int inverse_of_factor(double *a, int n);
/* In place: L x = v and L'x = v; L X = A with m columns. */
void solve_lower(const double *lower, double *v, int n);
void solve_upper(const double *lower, double *v, int n);
void solve_lower_matrix(const double *lower, double *a, int n, int m);

/* ------------------------------------------------------------- exponential */

#define MOST_SQUARINGS 6

/* exp(S) and the intermediate matrices that its derivative needs. */
typedef struct {
    int n, squarings;          /* number of squarings; -1: computed by eigenvalues */
    double *scaled;            /* X = S / 2^s, or eigenvectors in rows */
    double *square, *fourth;   /* X^2, X^4 and some X^3 */
    double *factor, *left, *right;
    double *power[MOST_SQUARINGS + 1];
    double *by[5], *spare;
    double *values, *eigen;
    int *whole;
    int eigen_size, whole_size;
} Exponential;

void lay_out_exponential(Exponential *x, Arena *arena, int n);
/* exp(S) to `out`; 0 where all went well. */
int exponential(Exponential *x, const double *s, double *out);
/* In place: turns a symmetric gradient by exp(S), as computed last, into that by S. */
void back_through_exponential(Exponential *x, double *by);

/* ------------------------------------------------------------- information */

enum { SHARE, CENTRE, SCALE, OFFSET, GAMMA_SHAPE, GAMMA_SCALE, LAW_WIDTH };

/* What density() needs, the same for all chains; names as in information.py. */
typedef struct {
    int d, b, e;              /* parameters; constant columns; others */
    int size, moved;          /* coordinates (p, U, l, S); all that HMC moves */
    int laws;
    int rank;                 /* rows of the contrasts */
    int direct;               /* H itself is built, not A */
    int diagonal;             /* the prior's covariance is diagonal */
    double variance, information_sd;
    const int64_t *order;     /* parameter of each row of the blocks */
    const double *frame;      /* F of A = F blocks F', or NULL: the order alone */
    const double *reference; /* coordinates that others are kept near */
    const double *power;      /* exp(S) where that is fixed, or NULL */
    const int64_t *law_of;    /* the law of every coordinate, or -1 for none */
    const int64_t *scaled_by; /* two more moved entries of its log scale, or -1, -1 */
    const double *law;        /* rows of LAW_WIDTH */
    const int64_t *pulled_by; /* the moved entry that a prior is centred on, or -1 */
    const double *place, *gradient, *away, *information, *linear;
    const double *variation;  /* diagonal of K in V = K H K */
    const double *contrasts;  /* C, rank rows, with C'C the quadratic */
    /* What the levels of sites follow (site_context.py); no columns: nothing. */
    int sites, followed;      /* K; how many columns they follow */
    const int64_t *columns;   /* K rows: number of each among the e others */
    const double *units;      /* of the d rows of the blocks */
    const double *follow;     /* sigma of each followed column */
    const double *tilts;      /* K rows: what is taken off the means */
    /* What the first round says about correlations (first_round.py), or NULL. */
    int seen_columns;
    const double *vectors, *seen, *seen_precision;
} Problem;

/* What differs between chains: the normal priors (InformationPrior.normal), the prior
 * covariance of theta and beta. */
typedef struct {
    const double *mean, *precision;
    const double *along;      /* b rows: the means' precision is less by a a' of each */
    const double *prior_covariance;
    double bend;
    double following;         /* how much levels follow means of columns: sqrt(f) tau */
} ChainLaw;

/* Memory for one density. */
typedef struct {
    double *place, *slope;            /* (p, U, l, S) and the derivatives by it */
    double *scale, *centre;           /* of every law; log scales */
    double *own;                      /* log scale of every coordinate with a law */
    double *masses, *root;
    Exponential exponential;
    double *entries;                  /* S, and the gradient by it */
    double *rest;                     /* B */
    double *blocks, *mixed, *turned, *other;
    double *h, *scaled, *total, *curved, *thin;
    double *pushed, *residual, *solved, *row;
    double *covariance, *context, *along, *by_means;  /* where levels follow means */
    double *site_masses, *site_means;
    double *correlations, *by_rest, *turned_columns, *half_turned; /* of the first round */
} Work;

/* x, at most `far` from `middle`. */
static inline double
held(double x, double middle, double far)
{
    return fmin(fmax(x, middle - far), middle + far);
}

void lay_out(Work *work, Arena *arena, const Problem *problem);
/* log p, its gradient and A; minus infinity, and neither of the others, where the
 * place is out of all bounds. */
double density(const Problem *problem, const ChainLaw *law, Work *work,
               const double *moved, double *gradient, double *built);

/* ----------------------------------------------------------------- context */

/* A site's means, over all of its constants, in the units of theta. */
void means_of_sites(const Problem *problem, Work *work);
/* The prior's covariance with what levels follow, after means_of_sites(). */
const double *with_context(const Problem *problem, Work *work, const ChainLaw *law);
/* Adds the derivatives by the coordinates that the context has, after evidence(), which
 * left W = total^-1 - solved solved' in work->total. */
void add_by_context(const Problem *problem, Work *work, const ChainLaw *law,
                    const double *h);

/* ---------------------------------------------------------------- leapfrog */

/* Chains that go along their trajectories side by side. */
typedef struct {
    int chains, leaps;
    const float *metric;      /* M, upper triangle, the rest zero */
    const double *step;       /* of every chain */
    const ChainLaw *law;
    double *moved, *momentum; /* in: the start; out: the end */
    double *built;            /* out: A at the end */
    double *gain;             /* out: log acceptance ratio; NaN where out of bounds */
} Trajectories;

size_t trajectory_memory(const Problem *problem, int chains);
void leapfrog(const Problem *problem, const Trajectories *all, double *memory);

/* ----------------------------------------------------------------- slicing */

typedef enum { SATURATING, TILTED, TILTED_BY_SITE, SATURATING_BY_SITE } ScoreKind;

/* The mean of the score of one chain; names as in saturation.py and tilting.py. */
typedef struct {
    ScoreKind kind;
    int d, b, e;
    const double *matrix;  /* A; H; V; W */
    const double *pull;    /* A origin; M m; origin */
    double bend, strength; /* beta; beta / place'A place */
    double mass;
    const double *origin, *place, *skew;
    const double *along, *first, *last; /* of a straightening, or NULL */
    double limit;
    const int64_t *constants, *others;
    const double *values, *means;
    const double *masses, *levels;      /* M or P; of sites */
} Score;

typedef struct {
    int d, slices, tries;
    double variance;
    const double *gradient, *variation, *prior_mean, *kept;
} Target;

/* One chain's H and prior, where it stands, and its random numbers. */
typedef struct {
    const double *information, *prior_precision;
    const double *white, *levels, *angles;
    double *theta, *mode;
} ThetaChain;

size_t slicing_memory(int d);
/* 0 where all went well. */
int slice_chain(const Target *target, const Score *score, const ThetaChain *chain,
                double *memory);

#endif
