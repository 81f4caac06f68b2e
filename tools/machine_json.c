#include "machine_json.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "json_write.h"
#include "options.h"

// ---- The numbers, in one table ------------------------------------------------------------------------------------------------------

typedef struct Number { const char *name; size_t offset; bool may_be_zero; } Number;
#define NUMBER(field, zero) {#field, offsetof(Machine, field), zero}
static const Number numbers[] = {
    NUMBER(memory_bytes_per_s, false), NUMBER(cache_bytes_per_s, false), NUMBER(cache_bytes, true), NUMBER(step_overhead_s, true), NUMBER(product_call_s, true),
    NUMBER(guard_s, true), NUMBER(micro_overhead_s, true), NUMBER(update_overhead_s, true), NUMBER(memory_bytes, true), NUMBER(peak_flops_per_s, true)};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

typedef struct Flag { const char *name; size_t offset; } Flag;
#define FLAG_FIELD(field) {#field, offsetof(Machine, field)}
static const Flag flags[] = {FLAG_FIELD(shares_memory), FLAG_FIELD(shares_processor), FLAG_FIELD(ring), FLAG_FIELD(has_reference)};
enum { N_FLAGS = sizeof flags / sizeof flags[0] };

static const char *const others[] = {"name", "ranks", "ranks_per_node", "work_per_s", "product_share", "transposed_share", "precision_share", "intra", "inter", "tiers"};
enum { N_OTHERS = sizeof others / sizeof others[0] };

// ---- Reading --------------------------------------------------------------------------------------------------------------------------

typedef struct Reader { const char *path; Cluster *to; } Reader;

static Status read_number(const Reader *r, const char *of, const char *key, const json_t *json, bool may_be_zero, double *out) {
  double value = json_number_value(json);
  if (!json_is_number(json) || !isfinite(value) || value < 0 || (!may_be_zero && value <= 0))
    FAIL(MALFORMED, NULL, "%s: \"%s%s%s\" must be a number %s 0", r->path, of, *of ? "." : "", key, may_be_zero ? "from" : "above");
  *out = value;
  return STATUS_OK;
}

static Status read_count(const Reader *r, const char *key, const json_t *json, int64_t max, int64_t *out) {
  if (!json_is_integer(json) || json_integer_value(json) < 1 || json_integer_value(json) > max)
    FAIL(MALFORMED, NULL, "%s: \"%s\" must be a whole number from 1 to %lld", r->path, key, (long long)max);
  *out = json_integer_value(json);
  return STATUS_OK;
}

static Status unknown_key(const Reader *r, const char *of, const char *key, const char *const *names, int n) {
  const char *nearest = options_nearest(key, names, n);
  FAIL(MALFORMED, NULL, "%s: \"%s%s%s\" is unknown%s%s%s", r->path, of, *of ? "." : "", key, nearest ? "; did you mean \"" : "", nearest ? nearest : "",
       nearest ? "\"?" : "");
}

// An object whose keys are `name(0)` to `name(n - 1)`, each a number above 0.
static Status read_named(const Reader *r, const char *of, json_t *json, const char *(*name)(int), int n, double *out) {
  const char *key, *names[WORK_COUNT];
  json_t *value;
  if (!json_is_object(json)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be an object", r->path, of);
  for (int i = 0; i < n; i++) names[i] = name(i);
  json_object_foreach(json, key, value) {
    int i = 0;
    while (i < n && strcmp(names[i], key)) i++;
    if (i == n) return unknown_key(r, of, key, names, n);
    TRY(read_number(r, of, key, value, false, &out[i]));
  }
  return STATUS_OK;
}

static Status read_list(const Reader *r, const char *key, const json_t *json, size_t n, double *out) {
  if (!json_is_array(json) || json_array_size(json) != n) FAIL(MALFORMED, NULL, "%s: \"%s\" must be a list of %zu numbers", r->path, key, n);
  for (size_t i = 0; i < n; i++) TRY(read_number(r, "", key, json_array_get(json, i), false, &out[i]));
  return STATUS_OK;
}

static Status read_link(const Reader *r, const char *of, json_t *json, Link *out) {
  static const char *const names[] = {"latency_s", "bytes_per_s"};
  const char *key;
  json_t *value;
  if (!json_is_object(json)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be an object with latency_s and bytes_per_s", r->path, of);
  json_object_foreach(json, key, value) {
    if (!strcmp(key, names[0])) TRY(read_number(r, of, key, value, true, &out->latency_s));
    else if (!strcmp(key, names[1])) TRY(read_number(r, of, key, value, false, &out->bytes_per_s));
    else return unknown_key(r, of, key, names, 2);
  }
  return STATUS_OK;
}

// One link for all uses, or one each: {"gather": {...}, "scatter": {...}, "reduce": {...}}.
static Status read_links(const Reader *r, const char *of, json_t *json, Link out[LINK_USES]) {
  bool each = false;
  for (int use = 0; use < LINK_USES; use++) each |= json_object_get(json, link_use_name((LinkUse)use)) != NULL;
  if (!each) {
    TRY(read_link(r, of, json, &out[0]));
    for (int use = 1; use < LINK_USES; use++) out[use] = out[0];
    return STATUS_OK;
  }
  const char *key, *names[LINK_USES];
  json_t *value;
  for (int use = 0; use < LINK_USES; use++) names[use] = link_use_name((LinkUse)use);
  json_object_foreach(json, key, value) {
    int use = 0;
    while (use < LINK_USES && strcmp(names[use], key)) use++;
    if (use == LINK_USES) return unknown_key(r, of, key, names, LINK_USES);
    TRY(read_link(r, key, value, &out[use]));
  }
  return STATUS_OK;
}

// One link for both directions, or one each: {"read": {...}, "write": {...}}.
static Status read_tier(const Reader *r, const char *of, json_t *json, Link out[TIER_USES]) {
  bool each = false;
  for (int use = 0; use < TIER_USES; use++) each |= json_object_get(json, tier_use_name((TierUse)use)) != NULL;
  if (!each) {
    TRY(read_link(r, of, json, &out[0]));
    out[TIER_WRITE] = out[TIER_READ];
    return STATUS_OK;
  }
  const char *key, *names[TIER_USES];
  json_t *value;
  for (int use = 0; use < TIER_USES; use++) names[use] = tier_use_name((TierUse)use);
  json_object_foreach(json, key, value) {
    int use = 0;
    while (use < TIER_USES && strcmp(names[use], key)) use++;
    if (use == TIER_USES) return unknown_key(r, of, key, names, TIER_USES);
    TRY(read_link(r, key, value, &out[use]));
  }
  return STATUS_OK;
}

static Status read_tiers(const Reader *r, json_t *json, Link out[TIER_COUNT][TIER_USES]) {
  const char *key;
  json_t *value;
  if (!json_is_object(json)) FAIL(MALFORMED, NULL, "%s: \"tiers\" must be an object", r->path);
  json_object_foreach(json, key, value) {
    int tier = enum_from_name(key, (EnumName)tier_name, TIER_COUNT);
    if (tier <= TIER_DEVICE) return unknown_key(r, "tiers", key, (const char *const[]){tier_name(TIER_HOST), tier_name(TIER_NVME)}, 2);
    TRY(read_tier(r, key, value, out[tier]));
  }
  return STATUS_OK;
}

static const char *work_key(int i) { return work_name((Work)i); }
static const char *precision_key(int i) { return precision_name((Precision)i); }

static Status read_other(const Reader *r, const char *key, json_t *json) {
  Machine *m = &r->to->machine;
  int64_t count;
  if (!strcmp(key, "name")) {
    if (!json_is_string(json)) FAIL(MALFORMED, NULL, "%s: \"name\" must be a text", r->path);
    snprintf(m->name, sizeof m->name, "%s", json_string_value(json));
    return STATUS_OK;
  }
  if (!strcmp(key, "ranks")) return read_count(r, key, json, MESH_RANKS_MAX, &r->to->ranks);
  if (!strcmp(key, "ranks_per_node")) {
    TRY(read_count(r, key, json, MESH_RANKS_MAX, &count));
    m->ranks_per_node = (int)count;
    return STATUS_OK;
  }
  if (!strcmp(key, "work_per_s")) return read_named(r, key, json, work_key, WORK_COUNT, m->work_per_s);
  if (!strcmp(key, "precision_share")) return read_named(r, key, json, precision_key, PRECISION_COUNT, m->precision_share);
  if (!strcmp(key, "product_share")) return read_list(r, key, json, PRODUCT_SIZES * PRODUCT_SIZES * PRODUCT_SIZES, &m->product_share[0][0][0]);
  if (!strcmp(key, "transposed_share")) return read_list(r, key, json, 2, m->transposed_share);
  if (!strcmp(key, "intra")) return read_links(r, key, json, m->intra);
  if (!strcmp(key, "inter")) return read_links(r, key, json, m->inter);
  return read_tiers(r, json, m->tiers);
}

static Status read_key(const Reader *r, const char *key, json_t *json) {
  const char *names[N_NUMBERS + N_FLAGS + N_OTHERS];
  int n = 0;
  char *machine = (char *)&r->to->machine;
  for (int i = 0; i < N_NUMBERS; i++) {
    names[n++] = numbers[i].name;
    if (!strcmp(numbers[i].name, key)) return read_number(r, "", key, json, numbers[i].may_be_zero, (double *)(machine + numbers[i].offset));
  }
  for (int i = 0; i < N_FLAGS; i++) {
    names[n++] = flags[i].name;
    if (strcmp(flags[i].name, key)) continue;
    if (!json_is_boolean(json)) FAIL(MALFORMED, NULL, "%s: \"%s\" must be true or false", r->path, key);
    *(bool *)(machine + flags[i].offset) = json_is_true(json);
    return STATUS_OK;
  }
  for (int i = 0; i < N_OTHERS; i++) {
    names[n++] = others[i];
    if (!strcmp(others[i], key)) return read_other(r, key, json);
  }
  return unknown_key(r, "", key, names, n);
}

static Status read_root(const char *path, json_t *root, Cluster *out) {
  const char *key;
  json_t *value;
  Cluster cluster = {.machine = machine_default()};
  Reader r = {path, &cluster};
  snprintf(cluster.machine.name, sizeof cluster.machine.name, "%s", path);
  if (!json_is_object(root)) FAIL(MALFORMED, NULL, "%s: a cluster file is one JSON object (docs/simulate.md)", path);
  json_object_foreach(root, key, value) TRY(read_key(&r, key, value));
  if (!json_object_get(root, "shares_processor")) cluster.machine.shares_processor = cluster.machine.shares_memory;      // ranks copy and add themselves
  *out = cluster;
  return STATUS_OK;
}

Status machine_json_read(const char *path, Cluster *out) {
  json_error_t error;
  FILE *file = fopen(path, "rb");
  if (!file) FAIL(IO, NULL, "cannot open '%s': %s", path, strerror(errno));
  json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
  fclose(file);
  if (!root) FAIL(MALFORMED, NULL, "%s: line %d: %s", path, error.line, error.text);
  Status status = read_root(path, root, out);
  json_decref(root);
  return status;
}

// ---- Writing --------------------------------------------------------------------------------------------------------------------------

static void write_link(JsonWriter *w, const char *key, Link link) {
  json_write_object(w, key);
  json_write_real(w, "latency_s", link.latency_s);
  json_write_real(w, "bytes_per_s", link.bytes_per_s);
  json_write_end_object(w);
}

static void write_links(JsonWriter *w, const char *key, const Link links[LINK_USES]) {
  json_write_object(w, key);
  for (int use = 0; use < LINK_USES; use++) write_link(w, link_use_name((LinkUse)use), links[use]);
  json_write_end_object(w);
}

static void write_machine(JsonWriter *w, const Cluster *cluster) {
  const Machine *m = &cluster->machine;
  json_write_object(w, NULL);
  json_write_text(w, "name", m->name);
  if (cluster->ranks) json_write_int(w, "ranks", cluster->ranks);
  json_write_int(w, "ranks_per_node", m->ranks_per_node);
  for (int i = 0; i < N_FLAGS; i++) json_write_bool(w, flags[i].name, *(const bool *)((const char *)m + flags[i].offset));
  for (int i = 0; i < N_NUMBERS; i++) json_write_real(w, numbers[i].name, *(const double *)((const char *)m + numbers[i].offset));
  json_write_object(w, "work_per_s");
  for (int i = 0; i < WORK_COUNT; i++) json_write_real(w, work_key(i), m->work_per_s[i]);
  json_write_end_object(w);
  json_write_array(w, "product_share");
  const double *shares = &m->product_share[0][0][0];
  for (int i = 0; i < PRODUCT_SIZES * PRODUCT_SIZES * PRODUCT_SIZES; i++) json_write_real(w, NULL, shares[i]);
  json_write_end_array(w);
  json_write_array(w, "transposed_share");
  for (int i = 0; i < 2; i++) json_write_real(w, NULL, m->transposed_share[i]);
  json_write_end_array(w);
  json_write_object(w, "precision_share");
  for (int i = 0; i < PRECISION_COUNT; i++) json_write_real(w, precision_key(i), m->precision_share[i]);
  json_write_end_object(w);
  write_links(w, "intra", m->intra);
  write_links(w, "inter", m->inter);
  json_write_object(w, "tiers");
  for (int t = TIER_DEVICE + 1; t < TIER_COUNT; t++) {
    json_write_object(w, tier_name((Tier)t));
    for (int use = 0; use < TIER_USES; use++) write_link(w, tier_use_name((TierUse)use), m->tiers[t][use]);
    json_write_end_object(w);
  }
  json_write_end_object(w);
  json_write_end_object(w);
}

Status machine_json_write(const char *path, const Cluster *cluster) {
  FILE *file = fopen(path, "wb");
  if (!file) FAIL(IO, NULL, "cannot write '%s': %s", path, strerror(errno));
  write_machine(&(JsonWriter){.to = file}, cluster);
  bool bad = ferror(file);
  if (fclose(file) || bad) FAIL(IO, NULL, "cannot write '%s': %s", path, strerror(errno));
  return STATUS_OK;
}
