// The optimizer of a DeepSpeed configuration: names, numbers and defaults are DeepSpeed's, which are not always torch.optim's.
#include <math.h>
#include <string.h>
#include <strings.h>

#include "../ir/decimal.h"
#include "ds_keys.h"

enum { ADAM = 1, ADAMW = 2, SGD = 4, LAMB = 8, LION = 16, ADAGRAD = 32, RMSPROP = 64, NADAM = 128, RADAM = 256, ADAFACTOR = 512, ALL = 1023, BOTH_ADAM = ADAM | ADAMW };

typedef struct Type {
  const char *name;
  unsigned bit;
  const char *option;           // --optimizer; NULL: refused
  double lr, weight_decay;      // defaults
  const char *eps;              // where ours is another; NULL: it is the same
  const char *text;             // refused: what to do
} Type;

#define ONE_BIT "compressed communication is not there: say \"Adam\" or \"Lamb\""

static const Type types[] = {
    // name, bit, ours, lr, weight decay, eps, what to do
    {"Adam", ADAM, "adamw", 1e-3, 0, NULL, NULL},       // decoupled decay unless adam_w_mode is false
    {"AdamW", ADAMW, "adamw", 1e-3, 0, NULL, NULL},     // FusedAdam's decay is 0, torch.optim.AdamW's 0.01
    {"SGD", SGD, "sgd", 1e-3, 0, NULL, NULL},
    {"Lamb", LAMB, "lamb", 1e-3, 0, "1e-8", NULL},
    {"Lion", LION, "lion", 1e-4, 0, NULL, NULL},
    {"Adagrad", ADAGRAD, "adagrad", 1e-2, 0, NULL, NULL},
    {"RMSprop", RMSPROP, "rmsprop", 1e-2, 0, NULL, NULL},
    {"NAdam", NADAM, "nadam", 2e-3, 0, NULL, NULL},     // these three are torch.optim's there
    {"RAdam", RADAM, "radam", 1e-3, 0, NULL, NULL},
    {"Adafactor", ADAFACTOR, "adafactor", 1e-2, 0, NULL, NULL},
    {"OneBitAdam", 0, NULL, 0, 0, NULL, ONE_BIT},
    {"OneBitLamb", 0, NULL, 0, 0, NULL, ONE_BIT},
    {"ZeroOneAdam", 0, NULL, 0, 0, NULL, ONE_BIT},
    {"Muon", 0, NULL, 0, 0, NULL, "its numbers are not DeepSpeed's here: leave \"optimizer\" out and say --optimizer muon --lr F"},
    {"MuAdam", 0, NULL, 0, 0, NULL, "say \"Adam\", and rates by width with --group PATTERN:lr-scale=F"},
    {"MuAdamW", 0, NULL, 0, 0, NULL, "say \"AdamW\", and rates by width with --group PATTERN:lr-scale=F"},
    {"MuSGD", 0, NULL, 0, 0, NULL, "say \"SGD\", and rates by width with --group PATTERN:lr-scale=F"},
};
enum { N_TYPES = sizeof types / sizeof types[0] };

typedef enum Kind { REAL, BETAS, FLAG, MUST_BE, NO_MEANING, ADAM_W_MODE, TWO_EPS, NEGATIVE } Kind;

typedef struct Param {
  const char *name;
  unsigned of;
  Kind kind;
  const char *option;           // MUST_BE: the value; NO_MEANING: why
} Param;

static const Param params[] = {
    {"lr", ALL, REAL, "lr"},
    {"weight_decay", ALL, REAL, "weight-decay"},
    {"betas", BOTH_ADAM | LAMB | LION | NADAM | RADAM, BETAS, "betas"},
    {"eps", BOTH_ADAM | LAMB | ADAGRAD | RMSPROP | NADAM | RADAM, REAL, "eps"},
    {"eps", ADAFACTOR, TWO_EPS, NULL},
    {"momentum_decay", NADAM, REAL, "momentum-decay"},
    {"decoupled_weight_decay", NADAM | RADAM, FLAG, "decoupled-weight-decay"},
    {"beta2_decay", ADAFACTOR, NEGATIVE, "beta2-decay"},
    {"d", ADAFACTOR, REAL, "clip-threshold"},
    {"momentum", SGD | RMSPROP, REAL, "momentum"},
    {"dampening", SGD, REAL, "dampening"},
    {"nesterov", SGD, FLAG, "nesterov"},
    {"alpha", RMSPROP, REAL, "alpha"},
    {"centered", RMSPROP, MUST_BE, "false"},
    {"lr_decay", ADAGRAD, REAL, "lr-decay"},
    {"initial_accumulator_value", ADAGRAD, REAL, "initial-accumulator"},
    {"adam_w_mode", BOTH_ADAM, ADAM_W_MODE, NULL},
    {"torch_adam", BOTH_ADAM, NO_MEANING, "there is one implementation"},
    {"bias_correction", BOTH_ADAM | LAMB, MUST_BE, "true"},
    {"amsgrad", BOTH_ADAM, MUST_BE, "false"},
    {"maximize", BOTH_ADAM | SGD | ADAGRAD | RMSPROP | NADAM | RADAM | ADAFACTOR, MUST_BE, "false"},
    {"max_coeff", LAMB, NO_MEANING, NULL},
    {"min_coeff", LAMB, NO_MEANING, NULL},
    {"fused", ALL, NO_MEANING, "the update is one pass in any case"},
    {"foreach", ALL, NO_MEANING, "the update is one pass in any case"},
    {"set_grad_none", BOTH_ADAM | LION, NO_MEANING, "the plan decides"},
};
enum { N_PARAMS = sizeof params / sizeof params[0] };

static Status find_type(const DsReader *r, const char *name, const Type **out) {
  const char *names[N_TYPES];
  for (int i = 0; i < N_TYPES; i++) {
    names[i] = types[i].name;
    if (strcasecmp(types[i].name, name)) continue;           // DeepSpeed's comparison
    if (!types[i].option) FAIL(UNSUPPORTED, NULL, "%s: \"optimizer.type\": \"%s\" is refused: %s", r->path, name, types[i].text);
    *out = &types[i];
    return STATUS_OK;
  }
  const char *nearest = ds_nearest(name, names, N_TYPES);
  FAIL(UNSUPPORTED, NULL, "%s: \"optimizer.type\": \"%.60s\" is not there%s%s%s; there are Adam, AdamW, SGD, Lamb, Lion, Adagrad, RMSprop, "
       "NAdam, RAdam, Adafactor", r->path, name, nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

static Status read_betas(const DsReader *r, const char *path, const char *option) {
  const json_t *list = ds_get(r, path);
  double b[2];
  if (!list) return STATUS_OK;
  bool ok = json_is_array(list) && json_array_size(list) == 2;
  for (size_t i = 0; ok && i < 2; i++) {
    b[i] = json_number_value(json_array_get(list, i));
    ok = json_is_number(json_array_get(list, i)) && b[i] >= 0 && b[i] < 1;
  }
  if (!ok) FAIL(MALFORMED, NULL, "%s: \"%s\" must be a list of two numbers in [0, 1), or \"auto\"", r->path, path);
  char first[DECIMAL_BYTES], second[DECIMAL_BYTES];
  ds_set(r, option, arena_printf(r->arena, "%s,%s", decimal_text(b[0], first), decimal_text(b[1], second)), path);
  return STATUS_OK;
}

// Adafactor's [least root of a mean square, or null; least scale of a parameter].
static Status read_two_eps(const DsReader *r, const char *path) {
  const json_t *list = ds_get(r, path), *first = json_array_get(list, 0), *second = json_array_get(list, 1);
  if (!list) return STATUS_OK;
  if (json_array_size(list) != 2 || !(json_is_null(first) || json_number_value(first) > 0) || !json_is_number(second) || json_number_value(second) < 0)
    FAIL(MALFORMED, NULL, "%s: \"%s\" must be a list: a number above 0 or null, and a number of at least 0", r->path, path);
  if (!json_is_null(first)) ds_set_real(r, "eps", json_number_value(first), path);
  ds_set_real(r, "eps2", json_number_value(second), path);
  return STATUS_OK;
}

static Status read_param(const DsReader *r, const Param *p, const char *path) {
  double value = NAN;
  bool flag = false;
  switch (p->kind) {
  case REAL:
    TRY(ds_get_real(r, path, 0, &value));
    if (!isnan(value)) ds_set_real(r, p->option, value, path);
    return STATUS_OK;
  case BETAS: return read_betas(r, path, p->option);
  case FLAG:
    TRY(ds_get_bool(r, path, &flag));
    if (flag) ds_set(r, p->option, NULL, path);
    return STATUS_OK;
  case MUST_BE:
    if (!ds_get(r, path)) return STATUS_OK;
    TRY(ds_get_bool(r, path, &flag));
    if (flag != !strcmp(p->option, "true")) FAIL(UNSUPPORTED, NULL, "%s: \"%s\" is refused: say %s", r->path, path, p->option);
    return STATUS_OK;
  case NO_MEANING:
    if (!p->option) FAIL(UNSUPPORTED, NULL, "%s: \"%s\" is refused: the trust ratio is not bounded here; leave it out", r->path, path);
    ds_unused(r, path, p->option);
    return STATUS_OK;
  case TWO_EPS: return read_two_eps(r, path);
  case NEGATIVE:
    if (ds_get(r, path) && !(json_number_value(ds_get(r, path)) < 0)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be a number below 0", r->path, path);
    if (ds_get(r, path)) ds_set_real(r, p->option, json_number_value(ds_get(r, path)), path);
    return STATUS_OK;
  case ADAM_W_MODE: break;
  }
  return STATUS_OK;
}

// Was another optimizer chosen elsewhere? adam, adamw, adam8 and adamw8 read the same numbers.
static bool is_other(const DsReader *r, const Type *type) {
  const char *chosen = r->context->optimizer;
  return chosen && strcmp(chosen, type->option) && (strncmp(chosen, "adam", 4) || strncmp(type->option, "adam", 4));
}

static bool is_left_out(const DsReader *r, const Type *type, const Param *p) {
  return is_other(r, type) && strcmp(p->name, "lr") && strcmp(p->name, "weight_decay");
}

static Status read_params(const DsReader *r, const Type *type, bool *out_decoupled) {
  const char *names[N_PARAMS];
  int n = 0;
  for (int i = 0; i < N_PARAMS; i++)
    if (params[i].of & type->bit) names[n++] = params[i].name;
  const json_t *object = ds_get(r, "optimizer.params");
  if (object && json_object_get(object, "max_grad_norm"))
    FAIL(UNSUPPORTED, NULL, "%s: \"optimizer.params.max_grad_norm\" is refused, by DeepSpeed too: say \"gradient_clipping\"", r->path);
  TRY(ds_check_names(r, "optimizer.params", names, n, type->name));
  for (int i = 0; object && i < N_PARAMS; i++) {
    const Param *p = &params[i];
    const char *path = arena_printf(r->arena, "optimizer.params.%s", p->name);
    if (!(p->of & type->bit) || !json_object_get(object, p->name)) continue;
    if (p->kind == ADAM_W_MODE) TRY(ds_get_bool(r, path, out_decoupled));
    else if (is_left_out(r, type, p)) ds_note(r, "\"%s\" is of %s, and --optimizer says %s", path, type->name, r->context->optimizer);
    else TRY(read_param(r, p, path));
  }
  return STATUS_OK;
}

static void set_default(const DsReader *r, const char *param, const char *option, double value, const char *of) {
  const char *path = arena_printf(r->arena, "optimizer.params.%s", param);
  if (!ds_get(r, path) && !ds_is_auto(r, path)) ds_set_real(r, option, value, arena_printf(r->arena, "DeepSpeed's default of %s", of));
}

Status ds_read_optimizer(const DsReader *r, double *out_lr) {
  const char *name = NULL;
  const Type *type = NULL;
  bool decoupled = true;
  *out_lr = r->context->lr;
  TRY(ds_get_text(r, "optimizer.type", &name));
  if (!name && ds_get(r, "optimizer.params")) FAIL(MALFORMED, NULL, "%s: \"optimizer.params\" without \"optimizer.type\": say which it is, such as \"AdamW\"", r->path);
  if (!name) return STATUS_OK;
  TRY(find_type(r, name, &type));
  TRY(read_params(r, type, &decoupled));
  bool coupled = type->bit == ADAM && !decoupled;
  ds_set(r, "optimizer", coupled ? "adam" : type->option, coupled ? "optimizer.type, adam_w_mode false" : "optimizer.type");
  if (type->bit == ADAM && !coupled) ds_note(r, "\"optimizer.type\": \"Adam\" is adamw, as in DeepSpeed: the weight decay is decoupled unless \"adam_w_mode\" is false");
  if (type->bit == LAMB) ds_note(r, "\"optimizer.type\": \"Lamb\": DeepSpeed bounds the trust ratio by 0.01 and 10, lamb here does not");
  if (!is_other(r, type)) {
    set_default(r, "weight_decay", "weight-decay", type->weight_decay, type->name);
    if (type->eps && !ds_get(r, "optimizer.params.eps")) ds_set(r, "eps", type->eps, "DeepSpeed's default of Lamb");
  }
  set_default(r, "lr", "lr", type->lr, type->name);
  if (isnan(*out_lr) && !ds_is_auto(r, "optimizer.params.lr")) {
    *out_lr = type->lr;
    TRY(ds_get_real(r, "optimizer.params.lr", 0, out_lr));
  }
  return STATUS_OK;
}
