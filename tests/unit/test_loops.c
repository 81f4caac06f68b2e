// The vector loops: the same bits on every instruction set, at any offset and length; accuracy in ulp against libm in double; optimizer
// steps against torch.optim's formulas in double.
// usage: test_loops [STRIDE]   accuracy at every STRIDE-th of all 2^32 floats; default 1021 (1: minutes)
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../../ir/weights.h"
#include "../../kernels/loops.h"

enum { MARGIN = 40 };

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static uint64_t next(uint64_t *state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return *state >> 11;
}
static float unit(uint64_t *state) { return (float)((double)next(state) * 0x1p-53); }

// NaNs are one value: their payload is nobody's business.
static bool same(const float *a, const float *b, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (bits_of(a[i]) != bits_of(b[i]) && !(isnan(a[i]) && isnan(b[i]))) return false;
  return true;
}

// ---- Accuracy ----

typedef void (*Map)(float *out, const float *a, int64_t n);
typedef struct Function {
  const char *name;
  size_t offset;               // in Loops
  double (*exact)(double);
  double ulps;                 // stated in loops.c
} Function;

static double sigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }

static const Function functions[] = {
  {"exp", offsetof(Loops, exp), exp, 1.1},     {"log", offsetof(Loops, log), log, 1.0},
  {"tanh", offsetof(Loops, tanh), tanh, 1.5},  {"erf", offsetof(Loops, erf), erf, 1.5},
  {"sigmoid", offsetof(Loops, sigmoid), sigmoid, 2.6}, {"sqrt", offsetof(Loops, sqrt), sqrt, 0.5000001},
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

static Map map_of(Isa isa, const Function *f) { return *(const Map *)((const char *)loops_for(isa) + f->offset); }

// Error in units of the last place of the exact result; 0 where both are NaN or the same infinity.
static double ulps(float got, double exact) {
  if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
  if (isinf((float)exact)) return got == (float)exact ? 0 : INFINITY;
  if (isnan(got) || isinf(got)) return INFINITY;
  double unit_in_last = ldexp(1, (fabs(exact) < 0x1p-126 ? -126 : ilogb(exact)) - 23);
  return fabs((double)got - exact) / unit_in_last;
}

// In the widest instruction set here: the others have the same bits.
static void test_accuracy(void **state) {   // *state: the stride
  enum { BLOCK = 4096 };
  static float x[BLOCK], y[BLOCK];
  uint64_t stride = *(const uint64_t *)*state;
  for (int f = 0; f < N_FUNCTIONS; f++) {
    double worst = 0;
    float at = 0;
    for (uint64_t from = 0; from < UINT64_C(1) << 32; from += BLOCK * stride) {
      for (int i = 0; i < BLOCK; i++) x[i] = float_of((uint32_t)(from + (uint64_t)i * stride));
      map_of(isa_best(), &functions[f])(y, x, BLOCK);
      for (int i = 0; i < BLOCK; i++) {
        double error = ulps(y[i], functions[f].exact(x[i]));
        if (error > worst) worst = error, at = x[i];
      }
    }
    print_message("%-8s %.3f ulp (at %a)\n", functions[f].name, worst, at);
    if (worst > functions[f].ulps) fail_msg("%s: %g ulp at %a; %g are stated", functions[f].name, worst, at, functions[f].ulps);
  }
}

// ---- Bits ----

static const float specials[] = {0.0f, -0.0f, 1, -1, INFINITY, -INFINITY, NAN, 0x1p-149f, -0x1p-149f, 0x1p-126f, 3.4028235e38f, -3.4028235e38f,
                                 88.72283f, 88.72284f, -87.33655f, -103.9f, -104.1f, 0.625f, 0.92f, 4.0f, 9.1f};
enum { N_SPECIALS = sizeof specials / sizeof *specials, LENGTH = 200 };

static void fill(float *x, int64_t n, uint64_t seed) {
  for (int64_t i = 0; i < n; i++) {
    uint64_t r = next(&seed);
    x[i] = r % 7 == 0 ? specials[r / 7 % N_SPECIALS] : r % 7 == 1 ? float_of((uint32_t)(r >> 8)) : 20 * unit(&seed) - 10;
  }
}

static void test_map_bits(void **state) {
  float x[LENGTH + MARGIN], whole[LENGTH + MARGIN], part[LENGTH + MARGIN];
  fill(x, LENGTH + MARGIN, 1);
  for (int f = 0; f < N_FUNCTIONS; f++) {
    map_of(ISA_SCALAR, &functions[f])(whole, x, LENGTH + MARGIN);
    for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
      if (!isa_available(isa)) continue;
      for (int64_t offset = 0; offset < 20; offset += 3)
        for (int64_t n = 0; n <= LENGTH; n += n < 70 ? 1 : 43) {
          part[n] = -77;
          map_of(isa, &functions[f])(part, x + offset, n);
          if (part[n] != -77) fail_msg("%s %s: writes behind its end", isa_name(isa), functions[f].name);
          if (!same(part, whole + offset, n)) fail_msg("%s %s: other bits at offset %d, length %d", isa_name(isa), functions[f].name, (int)offset, (int)n);
        }
      memcpy(part, x, sizeof part);
      map_of(isa, &functions[f])(part, part, LENGTH);
      if (!same(part, whole, LENGTH)) fail_msg("%s %s: other bits in place", isa_name(isa), functions[f].name);
    }
  }
}

// Every 16-bit float, and f32 of all sizes with the ties between 16-bit neighbours: as element_read and element_write have it.
static void test_halves(void **state) {
  enum { BLOCK = 4096 };
  static const Dtype dtypes[] = {DTYPE_BF16, DTYPE_F16};
  static float x[BLOCK];
  static uint16_t h[BLOCK];
  for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++)
    for (int d = 0; d < 2 && isa_available(isa); d++) {
      const Loops *l = loops_for(isa);
      for (uint32_t from = 0; from < 65536; from += BLOCK) {
        for (int i = 0; i < BLOCK; i++) h[i] = (uint16_t)(from + (uint32_t)i);
        (d ? l->widen_f16 : l->widen_bf16)(x, h, BLOCK);
        for (int i = 0; i < BLOCK; i++) {
          float exact = (float)element_read(h, dtypes[d], i);
          if (!same(&x[i], &exact, 1)) fail_msg("%s: %s %04x widens to %a, not %a", isa_name(isa), dtype_name(dtypes[d]), h[i], (double)x[i], (double)exact);
        }
      }
      for (uint64_t from = 0; from < UINT64_C(1) << 32; from += (uint64_t)BLOCK * 2039) {
        for (int i = 0; i < BLOCK; i++) x[i] = float_of((uint32_t)(from + (uint64_t)i * 2039) & (i % 3 ? ~0u : i % 2 ? 0xffff8000u : 0xfffff000u));
        (d ? l->narrow_f16 : l->narrow_bf16)(h, x, BLOCK);
        for (int i = 0; i < BLOCK; i++) {
          uint16_t exact;
          element_write(&exact, dtypes[d], 0, (double)x[i]);
          if (h[i] != exact && !isnan(x[i])) fail_msg("%s: %a narrows to %s %04x, not %04x", isa_name(isa), (double)x[i], dtype_name(dtypes[d]), h[i], exact);
          if (isnan(x[i]) && !isnan(element_read(h, dtypes[d], i))) fail_msg("%s: NaN narrows to %s %04x", isa_name(isa), dtype_name(dtypes[d]), h[i]);
        }
      }
    }
}

// One that is not finite is found wherever it stands; all 16-bit floats, by what they widen to.
static void test_finite(void **state) {
  enum { MOST = 8200 };
  static float x[MOST];
  static uint16_t h[MOST];
  for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
    if (!isa_available(isa)) continue;
    const Loops *l = loops_for(isa);
    for (int64_t n = 0; n <= MOST; n += n < 70 ? 1 : 739) {
      for (int64_t i = 0; i < n; i++) x[i] = specials[i % 3 + 7], h[i] = (uint16_t)(i % 2 ? 0x7bff : 0x8001);
      assert_true(l->finite_f32(x, n) && l->finite_f16(h, n) && l->finite_bf16(h, n));
      for (int64_t i = 0; i < n; i += n < 70 ? 1 : 97) {
        float kept = x[i];
        x[i] = i % 3 ? -INFINITY : NAN;
        h[i] = i % 2 ? 0xfc00 : 0x7c01;
        assert_true(!l->finite_f32(x, n) && !l->finite_f16(h, n));
        h[i] = i % 2 ? 0xff80 : 0x7f81;
        assert_true(!l->finite_bf16(h, n));
        x[i] = kept;
        h[i] = 0;
      }
    }
    for (uint32_t bits = 0; bits < 65536; bits++) {
      uint16_t one = (uint16_t)bits;
      assert_true(l->finite_f16(&one, 1) == !!isfinite(element_read(&one, DTYPE_F16, 0)) && l->finite_bf16(&one, 1) == !!isfinite(element_read(&one, DTYPE_BF16, 0)));
    }
  }
}

typedef struct Pair { const char *name; size_t offset; } Pair;
static const Pair pairs[] = {{"add", offsetof(Loops, add)}, {"sub", offsetof(Loops, sub)}, {"mul", offsetof(Loops, mul)}, {"div", offsetof(Loops, div)},
                             {"relu_grad", offsetof(Loops, relu_grad)}, {"tanh_grad", offsetof(Loops, tanh_grad)}};

static void test_pair_bits(void **state) {
  float a[LENGTH], b[LENGTH], whole[LENGTH], part[LENGTH + 1];
  fill(a, LENGTH, 2);
  fill(b, LENGTH, 3);
  for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
    typedef void (*Two)(float *, const float *, const float *, int64_t);
    (*(const Two *)((const char *)loops_for(ISA_SCALAR) + pairs[k].offset))(whole, a, b, LENGTH);
    for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
      if (!isa_available(isa)) continue;
      Two two = *(const Two *)((const char *)loops_for(isa) + pairs[k].offset);
      for (int64_t n = 0; n + 5 <= LENGTH; n += n < 70 ? 1 : 31) {
        two(part, a + 5, b + 5, n);
        if (!same(part, whole + 5, n)) fail_msg("%s %s: other bits at length %d", isa_name(isa), pairs[k].name, (int)n);
      }
      memcpy(part, b, sizeof b);
      two(part, a, part, LENGTH);
      if (!same(part, whole, LENGTH)) fail_msg("%s %s: other bits in place", isa_name(isa), pairs[k].name);
    }
  }
}

static void test_scalar_operand_bits(void **state) {
  float a[LENGTH], whole[3][LENGTH], part[LENGTH];
  fill(a, LENGTH, 4);
  for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
    if (!isa_available(isa)) continue;
    const Loops *l = loops_for(isa);
    for (int k = 0; k < 3; k++) {
      memcpy(part, a, sizeof part);
      if (k == 0) l->add_s(part, a, 0.3f, LENGTH);
      else if (k == 1) l->mul_s(part, a, 0.3f, LENGTH);
      else l->axpy(part, 0.3f, a, LENGTH);
      if (isa == ISA_SCALAR) memcpy(whole[k], part, sizeof part);
      else assert_true(same(part, whole[k], LENGTH));
    }
  }
}

// A product is, bit for bit, an axpy for every x, whatever blocks it is cut into; elements beside its rows stay.
static void check_product(const Loops *l, int64_t rows, int64_t k, int64_t n, bool turned) {
  enum { WIDTH = 75, ROWS = 9, DEPTH = 11 };
  float a[ROWS * DEPTH], b[DEPTH * WIDTH], out[ROWS * WIDTH], want[ROWS * WIDTH];
  fill(a, ROWS * DEPTH, 7);
  fill(b, DEPTH * WIDTH, 8);
  fill(out, ROWS * WIDTH, 9);
  memcpy(want, out, sizeof want);
  RowsProduct p = {out + 1, WIDTH, 0.7f, a, turned ? 1 : DEPTH, turned ? ROWS : 1, b + 1, WIDTH, rows, k, n};
  for (int64_t x = 0; x < k; x++)
    for (int64_t r = 0; r < rows; r++) loops_for(ISA_SCALAR)->axpy(want + 1 + r * WIDTH, 0.7f * a[r * p.a_row + x * p.a_col], b + 1 + x * WIDTH, n);
  l->product(&p);
  if (!same(out, want, ROWS * WIDTH)) fail_msg("product of %d rows, %d, %d columns: other bits", (int)rows, (int)k, (int)n);
}

static void test_product_bits(void **state) {
  static const int64_t rows[] = {0, 1, 3, 4, 9}, depths[] = {0, 1, 11}, columns[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 74};
  for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++)
    for (size_t r = 0; isa_available(isa) && r < sizeof rows / sizeof *rows; r++)
      for (size_t k = 0; k < sizeof depths / sizeof *depths; k++)
        for (size_t n = 0; n < sizeof columns / sizeof *columns; n++)
          for (int turned = 0; turned < 2; turned++) check_product(loops_for(isa), rows[r], depths[k], columns[n], turned);
}

// ---- Reductions ----

static void test_reductions(void **state) {
  float a[LENGTH], b[LENGTH];
  uint64_t seed = 5;
  for (int i = 0; i < LENGTH; i++) a[i] = unit(&seed) - 0.5f, b[i] = unit(&seed) - 0.5f;
  for (int64_t n = 0; n <= LENGTH; n++) {
    double sum = 0, squares = 0, dot = 0;
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
      float scaled = a[i] * 3;
      sum += a[i];
      squares += (double)scaled * scaled;
      dot += (double)a[i] * b[i];
      if (a[i] > max) max = a[i];
    }
    const Loops *base = loops_for(ISA_SCALAR);
    for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
      if (!isa_available(isa)) continue;
      const Loops *l = loops_for(isa);
      assert_true(fabs(l->sum(a, n) - sum) <= 1e-13 * 200 && l->sum(a, n) == base->sum(a, n));
      assert_true(fabs(l->sum_squares(a, 3, n) - squares) <= 1e-13 * 200 && l->sum_squares(a, 3, n) == base->sum_squares(a, 3, n));
      assert_true(fabs(l->dot(a, b, n) - dot) <= 1e-13 * 200 && l->dot(a, b, n) == base->dot(a, b, n));
      assert_true(l->max(a, n) == max);
    }
  }
  a[77] = NAN;
  for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++)
    if (isa_available(isa)) assert_true(isnan(loops_for(isa)->max(a, LENGTH)) && loops_for(isa)->max(a, 77) < 1);
}

// ---- Optimizers, against torch.optim's formulas in double ----

enum { STEPS = 5, WIDTH = 37 };

static void adam_in_double(double *p, double *m, double *v, double g, const AdamStep *s) {
  g *= s->scale;
  if (s->decoupled) *p *= 1 - s->lr * s->weight_decay;
  else g += s->weight_decay * *p;
  *m += (g - *m) * (1 - s->beta1);
  *v = *v * s->beta2 + (1 - s->beta2) * g * g;
  double bias1 = 1 - pow(s->beta1, (double)s->t), bias2 = 1 - pow(s->beta2, (double)s->t);
  *p -= s->lr / bias1 * *m / (sqrt(*v) / sqrt(bias2) + s->eps);
}

static void test_adam(void **state) {
  for (int variant = 0; variant < 4; variant++)
    for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
      if (!isa_available(isa)) continue;
      float p[WIDTH], m[WIDTH] = {0}, v[WIDTH] = {0}, g[WIDTH], first[WIDTH];
      double dp[WIDTH], dm[WIDTH] = {0}, dv[WIDTH] = {0};
      uint64_t seed = 6;
      for (int i = 0; i < WIDTH; i++) dp[i] = p[i] = unit(&seed) - 0.5f;
      for (int t = 1; t <= STEPS; t++) {
        AdamStep s = {1e-2, variant == 3 ? 0.4 : 0.9, 0.99, 1e-8, variant == 1 ? 0 : 0.1, 0.25, t, variant != 2};
        for (int i = 0; i < WIDTH; i++) {
          g[i] = unit(&seed) - 0.5f;
          adam_in_double(&dp[i], &dm[i], &dv[i], g[i], &s);
        }
        loops_for(isa)->adam(p, m, v, g, WIDTH, &s);
        for (int i = 0; i < WIDTH; i++)
          if (fabs(p[i] - dp[i]) > 1e-6 || fabs(m[i] - dm[i]) > 1e-7 || fabs(v[i] - dv[i]) > 1e-8)
            fail_msg("adam variant %d step %d: %.9g, %.9g in double", variant, t, p[i], dp[i]);
      }
      memcpy(first, p, sizeof p);
      float again[WIDTH], am[WIDTH] = {0}, av[WIDTH] = {0};   // a slice at an odd offset has the bits of the whole
      seed = 6;
      for (int i = 0; i < WIDTH; i++) again[i] = unit(&seed) - 0.5f;
      for (int t = 1; t <= STEPS; t++) {
        AdamStep s = {1e-2, variant == 3 ? 0.4 : 0.9, 0.99, 1e-8, variant == 1 ? 0 : 0.1, 0.25, t, variant != 2};
        for (int i = 0; i < WIDTH; i++) g[i] = unit(&seed) - 0.5f;
        loops_for(ISA_SCALAR)->adam(again, am, av, g, 5, &s);
        loops_for(isa)->adam(again + 5, am + 5, av + 5, g + 5, WIDTH - 5, &s);
      }
      assert_true(same(again, first, WIDTH));
    }
}

static void test_sgd(void **state) {
  for (int variant = 0; variant < 4; variant++)   // plain; momentum; with dampening; Nesterov
    for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
      if (!isa_available(isa)) continue;
      float p[WIDTH], b[WIDTH] = {0}, g[WIDTH];
      double dp[WIDTH], db[WIDTH] = {0};
      uint64_t seed = 7;
      for (int i = 0; i < WIDTH; i++) dp[i] = p[i] = unit(&seed) - 0.5f;
      for (int t = 1; t <= STEPS; t++) {
        SgdStep s = {0.1, variant ? 0.9 : 0, variant == 2 ? 0.3 : 0, 0.05, 0.5, t, variant == 3};
        for (int i = 0; i < WIDTH; i++) {
          g[i] = unit(&seed) - 0.5f;
          double d = g[i] * s.scale + s.weight_decay * dp[i];
          if (variant) db[i] = t == 1 ? d : s.momentum * db[i] + (1 - s.dampening) * d;
          dp[i] -= s.lr * (variant == 0 ? d : s.nesterov ? d + s.momentum * db[i] : db[i]);
        }
        loops_for(isa)->sgd(p, variant ? b : NULL, g, WIDTH, &s);
        for (int i = 0; i < WIDTH; i++)
          if (fabs(p[i] - dp[i]) > 1e-6) fail_msg("sgd variant %d step %d: %.9g, %.9g in double", variant, t, p[i], dp[i]);
      }
    }
}

// The other steps: the same bits on every instruction set, at any offset and length (adam8: of whole blocks). That they compute the right thing: tests/ops.
enum { SLICE = 3 * ADAM8_BLOCK + 77 };
typedef struct StepData { float param[SLICE], first[SLICE], second[SLICE], grad[SLICE], scales[8], other_scales[8]; uint8_t codes[SLICE], other_codes[SLICE]; } StepData;

static void step_data(StepData *d) {
  uint64_t seed = 11;
  fill(d->param, SLICE, 12);
  fill(d->grad, SLICE, 13);
  for (int i = 0; i < SLICE; i++) {
    d->first[i] = unit(&seed) - 0.5f;
    d->second[i] = unit(&seed);
    d->codes[i] = (uint8_t)next(&seed);
    d->other_codes[i] = (uint8_t)next(&seed);
  }
  for (int i = 0; i < 8; i++) d->scales[i] = unit(&seed), d->other_scales[i] = unit(&seed);
}

static void run_step(int which, const Loops *l, StepData *d, int64_t at, int64_t n) {
  MomentStep moments = {0.5, 0.99, which == 0 ? 0.1 : 0, 0.9, 0.99, 0.3, 1e-8, which == 0 ? -1e-3 : 0, -1e-2, which == 2};
  LionStep lion = {0.5, 1e-2, 0.9, 0.99, 0.1};
  LambStep lamb = {0.5, 0.9, 0.99, 1e-6, 0.1, 0.3, 0.2};
  Adam8Step adam8 = {.scale = 0.5, .keep = 0.99, .l2 = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .rate = 1e-2, .root2 = 0.3};
  for (int i = 0; i < 256; i++) adam8.mean.values[i] = (float)(i - 128) / 128, adam8.square.values[i] = (float)i / 255;
  for (int i = 0; i < 255; i++) {
    adam8.mean.edges[i] = (adam8.mean.values[i] + adam8.mean.values[i + 1]) / 2;
    adam8.square.edges[i] = (adam8.square.values[i] + adam8.square.values[i + 1]) / 2;
  }
  Adam8Slice slice = {d->param + at, d->grad + at, d->codes + at, d->other_codes + at, d->scales + at / ADAM8_BLOCK, d->other_scales + at / ADAM8_BLOCK, n};
  float *p = d->param + at, *m = d->first + at, *v = d->second + at, *g = d->grad + at;
  if (which < 3) l->moments(p, m, v, g, n, &moments);
  else if (which == 3) l->lion(p, m, g, n, &lion);
  else if (which == 4) l->lamb(p, m, v, p, g, n, &lamb);
  else if (which == 5) l->ema(p, p, g, 0.01f, n);
  else l->adam8(&slice, &adam8);
}

static bool same_data(const StepData *a, const StepData *b) {
  return same(a->param, b->param, SLICE) && same(a->first, b->first, SLICE) && same(a->second, b->second, SLICE) && same(a->scales, b->scales, 8) &&
         same(a->other_scales, b->other_scales, 8) && !memcmp(a->codes, b->codes, SLICE) && !memcmp(a->other_codes, b->other_codes, SLICE);
}

static void test_step_bits(void **state) {
  static StepData whole, parts;
  for (int which = 0; which < 7; which++) {
    step_data(&whole);
    run_step(which, loops_for(ISA_SCALAR), &whole, 0, SLICE);
    for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++)
      for (int64_t cut = 0; cut < SLICE && isa_available(isa); cut += which == 6 ? ADAM8_BLOCK : 61) {
        step_data(&parts);
        run_step(which, loops_for(ISA_SCALAR), &parts, 0, cut);
        run_step(which, loops_for(isa), &parts, cut, SLICE - cut);
        if (!same_data(&whole, &parts)) fail_msg("step %d, %s: other bits when cut at %d", which, isa_name(isa), (int)cut);
      }
  }
}

// Philox 4x32-10 with key 0 and counter 0 begins with these words (the generator's published test vector).
static void test_random(void **state) {
  static const uint32_t known[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  uint32_t first[LOOPS_RANDOM_WORDS], words[LOOPS_RANDOM_WORDS];
  for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
    if (!isa_available(isa)) continue;
    loops_for(isa)->random(words, 0, 0, 0);
    for (int w = 0; w < 4; w++) assert_int_equal(words[16 * w], known[w]);
    loops_for(isa)->random(words, UINT64_C(0x299f31d0a4093822), UINT64_C(0x0370734413198a2e), 12345678901234);
    if (isa == ISA_SCALAR) memcpy(first, words, sizeof first);
    else assert_memory_equal(words, first, sizeof first);
  }
}

static void test_names(void **state) {
  for (Isa isa = ISA_SCALAR; isa < ISA_COUNT; isa++) {
    Isa back;
    assert_true(isa_from_name(isa_name(isa), &back) && back == isa);
  }
  Isa none;
  assert_false(isa_from_name("sse", &none));
  assert_true(isa_available(ISA_SCALAR) && isa_available(isa_best()));
}

int main(int argc, char **argv) {
  uint64_t stride = argc > 1 ? strtoull(argv[1], NULL, 10) : 1021;
  stride += stride == 0;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_prestate(test_accuracy, &stride), cmocka_unit_test(test_halves), cmocka_unit_test(test_map_bits), cmocka_unit_test(test_finite),
    cmocka_unit_test(test_pair_bits), cmocka_unit_test(test_scalar_operand_bits), cmocka_unit_test(test_product_bits),
    cmocka_unit_test(test_reductions), cmocka_unit_test(test_adam), cmocka_unit_test(test_sgd),
    cmocka_unit_test(test_step_bits), cmocka_unit_test(test_random), cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
