// The section `parameters`: layers and what they hold, and the buckets that they travel in.
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "progress.h"
#include "show_plan.h"

enum { BUCKETS = 12 };           // listed unless the section was asked for by name

static void layer_rows(const Style *s, const PlanView *v, const PlanSections *sections) {
  fprintf(s->to, "  %s%-34s %10s %20s %12s%s\n", style_on(s, TONE_DIM), "layer", "parameters", "elements", "steps", style_off(s));
  for (size_t i = 0; i < v->layers.n;) {
    const Layer *layer = &v->layers.items[i];
    size_t n = sections->layer ? 1 : layers_alike_run(&v->layers, i);
    char name[160], shown[NAME_BYTES], elems[COUNT_BYTES];
    if (layer->n_params && (!sections->layer || layer_pattern_matches(sections->layer, layer->name))) {
      fprintf(s->to, "  %-34s %10" PRId64 " %20s %12zu", name_text(layers_run_name(&v->layers, i, n, name, sizeof name), 34, shown), layer->n_params,
              count_text(layer->param_elems, elems), layer->n_steps);
      if (n > 1) fprintf(s->to, "  %s%zu alike: each%s", style_on(s, TONE_DIM), n, style_off(s));
      fputc('\n', s->to);
    }
    i += n;
  }
}

static bool listed(const PlanSections *sections, const char *name) {
  bool all = true;
  for (int i = 0; i < sections->patterns.n; i++) {
    if (!sections->patterns.items[i][0]) continue;
    if (!fnmatch(sections->patterns.items[i], name, 0)) return true;
    all = false;
  }
  return all;
}

static void param_rows(const Style *s, const PlanView *v, const PlanSections *sections, size_t b) {
  const Bucket *bucket = &v->graph->buckets[b];
  for (int i = 0; i < bucket->n_params; i++) {
    const char *layer = v->layers.items[v->layers.of_param[b][i]].name;
    char type[160], name[NAME_BYTES];
    if (!listed(sections, bucket->params[i])) continue;
    if (sections->layer && !layer_pattern_matches(sections->layer, bucket->params[i]) && !layer_pattern_matches(sections->layer, layer)) continue;
    fprintf(s->to, "  %-60s %-24s %s%-9s bucket %zu at %" PRId64 "%s%s%s\n", name_text(bucket->params[i], 60, name), type_text(&bucket->types[i], type, sizeof type),
            style_on(s, TONE_DIM), bucket->trainable ? "trainable" : "frozen", b, bucket->starts[i], layer[0] ? ", layer " : "", layer, style_off(s));
  }
}

static void bucket_rows(const Style *s, const PlanView *v, bool all) {
  const Graph *g = v->graph;
  for (size_t i = 0; i < g->n_buckets && (all || i < BUCKETS); i++) {
    const Bucket *b = &g->buckets[i];
    char name[NAME_BYTES], bytes[32], shard[COUNT_BYTES];
    bool narrow = b->compute != b->dtype;
    fprintf(s->to, "  bucket %-5zu %6d parameter%s %12s padded, %14s elements a shard  %s%s%s%s%s from %s%s%s%s\n", i, b->n_params, b->n_params == 1 ? " " : "s",
            bytes_text(bytes_times(b->elems, dtype_bytes(b->dtype)), bytes), count_text(b->shard_elems, shard), dtype_name(b->dtype),
            narrow ? " with a copy in " : "", narrow ? dtype_name(b->compute) : "", style_on(s, TONE_DIM), b->trainable ? "" : ", frozen",
            b->n_params ? name_text(b->params[0], 60, name) : "nothing", b->group ? ", group " : "", b->group ? b->group : "", style_off(s));
  }
  if (!all && g->n_buckets > BUCKETS) fprintf(s->to, "  %s... %zu more; --params lists all, and each parameter%s\n", style_on(s, TONE_DIM),
                                              g->n_buckets - BUCKETS, style_off(s));
}

void show_params(const Style *s, const PlanView *v, const PlanSections *sections) {
  style_heading(s, "parameters", "by layer");
  layer_rows(s, v, sections);
  if (!sections->layer) {
    style_heading(s, "buckets", "parameters side by side: the unit of communication");
    bucket_rows(s, v, sections->params);
  }
  if (!sections->params && !sections->layer) return;
  style_heading(s, "each parameter", NULL);
  for (size_t b = 0; b < v->graph->n_buckets; b++) param_rows(s, v, sections, b);
}
