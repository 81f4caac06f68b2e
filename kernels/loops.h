// Vector loops over f32, one table per instruction set. loops.c is compiled once per ISA (LOOPS_ISA names the table); which one runs is
// decided by the plan's target, never by compile flags. Every loop gives the same bits for an element at any offset and length, and the
// same bits on every ISA: no contraction (-ffp-contract=off), explicit fma, no reassociation, masked or scalar tails that compute alike.
//
// Threads: pure functions over the caller's memory. Units: elements. Pointers need no alignment. `out` may equal an input, not overlap partly.
#ifndef TESSERA_LOOPS_H
#define TESSERA_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum Isa { ISA_SCALAR, ISA_AVX2, ISA_AVX512, ISA_AMX, ISA_COUNT } Isa;   // AMX: AVX512 loops, the matrix library uses tiles

const char *isa_name(Isa isa);                     // "scalar", "avx2", "avx512", "amx"
bool isa_from_name(const char *name, Isa *out);
Isa isa_best(void);                                // the widest that this processor has (CPUID and OS support)
bool isa_available(Isa isa);

// Hyper-parameters of one optimizer step over a flat slice; torch.optim's semantics.
typedef struct AdamStep {
  double lr, beta1, beta2, eps, weight_decay;
  double scale;                                    // gradient is multiplied by it first (in f32)
  int64_t t;                                       // 1-based step
  bool decoupled;                                  // AdamW
} AdamStep;
// NAdam and RAdam: p keep + (rate_grad g + rate_mean m) / (sqrt(v) / root2 + eps); plain: without the quotient. `l2` times the parameter joins the gradient.
typedef struct MomentStep { double scale, keep, l2, beta1, beta2, root2, eps, rate_grad, rate_mean; bool plain; } MomentStep;
typedef struct LionStep { double scale, lr, beta1, beta2, weight_decay; } LionStep;
typedef struct LambStep { double scale, beta1, beta2, eps, weight_decay, correction1, root2; } LambStep;      // corrections of this step

// Adam whose moments are codes (kernels/adam8.c), in blocks that have a scale each. A book is 256 ascending numbers and the 255 edges between them.
enum { ADAM8_BLOCK = 256 };
typedef struct CodeBook { float values[256], edges[255]; } CodeBook;       // edge i lies between values i and i + 1
typedef struct Adam8Step { double scale, keep, l2, beta1, beta2, eps, rate, root2; CodeBook mean, square; } Adam8Step;
typedef struct Adam8Slice { float *param; const float *grad; uint8_t *mean, *square; float *mean_scale, *square_scale; int64_t n; } Adam8Slice;   // whole blocks

typedef struct SgdStep { double lr, momentum, dampening, weight_decay, scale; int64_t t; bool nesterov; } SgdStep;

// out[r][i] += alpha a[r][x] b[x][i]; out and b have rows of n elements, a has any strides.
typedef struct RowsProduct {
  float *out;
  int64_t out_stride;
  float alpha;
  const float *a;
  int64_t a_row, a_col;
  const float *b;
  int64_t b_stride, rows, k, n;
} RowsProduct;

enum { LOOPS_RANDOM_WORDS = 64 };

typedef struct Loops {
  void (*add)(float *out, const float *a, const float *b, int64_t n);
  void (*sub)(float *out, const float *a, const float *b, int64_t n);
  void (*mul)(float *out, const float *a, const float *b, int64_t n);
  void (*div)(float *out, const float *a, const float *b, int64_t n);
  void (*add_s)(float *out, const float *a, float s, int64_t n);       // a + s
  void (*mul_s)(float *out, const float *a, float s, int64_t n);       // a * s
  void (*axpy)(float *out, float s, const float *a, int64_t n);        // out = fma(s, a, out)
  void (*product)(const RowsProduct *p);                               // out[r][i] = fma(alpha a[r][x], b[x][i], out[r][i]) for x = 0, 1, ...
  void (*exp)(float *out, const float *a, int64_t n);                  // <= 1 ulp aim; inf, nan, denormals as libm
  void (*log)(float *out, const float *a, int64_t n);
  void (*tanh)(float *out, const float *a, int64_t n);
  void (*erf)(float *out, const float *a, int64_t n);
  void (*sigmoid)(float *out, const float *a, int64_t n);
  void (*sqrt)(float *out, const float *a, int64_t n);
  void (*relu)(float *out, const float *a, int64_t n);
  void (*relu_grad)(float *dx, const float *y, const float *dy, int64_t n);      // dy where y > 0, else 0
  void (*tanh_grad)(float *dx, const float *y, const float *dy, int64_t n);      // dy (1 - y^2)
  void (*gelu)(float *out, const float *a, int64_t n);                 // x Phi(x), through erf
  void (*gelu_grad)(float *dx, const float *x, const float *dy, int64_t n);
  void (*gelu_tanh)(float *out, const float *a, int64_t n);            // its approximation through tanh
  void (*gelu_tanh_grad)(float *dx, const float *x, const float *dy, int64_t n);
  // Between f32 and the 16-bit floats: exact to f32, rounded to nearest even from it; NaN stays NaN. As element_read and element_write do it.
  void (*widen_bf16)(float *out, const uint16_t *a, int64_t n);
  void (*widen_f16)(float *out, const uint16_t *a, int64_t n);
  void (*narrow_bf16)(uint16_t *out, const float *a, int64_t n);
  void (*narrow_f16)(uint16_t *out, const float *a, int64_t n);
  bool (*finite_f32)(const float *a, int64_t n);                       // is none of them an infinity or NaN? 16-bit ones: by their bits
  bool (*finite_bf16)(const uint16_t *a, int64_t n);
  bool (*finite_f16)(const uint16_t *a, int64_t n);
  float (*max)(const float *a, int64_t n);                             // -inf for n = 0; NaN if any is NaN
  double (*sum)(const float *a, int64_t n);                            // f64, fixed order that depends on n only
  double (*sum_squares)(const float *a, float scale, int64_t n);       // of (f32)(a * scale), f64, fixed order
  double (*dot)(const float *a, const float *b, int64_t n);            // f64, fixed order
  // 64 words of Philox 4x32-10 (Salmon et al., SC'11): word 16 w + l is word w of counter (16 block + l, when).
  void (*random)(uint32_t out[LOOPS_RANDOM_WORDS], uint64_t key, uint64_t when, uint64_t block);
  void (*adam)(float *param, float *exp_avg, float *exp_avg_sq, const float *grad, int64_t n, const AdamStep *step);
  void (*moments)(float *param, float *exp_avg, float *exp_avg_sq, const float *grad, int64_t n, const MomentStep *step);
  void (*lion)(float *param, float *exp_avg, const float *grad, int64_t n, const LionStep *step);
  void (*lamb)(float *direction, float *exp_avg, float *exp_avg_sq, const float *param, const float *grad, int64_t n, const LambStep *step);
  void (*ema)(float *out, const float *average, const float *param, float weight, int64_t n);       // average + weight (param - average)
  void (*adam8)(const Adam8Slice *slice, const Adam8Step *step);       // in double, as the reference does it; only the last block may be cut
  void (*sgd)(float *param, float *momentum, const float *grad, int64_t n, const SgdStep *step);   // momentum NULL: none
} Loops;

const Loops *loops_for(Isa isa);

#endif
