// The arithmetic of linear attention and its gradient. Compiled as it is in double; linear_attention_walk_f32.c includes it for float. All products
// are sums of rows of the state: one axpy or dot per row.
#include "linear_attention.h"
#include "wide_loops.h"

#include <string.h>

#ifndef WIDE_FLOAT
int64_t linear_space_elems(const LinearAttention *a, bool back) {
  int64_t state = a->d_k * a->d_v, rows = 3 * a->d_v;
  if (!back) return state + rows;
  int64_t kept = (a->steps + a->chunk - 1) / a->chunk;
  return (kept + a->chunk + 2) * state + rows;
}
#endif

// The operands of one head of K and V at one step; NULL where absent.
typedef struct Step { const Real *k, *v, *decay, *beta; } Step;

static int64_t row(const LinearAttention *a, int64_t b, int64_t t, int64_t width) { return (b * a->steps + t) * width; }
static int64_t decay_at(const LinearAttention *a, int64_t h) { return h * (a->decay_width / a->kv_heads); }
static int64_t beta_at(const LinearAttention *a, int64_t h) { return a->beta_width == 1 ? 0 : h; }

static Step step_of(const LinearAttention *a, const NAME(LinearForward) *io, int64_t b, int64_t h, int64_t t) {
  return (Step){io->k + row(a, b, t, a->kv_heads * a->d_k) + h * a->d_k, io->v + row(a, b, t, a->kv_heads * a->d_v) + h * a->d_v,
                io->decay ? io->decay + row(a, b, t, a->decay_width) + decay_at(a, h) : NULL,
                io->beta ? io->beta + row(a, b, t, a->beta_width) + beta_at(a, h) : NULL};
}

// exp(g) of row i of the state.
static Real decay_of(const LinearAttention *a, const Step *s, int64_t i) {
  return a->gated ? (Real)exp(s->decay[a->decay_width == a->kv_heads ? 0 : i]) : 1;
}

// S becomes S'; then u and what it lacks of v. `retrieved` is room.
static void decay_and_read(const LinearAttention *a, const Loops *loops, const Step *s, Real *state, Real *u, Real *retrieved) {
  int64_t n = a->d_v;
  for (int64_t i = 0; a->gated && i < a->d_k; i++) {
    Real factor = decay_of(a, s, i);
    for (int64_t m = 0; m < n; m++) state[i * n + m] *= factor;
  }
  memcpy(u, s->v, sizeof(Real) * (size_t)n);
  if (!a->delta) return;
  for (int64_t m = 0; m < n; m++) retrieved[m] = 0;
  for (int64_t i = 0; i < a->d_k; i++) axpy(loops, retrieved, s->k[i], state + i * n, n);
  for (int64_t m = 0; m < n; m++) u[m] = *s->beta * (u[m] - retrieved[m]);
}

static void write_state(const LinearAttention *a, const Loops *loops, const Step *s, Real *state, const Real *u) {
  for (int64_t i = 0; i < a->d_k; i++) axpy(loops, state + i * a->d_v, s->k[i], u, a->d_v);
}

static void begin_state(const LinearAttention *a, const Real *past, int64_t b, int64_t h, Real *state) {
  size_t bytes = sizeof(Real) * (size_t)(a->d_k * a->d_v);
  if (past) memcpy(state, past + (b * a->kv_heads + h) * a->d_k * a->d_v, bytes);
  else if (bytes) memset(state, 0, bytes);
}

void NAME(linear_forward)(const LinearAttention *a, const NAME(LinearForward) *io, const Loops *loops, Real *space) {
  int64_t size = a->d_k * a->d_v, group = a->q_heads / a->kv_heads;
  Real *state = space, *u = state + size, *retrieved = u + a->d_v;
  for (int64_t b = 0; b < a->batch; b++)
    for (int64_t h = 0; h < a->kv_heads; h++) {
      begin_state(a, io->past, b, h, state);
      for (int64_t t = 0; t < a->steps; t++) {
        Step s = step_of(a, io, b, h, t);
        decay_and_read(a, loops, &s, state, u, retrieved);
        write_state(a, loops, &s, state, u);
        for (int64_t head = h * group; io->y && head < (h + 1) * group; head++) {
          const Real *q = io->q + row(a, b, t, a->q_heads * a->d_k) + head * a->d_k;
          Real *y = io->y + row(a, b, t, a->q_heads * a->d_v) + head * a->d_v;
          for (int64_t m = 0; m < a->d_v; m++) y[m] = 0;
          for (int64_t i = 0; i < a->d_k; i++) axpy(loops, y, (Real)a->scale * q[i], state + i * a->d_v, a->d_v);
        }
      }
      if (io->present && size) memcpy(io->present + (b * a->kv_heads + h) * size, state, sizeof(Real) * (size_t)size);
    }
}

// ---- Back: dS is the gradient of the state behind a step, and becomes that of the state before it -----------------------------------------------

typedef struct Back {
  const LinearAttention *a;
  const NAME(LinearForward) *io;
  const NAME(LinearBackward) *g;
  const Loops *loops;
  Real *kept, *states, *ds;              // [chunks][d_k, d_v]; [chunk + 1][d_k, d_v]: before its first step, behind each; [d_k, d_v]
  Real *u, *retrieved, *du;              // [d_v]
} Back;

// dq = scale S dy, for all heads of Q that read the state of step t.
static void back_queries(const Back *w, int64_t b, int64_t h, int64_t t, const Real *state) {
  const LinearAttention *a = w->a;
  int64_t group = a->q_heads / a->kv_heads, n = a->d_v;
  for (int64_t head = h * group; w->g->dq && head < (h + 1) * group; head++) {
    Real *dq = w->g->dq + row(a, b, t, a->q_heads * a->d_k) + head * a->d_k;
    const Real *dy = w->g->dy ? w->g->dy + row(a, b, t, a->q_heads * n) + head * n : NULL;
    for (int64_t i = 0; i < a->d_k; i++) dq[i] = dy ? (Real)(a->scale * dot(w->loops, state + i * n, dy, n)) : 0;
  }
}

// dS += scale q dy^T of the same heads.
static void back_read(const Back *w, int64_t b, int64_t h, int64_t t) {
  const LinearAttention *a = w->a;
  int64_t group = a->q_heads / a->kv_heads, n = a->d_v;
  for (int64_t head = h * group; w->g->dy && head < (h + 1) * group; head++) {
    const Real *q = w->io->q + row(a, b, t, a->q_heads * a->d_k) + head * a->d_k, *dy = w->g->dy + row(a, b, t, a->q_heads * n) + head * n;
    for (int64_t i = 0; i < a->d_k; i++) axpy(w->loops, w->ds + i * n, (Real)a->scale * q[i], dy, n);
  }
}

// `before`: S before the step, which becomes S'. Sets dk, dv, dbeta, ddecay of the step.
static void back_step(const Back *w, int64_t b, int64_t h, int64_t t, Real *before) {
  const LinearAttention *a = w->a;
  int64_t n = a->d_v, k_at = row(a, b, t, a->kv_heads * a->d_k) + h * a->d_k, v_at = row(a, b, t, a->kv_heads * n) + h * n;
  Step s = step_of(a, w->io, b, h, t);
  decay_and_read(a, w->loops, &s, before, w->u, w->retrieved);
  for (int64_t m = 0; m < n; m++) w->du[m] = 0;
  for (int64_t i = 0; i < a->d_k; i++) {
    axpy(w->loops, w->du, s.k[i], w->ds + i * n, n);
    if (w->g->dk) w->g->dk[k_at + i] = (Real)dot(w->loops, w->ds + i * n, w->u, n);
  }
  if (a->delta) {
    double dbeta = 0;
    for (int64_t m = 0; m < n; m++) dbeta += (double)w->du[m] * (double)(s.v[m] - w->retrieved[m]);
    if (w->g->dbeta) w->g->dbeta[row(a, b, t, a->beta_width) + beta_at(a, h)] += (Real)dbeta;
    for (int64_t m = 0; m < n; m++) w->du[m] *= *s.beta;
    for (int64_t i = 0; i < a->d_k; i++) {
      if (w->g->dk) w->g->dk[k_at + i] -= (Real)dot(w->loops, before + i * n, w->du, n);
      axpy(w->loops, w->ds + i * n, -s.k[i], w->du, n);
    }
  }
  if (w->g->dv) memcpy(w->g->dv + v_at, w->du, sizeof(Real) * (size_t)n);
  for (int64_t i = 0; a->gated && i < a->d_k; i++) {
    Real factor = decay_of(a, &s, i);
    if (w->g->ddecay)
      w->g->ddecay[row(a, b, t, a->decay_width) + decay_at(a, h) + (a->decay_width == a->kv_heads ? 0 : i)] +=
          (Real)dot(w->loops, w->ds + i * n, before + i * n, n);
    for (int64_t m = 0; m < n; m++) w->ds[i * n + m] *= factor;
  }
}

static void back_head(const Back *w, int64_t b, int64_t h) {
  const LinearAttention *a = w->a;
  int64_t size = a->d_k * a->d_v, chunks = (a->steps + a->chunk - 1) / a->chunk, head = b * a->kv_heads + h;
  size_t bytes = sizeof(Real) * (size_t)size;
  Real *state = w->states;
  begin_state(a, w->io->past, b, h, state);
  for (int64_t t = 0; t < a->steps; t++) {
    if (t % a->chunk == 0) memcpy(w->kept + t / a->chunk * size, state, bytes);
    Step s = step_of(a, w->io, b, h, t);
    decay_and_read(a, w->loops, &s, state, w->u, w->retrieved);
    write_state(a, w->loops, &s, state, w->u);
  }
  begin_state(a, w->g->dpresent, b, h, w->ds);
  for (int64_t c = chunks; c-- > 0;) {
    int64_t first = c * a->chunk, end = first + a->chunk < a->steps ? first + a->chunk : a->steps;
    memcpy(w->states, w->kept + c * size, bytes);
    for (int64_t t = first; t < end; t++) {
      Real *next = w->states + (t + 1 - first) * size;
      Step s = step_of(a, w->io, b, h, t);
      memcpy(next, next - size, bytes);
      decay_and_read(a, w->loops, &s, next, w->u, w->retrieved);
      write_state(a, w->loops, &s, next, w->u);
      back_queries(w, b, h, t, next);
    }
    for (int64_t t = end; t-- > first;) {
      back_read(w, b, h, t);
      back_step(w, b, h, t, w->states + (t - first) * size);
    }
  }
  if (w->g->dpast) memcpy(w->g->dpast + head * size, w->ds, bytes);
}

void NAME(linear_backward)(const LinearAttention *a, const NAME(LinearForward) *io, const NAME(LinearBackward) *g, const Loops *loops, Real *space) {
  int64_t size = a->d_k * a->d_v, kept = (a->steps + a->chunk - 1) / a->chunk;
  Back w = {.a = a, .io = io, .g = g, .loops = loops, .kept = space};
  w.states = w.kept + kept * size;
  w.ds = w.states + (a->chunk + 1) * size;
  w.u = w.ds + size;
  w.retrieved = w.u + a->d_v;
  w.du = w.retrieved + a->d_v;
  int64_t rows = a->batch * a->steps;
  for (int64_t i = 0; g->ddecay && i < rows * a->decay_width; i++) g->ddecay[i] = 0;
  for (int64_t i = 0; g->dbeta && i < rows * a->beta_width; i++) g->dbeta[i] = 0;
  for (int64_t b = 0; b < a->batch; b++)
    for (int64_t h = 0; h < a->kv_heads; h++) back_head(&w, b, h);
}
