// The arithmetic of attention and its gradient. Compiled as it is in double; attention_walk_f32.c includes it for float. Products are sums of rows:
// keys and values lie transposed in workspace, so that one axpy serves all keys.
#include "attention.h"
#include "wide_loops.h"

#include <math.h>
#include <string.h>

#ifndef WIDE_FLOAT
int64_t attention_space_elems(const Attention *a, bool back) {
  int64_t keys = a->total * (a->head + a->v_head);
  return keys + 3 * a->total + (back ? 2 * keys + 2 * a->total : 0);   // transposed and plain keys and values, their gradients, rows
}
#endif

// Elements from the start of Q (or dQ, Y with `width`), K (V) and past or present keys (values) to a row.
static int64_t q_row(const Attention *a, int64_t b, int64_t h, int64_t i, int64_t width) {
  return (a->flat ? (b * a->q_len + i) * a->q_heads + h : (b * a->q_heads + h) * a->q_len + i) * width;
}
static int64_t k_row(const Attention *a, int64_t b, int64_t h, int64_t j, int64_t width) {
  return (a->flat ? (b * a->kv_len + j) * a->kv_heads + h : (b * a->kv_heads + h) * a->kv_len + j) * width;
}
static int64_t cache_row(const Attention *a, int64_t b, int64_t h, int64_t length, int64_t j, int64_t width) {
  return ((b * a->kv_heads + h) * length + j) * width;
}

// Rows of one head, past ones first, to `plain` [total][width] (unless NULL) and to its transpose (unless NULL).
static void gather(const Attention *a, int64_t b, int64_t h, const Real *past, const Real *now, int64_t width, Real *plain, Real *turned) {
  for (int64_t j = 0; j < a->total; j++) {
    const Real *row = j < a->past ? past + cache_row(a, b, h, a->past, j, width) : now + k_row(a, b, h, j - a->past, width);
    for (int64_t d = 0; d < width; d++) {
      if (plain) plain[j * width + d] = row[d];
      if (turned) turned[d * a->total + j] = row[d];
    }
  }
}

static void scatter(const Attention *a, int64_t b, int64_t h, Real *past, Real *now, int64_t width, const Real *plain) {
  for (int64_t j = 0; j < a->total; j++) {
    Real *row = j < a->past ? (past ? past + cache_row(a, b, h, a->past, j, width) : NULL)
                            : (now ? now + k_row(a, b, h, j - a->past, width) : NULL);
    if (row) memcpy(row, plain + j * width, sizeof(Real) * (size_t)width);
  }
}

// Keys [from, end) that query i of sample b may see at all.
typedef struct Range { int64_t from, end; } Range;

static Range range_of(const Attention *a, int64_t b, int64_t i) {
  int64_t valid = a->lengths ? element_read_int(a->lengths->data, a->lengths->type->dtype, b) : a->total;
  int64_t at = i + (a->has_past ? a->past : a->lengths ? valid - a->q_len : 0);
  Range r = {0, valid < a->total ? valid : a->total};
  if (r.end > a->mask_len) r.end = a->mask_len;
  if (a->causal && r.end > at + 1) r.end = at + 1;
  if (a->right >= 0 && r.end > at + a->right + 1) r.end = at + a->right + 1;
  if (a->left >= 0 && r.from < at - a->left) r.from = at - a->left;
  if (r.end < r.from) r.end = r.from;
  return r;
}

static int64_t mask_at(const Attention *a, int64_t b, int64_t h, int64_t i) {
  return b * a->mask_strides[0] + h * a->mask_strides[1] + i * a->mask_strides[2];
}

// What is added to the score of key j: 0, the mask, or -inf.
static Real bias_at(const Attention *a, const Real *mask, int64_t row, int64_t j) {
  int64_t e = row + j * a->mask_strides[3];
  if (a->mask_bits) return a->mask_bits[e] ? 0 : (Real)-INFINITY;
  return mask ? mask[e] : 0;
}

// scores[0..total) = scale q . k for the keys of `r`.
static void scores_of(const Attention *a, const Loops *loops, Real *scores, const Real *q, const Real *k_turned, Range r) {
  for (int64_t j = r.from; j < r.end; j++) scores[j] = 0;
  product(loops, scores + r.from, 0, (Real)a->scale, q, 0, 1, k_turned + r.from, a->total, 1, a->head, r.end - r.from);
}

// scores -> softcap tanh(scores / softcap); `slope` (unless NULL): its derivative.
static void soften(const Attention *a, const Loops *loops, Real *scores, Real *slope, Range r) {
  if (a->softcap == 0) return;
  for (int64_t j = r.from; j < r.end; j++) scores[j] /= (Real)a->softcap;
  tanh_all(loops, scores + r.from, r.end - r.from);
  for (int64_t j = r.from; j < r.end; j++) {
    if (slope) slope[j] = 1 - scores[j] * scores[j];
    scores[j] *= (Real)a->softcap;
  }
}

// Scores to probabilities, all zero where no key is left.
static void normalise(const Attention *a, const Loops *loops, Real *p, const Real *mask, int64_t row, Range r) {
  bool any = false;
  Real max = (Real)-INFINITY;
  for (int64_t j = r.from; j < r.end; j++) {
    Real bias = bias_at(a, mask, row, j);
    any |= !(bias == (Real)-INFINITY);
    p[j] = bias == (Real)-INFINITY ? bias : p[j] + bias;
    if (p[j] > max || p[j] != p[j]) max = p[j];
  }
  int64_t n = r.end - r.from;
  if (!any) {
    for (int64_t j = r.from; j < r.end; j++) p[j] = 0;
    return;
  }
  exp_less(loops, p + r.from, max, n);
  Real factor = (Real)(1 / sum(loops, p + r.from, n));
  for (int64_t j = r.from; j < r.end; j++) p[j] *= factor;
}

// The fourth output for one query: raw, softened, biased scores or probabilities of all keys.
static void scores_out(const Attention *a, const Loops *loops, Real *out, const Real *q, const Real *k_turned, const Real *mask, int64_t row,
                       Range seen, const Real *p) {
  Range all = {0, a->total};
  if (a->scores_mode == 3) {
    for (int64_t j = 0; j < a->total; j++) out[j] = j >= seen.from && j < seen.end ? p[j] : 0;
    return;
  }
  scores_of(a, loops, out, q, k_turned, all);
  if (a->scores_mode >= 1) soften(a, loops, out, NULL, all);
  for (int64_t j = 0; a->scores_mode == 2 && j < a->total; j++)
    out[j] += j >= seen.from && j < seen.end ? bias_at(a, mask, row, j) : (Real)-INFINITY;
}

void NAME(attention_forward)(const Attention *a, const NAME(AttentionForward) *io, const Loops *loops, Real *space) {
  Real *k_turned = space, *v = k_turned + a->total * a->head, *p = v + a->total * a->v_head;
  int64_t group = a->kv_heads ? a->q_heads / a->kv_heads : 0;
  for (int64_t b = 0; b < a->batch; b++)
    for (int64_t kv = 0; kv < a->kv_heads; kv++) {
      gather(a, b, kv, io->past_k, io->k, a->head, io->present_k ? io->present_k + cache_row(a, b, kv, a->total, 0, a->head) : NULL, k_turned);
      gather(a, b, kv, io->past_v, io->v, a->v_head, v, NULL);
      if (io->present_v) memcpy(io->present_v + cache_row(a, b, kv, a->total, 0, a->v_head), v, sizeof(Real) * (size_t)(a->total * a->v_head));
      for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i = 0; i < a->q_len; i++) {
          const Real *q = io->q + q_row(a, b, h, i, a->head);
          Range r = range_of(a, b, i);
          int64_t row = mask_at(a, b, h, i);
          scores_of(a, loops, p, q, k_turned, r);
          soften(a, loops, p, NULL, r);
          normalise(a, loops, p, io->mask, row, r);
          if (io->scores) scores_out(a, loops, io->scores + ((b * a->q_heads + h) * a->q_len + i) * a->total, q, k_turned, io->mask, row, r, p);
          if (!io->y) continue;
          Real *y = io->y + q_row(a, b, h, i, a->v_head);
          for (int64_t d = 0; d < a->v_head; d++) y[d] = 0;
          product(loops, y, 0, 1, p + r.from, 0, 1, v + r.from * a->v_head, a->v_head, 1, r.end - r.from, a->v_head);
        }
    }
}

// ---- Back: with p the probabilities and dp = dY V^T: dS = p (dp - sum(p dp)), dmask = dS, then through softcap and scale ---------------------

typedef struct Back { Real *k, *k_turned, *v_turned, *dk, *dv, *p, *dp, *slope; } Back;

static void query_back(const Attention *a, const NAME(AttentionForward) * io, const NAME(AttentionBackward) * g, const Loops *loops, const Back *w,
                       int64_t b, int64_t h, int64_t i) {
  const Real *q = io->q + q_row(a, b, h, i, a->head), *dy = g->dy ? g->dy + q_row(a, b, h, i, a->v_head) : NULL;
  Real *dq = g->dq ? g->dq + q_row(a, b, h, i, a->head) : NULL;
  Range r = range_of(a, b, i);
  int64_t row = mask_at(a, b, h, i), n = r.end - r.from;
  for (int64_t d = 0; dq && d < a->head; d++) dq[d] = 0;
  if (!dy || !n) return;
  scores_of(a, loops, w->p, q, w->k_turned, r);
  soften(a, loops, w->p, w->slope, r);
  normalise(a, loops, w->p, io->mask, row, r);
  for (int64_t j = r.from; j < r.end; j++) w->dp[j] = 0;
  product(loops, w->dp + r.from, 0, 1, dy, 0, 1, w->v_turned + r.from, a->total, 1, a->v_head, n);
  Real mean = (Real)dot(loops, w->p + r.from, w->dp + r.from, n);
  for (int64_t j = r.from; j < r.end; j++) {
    Real ds = w->p[j] * (w->dp[j] - mean);
    if (g->dmask) g->dmask[row + j * a->mask_strides[3]] += ds;
    ds *= (Real)a->scale * (a->softcap != 0 ? w->slope[j] : 1);
    if (w->dv) axpy(loops, w->dv + j * a->v_head, w->p[j], dy, a->v_head);
    if (w->dk) axpy(loops, w->dk + j * a->head, ds, q, a->head);
    w->dp[j] = ds;
  }
  if (dq) product(loops, dq, 0, 1, w->dp + r.from, 0, 1, w->k + r.from * a->head, a->head, 1, n, a->head);
}

void NAME(attention_backward)(const Attention *a, const NAME(AttentionForward) *io, const NAME(AttentionBackward) *g, int64_t mask_elems,
                              const Loops *loops, Real *space) {
  int64_t keys = a->total * a->head, values = a->total * a->v_head, group = a->kv_heads ? a->q_heads / a->kv_heads : 0;
  Back w = {.k_turned = space, .v_turned = space + keys};
  w.k = w.v_turned + values;
  w.dk = g->dk || g->dpast_k ? w.k + keys : NULL;
  w.dv = g->dv || g->dpast_v ? w.k + 2 * keys : NULL;
  w.p = w.k + 2 * keys + values;
  w.dp = w.p + a->total;
  w.slope = w.dp + a->total;
  for (int64_t i = 0; g->dmask && i < mask_elems; i++) g->dmask[i] = 0;
  for (int64_t b = 0; b < a->batch; b++)
    for (int64_t kv = 0; kv < a->kv_heads; kv++) {
      gather(a, b, kv, io->past_k, io->k, a->head, w.k, w.k_turned);
      gather(a, b, kv, io->past_v, io->v, a->v_head, NULL, w.v_turned);
      const Real *dpk = g->dpresent_k ? g->dpresent_k + cache_row(a, b, kv, a->total, 0, a->head) : NULL;
      const Real *dpv = g->dpresent_v ? g->dpresent_v + cache_row(a, b, kv, a->total, 0, a->v_head) : NULL;
      for (int64_t e = 0; w.dk && e < keys; e++) w.dk[e] = dpk ? dpk[e] : 0;
      for (int64_t e = 0; w.dv && e < values; e++) w.dv[e] = dpv ? dpv[e] : 0;
      for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t i = 0; i < a->q_len; i++) query_back(a, io, g, loops, &w, b, h, i);
      if (w.dk) scatter(a, b, kv, g->dpast_k, g->dk, a->head, w.dk);
      if (w.dv) scatter(a, b, kv, g->dpast_v, g->dv, a->v_head, w.dv);
    }
}
