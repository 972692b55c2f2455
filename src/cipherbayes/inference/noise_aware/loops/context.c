/* What the levels of sites follow: the means of their columns.
 *
 * The same as SiteContext.at and SiteContext.pulled_back in site_context.py, but in terms
 * of the coordinates: masses and means instead of the entries of H.
 */
#include <math.h>
#include <string.h>

#include "loops.h"

#define LARGEST_MEAN 2.0

/* Column j of site k among the others. */
static int
followed_column(const Problem *q, int k, int j)
{
    return (int)q->columns[(size_t)k * q->followed + j];
}

void
means_of_sites(const Problem *q, Work *w)
{
    const int f = q->followed, count = q->sites;
    const double *means = w->place + q->b;
    memset(w->site_masses, 0, (size_t)count * sizeof(double));
    memset(w->site_means, 0, (size_t)count * f * sizeof(double));
    for (int r = 0; r < q->b; r++) {
        const int k = r % count;
        const double mass = w->masses[r] * q->units[r] * q->units[r];
        w->site_masses[k] += mass;
        for (int j = 0; j < f; j++) {
            const int o = followed_column(q, k, j);
            w->site_means[(size_t)k * f + j] +=
                mass * means[(size_t)r * q->e + o] * q->units[q->b + o] / q->units[r];
        }
    }
    for (int k = 0; k < count; k++)
        for (int j = 0; j < f; j++)
            w->site_means[(size_t)k * f + j] /= w->site_masses[k];
}

static double
untilted(const Problem *q, const Work *w, int k, int j)
{
    const size_t at = (size_t)k * q->followed + j;
    return w->site_means[at] - q->tilts[at];
}

const double *
with_context(const Problem *q, Work *w, const ChainLaw *law)
{
    const int d = q->d, f = q->followed, count = q->sites;
    memcpy(w->covariance, law->prior_covariance, (size_t)d * d * sizeof(double));
    memset(w->context, 0, (size_t)d * f * sizeof(double));
    for (int j = 0; j < f; j++) {
        double middle = 0.0;
        for (int k = 0; k < count; k++)
            middle += held(untilted(q, w, k, j), 0.0, LARGEST_MEAN) / count;
        for (int r = 0; r < q->b; r++) {
            const double mean = held(untilted(q, w, r % count, j), 0.0, LARGEST_MEAN);
            w->context[(size_t)q->order[r] * f + j] =
                law->following * q->units[r] * q->follow[j] * (mean - middle);
        }
    }
    for (int r = 0; r < q->b; r++)
        for (int s = 0; s < q->b; s++) {
            const size_t i = q->order[r], j = q->order[s];
            w->covariance[i * d + j] += dot(w->context + i * f, w->context + j * f, f);
        }
    return w->covariance;
}

void
add_by_context(const Problem *q, Work *w, const ChainLaw *law, const double *h)
{
    const int d = q->d, f = q->followed, count = q->sites;
    const double *means = w->place + q->b;
    product(h, w->context, d, d, f, w->along);
    product(w->total, w->along, d, d, f, w->by_means);
    product(h, w->by_means, d, d, f, w->along); /* minus the gradient by the context */
    memset(w->by_means, 0, (size_t)count * f * sizeof(double));
    for (int r = 0; r < q->b; r++)
        for (int j = 0; j < f; j++)
            w->by_means[(size_t)(r % count) * f + j] -= law->following * q->units[r]
                * q->follow[j] * w->along[(size_t)q->order[r] * f + j];
    for (int j = 0; j < f; j++) {
        double middle = 0.0;
        for (int k = 0; k < count; k++)
            middle += w->by_means[(size_t)k * f + j] / count;
        for (int k = 0; k < count; k++) {
            const int out = !(fabs(untilted(q, w, k, j)) < LARGEST_MEAN);
            double *by = w->by_means + (size_t)k * f + j;
            *by = out ? 0.0 : (*by - middle) / w->site_masses[k];
        }
    }
    for (int r = 0; r < q->b; r++) {
        const int k = r % count;
        const double mass = w->masses[r] * q->units[r] * q->units[r];
        for (int j = 0; j < f; j++) {
            const int o = followed_column(q, k, j);
            const double by = mass * w->by_means[(size_t)k * f + j];
            const double ratio = q->units[q->b + o] / q->units[r];
            const double mean = means[(size_t)r * q->e + o] * ratio;
            w->slope[q->b + (size_t)r * q->e + o] += by * ratio;
            w->slope[r] += by * (mean - w->site_means[(size_t)k * f + j]);
        }
    }
}
