// The scheduler of a DeepSpeed configuration as a list of rates (--lr-list), step by step as DeepSpeed computes them: its warm-up is logarithmic unless
// told otherwise, and its first step has the rate that the schedule starts from, its second that of index 0.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "../ir/decimal.h"
#include "ds_keys.h"

enum { STEPS_MOST = 100000 };         // of a list

typedef struct Schedule {
  double min_lr, max_lr;              // warm-up: from, to; ONE_CYCLE: of the cycle; RANGE: start
  int64_t warmup, total;
  bool linear;
  double min_ratio, cos_min_ratio;    // COSINE: shares of max_lr
  double first, second, decay_size, decay_rate;      // ONE_CYCLE: halves of the cycle, what follows
  double step_size, step_rate;        // RANGE
  bool staircase;
} Schedule;

typedef struct Type {
  const char *name;
  const char *keys[12];
  Status (*read)(const DsReader *r, double lr, Schedule *s, int64_t *out_steps);      // *out_steps: after these the rate stays
  double (*at)(const Schedule *s, int64_t i);                                        // i: index as DeepSpeed counts, from 0
  double (*start)(const Schedule *s);                                                // of the very first step
} Type;

#define KEY(name) "scheduler.params." name

// --total-steps, else what the file says, else ("auto", absent) --steps.
static Status read_total(const DsReader *r, const char *key, int64_t *out) {
  const DsContext *c = r->context;
  *out = c->steps;
  if (key) TRY(ds_get_int(r, key, 1, out));
  if (c->total_steps > 0) *out = c->total_steps;
  if (*out > 0) return STATUS_OK;
  FAIL(USAGE, NULL, "%s: the scheduler needs to know how many steps there are: %s%s%s--total-steps K or --steps K", r->path, key ? "\"" : "", key ? key : "",
       key ? "\", " : "");
}

// ---- Warm-up, and what follows --------------------------------------------------------------------------------------------------------

static double warmup_share(const Schedule *s, int64_t i) {
  return s->linear ? (double)i / (double)s->warmup : log((double)i + 1) * (1 / log((double)s->warmup));
}

static Status read_warmup(const DsReader *r, Schedule *s) {
  const char *type = "log";
  s->warmup = ds_is_auto(r, KEY("warmup_num_steps")) ? 0 : 1000;
  TRY(ds_get_int(r, KEY("warmup_num_steps"), 0, &s->warmup));
  if (r->context->warmup >= 0) s->warmup = r->context->warmup;
  if (s->warmup < 2) s->warmup = 2;                            // DeepSpeed's least
  TRY(ds_get_text(r, KEY("warmup_type"), &type));
  if (strcmp(type, "log") && strcmp(type, "linear")) FAIL(MALFORMED, NULL, "%s: \"%s\" must be \"log\" or \"linear\"", r->path, KEY("warmup_type"));
  s->linear = !strcmp(type, "linear");
  return STATUS_OK;
}

static Status read_rates(const DsReader *r, double lr, double fallback, Schedule *s) {
  double max_lr = NAN;
  TRY(ds_get_real(r, KEY("warmup_min_lr"), 0, &s->min_lr));
  TRY(ds_get_real(r, KEY("warmup_max_lr"), 0, &max_lr));
  double said = r->context->lr;
  if (!isnan(max_lr) && !isnan(said) && said != max_lr)
    FAIL(USAGE, NULL, "%s: \"%s\" %g decides the rate, and --lr says %g: say \"auto\" there, or name another schedule with --schedule", r->path, KEY("warmup_max_lr"),
         max_lr, said);
  s->max_lr = !isnan(max_lr) ? max_lr : isnan(lr) ? fallback : lr;
  if (s->min_lr > s->max_lr) FAIL(USAGE, NULL, "%s: \"%s\" %g is above the rate %g that it rises to", r->path, KEY("warmup_min_lr"), s->min_lr, s->max_lr);
  return read_warmup(r, s);
}

static double start_min(const Schedule *s) { return s->min_lr; }
static double start_zero(const Schedule *s) {
  (void)s;
  return 0;
}

static Status read_constant(const DsReader *r, double lr, Schedule *s, int64_t *out_steps) {
  TRY(read_rates(r, lr, 1e-3, s));
  *out_steps = s->warmup + 1;
  return STATUS_OK;
}

static double at_constant(const Schedule *s, int64_t i) { return s->min_lr + (s->max_lr - s->min_lr) * (i < s->warmup ? warmup_share(s, i) : 1); }

static Status read_decay(const DsReader *r, double lr, Schedule *s, int64_t *out_steps) {
  bool absent = !ds_get(r, KEY("warmup_max_lr")) && !ds_is_auto(r, KEY("warmup_max_lr"));
  TRY(read_rates(r, absent && isnan(r->context->lr) ? 1e-3 : lr, 1e-3, s));        // DeepSpeed's default, not the optimizer's rate
  TRY(read_total(r, KEY("total_num_steps"), &s->total));
  *out_steps = (s->total > s->warmup ? s->total : s->warmup) + 1;
  return STATUS_OK;
}

static double at_decay(const Schedule *s, int64_t i) {
  double rest = s->total > s->warmup ? (double)(s->total - s->warmup) : 1;
  double share = i < s->warmup ? warmup_share(s, i) : fmax(0, (double)(s->total - i) / rest);
  return s->min_lr + (s->max_lr - s->min_lr) * share;
}

static Status read_cosine(const DsReader *r, double lr, Schedule *s, int64_t *out_steps) {
  s->max_lr = isnan(lr) ? 1e-3 : lr;
  s->cos_min_ratio = 1e-4;
  TRY(read_warmup(r, s));
  TRY(ds_get_real(r, KEY("warmup_min_ratio"), 0, &s->min_ratio));
  TRY(ds_get_real(r, KEY("cos_min_ratio"), 0, &s->cos_min_ratio));
  TRY(read_total(r, KEY("total_num_steps"), &s->total));
  *out_steps = (s->total > s->warmup ? s->total : s->warmup) + 1;
  return STATUS_OK;
}

static double at_cosine(const Schedule *s, int64_t i) {
  if (i < s->warmup) return s->max_lr * (s->min_ratio + warmup_share(s, i) * (1 - s->min_ratio));
  double rest = s->total > s->warmup ? (double)(s->total - s->warmup) : 1, share = fmin(1, (double)(i - s->warmup + 1) / rest);
  return s->max_lr * fmax(0, s->cos_min_ratio + (1 - s->cos_min_ratio) * (1 + cos(M_PI * share)) / 2);
}

// ---- One cycle, range test ------------------------------------------------------------------------------------------------------------

static Status check_one_cycle(const DsReader *r) {
  static const char *const zeros[] = {KEY("cycle_first_stair_count"), KEY("cycle_second_stair_count")};
  bool momentum = true;
  double value = 0;
  for (int i = 0; i < 2; i++) {
    TRY(ds_get_real(r, zeros[i], 0, &value));
    if (value != 0) FAIL(UNSUPPORTED, NULL, "%s: \"%s\" %g is refused: the cycle has no stairs; say 0", r->path, zeros[i], value);
  }
  TRY(ds_get_bool(r, KEY("cycle_momentum"), &momentum));
  static const char *const moments[] = {KEY("cycle_min_mom"), KEY("cycle_max_mom"), KEY("decay_mom_rate")};
  for (int i = 0; i < 3; i++)
    if (ds_get(r, moments[i])) ds_unused(r, moments[i], "of cycle_momentum, which is off");
  const char *optimizer = NULL;
  TRY(ds_get_text(r, "optimizer.type", &optimizer));
  if (momentum && !(optimizer && !strcasecmp(optimizer, "sgd")))       // DeepSpeed leaves optimizers without betas alone
    FAIL(UNSUPPORTED, NULL, "%s: \"%s\" (true unless said otherwise) moves beta1 from step to step, which is not there: say false", r->path, KEY("cycle_momentum"));
  return STATUS_OK;
}

static Status read_one_cycle(const DsReader *r, double lr, Schedule *s, int64_t *out_steps) {
  (void)lr;
  s->first = 2000;
  TRY(check_one_cycle(r));
  if (!ds_get(r, KEY("cycle_min_lr")) || !ds_get(r, KEY("cycle_max_lr")))
    FAIL(MALFORMED, NULL, "%s: OneCycle needs \"%s\" and \"%s\" as numbers", r->path, KEY("cycle_min_lr"), KEY("cycle_max_lr"));
  TRY(ds_get_real(r, KEY("cycle_min_lr"), 0, &s->min_lr));
  TRY(ds_get_real(r, KEY("cycle_max_lr"), 0, &s->max_lr));
  TRY(ds_get_real(r, KEY("cycle_first_step_size"), 1, &s->first));
  s->second = s->first;
  TRY(ds_get_real(r, KEY("cycle_second_step_size"), 1, &s->second));
  TRY(ds_get_real(r, KEY("decay_step_size"), 0, &s->decay_size));
  TRY(ds_get_real(r, KEY("decay_lr_rate"), 0, &s->decay_rate));
  if (s->first + s->second > STEPS_MOST)
    FAIL(UNSUPPORTED, NULL, "%s: a cycle of %g steps is longer than the %d that a list of rates holds", r->path, s->first + s->second, STEPS_MOST);
  *out_steps = (int64_t)ceil(s->first + s->second) + 1;
  return s->decay_size > 0 && s->decay_rate > 0 ? read_total(r, NULL, out_steps) : STATUS_OK;
}

static double at_one_cycle(const Schedule *s, int64_t i) {
  double total = s->first + s->second, ratio = s->first / total, position = (double)(i + 1) / total;
  if ((double)i >= total) return s->decay_size > 0 ? s->min_lr / (1 + s->decay_rate * ((double)i - total + 1) / s->decay_size) : s->min_lr;
  double x = 1 + position - floor(1 + position);
  return s->min_lr + (s->max_lr - s->min_lr) * (x <= ratio ? x / ratio : (x - 1) / (ratio - 1));
}

static Status read_range(const DsReader *r, double lr, Schedule *s, int64_t *out_steps) {
  (void)lr;
  s->min_lr = 1e-3;
  s->step_size = 2000;
  s->step_rate = 1;
  TRY(ds_get_real(r, KEY("lr_range_test_min_lr"), 0, &s->min_lr));
  TRY(ds_get_real(r, KEY("lr_range_test_step_size"), 1, &s->step_size));
  TRY(ds_get_real(r, KEY("lr_range_test_step_rate"), 0, &s->step_rate));
  TRY(ds_get_bool(r, KEY("lr_range_test_staircase"), &s->staircase));
  return read_total(r, NULL, out_steps);
}

static double at_range(const Schedule *s, int64_t i) {
  double interval = (double)(i + 1) / s->step_size;
  return s->min_lr * (1 + s->step_rate * (s->staircase ? floor(interval) : interval));
}

// ---- The list -------------------------------------------------------------------------------------------------------------------------

#define WARMUP_KEYS "warmup_num_steps", "warmup_type"

static const Type types[] = {
    {"WarmupLR", {"warmup_min_lr", "warmup_max_lr", WARMUP_KEYS}, read_constant, at_constant, start_min},
    {"WarmupDecayLR", {"warmup_min_lr", "warmup_max_lr", WARMUP_KEYS, "total_num_steps"}, read_decay, at_decay, start_min},
    {"WarmupCosineLR", {"warmup_min_ratio", "cos_min_ratio", WARMUP_KEYS, "total_num_steps"}, read_cosine, at_cosine, start_zero},
    {"OneCycle", {"cycle_min_lr", "cycle_max_lr", "cycle_first_step_size", "cycle_second_step_size", "cycle_first_stair_count", "cycle_second_stair_count",
                  "decay_step_size", "decay_lr_rate", "cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}, read_one_cycle, at_one_cycle, start_min},
    {"LRRangeTest", {"lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase"}, read_range, at_range, start_min},
};
enum { N_TYPES = sizeof types / sizeof types[0] };

static Status find_type(const DsReader *r, const char *name, const Type **out) {
  const char *names[N_TYPES];
  for (int i = 0; i < N_TYPES; i++) {
    names[i] = types[i].name;
    if (strcmp(types[i].name, name)) continue;
    *out = &types[i];
    return STATUS_OK;
  }
  const char *nearest = ds_nearest(name, names, N_TYPES);
  FAIL(UNSUPPORTED, NULL, "%s: \"scheduler.type\": \"%.60s\" is not there%s%s%s; there are WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, "
       "and --schedule", r->path, name, nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

static const char *list_text(const DsReader *r, const Type *type, const Schedule *s, int64_t n) {
  char *text = arena_alloc_array(r->arena, (size_t)n, DECIMAL_BYTES), *p = text;
  for (int64_t step = 0; step < n; step++) {
    char decimal[DECIMAL_BYTES];
    if (step) *p++ = ',';
    p = stpcpy(p, decimal_text(step ? type->at(s, step - 1) : type->start(s), decimal));
  }
  return text;
}

Status ds_read_scheduler(const DsReader *r, double lr) {
  const char *name = NULL;
  const Type *type = NULL;
  Schedule s = {0};
  int64_t steps = 0;
  TRY(ds_get_text(r, "scheduler.type", &name));
  if (!name && ds_get(r, "scheduler.params"))
    FAIL(MALFORMED, NULL, "%s: \"scheduler.params\" without \"scheduler.type\": say which it is, such as \"WarmupLR\"", r->path);
  if (!name) return STATUS_OK;
  TRY(find_type(r, name, &type));
  int n = 0;
  while (n < 12 && type->keys[n]) n++;
  TRY(ds_check_names(r, "scheduler.params", type->keys, n, name));
  if (r->context->has_schedule) {
    ds_note(r, "\"scheduler\" is left out: the command line chooses the schedule");
    return STATUS_OK;
  }
  TRY(type->read(r, lr, &s, &steps));
  if (steps + 1 > STEPS_MOST)
    FAIL(UNSUPPORTED, NULL, "%s: \"scheduler\": %" PRId64 " steps are more than the %d that a list of rates holds; --schedule names one without such a bound",
         r->path, steps, STEPS_MOST);
  ds_set(r, "lr-list", list_text(r, type, &s, steps + 1), arena_printf(r->arena, "scheduler.type %s", name));
  return STATUS_OK;
}
