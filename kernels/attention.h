// Scaled dot-product attention free of operators: what attention.c (rows, attributes) and attention_walk.c (arithmetic) share. The walk is compiled
// twice, in double (the reference) and in float (run_cpu), from one text. It works row by row of the queries: nothing of the size
// queries x keys is kept, and the gradient computes the probabilities again.
#ifndef TESSERA_ATTENTION_H
#define TESSERA_ATTENTION_H

#include "kernel.h"

typedef struct Attention {
  int64_t batch, q_heads, kv_heads, q_len, kv_len, past, total, head, v_head;   // total = past + kv_len keys
  bool flat;                             // Q, K, V, Y are [batch, length, heads x head]; else [batch, heads, length, head]
  bool causal, has_past;
  double scale, softcap;                 // softcap 0: none
  int64_t left, right;                   // window; -1: open
  int scores_mode;                       // what the fourth output holds
  int64_t mask_strides[4], mask_len;     // against [batch, q_heads, q_len, total]; keys from mask_len on are masked
  const bool *mask_bits;                 // one of the two masks, or none
  const Tensor *lengths;                 // valid keys per sample, or NULL
} Attention;

#define ATTENTION_OPERANDS(T, suffix)                                                                        \
  typedef struct AttentionForward_##suffix {                                                                 \
    const T *q, *k, *v, *mask, *past_k, *past_v;                                                             \
    T *y, *present_k, *present_v, *scores;                                                                   \
  } AttentionForward_##suffix;                                                                               \
  typedef struct AttentionBackward_##suffix {                                                                \
    const T *dy, *dpresent_k, *dpresent_v;                                                                   \
    T *dq, *dk, *dv, *dmask, *dpast_k, *dpast_v;                                                             \
  } AttentionBackward_##suffix;
ATTENTION_OPERANDS(double, f64)
ATTENTION_OPERANDS(float, f32)

int64_t attention_space_elems(const Attention *a, bool back);

// Operands that are NULL are absent or not wanted. dmask has `mask_elems` elements.
void attention_forward_f64(const Attention *a, const AttentionForward_f64 *io, const Loops *loops, double *space);
void attention_forward_f32(const Attention *a, const AttentionForward_f32 *io, const Loops *loops, float *space);
void attention_backward_f64(const Attention *a, const AttentionForward_f64 *io, const AttentionBackward_f64 *g, int64_t mask_elems,
                            const Loops *loops, double *space);
void attention_backward_f32(const Attention *a, const AttentionForward_f32 *io, const AttentionBackward_f32 *g, int64_t mask_elems,
                            const Loops *loops, float *space);

#endif
