// libFuzzer: any bytes as a configuration. The first byte chooses what the command line says. What is accepted sets each option once, from a key, to a text
// that a person could have typed.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/config_json.h"
#include "frontend/ds_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(const DsConfig *config) {
  for (size_t i = 0; i < config->n_settings; i++) {
    const DsSetting *s = &config->settings[i];
    if (!s->option || !s->key || !*s->option || !*s->key) abort();
    if (s->value && (!*s->value || strstr(s->value, "nan") || strstr(s->value, "inf"))) abort();
    for (size_t j = 0; j < i; j++)
      if (!strcmp(config->settings[j].option, s->option)) abort();
  }
  for (size_t i = 0; i < config->n_unused; i++)
    if (!config->unused[i].key || !config->unused[i].value) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
  json_t *root;
  if (!n_bytes) return 0;
  uint8_t said = bytes[0];
  DsContext context = {.ranks = 1 + (said & 7), .batch = said & 8 ? 4 : 0, .micro_batches = said & 16 ? 8 : 0, .steps = said & 32 ? 100 : -1, .total_steps = -1,
                       .warmup = -1,                       .lr = said & 64 ? 0.001 : NAN, .optimizer = said & 128 ? "sgd" : NULL};
  Status status = config_json_parse((const char *)bytes + 1, n_bytes - 1, "fuzz", &root);
  if (status) {
    status_free(status);
    return 0;
  }
  Arena *arena = arena_create((size_t)64 << 20);
  DsConfig config = {0};
  ds_config_detect(root);
  status = ds_config_read(root, "fuzz", &context, arena, &config);
  if (!status) check(&config);
  status_free(status);
  json_decref(root);
  arena_destroy(arena);
  return 0;
}
