// The arithmetic of RNN, GRU and LSTM, forward and back through time. Compiled as it is in double; recurrent_walk_f32.c includes it for float.
// Products are rows times rows of a transposed weight matrix, summed in a fixed order.
#include "recurrent.h"
#include "wide_loops.h"

#include <math.h>
#include <string.h>

#ifndef WIDE_FLOAT
int64_t recurrent_space_elems(const Recurrent *r, bool trace) {
  int64_t gh = r->gates * r->hidden, bh = r->batch * r->hidden, slots = trace ? r->steps + 1 : 2;
  int64_t weights = (r->input + r->hidden + 2) * gh, per_slot = (trace ? 2 : 1) * r->batch * gh + 5 * bh;
  return weights + slots * per_slot + (trace ? 2 * r->batch * gh + 6 * bh : bh) + r->hidden;
}
#endif

// Rows of equal length at a stride.
typedef struct Matrix { const Real *data; int64_t stride; } Matrix;

// out[row] += sum over k of a[row][k] b[k]; out rows are `out_stride` apart, b's `n` elements at stride `b.stride`.
static void times(const Loops *loops, Real *out, int64_t out_stride, Matrix a, Matrix b, int64_t rows, int64_t k, int64_t n) {
  product(loops, out, out_stride, 1, a.data, a.stride, 1, b.data, b.stride, rows, k, n);
}

// out[k] += sum over rows of a[row][k] b[row]: the gradient of a weight matrix.
static void outer(const Loops *loops, Real *out, Matrix a, Matrix b, int64_t rows, int64_t k, int64_t n) {
  product(loops, out, n, 1, a.data, 1, a.stride, b.data, b.stride, k, rows, n);
}

static void add_rows(Real *out, const Real *a, int64_t stride, int64_t rows, int64_t n) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t i = 0; i < n; i++) out[i] += a[row * stride + i];
}

// ---- One direction -----------------------------------------------------------------------------------------------------------------

// What a walk keeps of each step: slot s holds what stood before step s (state, cell) or came out of it (the others).
typedef struct Walk {
  const Recurrent *r;
  const Loops *loops;
  const Tensor *lengths;
  int64_t direction, gh, bh;
  bool reversed, trace;
  Real *wt, *rt, *bias, *rb_h;            // transposed weights [input, gh], [hidden, gh]; W's bias + R's; GRU: R's bias of h
  Real *gates, *slopes;                   // [slots][batch][gh]
  Real *state, *cell, *cell_act, *cell_slope, *recur;   // [slots][batch][hidden]
  Real *spare;                            // [batch][hidden]
  Real *rest;                             // what is left of the workspace
} Walk;

static Real *take(Real **at, int64_t n) {
  Real *p = *at;
  *at += n;
  return p;
}

static void transpose(Real *out, const Real *a, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) out[j * rows + i] = a[i * columns + j];
}

static Walk walk_begin(const Recurrent *r, const NAME(RecurrentForward) *io, const Tensor *lengths, const Loops *loops, int64_t direction, bool trace,
                       Real *space) {
  int64_t gh = r->gates * r->hidden, bh = r->batch * r->hidden, slots = trace ? r->steps + 1 : 2;
  Walk w = {.r = r, .loops = loops, .lengths = lengths, .direction = direction, .gh = gh, .bh = bh,
            .reversed = r->backward_only || direction == 1, .trace = trace};
  w.wt = take(&space, r->input * gh);
  w.rt = take(&space, r->hidden * gh);
  w.bias = take(&space, gh);
  w.rb_h = take(&space, r->hidden);
  w.gates = take(&space, slots * r->batch * gh);
  w.slopes = trace ? take(&space, slots * r->batch * gh) : NULL;
  w.state = take(&space, slots * bh);
  w.cell = take(&space, slots * bh);
  w.cell_act = take(&space, slots * bh);
  w.cell_slope = take(&space, slots * bh);
  w.recur = take(&space, slots * bh);
  w.spare = take(&space, bh);
  w.rest = space;
  transpose(w.wt, io->w + direction * gh * r->input, gh, r->input);
  transpose(w.rt, io->r + direction * gh * r->hidden, gh, r->hidden);
  const Real *b = io->b ? io->b + direction * 2 * gh : NULL;
  bool apart = r->cell == CELL_GRU && r->linear_before_reset;
  for (int64_t i = 0; i < gh; i++) w.bias[i] = !b ? 0 : apart && i >= 2 * r->hidden ? b[i] : b[i] + b[gh + i];
  for (int64_t i = 0; i < r->hidden; i++) w.rb_h[i] = b && apart ? b[gh + 2 * r->hidden + i] : 0;
  return w;
}

static int64_t slot_of(const Walk *w, int64_t s) { return w->trace ? s : s & 1; }
static int64_t time_of(const Walk *w, int64_t s) { return w->reversed ? w->r->steps - 1 - s : s; }
static bool is_active(const Walk *w, int64_t t, int64_t b) {
  return !w->lengths || t < element_read_int(w->lengths->data, w->lengths->type->dtype, b);
}

// Row of sample 0 at step t and the distance between samples, in X and in Y; the place of a state.
static Matrix x_rows(const Recurrent *r, const Real *x, int64_t t) {
  return r->batch_first ? (Matrix){x + t * r->input, r->steps * r->input} : (Matrix){x + t * r->batch * r->input, r->input};
}
static int64_t y_at(const Walk *w, int64_t t, int64_t b) {
  const Recurrent *r = w->r;
  return (r->batch_first ? (b * r->steps + t) * r->directions + w->direction : (t * r->directions + w->direction) * r->batch + b) * r->hidden;
}
static int64_t state_at(const Walk *w, int64_t b) {
  const Recurrent *r = w->r;
  return (r->batch_first ? b * r->directions + w->direction : w->direction * r->batch + b) * r->hidden;
}

static void state_load(const Walk *w, Real *to, const Real *from) {
  for (int64_t b = 0; b < w->r->batch; b++)
    for (int64_t i = 0; i < w->r->hidden; i++) to[b * w->r->hidden + i] = from ? from[state_at(w, b) + i] : 0;
}
static void state_store(const Walk *w, Real *to, const Real *from) {
  for (int64_t b = 0; b < w->r->batch; b++) memcpy(to + state_at(w, b), from + b * w->r->hidden, sizeof(Real) * (size_t)w->r->hidden);
}

// Gate `gate` of all samples through function `f`.
static void activate(const Walk *w, int64_t slot, int gate, int f) {
  const Recurrent *r = w->r;
  for (int64_t b = 0; b < r->batch; b++) {
    int64_t at = (slot * r->batch + b) * w->gh + gate * r->hidden;
    NAME(recurrent_apply)(&r->functions[w->direction][f], r->clip, w->loops, w->gates + at, w->slopes ? w->slopes + at : NULL, r->hidden);
  }
}

static void rnn_step(const Walk *w, int64_t slot, const Real *h, Real *h_new) {
  times(w->loops, w->gates + slot * w->r->batch * w->gh, w->gh, (Matrix){h, w->r->hidden}, (Matrix){w->rt, w->gh}, w->r->batch, w->r->hidden,
          w->gh);
  activate(w, slot, 0, 0);
  memcpy(h_new, w->gates + slot * w->r->batch * w->gh, sizeof(Real) * (size_t)w->bh);
}

static void gru_step(const Walk *w, int64_t slot, const Real *h, Real *h_new) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden, gh = w->gh;
  Real *gates = w->gates + slot * r->batch * gh, *recur = w->recur + slot * w->bh;
  times(w->loops, gates, gh, (Matrix){h, n}, (Matrix){w->rt, gh}, r->batch, n, 2 * n);
  activate(w, slot, 0, 0);
  activate(w, slot, 1, 0);
  if (r->linear_before_reset) {
    for (int64_t i = 0; i < w->bh; i++) recur[i] = w->rb_h[i % n];
    times(w->loops, recur, n, (Matrix){h, n}, (Matrix){w->rt + 2 * n, gh}, r->batch, n, n);
    for (int64_t b = 0; b < r->batch; b++)
      for (int64_t i = 0; i < n; i++) gates[b * gh + 2 * n + i] += gates[b * gh + n + i] * recur[b * n + i];
  } else {
    for (int64_t b = 0; b < r->batch; b++)
      for (int64_t i = 0; i < n; i++) recur[b * n + i] = gates[b * gh + n + i] * h[b * n + i];
    times(w->loops, gates + 2 * n, gh, (Matrix){recur, n}, (Matrix){w->rt + 2 * n, gh}, r->batch, n, n);
  }
  activate(w, slot, 2, 1);
  for (int64_t b = 0; b < r->batch; b++)
    for (int64_t i = 0; i < n; i++) {
      Real z = gates[b * gh + i];
      h_new[b * n + i] = (1 - z) * gates[b * gh + 2 * n + i] + z * h[b * n + i];
    }
}

// `p`: the peephole weights of this direction, or NULL.
static void lstm_step(const Walk *w, int64_t slot, const Real *p, const Real *h, const Real *c, Real *h_new, Real *c_new) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden, gh = w->gh;
  Real *gates = w->gates + slot * r->batch * gh, *act = w->cell_act + slot * w->bh, *slope = w->slopes ? w->cell_slope + slot * w->bh : NULL;
  times(w->loops, gates, gh, (Matrix){h, n}, (Matrix){w->rt, gh}, r->batch, n, gh);
  for (int64_t b = 0; p && b < r->batch; b++)
    for (int64_t i = 0; i < n; i++) {
      gates[b * gh + i] += p[i] * c[b * n + i];
      gates[b * gh + 2 * n + i] += p[2 * n + i] * c[b * n + i];
    }
  activate(w, slot, 0, 0);
  activate(w, slot, 2, 0);
  activate(w, slot, 3, 1);
  for (int64_t b = 0; b < r->batch; b++)
    for (int64_t i = 0; i < n; i++) {
      Real *g = gates + b * gh + i;
      if (r->input_forget) g[2 * n] = 1 - g[0];
      c_new[b * n + i] = g[2 * n] * c[b * n + i] + g[0] * g[3 * n];
      if (p) g[n] += p[n + i] * c_new[b * n + i];
    }
  activate(w, slot, 1, 0);
  memcpy(act, c_new, sizeof(Real) * (size_t)w->bh);
  NAME(recurrent_apply)(&r->functions[w->direction][2], 0, w->loops, act, slope, w->bh);
  for (int64_t b = 0; b < r->batch; b++)
    for (int64_t i = 0; i < n; i++) h_new[b * n + i] = gates[b * gh + n + i] * act[b * n + i];
}

// A row of all_c or all_gates: `width` elements per hidden one.
static int64_t saved_at(const Walk *w, int64_t t, int64_t b, int64_t width) {
  const Recurrent *r = w->r;
  return ((t * r->directions + w->direction) * r->batch + b) * r->hidden * width;
}

// LSTM's trace from what its forward pass gave out.
static void walk_restore(const Walk *w, const NAME(RecurrentForward) *io) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden, gh = w->gh;
  state_load(w, w->state, io->h0);
  state_load(w, w->cell, io->c0);
  for (int64_t s = 0; s < r->steps; s++) {
    int64_t t = time_of(w, s);
    for (int64_t b = 0; b < r->batch; b++) {
      bool active = is_active(w, t, b);
      Real *h = w->state + s * w->bh + b * n, *c = w->cell + s * w->bh + b * n, *gates = w->gates + (s * r->batch + b) * gh;
      Real *slopes = w->slopes + (s * r->batch + b) * gh, *act = w->cell_act + s * w->bh + b * n;
      memcpy(h + w->bh, active ? io->saved_h + y_at(w, t, b) : h, sizeof(Real) * (size_t)n);
      memcpy(c + w->bh, active ? io->saved_c + saved_at(w, t, b, 1) : c, sizeof(Real) * (size_t)n);
      memcpy(gates, io->saved_gates + saved_at(w, t, b, 4), sizeof(Real) * (size_t)gh);
      for (int64_t i = 0; i < gh; i++) slopes[i] = i < 3 * n ? gates[i] * (1 - gates[i]) : 1 - gates[i] * gates[i];
      memcpy(act, c + w->bh, sizeof(Real) * (size_t)n);
      NAME(recurrent_apply)(&r->functions[w->direction][2], 0, w->loops, act, w->cell_slope + s * w->bh + b * n, n);
    }
  }
}

// Walks all steps; writes Y where io->y is given. Returns the slot of the last state.
static int64_t walk_forward(const Walk *w, const NAME(RecurrentForward) *io) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden;
  state_load(w, w->state, io->h0);
  state_load(w, w->cell, io->c0);
  for (int64_t s = 0; s < r->steps; s++) {
    int64_t slot = slot_of(w, s), next = slot_of(w, s + 1), t = time_of(w, s);
    Real *gates = w->gates + slot * r->batch * w->gh, *h = w->state + slot * w->bh, *h_new = w->state + next * w->bh;
    Real *c = w->cell + slot * w->bh, *c_new = w->cell + next * w->bh;
    for (int64_t b = 0; b < r->batch; b++) memcpy(gates + b * w->gh, w->bias, sizeof(Real) * (size_t)w->gh);
    times(w->loops, gates, w->gh, x_rows(r, io->x, t), (Matrix){w->wt, w->gh}, r->batch, r->input, w->gh);
    if (r->cell == CELL_RNN) rnn_step(w, slot, h, h_new);
    else if (r->cell == CELL_GRU) gru_step(w, slot, h, h_new);
    else lstm_step(w, slot, io->p ? io->p + w->direction * 3 * n : NULL, h, c, h_new, c_new);
    for (int64_t b = 0; b < r->batch; b++) {
      bool active = is_active(w, t, b);
      if (!active) {   // behind the end of a shorter sequence: the state stands still, Y is 0
        memcpy(h_new + b * n, h + b * n, sizeof(Real) * (size_t)n);
        memcpy(c_new + b * n, c + b * n, sizeof(Real) * (size_t)n);
      }
      for (int64_t i = 0; io->y && i < n; i++) io->y[y_at(w, t, b) + i] = active ? h_new[b * n + i] : 0;
      if (io->all_c) memcpy(io->all_c + saved_at(w, t, b, 1), c_new + b * n, sizeof(Real) * (size_t)n);
      if (io->all_gates) memcpy(io->all_gates + saved_at(w, t, b, r->gates), gates + b * w->gh, sizeof(Real) * (size_t)w->gh);
    }
  }
  return slot_of(w, r->steps);
}

void NAME(recurrent_forward)(const Recurrent *r, const NAME(RecurrentForward) *io, const Tensor *lengths, const Loops *loops, Real *space) {
  for (int64_t d = 0; d < r->directions; d++) {
    Walk w = walk_begin(r, io, lengths, loops, d, false, space);
    int64_t last = walk_forward(&w, io);
    if (io->y_h) state_store(&w, io->y_h, w.state + last * w.bh);
    if (io->y_c) state_store(&w, io->y_c, w.cell + last * w.bh);
  }
}

// ---- Back --------------------------------------------------------------------------------------------------------------------------

// Gradients of one direction. `d_*` of weights are NULL where nobody wants them.
typedef struct Back {
  Real *dgates, *drecur_gates;            // of W's and of R's summand of the gates [batch][gh]: they differ in GRU's h only
  Real *dh, *dc, *dh_before, *dc_before;  // [batch][hidden]
  Real *dw, *dr, *db, *dp;
  const Real *r_weights, *p;
} Back;

// d gate = d value * slope for active samples, 0 for the others.
static void rnn_back(const Walk *w, Back *k, int64_t s, int64_t b) {
  int64_t n = w->r->hidden;
  const Real *slope = w->slopes + (s * w->r->batch + b) * w->gh;
  for (int64_t i = 0; i < n; i++) k->dgates[b * n + i] = k->dh[b * n + i] * slope[i];
}

static void lstm_back(const Walk *w, Back *k, int64_t s, int64_t b) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden, at = (s * r->batch + b) * w->gh, row = b * n;
  const Real *g = w->gates + at, *slope = w->slopes + at, *c = w->cell + s * w->bh + row, *c_new = c + w->bh;
  const Real *act = w->cell_act + s * w->bh + row, *act_slope = w->cell_slope + s * w->bh + row;
  Real *d = k->dgates + b * w->gh;
  for (int64_t i = 0; i < n; i++) {
    Real dh = k->dh[row + i];
    d[n + i] = dh * act[i] * slope[n + i];
    Real dc = k->dc[row + i] + dh * g[n + i] * act_slope[i] + (k->p ? k->p[n + i] * d[n + i] : 0);
    Real di = dc * g[3 * n + i], df = dc * c[i];
    if (r->input_forget) di -= df;
    d[i] = di * slope[i];
    d[2 * n + i] = r->input_forget ? 0 : df * slope[2 * n + i];
    d[3 * n + i] = dc * g[i] * slope[3 * n + i];
    k->dc_before[row + i] = dc * g[2 * n + i] + (k->p ? k->p[i] * d[i] + k->p[2 * n + i] * d[2 * n + i] : 0);
    if (!k->dp) continue;
    k->dp[i] += d[i] * c[i];
    k->dp[n + i] += d[n + i] * c_new[i];
    k->dp[2 * n + i] += d[2 * n + i] * c[i];
  }
}

// z and h; r follows in gru_back_reset, once d(R h) is known for all samples.
static void gru_back(const Walk *w, Back *k, int64_t s, int64_t b) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden, at = (s * r->batch + b) * w->gh, row = b * n;
  const Real *g = w->gates + at, *slope = w->slopes + at, *h = w->state + s * w->bh + row, *recur = w->recur + s * w->bh + row;
  Real *d = k->dgates + b * w->gh, *dr = k->drecur_gates + b * w->gh;
  for (int64_t i = 0; i < n; i++) {
    Real dh = k->dh[row + i];
    d[i] = dh * (h[i] - g[2 * n + i]) * slope[i];
    d[2 * n + i] = dh * (1 - g[i]) * slope[2 * n + i];
    k->dh_before[row + i] = dh * g[i];
    dr[2 * n + i] = r->linear_before_reset ? d[2 * n + i] * g[n + i] : d[2 * n + i];
    if (r->linear_before_reset) d[n + i] = d[2 * n + i] * recur[i] * slope[n + i];
  }
}

// What R's summands of the gates pass on to the state before; for GRU the reset gate as well.
static void state_back(const Walk *w, Back *k, int64_t s) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden, gh = w->gh;
  bool reset_first = r->cell == CELL_GRU && !r->linear_before_reset;
  if (reset_first) {
    memset(w->spare, 0, sizeof(Real) * (size_t)w->bh);   // d(r h)
    times(w->loops, w->spare, n, (Matrix){k->drecur_gates + 2 * n, gh}, (Matrix){k->r_weights + 2 * n * n, n}, r->batch, n, n);
    for (int64_t b = 0; b < r->batch; b++)
      for (int64_t i = 0; i < n; i++) {
        int64_t at = (s * r->batch + b) * gh + n + i;
        k->dgates[b * gh + n + i] = w->spare[b * n + i] * w->state[s * w->bh + b * n + i] * w->slopes[at];
        k->dh_before[b * n + i] += w->spare[b * n + i] * w->gates[at];
      }
  }
  for (int64_t b = 0; r->cell == CELL_GRU && b < r->batch; b++)
    memcpy(k->drecur_gates + b * gh, k->dgates + b * gh, sizeof(Real) * (size_t)(2 * n));
  const Real *d = r->cell == CELL_GRU ? k->drecur_gates : k->dgates;
  times(w->loops, k->dh_before, n, (Matrix){d, gh}, (Matrix){k->r_weights, n}, r->batch, reset_first ? 2 * n : gh, n);
}

static void weights_back(const Walk *w, Back *k, int64_t s, Matrix x) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden, gh = w->gh;
  const Real *d = r->cell == CELL_GRU ? k->drecur_gates : k->dgates;
  bool reset_first = r->cell == CELL_GRU && !r->linear_before_reset;
  if (k->dw) outer(w->loops, k->dw, (Matrix){k->dgates, gh}, x, r->batch, gh, r->input);
  if (k->dr) {
    outer(w->loops, k->dr, (Matrix){d, gh}, (Matrix){w->state + s * w->bh, n}, r->batch, reset_first ? 2 * n : gh, n);
    if (reset_first) outer(w->loops, k->dr + 2 * n * n, (Matrix){d + 2 * n, gh}, (Matrix){w->recur + s * w->bh, n}, r->batch, n, n);
  }
  if (!k->db) return;
  add_rows(k->db, k->dgates, gh, r->batch, gh);
  add_rows(k->db + gh, d, gh, r->batch, gh);
}

static void step_back(const Walk *w, Back *k, const NAME(RecurrentBackward) *g, int64_t s, int64_t t) {
  const Recurrent *r = w->r;
  int64_t n = r->hidden;
  memset(k->dgates, 0, sizeof(Real) * (size_t)(r->batch * w->gh));
  memset(k->drecur_gates, 0, sizeof(Real) * (size_t)(r->batch * w->gh));
  memset(k->dh_before, 0, sizeof(Real) * (size_t)w->bh);
  memset(k->dc_before, 0, sizeof(Real) * (size_t)w->bh);
  for (int64_t b = 0; b < r->batch; b++) {
    if (!is_active(w, t, b)) continue;
    for (int64_t i = 0; g->dy && i < n; i++) k->dh[b * n + i] += g->dy[y_at(w, t, b) + i];
    if (r->cell == CELL_RNN) rnn_back(w, k, s, b);
    else if (r->cell == CELL_GRU) gru_back(w, k, s, b);
    else lstm_back(w, k, s, b);
  }
  state_back(w, k, s);
  for (int64_t b = 0; b < r->batch; b++) {
    if (is_active(w, t, b)) continue;
    memcpy(k->dh_before + b * n, k->dh + b * n, sizeof(Real) * (size_t)n);
    memcpy(k->dc_before + b * n, k->dc + b * n, sizeof(Real) * (size_t)n);
  }
}

void NAME(recurrent_backward)(const Recurrent *r, const NAME(RecurrentForward) *io, const NAME(RecurrentBackward) *g, const Tensor *lengths,
                              const Loops *loops, Real *space) {
  int64_t n = r->hidden, gh = r->gates * n;
  NAME(RecurrentForward) again = *io;
  again.y = again.y_h = again.y_c = again.all_c = again.all_gates = NULL;
  if (g->dx) memset(g->dx, 0, sizeof(Real) * (size_t)(r->steps * r->batch * r->input));
  if (g->dw) memset(g->dw, 0, sizeof(Real) * (size_t)(r->directions * gh * r->input));
  if (g->dr) memset(g->dr, 0, sizeof(Real) * (size_t)(r->directions * gh * n));
  if (g->db) memset(g->db, 0, sizeof(Real) * (size_t)(r->directions * 2 * gh));
  if (g->dp) memset(g->dp, 0, sizeof(Real) * (size_t)(r->directions * 3 * n));
  for (int64_t d = 0; d < r->directions; d++) {
    Walk w = walk_begin(r, io, lengths, loops, d, true, space);
    Real *rest = w.rest;
    if (io->saved_gates) walk_restore(&w, io);
    else walk_forward(&w, &again);
    Back k = {.dw = g->dw ? g->dw + d * gh * r->input : NULL, .dr = g->dr ? g->dr + d * gh * n : NULL, .db = g->db ? g->db + d * 2 * gh : NULL,
              .dp = g->dp ? g->dp + d * 3 * n : NULL, .r_weights = io->r + d * gh * n, .p = io->p ? io->p + d * 3 * n : NULL};
    k.dgates = take(&rest, r->batch * gh);
    k.drecur_gates = take(&rest, r->batch * gh);
    k.dh = take(&rest, w.bh);
    k.dc = take(&rest, w.bh);
    k.dh_before = take(&rest, w.bh);
    k.dc_before = take(&rest, w.bh);
    state_load(&w, k.dh, g->dy_h);
    state_load(&w, k.dc, g->dy_c);
    for (int64_t s = r->steps; s-- > 0;) {
      int64_t t = time_of(&w, s);
      step_back(&w, &k, g, s, t);
      Matrix x = x_rows(r, io->x, t);
      weights_back(&w, &k, s, x);
      if (g->dx)
        times(loops, g->dx + (x.data - io->x), x.stride, (Matrix){k.dgates, gh}, (Matrix){io->w + d * gh * r->input, r->input}, r->batch, gh,
                r->input);
      memcpy(k.dh, k.dh_before, sizeof(Real) * (size_t)w.bh);
      memcpy(k.dc, k.dc_before, sizeof(Real) * (size_t)w.bh);
    }
    if (g->dh0) state_store(&w, g->dh0, k.dh);
    if (g->dc0) state_store(&w, g->dc0, k.dc);
  }
}
