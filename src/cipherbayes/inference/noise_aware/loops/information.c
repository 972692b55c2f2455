/* log p of what HMC moves, and its gradient, for one chain.
 *
 * The same as InformationSampler.density in information.py, which has the formulas:
 * moved -> coordinates -> A -> H -> log p, and the gradient back along the same way.
 * What the prior of the coordinates is comes in as tables (Problem, ChainLaw).
 */
#include <math.h>
#include <string.h>

#include "loops.h"

#define LARGEST_LOG 12.0
#define LARGEST_COORDINATE 1e3

void
lay_out(Work *w, Arena *arena, const Problem *problem)
{
    const size_t d = problem->d, e = problem->e, b = problem->b;
    w->place = piece(arena, problem->size);
    w->slope = piece(arena, problem->size);
    w->scale = piece(arena, problem->laws);
    w->centre = piece(arena, problem->laws);
    w->own = piece(arena, problem->size);
    w->masses = piece(arena, b);
    w->root = piece(arena, e);
    w->entries = piece(arena, e * e);
    if (problem->power == NULL)
        lay_out_exponential(&w->exponential, arena, problem->e);
    w->rest = piece(arena, e * e);
    w->mixed = piece(arena, b * e);
    w->blocks = piece(arena, d * d);
    w->turned = piece(arena, d * d);
    w->other = piece(arena, d * d);
    w->h = piece(arena, d * d);
    w->scaled = piece(arena, d * d);
    w->total = piece(arena, d * d);
    w->curved = piece(arena, d * d);
    w->thin = piece(arena, (size_t)problem->rank * d);
    w->pushed = piece(arena, d);
    w->residual = piece(arena, d);
    w->solved = piece(arena, d);
    w->row = piece(arena, d);
    if (problem->followed > 0) {
        const size_t f = problem->followed, k = problem->sites;
        w->covariance = piece(arena, d * d);
        w->context = piece(arena, d * f);
        w->along = piece(arena, d * f);
        w->by_means = piece(arena, d * f);
        w->site_masses = piece(arena, k);
        w->site_means = piece(arena, k * f);
    }
    if (problem->seen_columns > 0) {
        const size_t m = problem->seen_columns;
        w->correlations = piece(arena, e * e);
        w->by_rest = piece(arena, e * e);
        w->half_turned = piece(arena, e * m);
        w->turned_columns = piece(arena, m * m);
    }
}

/* ------------------------------------------------------ moved -> coordinates */

/* x = c + s (y - lambda c) for what has a law; 0 where all of it is in bounds. */
static int
to_coordinates(const Problem *q, Work *w, const double *moved)
{
    for (int k = 0; k < q->laws; k++) {
        const double *law = q->law + k * LAW_WIDTH;
        w->centre[k] = law[CENTRE] < 0.0 ? 0.0 : moved[(int)law[CENTRE]];
        w->scale[k] = moved[(int)law[SCALE]] + law[OFFSET];
    }
    for (int j = 0; j < q->size; j++) {
        const int64_t k = q->law_of[j];
        double x = moved[j];
        if (k >= 0) {
            const double share = q->law[k * LAW_WIDTH + SHARE], c = w->centre[k];
            const int64_t *by = q->scaled_by + 2 * (size_t)j;
            w->own[j] = w->scale[k];
            if (by[0] >= 0 && by[1] >= 0)
                w->own[j] += moved[by[0]] + moved[by[1]];
            x = c + exp((1.0 - share) * w->own[j]) * (x - share * c);
        }
        w->place[j] = x;
    }
    int lost = 0;
    for (int j = 0; j < q->size; j++)
        lost |= !(fabs(w->place[j]) < LARGEST_COORDINATE);
    return lost;
}

/* Adds a derivative by the log scale of a coordinate to those by what is moved. */
static void
add_by_scale(const Problem *q, int j, double slope, double *gradient)
{
    const int64_t *by = q->scaled_by + 2 * (size_t)j;
    gradient[(int)q->law[q->law_of[j] * LAW_WIDTH + SCALE]] += slope;
    if (by[0] >= 0 && by[1] >= 0) {
        gradient[by[0]] += slope;
        gradient[by[1]] += slope;
    }
}

/* Derivatives by what is moved, given those by the coordinates in w->slope. */
static void
chain_rule(const Problem *q, const Work *w, const double *moved, double *gradient)
{
    memset(gradient, 0, (size_t)q->moved * sizeof(double));
    for (int j = 0; j < q->size; j++) {
        const int64_t k = q->law_of[j];
        const double slope = w->slope[j];
        if (k < 0) {
            gradient[j] += slope;
            continue;
        }
        const double *law = q->law + k * LAW_WIDTH;
        const double share = law[SHARE], stretch = exp((1.0 - share) * w->own[j]);
        const double away = moved[j] - share * w->centre[k];
        gradient[j] += stretch * slope;
        add_by_scale(q, j, (1.0 - share) * stretch * away * slope, gradient);
        if (law[CENTRE] >= 0.0)
            gradient[(int)law[CENTRE]] += (1.0 - share * stretch) * slope;
    }
}

/* Returns log of the prior of what is moved, and adds its gradient to `gradient`. */
static double
prior(const Problem *q, const ChainLaw *law_of_chain, const Work *w,
      const double *moved, double *gradient)
{
    double value = 0.0;
    for (int j = 0; j < q->size; j++) {
        const int64_t k = q->law_of[j];
        if (k < 0)
            continue;
        const double *law = q->law + k * LAW_WIDTH, share = law[SHARE];
        const double away = moved[j] - share * w->centre[k];
        const double pull = away * exp(-2.0 * share * w->own[j]);
        value -= 0.5 * away * pull + share * w->own[j];
        gradient[j] -= pull;
        add_by_scale(q, j, share * (away * pull - 1.0), gradient);
        if (law[CENTRE] >= 0.0)
            gradient[(int)law[CENTRE]] += share * pull;
    }
    for (int k = 0; k < q->laws; k++) {
        const double *law = q->law + k * LAW_WIDTH;
        const int at = (int)law[SCALE];
        const double term = law[GAMMA_SCALE] * exp(-2.0 * moved[at]);
        value -= 2.0 * law[GAMMA_SHAPE] * moved[at] + term;
        gradient[at] += 2.0 * term - 2.0 * law[GAMMA_SHAPE];
    }
    for (int j = 0; j < q->moved; j++) {
        const double precision = law_of_chain->precision[j];
        const int64_t by = q->pulled_by[j];
        const double from = by < 0 ? 0.0 : moved[by];
        const double away = moved[j] - from - law_of_chain->mean[j];
        value -= 0.5 * precision * away * away;
        gradient[j] -= precision * away;
        if (by >= 0)
            gradient[by] += precision * away;
    }
    for (int k = 0; k < q->b; k++) {
        /* `along` is zero for means that are centred on another entry. */
        const size_t at = (size_t)q->b + (size_t)k * q->e;
        const double *along = law_of_chain->along + (size_t)k * q->e;
        double length = 0.0;
        for (int j = 0; j < q->e; j++)
            length += along[j] * (moved[at + j] - law_of_chain->mean[at + j]);
        value += 0.5 * length * length;
        for (int j = 0; j < q->e; j++)
            gradient[at + j] += along[j] * length;
    }
    return value;
}

/* ---------------------------------------------------------- coordinates -> A */

/* exp(S) goes to w->rest. */
static int
power_of_entries(const Problem *q, Work *w)
{
    const int e = q->e;
    const double *entry = w->place + q->size - (size_t)e * (e - 1) / 2;
    for (int i = 0; i < e; i++) {
        w->entries[(size_t)i * e + i] = 0.0;
        for (int j = i + 1; j < e; j++)
            w->entries[(size_t)i * e + j] = w->entries[(size_t)j * e + i] = *entry++;
    }
    return exponential(&w->exponential, w->entries, w->rest);
}

/* Builds A from the coordinates; w keeps what its derivatives are computed from. */
static int
build(const Problem *q, Work *w, double *built)
{
    const int d = q->d, b = q->b, e = q->e;
    const double *means = w->place + b, *diagonal = means + (size_t)b * e;
    for (int i = 0; i < b; i++)
        w->masses[i] = exp(held(w->place[i], q->reference[i], LARGEST_LOG));
    if (q->power != NULL)
        memcpy(w->rest, q->power, (size_t)e * e * sizeof(double));
    else if (power_of_entries(q, w) != 0)
        return -1;
    for (int i = 0; i < e; i++) {
        const int at = b + b * e + i;
        const double size = held(diagonal[i], q->reference[at], LARGEST_LOG);
        w->root[i] = exp(0.5 * size) / sqrt(w->rest[(size_t)i * e + i]);
    }
    for (int i = 0; i < e; i++)
        for (int j = 0; j < e; j++)
            w->rest[(size_t)i * e + j] *= w->root[i] * w->root[j];
    double *blocks = q->frame == NULL ? w->turned : w->blocks;
    for (int i = 0; i < b; i++) {
        memset(blocks + (size_t)i * d, 0, (size_t)b * sizeof(double));
        blocks[(size_t)i * d + i] = w->masses[i];
        for (int j = 0; j < e; j++) {
            const double mixed = w->masses[i] * means[(size_t)i * e + j];
            w->mixed[(size_t)i * e + j] = mixed;
            blocks[(size_t)i * d + b + j] = blocks[(size_t)(b + j) * d + i] = mixed;
        }
    }
    for (int i = 0; i < e; i++) {
        double *row = blocks + (size_t)(b + i) * d + b;
        memcpy(row, w->rest + (size_t)i * e, (size_t)e * sizeof(double));
        for (int k = 0; k < b; k++) {
            const double left = means[(size_t)k * e + i];
            for (int j = 0; j < e; j++)
                row[j] += left * w->mixed[(size_t)k * e + j];
        }
    }
    if (q->frame == NULL) {
        for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++)
                built[q->order[i] * d + q->order[j]] = blocks[(size_t)i * d + j];
    } else {
        product(q->frame, blocks, d, d, d, w->turned);
        product_transposed(w->turned, q->frame, d, d, d, built);
    }
    return 0;
}

/* The derivatives by S, given those by B. */
static void
by_entries(const Problem *q, Work *w, const double *rest, const double *diagonal,
           double *out)
{
    const int e = q->e;
    for (int i = 0; i < e; i++)
        for (int j = 0; j < e; j++)
            w->entries[(size_t)i * e + j] =
                rest[(size_t)i * q->d + j] * w->root[i] * w->root[j];
    /* Correlations are exp(S) divided by the roots of its diagonal, which S changes. */
    for (int i = 0; i < e; i++)
        w->entries[(size_t)i * e + i] -=
            diagonal[i] * w->root[i] * w->root[i] / w->rest[(size_t)i * e + i];
    back_through_exponential(&w->exponential, w->entries);
    for (int i = 0; i < e; i++)
        for (int j = i + 1; j < e; j++)
            *out++ = 2.0 * w->entries[(size_t)i * e + j];
}

/* Returns log p(the first round | B); its gradient by B goes to w->by_rest. */
static double
told_by_first(const Problem *q, Work *w)
{
    const int e = q->e, m = q->seen_columns;
    double *r = w->correlations, *slope = w->by_rest, *turned = w->turned_columns;
    double value = 0.0;
    for (int i = 0; i < e; i++)
        w->row[i] = 1.0 / sqrt(w->rest[(size_t)i * e + i]);
    for (int i = 0; i < e; i++)
        for (int j = 0; j < e; j++)
            r[(size_t)i * e + j] = w->rest[(size_t)i * e + j] * w->row[i] * w->row[j];
    product(r, q->vectors, e, e, m, w->half_turned);
    transposed_product(q->vectors, w->half_turned, m, e, m, turned);
    for (size_t k = 0; k < (size_t)m * m; k++) {
        const double away = turned[k] - q->seen[k], pull = q->seen_precision[k] * away;
        value -= 0.25 * pull * away;
        turned[k] = -0.5 * pull;
    }
    product(q->vectors, turned, e, m, m, w->half_turned);
    product_transposed(w->half_turned, q->vectors, e, m, e, slope);
    /* A larger B_jj alone makes all correlations of column j smaller. */
    for (int i = 0; i < e; i++)
        slope[(size_t)i * e + i] -= dot(slope + (size_t)i * e, r + (size_t)i * e, e);
    for (int i = 0; i < e; i++)
        for (int j = 0; j < e; j++)
            slope[(size_t)i * e + j] *= w->row[i] * w->row[j];
    return value;
}

/* The derivatives by the coordinates, given those by A. */
static void
pulled_back(const Problem *q, Work *w, const double *gradient)
{
    const int d = q->d, b = q->b, e = q->e;
    double *ordered = w->blocks;
    if (q->frame == NULL) {
        for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++)
                ordered[(size_t)i * d + j] = gradient[q->order[i] * d + q->order[j]];
    } else {
        transposed_product(q->frame, gradient, d, d, d, w->other);
        product(w->other, q->frame, d, d, d, ordered);
    }
    const double *means = w->place + b;
    for (int k = 0; k < b; k++) {
        const double *mean = means + (size_t)k * e;
        const double *mixed = ordered + (size_t)k * d + b;
        double by_mass = ordered[(size_t)k * d + k];
        for (int j = 0; j < e; j++) {
            /* The block is symmetric. */
            const double along = dot(ordered + (size_t)(b + j) * d + b, mean, e);
            by_mass += (2.0 * mixed[j] + along) * mean[j];
            w->slope[b + k * e + j] = 2.0 * w->masses[k] * (mixed[j] + along);
        }
        w->slope[k] = w->masses[k] * by_mass;
    }
    double *rest = ordered + (size_t)b * d + b;
    double *diagonal = w->slope + b + b * e;
    if (q->seen_columns > 0)
        for (int i = 0; i < e; i++)
            for (int j = 0; j < e; j++)
                rest[(size_t)i * d + j] += w->by_rest[(size_t)i * e + j];
    for (int i = 0; i < e; i++)
        diagonal[i] = dot(w->rest + (size_t)i * e, rest + (size_t)i * d, e);
    if (q->power == NULL)
        by_entries(q, w, rest, diagonal, diagonal + e);
}

/* --------------------------------------------------------------- H -> log p */

/* Returns log p(releases | H); its gradient by H goes to w->turned. */
static double
evidence(const Problem *q, Work *w, const double *h, const double *covariance)
{
    const int d = q->d, r = q->rank;
    double *scaled = w->scaled, *total = w->total, *slope = w->turned;
    if (q->diagonal) {
        /* H C H is the square of a half. */
        for (int j = 0; j < d; j++)
            w->row[j] = sqrt(covariance[(size_t)j * d + j]);
        for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++)
                w->other[(size_t)i * d + j] = w->row[i] * h[(size_t)i * d + j];
        gram(w->other, d, d, total);
        for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++)
                scaled[(size_t)i * d + j] =
                    h[(size_t)i * d + j] * covariance[(size_t)j * d + j];
    } else {
        product(h, covariance, d, d, d, scaled);
        product(scaled, h, d, d, d, total);
    }
    double trace = 0.0;
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++)
            total[(size_t)i * d + j] +=
                q->variation[i] * q->variation[j] * h[(size_t)i * d + j];
    for (int i = 0; i < d; i++)
        trace += total[(size_t)i * d + i];
    for (int i = 0; i < d; i++)
        total[(size_t)i * d + i] += q->variance + 1e-13 * trace;
    if (factor(total, d) != 0)
        return -INFINITY;
    const double determinant = log_determinant(total, d);
    if (inverse_of_factor(total, d) != 0)
        return -INFINITY;
    times_vector(h, q->away, d, d, w->residual);
    for (int i = 0; i < d; i++)
        w->residual[i] += q->gradient[i];
    times_vector(total, w->residual, d, d, w->solved);
    double value = -0.5 * (determinant + dot(w->solved, w->residual, d));
    /* H B = (C H)'C with B = C'C. */
    product(q->contrasts, h, r, d, d, w->thin);
    value -= 0.5 * dot(w->thin, w->thin, r * d);
    transposed_product(w->thin, q->contrasts, d, r, d, w->curved);
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++)
            total[(size_t)i * d + j] -= w->solved[i] * w->solved[j];
    product(total, scaled, d, d, d, w->other);
    const double sharp = 1.0 / (q->information_sd * q->information_sd);
    double square = 0.0, straight = 0.0;
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++) {
            const size_t at = (size_t)i * d + j;
            const double difference = q->information[at] - h[at];
            square += difference * difference;
            straight += q->linear[at] * h[at];
            const double varied = q->variation[i] * q->variation[j];
            w->other[at] += 0.5 * varied * total[at] + w->curved[at] + q->linear[at]
                + w->solved[i] * q->away[j];
        }
    for (int i = 0; i < d; i++)
        for (int j = 0; j <= i; j++) {
            const size_t at = (size_t)i * d + j, across = (size_t)j * d + i;
            const double difference = q->information[at] - h[at];
            slope[at] = slope[across] =
                sharp * difference - 0.5 * (w->other[at] + w->other[across]);
        }
    return value - 0.5 * sharp * square - straight;
}

/* H = A with the direction of `place` flattened. */
static const double *
flattened(const Problem *q, Work *w, const double *built, double bend, double *length)
{
    const int d = q->d;
    times_vector(built, q->place, d, d, w->pushed);
    *length = fmax(dot(w->pushed, q->place, d), 1e-300);
    const double share = bend / (1.0 + bend) / *length;
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++)
            w->h[(size_t)i * d + j] =
                built[(size_t)i * d + j] - share * w->pushed[i] * w->pushed[j];
    return w->h;
}

/* Turns the gradient by H into that by A, in place. */
static void
unflattened(const Problem *q, Work *w, double bend, double length, double *gradient)
{
    const int d = q->d;
    const double share = bend / (1.0 + bend) / length;
    times_vector(gradient, w->pushed, d, d, w->row);
    const double along = dot(w->row, w->pushed, d) / length;
    for (int i = 0; i < d; i++)
        w->row[i] = share * (w->row[i] - 0.5 * along * q->place[i]);
    for (int i = 0; i < d; i++)
        for (int j = 0; j < d; j++)
            gradient[(size_t)i * d + j] -=
                w->row[i] * q->place[j] + q->place[i] * w->row[j];
}

double
density(const Problem *q, const ChainLaw *law, Work *w, const double *moved,
        double *gradient, double *built)
{
    double length = 1.0;
    if (to_coordinates(q, w, moved) != 0 || build(q, w, built) != 0)
        return -INFINITY;
    const double *h = built;
    if (!q->direct)
        h = flattened(q, w, built, law->bend, &length);
    const double *covariance = law->prior_covariance;
    if (q->followed > 0) {
        means_of_sites(q, w);
        covariance = with_context(q, w, law);
    }
    double value = evidence(q, w, h, covariance);
    if (!isfinite(value))
        return -INFINITY;
    if (!q->direct)
        unflattened(q, w, law->bend, length, w->turned);
    if (q->seen_columns > 0)
        value += told_by_first(q, w);
    pulled_back(q, w, w->turned);
    if (q->followed > 0)
        add_by_context(q, w, law, h);
    chain_rule(q, w, moved, gradient);
    return value + prior(q, law, w, moved, gradient);
}
