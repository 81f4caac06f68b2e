// Linear attention free of operators: what linear_attention.c (rows, attributes) and linear_attention_walk.c (arithmetic) share. The walk is
// compiled twice, in double (the reference) and in float (run_cpu), from one text.
//
// Each head of K and V carries a state S [d_k, d_v] through time:   S' = exp(g) S,   u = beta (v - S'^T k) or v,   S = S' + k u^T,   and each of its
// heads of Q reads o = scale S^T q.
#ifndef TESSERA_LINEAR_ATTENTION_H
#define TESSERA_LINEAR_ATTENTION_H

#include "kernel.h"

typedef struct LinearAttention {
  int64_t batch, steps, q_heads, kv_heads, d_k, d_v;
  bool gated, delta;                 // there is g; there is beta
  int64_t decay_width, beta_width;   // of g: kv_heads or kv_heads x d_k; of beta: kv_heads or 1
  double scale;
  int64_t chunk;                     // steps between two states that the way back keeps
} LinearAttention;

// Operands; absent ones are NULL. q, k, v, g, beta and y are [batch, steps, heads x width], states [batch, kv_heads, d_k, d_v].
#define LINEAR_OPERANDS(T, suffix)                                                                                        \
  typedef struct LinearForward_##suffix { const T *q, *k, *v, *past, *decay, *beta; T *y, *present; } LinearForward_##suffix; \
  typedef struct LinearBackward_##suffix { const T *dy, *dpresent; T *dq, *dk, *dv, *dpast, *ddecay, *dbeta; } LinearBackward_##suffix;
LINEAR_OPERANDS(double, f64)
LINEAR_OPERANDS(float, f32)

int64_t linear_space_elems(const LinearAttention *a, bool back);

void linear_forward_f64(const LinearAttention *a, const LinearForward_f64 *io, const Loops *loops, double *space);
void linear_forward_f32(const LinearAttention *a, const LinearForward_f32 *io, const Loops *loops, float *space);

// Walks forward again, keeping every chunk-th state, then back chunk by chunk. Outputs of `g` that are not NULL are set.
void linear_backward_f64(const LinearAttention *a, const LinearForward_f64 *io, const LinearBackward_f64 *g, const Loops *loops, double *space);
void linear_backward_f32(const LinearAttention *a, const LinearForward_f32 *io, const LinearBackward_f32 *g, const Loops *loops, float *space);

#endif
