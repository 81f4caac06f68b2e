// The arithmetic of deformable columns and their gradient. Compiled as it is in double; deform_walk_f32.c includes it for float.
#include "deform.h"
#include "wide_loops.h"

enum { CORNERS = 1 << WINDOW_AXES };

// Elements of X around a point that exist, their weights, and the weights' derivatives by the point's place on each axis.
typedef struct Corners { int n; int64_t at[CORNERS]; Real weight[CORNERS], slope[CORNERS][WINDOW_AXES]; } Corners;

// The corners of tap `tap` of place `place`; offset: of the first axis, `axis_step` apart.
static Corners corners_of(const Window *w, int64_t place, int64_t tap, const Real *offset, int64_t axis_step) {
  int64_t low[WINDOW_AXES];
  Real over[WINDOW_AXES];
  Corners c = {0};
  int first = WINDOW_AXES - w->n_axes;
  for (int d = WINDOW_AXES - 1; d >= first; d--) {
    Real at = (Real)(place % w->out[d] * w->stride[d] + tap % w->kernel[d] * w->dilation[d] - w->pad_begin[d]) + offset[(d - first) * axis_step];
    place /= w->out[d];
    tap /= w->kernel[d];
    if (!(at > -1 && at < (Real)w->in[d])) return c;
    Real base = (Real)floor((double)at);
    low[d] = (int64_t)base;
    over[d] = at - base;
  }
  for (int k = 0; k < 1 << w->n_axes; k++) {
    int64_t at = 0;
    Real weight = 1, slope[WINDOW_AXES] = {1, 1, 1};
    bool inside = true;
    for (int d = first; d < WINDOW_AXES; d++) {
      int up = k >> (d - first) & 1;
      int64_t i = low[d] + up;
      inside &= i >= 0 && i < w->in[d];
      at = at * w->in[d] + i;
      Real part = up ? over[d] : 1 - over[d];
      weight *= part;
      for (int e = first; e < WINDOW_AXES; e++) slope[e - first] *= e == d ? (Real)(up ? 1 : -1) : part;
    }
    if (!inside) continue;
    c.at[c.n] = at;
    c.weight[c.n] = weight;
    for (int e = 0; e < w->n_axes; e++) c.slope[c.n][e] = slope[e];
    c.n++;
  }
  return c;
}

// The corners of a tap serve all channels of its group.
void NAME(deform_forward)(const Deform *d, const Real *x, const Real *offset, const Real *mask, Real *columns) {
  const Window *w = &d->window;
  int64_t in = window_elems(w->in), places = window_elems(w->out), taps = window_elems(w->kernel), each = d->channels / d->groups;
  for (int64_t row = 0; row < d->batch * d->groups * taps; row++)
    for (int64_t place = 0; place < places; place++) {
      int64_t group = row / taps, tap = row % taps;         // of all samples: its channels follow each other
      Corners k = corners_of(w, place, tap, offset + row * w->n_axes * places + place, places);
      Real factor = mask ? mask[row * places + place] : 1;
      for (int64_t channel = group * each; channel < (group + 1) * each; channel++) {
        Real v = 0;
        for (int i = 0; i < k.n; i++) v += k.weight[i] * x[channel * in + k.at[i]];
        columns[(channel * taps + tap) * places + place] = v * factor;
      }
    }
}

void NAME(deform_backward)(const Deform *d, const Real *x, const Real *offset, const Real *mask, const NAME(DeformGrads) *g) {
  const Window *w = &d->window;
  int64_t in = window_elems(w->in), places = window_elems(w->out), taps = window_elems(w->kernel), each = d->channels / d->groups;
  for (int64_t i = 0; g->dx && i < d->batch * d->channels * in; i++) g->dx[i] = 0;
  for (int64_t row = 0; row < d->batch * d->groups * taps; row++)
    for (int64_t place = 0; place < places; place++) {
      int64_t group = row / taps, tap = row % taps, offset_at = row * w->n_axes * places + place;
      Corners k = corners_of(w, place, tap, offset + offset_at, places);
      Real factor = mask ? mask[row * places + place] : 1, dfactor = 0, moved[WINDOW_AXES] = {0};
      for (int64_t channel = group * each; channel < (group + 1) * each; channel++) {
        Real dv = g->dcolumns[(channel * taps + tap) * places + place];
        for (int i = 0; i < k.n; i++) {
          Real v = x[channel * in + k.at[i]];
          dfactor += dv * k.weight[i] * v;
          for (int e = 0; e < w->n_axes; e++) moved[e] += dv * factor * k.slope[i][e] * v;
          if (g->dx) g->dx[channel * in + k.at[i]] += dv * factor * k.weight[i];
        }
      }
      if (g->dmask) g->dmask[row * places + place] = dfactor;
      for (int e = 0; g->doffset && e < w->n_axes; e++) g->doffset[offset_at + e * places] = moved[e];
    }
}
