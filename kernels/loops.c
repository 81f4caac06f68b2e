// Loops over f32, compiled once per instruction set (LOOPS_ISA names the table). Every loop is a plain C function of one element, applied to
// each; the compiler turns it into vector code. Bits agree on all instruction sets and at any offset because each operation used is exactly
// rounded everywhere (+ - * / sqrt fma, conversions), none is contracted or reassociated, and the scalar tail does the same operations.
//
// Accuracy against the exact value, measured over f32 arguments of every size (tests/unit/test_loops.c keeps it): exp 1.1 ulp, log 0.8,
// tanh 1.4, erf 1.1, sigmoid 2.6. The polynomials are our own minimax fits (Lawson iteration); errors of the fits stand beside them.
#include "loops.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#define FMA __builtin_fmaf
// `out` may equal an input: each element is read before it is written, and no element depends on another.
#define EACH _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)

static inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static inline float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}
static inline float sign_from(float size, float sign) { return float_of((bits_of(size) & 0x7fffffffu) | (bits_of(sign) & 0x80000000u)); }
static inline float magnitude(float x) { return float_of(bits_of(x) & 0x7fffffffu); }

// x = n ln2 + r; exp(r) = 1 + r + r^2 Q(r), fit 3.3e-9; times 2^n in two factors, so that only the last product can round (denormals).
static inline float exp_one(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  float shifted = FMA(x, 0x1.715476p+0f, 0x1.8p23f);      // the rounded n stands in the low bits
  float n = shifted - 0x1.8p23f;
  float r = FMA(n, -0x1.62e4p-1f, x);                     // ln2 in two parts: n times the first is exact
  r = FMA(n, -0x1.7f7d1cp-20f, r);
  float q = 0x1.6a1a72p-10f;
  q = FMA(q, r, 0x1.123fc6p-7f);
  q = FMA(q, r, 0x1.555916p-5f);
  q = FMA(q, r, 0x1.55548ap-3f);
  q = FMA(q, r, 0x1.fffffcp-2f);
  float p = FMA(q * r, r, r) + 1.0f;
  uint32_t whole = bits_of(shifted) - 0x4b400000u;        // n as a two's complement number; garbage for NaN, where p is NaN
  uint32_t half = (uint32_t)((int32_t)whole >> 1);
  return p * float_of((half + 127u) << 23) * float_of((whole - half + 127u) << 23);
}

// x = 2^k m with m in [sqrt(1/2), sqrt(2)); log(1+f) = f - f^2/2 + f^3 P(f), fit 7.5e-10.
static inline float log_one(float x) {
  bool tiny = x < 0x1p-126f;
  float scaled = tiny ? x * 0x1p23f : x;
  uint32_t u = bits_of(scaled) - 0x3f3504f3u;             // bits of sqrt(1/2)
  int32_t exponent = (int32_t)u >> 23;
  float m = float_of((u & 0x007fffffu) + 0x3f3504f3u);
  float k = (float)(exponent - (tiny ? 23 : 0));
  float f = m - 1.0f;
  float p = 0x1.1457aap-4f;
  p = FMA(p, f, -0x1.de3c24p-4f);
  p = FMA(p, f, 0x1.e6f072p-4f);
  p = FMA(p, f, -0x1.fc2206p-4f);
  p = FMA(p, f, 0x1.233768p-3f);
  p = FMA(p, f, -0x1.555c4ep-3f);
  p = FMA(p, f, 0x1.99a4b6p-3f);
  p = FMA(p, f, -0x1.000006p-2f);
  p = FMA(p, f, 0x1.555548p-2f);
  float square = f * f;
  float tail = square * f * p;
  tail = FMA(k, 0x1.7f7d1cp-20f, tail);
  tail = FMA(square, -0.5f, tail);
  float y = FMA(k, 0x1.62e4p-1f, f + tail);
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  return x < INFINITY ? y : x + x;                        // inf and NaN
}

// |x| < 0.625: x + x^3 P(x^2), fit 5.7e-9; above: 1 - 2 / (exp(2|x|) + 1).
static inline float tanh_one(float x) {
  float u = x * x;
  float p = -0x1.6e69a4p-8f;
  p = FMA(p, u, 0x1.50820cp-6f);
  p = FMA(p, u, -0x1.b7fd5p-5f);
  p = FMA(p, u, 0x1.110552p-3f);
  p = FMA(p, u, -0x1.55552ap-2f);
  float small = FMA(x * u, p, x);
  float a = magnitude(x);
  float large = 1.0f - 2.0f / (exp_one(a + a) + 1.0f);
  float y = a < 0.625f ? small : sign_from(large, x);
  return x == x ? y : x;
}

// |x| < 0.92: x + x P(x^2), fit 6.1e-10; above: 1 - exp(-Q(|x|)) with Q = -log(erfc), fit 5.4e-11 in erfc; 1 from 4 on.
static inline float erf_one(float x) {
  float u = x * x;
  float p = 0x1.574ec6p-14f;
  p = FMA(p, u, -0x1.a88d8ap-11f);
  p = FMA(p, u, 0x1.549664p-8f);
  p = FMA(p, u, -0x1.b80962p-6f);
  p = FMA(p, u, 0x1.ce2dcap-4f);
  p = FMA(p, u, -0x1.812742p-2f);
  p = FMA(p, u, 0x1.06eba8p-3f);
  float small = FMA(x, p, x);
  float a = magnitude(x);
  float t = a > 4.0f ? 4.0f : a;
  float q = 0x1.5ecd6cp-16f;
  q = FMA(q, t, -0x1.c54d28p-12f);
  q = FMA(q, t, 0x1.10a9fap-8f);
  q = FMA(q, t, -0x1.9b195p-6f);
  q = FMA(q, t, 0x1.bb564ep-4f);
  q = FMA(q, t, 0x1.444b42p-1f);
  q = FMA(q, t, 0x1.212698p+0f);
  q = FMA(q, t, -0x1.65abap-13f);
  float large = 1.0f - exp_one(-q);
  float y = a < 0.92f ? small : sign_from(large, x);
  return x == x ? y : x;
}

static inline float sigmoid_one(float x) {
  float z = exp_one(-magnitude(x));
  return (x >= 0.0f ? 1.0f : z) / (1.0f + z);
}

static inline float gelu_one(float x) { return 0.5f * x * (1.0f + erf_one(x * 0x1.6a09e6p-1f)); }
static inline float gelu_slope(float x) {                 // Phi(x) + x phi(x)
  return FMA(x * 0x1.988454p-2f, exp_one(x * x * -0.5f), FMA(0.5f, erf_one(x * 0x1.6a09e6p-1f), 0.5f));
}
// tanh's argument: sqrt(2/pi) (x + 0.044715 x^3).
static inline float gelu_inner(float x) { return 0x1.988454p-1f * x * FMA(0.044715f * x, x, 1.0f); }
static inline float gelu_tanh_one(float x) { return 0.5f * x * (1.0f + tanh_one(gelu_inner(x))); }
static inline float gelu_tanh_slope(float x) {
  float t = tanh_one(gelu_inner(x)), inner = 0x1.988454p-1f * FMA(0.134145f * x, x, 1.0f);
  float tail = FMA(-t, t, 1.0f);
  return FMA(0.5f * x * inner, tail, FMA(0.5f, t, 0.5f));
}

// bf16: the upper half of an f32. f16: its exponent is 5 bits, so a product with a power of two moves it, denormals included.
static inline float bf16_widened(uint16_t h) { return float_of((uint32_t)h << 16); }
static inline uint16_t bf16_narrowed(float x) {
  uint32_t u = bits_of(x), rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded);
}
static inline float f16_widened(uint16_t h) {
  uint32_t size = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
  uint32_t finite = bits_of(float_of(size) * 0x1p112f);
  return float_of(sign | (size >= 0x0f800000u ? size | 0x7f800000u : finite));
}
static inline uint16_t f16_narrowed(float x) {
  uint32_t u = bits_of(x), size = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
  uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13;
  uint32_t small = bits_of(float_of(size) + 0.5f) - 0x3f000000u;      // the sum rounds at 2^-24, the last bit of a denormal
  uint32_t finite = size < 0x38800000u ? small : size >= 0x477ff000u ? 0x7c00u : normal;
  return (uint16_t)(sign | (size > 0x7f800000u ? 0x7e00u | (size >> 13 & 0x1ffu) : finite));
}

static void loop_widen_bf16(float *out, const uint16_t *a, int64_t n) { EACH out[i] = bf16_widened(a[i]); }
static void loop_widen_f16(float *out, const uint16_t *a, int64_t n) { EACH out[i] = f16_widened(a[i]); }
static void loop_narrow_bf16(uint16_t *out, const float *a, int64_t n) { EACH out[i] = bf16_narrowed(a[i]); }
static void loop_narrow_f16(uint16_t *out, const float *a, int64_t n) { EACH out[i] = f16_narrowed(a[i]); }

static void loop_add(float *out, const float *a, const float *b, int64_t n) { EACH out[i] = a[i] + b[i]; }
static void loop_sub(float *out, const float *a, const float *b, int64_t n) { EACH out[i] = a[i] - b[i]; }
static void loop_mul(float *out, const float *a, const float *b, int64_t n) { EACH out[i] = a[i] * b[i]; }
static void loop_div(float *out, const float *a, const float *b, int64_t n) { EACH out[i] = a[i] / b[i]; }
static void loop_add_s(float *out, const float *a, float s, int64_t n) { EACH out[i] = a[i] + s; }
static void loop_mul_s(float *out, const float *a, float s, int64_t n) { EACH out[i] = a[i] * s; }
static void loop_axpy(float *out, float s, const float *a, int64_t n) { EACH out[i] = FMA(s, a[i], out[i]); }
static void loop_exp(float *out, const float *a, int64_t n) { EACH out[i] = exp_one(a[i]); }
static void loop_log(float *out, const float *a, int64_t n) { EACH out[i] = log_one(a[i]); }
static void loop_tanh(float *out, const float *a, int64_t n) { EACH out[i] = tanh_one(a[i]); }
static void loop_erf(float *out, const float *a, int64_t n) { EACH out[i] = erf_one(a[i]); }
static void loop_sigmoid(float *out, const float *a, int64_t n) { EACH out[i] = sigmoid_one(a[i]); }
static void loop_sqrt(float *out, const float *a, int64_t n) { EACH out[i] = __builtin_sqrtf(a[i]); }
static void loop_relu(float *out, const float *a, int64_t n) { EACH out[i] = a[i] <= 0.0f ? 0.0f : a[i]; }   // NaN stays NaN
static void loop_relu_grad(float *dx, const float *y, const float *dy, int64_t n) { EACH dx[i] = y[i] > 0.0f ? dy[i] : 0.0f; }
static void loop_tanh_grad(float *dx, const float *y, const float *dy, int64_t n) { EACH dx[i] = dy[i] * FMA(-y[i], y[i], 1.0f); }
static void loop_gelu(float *out, const float *a, int64_t n) { EACH out[i] = gelu_one(a[i]); }
static void loop_gelu_grad(float *dx, const float *x, const float *dy, int64_t n) { EACH dx[i] = dy[i] * gelu_slope(x[i]); }
static void loop_gelu_tanh(float *out, const float *a, int64_t n) { EACH out[i] = gelu_tanh_one(a[i]); }
static void loop_gelu_tanh_grad(float *dx, const float *x, const float *dy, int64_t n) { EACH dx[i] = dy[i] * gelu_tanh_slope(x[i]); }

// An exponent of all ones: adding one to it sets the bit of the sign. In blocks, so that it ends soon after what is not finite.
#define ALL_FINITE(bits, sign, unit)                                                                \
  enum { BLOCK = 4096 };                                                                            \
  for (int64_t from = 0; from < n; from += BLOCK) {                                                 \
    uint32_t bad = 0;                                                                               \
    int64_t end = n - from < BLOCK ? n : from + BLOCK;                                              \
    for (int64_t i = from; i < end; i++) bad |= ((uint32_t)(bits) & ((sign) - 1u)) + (unit);        \
    if (bad & (sign)) return false;                                                                 \
  }                                                                                                 \
  return true
static bool loop_finite_f32(const float *a, int64_t n) { ALL_FINITE(bits_of(a[i]), 0x80000000u, 0x00800000u); }
static bool loop_finite_bf16(const uint16_t *a, int64_t n) { ALL_FINITE(a[i], 0x8000u, 0x0080u); }
static bool loop_finite_f16(const uint16_t *a, int64_t n) { ALL_FINITE(a[i], 0x8000u, 0x0400u); }

// Reductions keep LANES running values (element i belongs to lane i mod LANES) and fold them as a fixed tree: the order depends on n only.
enum { LANES = 16 };

static inline double lanes_fold(double lane[LANES]) {
  for (int width = LANES / 2; width; width /= 2)
    for (int l = 0; l < width; l++) lane[l] += lane[l + width];
  return lane[0];
}

#define LANES_SUM(term)                                 \
  double lane[LANES] = {0};                             \
  int64_t whole = n / LANES * LANES;                    \
  for (int64_t i0 = 0; i0 < whole; i0 += LANES)         \
    for (int l = 0; l < LANES; l++) {                   \
      int64_t i = i0 + l;                               \
      lane[l] += (term);                                \
    }                                                   \
  for (int64_t i = whole; i < n; i++) lane[i - whole] += (term); \
  return lanes_fold(lane)

static double loop_sum(const float *a, int64_t n) { LANES_SUM((double)a[i]); }
static double loop_sum_squares(const float *a, float scale, int64_t n) { LANES_SUM((double)(a[i] * scale) * (double)(a[i] * scale)); }
static double loop_dot(const float *a, const float *b, int64_t n) { LANES_SUM((double)a[i] * (double)b[i]); }

// The greatest does not depend on the order, so lanes are as wide as the registers; a zero is +0, for its sign would.
#if defined __AVX512F__
enum { WIDTH = 16 };
#elif defined __AVX2__
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
typedef float FloatLanes __attribute__((vector_size(4 * WIDTH)));
typedef int32_t IntLanes __attribute__((vector_size(4 * WIDTH)));

// x > m ? x : m in each lane. NaNs are noted aside, since the comparison loses them.
static float loop_max(const float *a, int64_t n) {
  float tail[WIDTH], best = -INFINITY;
  FloatLanes m, x;
  IntLanes nan = {0};
  int32_t nans = 0;
  for (int l = 0; l < WIDTH; l++) {
    m[l] = -INFINITY;
    tail[l] = l < n % WIDTH ? a[n - n % WIDTH + l] : -INFINITY;
  }
  for (int64_t i = 0; i < n; i += WIDTH) {
    memcpy(&x, i + WIDTH <= n ? a + i : tail, sizeof x);
    IntLanes greater = x > m;
    nan |= x != x;
    m = (FloatLanes)(((IntLanes)x & greater) | ((IntLanes)m & ~greater));
  }
  for (int l = 0; l < WIDTH; l++) {
    best = m[l] > best ? m[l] : best;
    nans |= nan[l];
  }
  return nans ? NAN : best + 0.0f;
}

// 32-bit words in 64-bit lanes, since products have 64 bits. MUL multiplies the low halves: what stands in the high ones is never read.
enum { WIDE = WIDTH / 2 };
typedef uint64_t WideLanes __attribute__((vector_size(8 * WIDE)));
#if defined __AVX512F__
#define MUL(a, b) (WideLanes)_mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#elif defined __AVX2__
#define MUL(a, b) (WideLanes)_mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#else
#define MUL(a, b) (WideLanes)_mm_mul_epu32((__m128i)(a), (__m128i)(b))
#endif

static void loop_random(uint32_t out[LOOPS_RANDOM_WORDS], uint64_t key, uint64_t when, uint64_t block) {
  const WideLanes zero = {0}, m0 = zero + 0xd2511f53u, m1 = zero + 0xcd9e8d57u;
  uint64_t counter = LANES * block;
  enum { PARTS = LANES / WIDE };
  WideLanes x0[PARTS], x1[PARTS], x2[PARTS], x3[PARTS], k0 = zero + (uint32_t)key, k1 = zero + (key >> 32);
  for (int i = 0; i < PARTS; i++) {
    for (int l = 0; l < WIDE; l++) x0[i][l] = counter + (uint64_t)(i * WIDE + l);   // a multiple of LANES: no carry out of the low word
    x1[i] = zero + (counter >> 32);
    x2[i] = zero + (uint32_t)when;
    x3[i] = zero + (when >> 32);
  }
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < PARTS; i++) {
      WideLanes p = MUL(x0[i], m0), q = MUL(x2[i], m1);
      x0[i] = q >> 32 ^ x1[i] ^ k0;
      x2[i] = p >> 32 ^ x3[i] ^ k1;
      x1[i] = q;
      x3[i] = p;
    }
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  for (int i = 0; i < PARTS; i++)
    for (int l = 0; l < WIDE; l++) {
      int at = i * WIDE + l;
      out[at] = (uint32_t)x0[i][l];
      out[LANES + at] = (uint32_t)x1[i][l];
      out[2 * LANES + at] = (uint32_t)x2[i][l];
      out[3 * LANES + at] = (uint32_t)x3[i][l];
    }
}

// torch.optim.Adam and AdamW (single-tensor form): scalars are derived in double and rounded once, elements are f32.
static void loop_adam(float *param, float *exp_avg, float *exp_avg_sq, const float *grad, int64_t n, const AdamStep *step) {
  double correction1 = 1.0 - pow(step->beta1, (double)step->t), correction2 = 1.0 - pow(step->beta2, (double)step->t);
  float scale = (float)step->scale, keep = (float)(1.0 - step->lr * step->weight_decay), decay = (float)step->weight_decay;
  float weight1 = (float)(1.0 - step->beta1), beta2 = (float)step->beta2, weight2 = (float)(1.0 - step->beta2);
  float root2 = (float)sqrt(correction2), eps = (float)step->eps, rate = (float)(-(step->lr / correction1));
  bool l2 = !step->decoupled && step->weight_decay != 0, shrink = step->decoupled && step->weight_decay != 0;
  bool near = weight1 < 0.5f;   // lerp's two forms, as torch.lerp chooses them
  EACH {
    float g = grad[i] * scale, p = param[i], m = exp_avg[i];
    p = shrink ? p * keep : p;
    g = l2 ? FMA(decay, p, g) : g;
    m = near ? FMA(weight1, g - m, m) : FMA(weight1 - 1.0f, g - m, g);
    float v = FMA(weight2 * g, g, exp_avg_sq[i] * beta2);
    float denominator = __builtin_sqrtf(v) / root2 + eps;
    param[i] = p + rate * m / denominator;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
  }
}

// torch.optim.SGD: the first step sets the buffer to the gradient.
static void loop_sgd(float *param, float *momentum, const float *grad, int64_t n, const SgdStep *step) {
  float scale = (float)step->scale, decay = (float)step->weight_decay, rate = (float)-step->lr;
  float mu = (float)step->momentum, fresh = (float)(1.0 - step->dampening);
  bool l2 = step->weight_decay != 0, first = step->t == 1, nesterov = step->nesterov;
  if (!momentum) {
    EACH {
      float g = grad[i] * scale;
      g = l2 ? FMA(decay, param[i], g) : g;
      param[i] = FMA(rate, g, param[i]);
    }
    return;
  }
  EACH {
    float g = grad[i] * scale;
    g = l2 ? FMA(decay, param[i], g) : g;
    float buffer = first ? g : FMA(fresh, g, momentum[i] * mu);
    momentum[i] = buffer;
    g = nesterov ? FMA(mu, buffer, g) : buffer;
    param[i] = FMA(rate, g, param[i]);
  }
}

static void loop_moments(float *param, float *exp_avg, float *exp_avg_sq, const float *grad, int64_t n, const MomentStep *step) {
  float scale = (float)step->scale, keep = (float)step->keep, l2 = (float)step->l2, weight1 = (float)(1.0 - step->beta1), beta2 = (float)step->beta2;
  float weight2 = (float)(1.0 - step->beta2), root2 = (float)step->root2, eps = (float)step->eps, rate_grad = (float)step->rate_grad, rate_mean = (float)step->rate_mean;
  bool plain = step->plain;
  EACH {
    float p = param[i], g = FMA(l2, p, grad[i] * scale), m = FMA(weight1, g - exp_avg[i], exp_avg[i]), v = FMA(weight2 * g, g, exp_avg_sq[i] * beta2);
    float direction = FMA(rate_grad, g, rate_mean * m), denominator = __builtin_sqrtf(v) / root2 + eps;
    param[i] = FMA(p, keep, plain ? direction : direction / denominator);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
  }
}

static void loop_lion(float *param, float *exp_avg, const float *grad, int64_t n, const LionStep *step) {
  float scale = (float)step->scale, lr = (float)step->lr, keep = (float)(1 - step->lr * step->weight_decay);
  float beta1 = (float)step->beta1, rest1 = (float)(1 - step->beta1), beta2 = (float)step->beta2, rest2 = (float)(1 - step->beta2);
  EACH {
    float g = grad[i] * scale, m = exp_avg[i], direction = beta1 * m + rest1 * g;
    float sign = direction > 0 ? 1.0f : direction;          // a NaN stays one
    sign = direction < 0 ? -1.0f : sign;
    param[i] = param[i] * keep - lr * sign;
    exp_avg[i] = beta2 * m + rest2 * g;
  }
}

static void loop_lamb(float *direction, float *exp_avg, float *exp_avg_sq, const float *param, const float *grad, int64_t n, const LambStep *step) {
  float scale = (float)step->scale, beta1 = (float)step->beta1, rest1 = (float)(1 - step->beta1), beta2 = (float)step->beta2, rest2 = (float)(1 - step->beta2);
  float rate = (float)(1 / step->correction1), root2 = (float)step->root2, eps = (float)step->eps, decay = (float)step->weight_decay;
  EACH {
    float g = grad[i] * scale, m = beta1 * exp_avg[i] + rest1 * g, v = beta2 * exp_avg_sq[i] + rest2 * g * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    direction[i] = m * rate / (__builtin_sqrtf(v) / root2 + eps) + decay * param[i];
  }
}

static void loop_ema(float *out, const float *average, const float *param, float weight, int64_t n) {
  EACH out[i] = average[i] + weight * (param[i] - average[i]);
}

// The code of x is the number of edges below it. In lanes: which group of edges, then how many of that group's, looked up by a shuffle (gathers are slow on
// many processors). Without shuffles of lanes: by halves, without a branch.
#if defined __AVX2__
enum { GROUPS = WIDTH, GROUP = 256 / GROUPS };
typedef struct CodeEdges { FloatLanes inside[GROUP - 1]; float ends[GROUPS - 1]; } CodeEdges;      // inside[j][g]: edge j of group g; ends[g]: behind group g

static void edges_prepare(const CodeBook *book, CodeEdges *out) {
  for (int g = 0; g < GROUPS; g++)
    for (int j = 0; j < GROUP - 1; j++) out->inside[j][g] = book->edges[g * GROUP + j];
  for (int g = 0; g < GROUPS - 1; g++) out->ends[g] = book->edges[(g + 1) * GROUP - 1];
}

static void encode(const CodeEdges *edges, const float x[ADAM8_BLOCK], uint8_t codes[ADAM8_BLOCK]) {
  typedef uint8_t ByteLanes __attribute__((vector_size(WIDTH)));
  for (int i = 0; i < ADAM8_BLOCK; i += WIDTH) {
    FloatLanes at;
    IntLanes group = {0}, inside = {0};
    memcpy(&at, x + i, sizeof at);
    for (int g = 0; g < GROUPS - 1; g++) group -= at > edges->ends[g];
    for (int j = 0; j < GROUP - 1; j++) inside -= at > __builtin_shuffle(edges->inside[j], group);
    inside += group * GROUP;
    ByteLanes bytes = __builtin_convertvector(inside, ByteLanes);
    memcpy(codes + i, &bytes, sizeof bytes);
  }
}
#else
typedef CodeBook CodeEdges;
static void edges_prepare(const CodeBook *book, CodeEdges *out) { *out = *book; }

static void encode(const CodeEdges *book, const float x[ADAM8_BLOCK], uint8_t codes[ADAM8_BLOCK]) {
  for (int i = 0; i < ADAM8_BLOCK; i++) {
    int code = 0;
    for (int half = 128; half; half /= 2) code += half & -(int)(x[i] > book->edges[code + half - 1]);
    codes[i] = (uint8_t)code;
  }
}
#endif

// A block's moments (behind n: zeros) into its scale and codes.
static inline void encode_block(const CodeEdges *edges, const double *x, int64_t n, uint8_t *codes, float *out_scale) {
  double most[8] = {0};
  float parts[ADAM8_BLOCK];
  uint32_t nans = 0;
  for (int i0 = 0; i0 < ADAM8_BLOCK; i0 += 8)
    for (int l = 0; l < 8; l++) {
      double size = __builtin_fabs(x[i0 + l]);
      nans |= size != size;
      most[l] = size > most[l] ? size : most[l];
    }
  for (int l = 1; l < 8; l++) most[0] = most[l] > most[0] ? most[l] : most[0];
  float scale = nans ? NAN : (float)most[0];
  double inverse = scale > 0 ? 1 / (double)scale : 0;
  *out_scale = scale;
  for (int i = 0; i < ADAM8_BLOCK; i++) parts[i] = (float)(x[i] * inverse);
  uint8_t whole[ADAM8_BLOCK];
  encode(edges, parts, whole);
  memcpy(codes, whole, (size_t)n);
}

__attribute__((optimize("no-tree-vectorize"))) static void decode(const float values[256], const uint8_t *codes, int64_t n, float *out) {
  for (int64_t i = 0; i < n; i++) out[i] = values[codes[i]];
}

static void adam8_block(const Adam8Slice *b, const Adam8Step *s, const CodeEdges *mean_edges, const CodeEdges *square_edges) {
  double mean[ADAM8_BLOCK] = {0}, square[ADAM8_BLOCK] = {0}, mean_scale = *b->mean_scale, square_scale = *b->square_scale;
  float old_mean[ADAM8_BLOCK], old_square[ADAM8_BLOCK], scale = (float)s->scale, *param = b->param;
  const float *grad = b->grad;
  int64_t n = b->n;
  decode(s->mean.values, b->mean, n, old_mean);
  decode(s->square.values, b->square, n, old_square);
  EACH {
    double p = param[i], g = (double)(grad[i] * scale) + s->l2 * p, m = (double)old_mean[i] * mean_scale, v = (double)old_square[i] * square_scale;
    mean[i] = m + (1 - s->beta1) * (g - m);
    square[i] = s->beta2 * v + (1 - s->beta2) * g * g;
    param[i] = (float)(p * s->keep - s->rate * mean[i] / (__builtin_sqrt(square[i]) / s->root2 + s->eps));
  }
  encode_block(mean_edges, mean, n, b->mean, b->mean_scale);
  encode_block(square_edges, square, n, b->square, b->square_scale);
}

static void loop_adam8(const Adam8Slice *slice, const Adam8Step *step) {
  CodeEdges mean, square;
  edges_prepare(&step->mean, &mean);
  edges_prepare(&step->square, &square);
  for (int64_t at = 0, b = 0; at < slice->n; at += ADAM8_BLOCK, b++) {
    int64_t left = slice->n - at;
    Adam8Slice block = {slice->param + at, slice->grad + at, slice->mean + at, slice->square + at, slice->mean_scale + b, slice->square_scale + b,
                        left < ADAM8_BLOCK ? left : ADAM8_BLOCK};
    adam8_block(&block, step, &mean, &square);
  }
}

// ---- Products -------------------------------------------------------------------------------------------------------------------
// Each element is one chain of fma over x, whatever the blocks: the same bits as an axpy for every x. Blocks of some rows and two vectors stay in
// registers; what is left of the columns is added up row by row.

#if defined __AVX512F__
typedef __m512 ProductLanes;
#define LOAD_LANES _mm512_loadu_ps
#define STORE_LANES _mm512_storeu_ps
#define ALL_LANES _mm512_set1_ps
#define FMA_LANES _mm512_fmadd_ps
#elif defined __AVX2__
typedef __m256 ProductLanes;
#define LOAD_LANES _mm256_loadu_ps
#define STORE_LANES _mm256_storeu_ps
#define ALL_LANES _mm256_set1_ps
#define FMA_LANES _mm256_fmadd_ps
#else
typedef float ProductLanes;
#define LOAD_LANES(p) (*(p))
#define STORE_LANES(p, v) (*(p) = (v))
#define ALL_LANES(v) (v)
#define FMA_LANES(a, b, c) FMA(a, b, c)
#endif
enum { PRODUCT_LANES = sizeof(ProductLanes) / sizeof(float), BLOCK_ROWS = 4 };

#define PRODUCT_BLOCK(name, ROWS)                                                                               \
  static inline void name(const RowsProduct *p, int64_t row, int64_t column) {                                  \
    float *out = p->out + row * p->out_stride + column;                                                         \
    const float *a = p->a + row * p->a_row, *b = p->b + column;                                                 \
    ProductLanes sum[ROWS][2];                                                                                  \
    _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {                                                    \
      sum[r][0] = LOAD_LANES(out + r * p->out_stride);                                                          \
      sum[r][1] = LOAD_LANES(out + r * p->out_stride + PRODUCT_LANES);                                          \
    }                                                                                                           \
    for (int64_t x = 0; x < p->k; x++, b += p->b_stride) {                                                      \
      ProductLanes low = LOAD_LANES(b), high = LOAD_LANES(b + PRODUCT_LANES);                                   \
      _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {                                                  \
        ProductLanes factor = ALL_LANES(p->alpha * a[r * p->a_row + x * p->a_col]);                             \
        sum[r][0] = FMA_LANES(factor, low, sum[r][0]);                                                          \
        sum[r][1] = FMA_LANES(factor, high, sum[r][1]);                                                         \
      }                                                                                                         \
    }                                                                                                           \
    _Pragma("GCC unroll 4") for (int r = 0; r < ROWS; r++) {                                                    \
      STORE_LANES(out + r * p->out_stride, sum[r][0]);                                                          \
      STORE_LANES(out + r * p->out_stride + PRODUCT_LANES, sum[r][1]);                                          \
    }                                                                                                           \
  }
PRODUCT_BLOCK(product_rows, BLOCK_ROWS)
PRODUCT_BLOCK(product_row, 1)

static void loop_product(const RowsProduct *p) {
  int64_t column = 0;
  for (; column + 2 * PRODUCT_LANES <= p->n; column += 2 * PRODUCT_LANES) {
    int64_t row = 0;
    for (; row + BLOCK_ROWS <= p->rows; row += BLOCK_ROWS) product_rows(p, row, column);
    for (; row < p->rows; row++) product_row(p, row, column);
  }
  for (int64_t x = 0; column < p->n && x < p->k; x++)
    for (int64_t row = 0; row < p->rows; row++)
      loop_axpy(p->out + row * p->out_stride + column, p->alpha * p->a[row * p->a_row + x * p->a_col], p->b + x * p->b_stride + column, p->n - column);
}

#define TABLE_OF(isa) TABLE_OF_(isa)
#define TABLE_OF_(isa) loops_##isa
extern const Loops TABLE_OF(LOOPS_ISA);
const Loops TABLE_OF(LOOPS_ISA) = {
  .add = loop_add, .sub = loop_sub, .mul = loop_mul, .div = loop_div, .add_s = loop_add_s, .mul_s = loop_mul_s, .axpy = loop_axpy,
  .product = loop_product,
  .exp = loop_exp, .log = loop_log, .tanh = loop_tanh, .erf = loop_erf, .sigmoid = loop_sigmoid, .sqrt = loop_sqrt,
  .relu = loop_relu, .relu_grad = loop_relu_grad, .tanh_grad = loop_tanh_grad,
  .gelu = loop_gelu, .gelu_grad = loop_gelu_grad, .gelu_tanh = loop_gelu_tanh, .gelu_tanh_grad = loop_gelu_tanh_grad,
  .widen_bf16 = loop_widen_bf16, .widen_f16 = loop_widen_f16, .narrow_bf16 = loop_narrow_bf16, .narrow_f16 = loop_narrow_f16,
  .finite_f32 = loop_finite_f32, .finite_bf16 = loop_finite_bf16, .finite_f16 = loop_finite_f16,
  .max = loop_max, .sum = loop_sum, .sum_squares = loop_sum_squares, .dot = loop_dot, .random = loop_random, .adam = loop_adam, .sgd = loop_sgd,
  .moments = loop_moments, .lion = loop_lion, .lamb = loop_lamb, .ema = loop_ema, .adam8 = loop_adam8,
};
