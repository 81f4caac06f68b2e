// `show PLAN --json`: one object; docs/show.md describes it, and tests/e2e/test_show.py holds the two together.
#include "report.h"
#include "show_plan.h"

static const char *layer_of_step(const PlanView *v, uint32_t step) {
  const char *name = v->layers.items[v->layers.of_step[step]].name;
  return name[0] ? name : NULL;
}

static void json_cause(JsonWriter *w, const Cause *cause) {
  json_write_object(w, "cause");
  json_write_text(w, "node", cause->node);
  json_write_text(w, "param", cause->param);
  json_write_text(w, "pass", cause->pass);
  json_write_end_object(w);
}

static void json_ledger(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "ledger");
  for (size_t i = 0; i < v->n_ledger; i++) {
    const LedgerEntry *e = &v->ledger[i];
    json_write_object(w, NULL);
    json_write_int(w, "step", e->step);
    json_write_text(w, "op", e->op);
    json_write_text(w, "kind", e->kind);
    json_write_text(w, "axis", e->axis);
    json_write_int(w, "bytes", e->bytes);
    json_write_int(w, "times", e->times);
    json_write_int(w, "copied_bytes", e->copied_bytes);
    json_write_int(w, "wire_bytes", e->wire_bytes);
    json_write_text(w, "dtype", dtype_name(e->wire));
    json_write_text(w, "accumulator", e->accumulator ? dtype_name(e->accumulator) : NULL);
    if (e->bucket >= 0) json_write_int(w, "bucket", e->bucket);
    else json_write_null(w, "bucket");
    json_write_text(w, "for", ledger_purpose(v->graph, e));
    json_write_text(w, "layer", layer_of_step(v, e->step));
    json_cause(w, &e->cause);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_transfers(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "transfers");
  for (size_t i = 0; i < v->n_transfers; i++) {
    const LedgerEntry *e = &v->transfers[i];
    json_write_object(w, NULL);
    json_write_int(w, "step", e->step);
    json_write_text(w, "op", e->op);
    json_write_text(w, "kind", e->kind);
    json_write_text(w, "tier", tier_name(e->tier));
    json_write_int(w, "bytes", e->bytes);
    json_write_int(w, "times", e->times);
    json_write_text(w, "dtype", dtype_name(e->wire));
    if (e->bucket >= 0) json_write_int(w, "bucket", e->bucket);
    else json_write_null(w, "bucket");
    json_cause(w, &e->cause);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_causes(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "causes");
  for (size_t i = 0; i < v->n_causes; i++) {
    json_write_object(w, NULL);
    json_write_text(w, "for", v->causes[i].what);
    json_write_text(w, "pass", v->causes[i].pass);
    json_write_int(w, "bytes", v->causes[i].bytes);
    json_write_int(w, "copied_bytes", v->causes[i].copied_bytes);
    json_write_int(w, "times", v->causes[i].count);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

void show_write_account(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "account");
  for (size_t i = 0; i < v->n_account; i++) {
    json_write_object(w, NULL);
    json_write_text(w, "kind", account_kind_name(v->account[i].kind));
    json_write_int(w, "bytes", v->account[i].bytes);
    json_write_text(w, "term", v->account[i].term);
    json_write_text(w, "why", v->account[i].why);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_savings(JsonWriter *w, const Graph *g) {
  json_write_array(w, "savings");
  for (size_t i = 0; i < g->n_savings; i++) {
    json_write_object(w, NULL);
    json_write_int(w, "bucket", g->savings[i].bucket);
    json_write_int(w, "bytes", g->savings[i].bytes);
    json_write_text(w, "reason", g->savings[i].reason);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_layers(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "layers");
  for (size_t i = 0; i < v->layers.n; i++) {
    const Layer *l = &v->layers.items[i];
    json_write_object(w, NULL);
    json_write_text(w, "name", l->name[0] ? l->name : NULL);
    json_write_text(w, "family", l->family);
    json_write_int(w, "params", l->n_params);
    json_write_int(w, "elems", l->param_elems);
    json_write_int(w, "steps", (int64_t)l->n_steps);
    json_write_int(w, "sent_bytes", l->sent_bytes);
    json_write_int(w, "gathered_bytes", l->gathered_bytes);
    json_write_int(w, "reduced_bytes", l->reduced_bytes);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_shape(JsonWriter *w, const Type *type) {
  json_write_array(w, "shape");
  for (int d = 0; d < type->rank; d++) json_write_int(w, NULL, type->dims[d]);
  json_write_end_array(w);
}

static void json_buckets(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "buckets");
  for (size_t b = 0; b < v->graph->n_buckets; b++) {
    const Bucket *bucket = &v->graph->buckets[b];
    json_write_object(w, NULL);
    json_write_text(w, "dtype", dtype_name(bucket->dtype));
    json_write_text(w, "compute", dtype_name(bucket->compute));
    json_write_bool(w, "trainable", bucket->trainable);
    json_write_text(w, "group", bucket->group);
    json_write_int(w, "elems", bucket->elems);
    json_write_int(w, "shard_elems", bucket->shard_elems);
    json_write_array(w, "params");
    for (int i = 0; i < bucket->n_params; i++) {
      const char *layer = v->layers.items[v->layers.of_param[b][i]].name;
      json_write_object(w, NULL);
      json_write_text(w, "name", bucket->params[i]);
      json_shape(w, &bucket->types[i]);
      json_write_int(w, "start", bucket->starts[i]);
      json_write_text(w, "layer", layer[0] ? layer : NULL);
      json_write_end_object(w);
    }
    json_write_end_array(w);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_memory(JsonWriter *w, const PlanView *v) {
  json_write_array(w, "memory");
  for (int t = 0; t < v->n_curves; t++) {
    const MemoryCurve *c = &v->curves[t];
    json_write_object(w, NULL);
    json_write_text(w, "tier", tier_name(c->tier));
    json_write_int(w, "arena_bytes", c->arena_bytes);
    json_write_int(w, "lower_bound_bytes", c->lower_bound_bytes);
    json_write_int(w, "peak_step", c->peak);
    json_write_int(w, "peak_live_bytes", c->total[c->peak]);
    json_write_object(w, "live_at_peak");
    for (int k = 0; k < CATEGORY_COUNT; k++)
      if (c->live[k]) json_write_int(w, category_name((Category)k), c->live[k][c->peak]);
    json_write_end_object(w);
    json_write_array(w, "live_bytes");
    for (size_t i = 0; i < v->graph->n_nodes; i++) json_write_int(w, NULL, c->total[i]);
    json_write_end_array(w);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_buffers(JsonWriter *w, const Graph *g) {
  json_write_array(w, "buffers");
  for (size_t i = 0; i < g->n_buffers; i++) {
    const Buffer *b = &g->buffers[i];
    json_write_object(w, NULL);
    json_write_text(w, "name", b->name);
    json_write_text(w, "scope", scope_name(b->scope));
    json_write_text(w, "tier", tier_name(b->tier));
    json_write_text(w, "category", category_name(b->category));
    json_write_int(w, "bytes", b->bytes);
    json_write_int(w, "offset", b->offset_bytes);
    json_write_bool(w, "persistent", b->persistent);
    json_write_int(w, "first", b->first);
    json_write_int(w, "last", b->last);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void json_names(JsonWriter *w, const char *key, Value *const *values, int n) {
  json_write_array(w, key);
  for (int i = 0; i < n; i++) json_write_text(w, NULL, values[i] ? values[i]->name : NULL);
  json_write_end_array(w);
}

// Of each value its buffer; -1: it lies in none.
static void json_places(JsonWriter *w, const char *key, Value *const *values, int n) {
  json_write_array(w, key);
  for (int i = 0; i < n; i++) json_write_int(w, NULL, values[i] ? values[i]->loc.buffer : -1);
  json_write_end_array(w);
}

static void json_step(JsonWriter *w, const PlanView *v, const Node *node) {
  json_write_object(w, NULL);
  json_write_int(w, "step", node->id);
  json_write_text(w, "name", node->name);
  json_write_text(w, "op", node->op->name);
  json_write_text(w, "phase", phase_name(node->phase));
  json_write_text(w, "queue", queue_name(node->queue));
  json_write_bool(w, "backward", node->backward);
  json_write_text(w, "recomputes", node->recomputes);
  json_write_text(w, "layer", layer_of_step(v, node->id));
  json_names(w, "inputs", node->inputs, node->n_inputs);
  json_places(w, "input_buffers", node->inputs, node->n_inputs);
  json_names(w, "outputs", node->outputs, node->n_outputs);
  json_places(w, "output_buffers", node->outputs, node->n_outputs);
  json_write_text(w, "guard", node->guard == GUARD_NONE ? NULL : guard_name(node->guard));
  if (node->guard != GUARD_NONE) json_write_int(w, "region", node->region);
  else json_write_null(w, "region");
  json_write_array(w, "waits");
  for (int i = 0; i < node->n_waits; i++) json_write_int(w, NULL, node->waits[i]);
  json_write_end_array(w);
  if (!v->no_estimate) {
    json_write_real(w, "start_s", v->estimate.steps[node->id].start_s);
    json_write_real(w, "end_s", v->estimate.steps[node->id].end_s);
  }
  json_write_text(w, "origin", node->origin);
  json_cause(w, &node->cause);
  json_write_end_object(w);
}

static void json_estimate(JsonWriter *w, const PlanView *v) {
  if (v->no_estimate) {
    json_write_null(w, "estimate");
    return;
  }
  json_write_object(w, "estimate");
  json_write_text(w, "machine", v->machine.name);
  json_write_real(w, "step_s", v->estimate.step_s);
  json_write_real(w, "micro_s", v->estimate.phase_s[PHASE_MICRO]);
  json_write_real(w, "update_s", v->estimate.phase_s[PHASE_UPDATE]);
  json_write_real(w, "comm_s", v->estimate.comm_s);
  json_write_real(w, "exposed_s", v->estimate.exposed_s);
  json_write_end_object(w);
}

static void json_header(JsonWriter *w, const PlanView *v) {
  const Graph *g = v->graph;
  const Recipe *r = &g->recipe;
  char bits[PLAN_BITS_BYTES];
  json_write_text(w, "model", r->model);
  json_write_int(w, "ranks", mesh_ranks(&g->mesh));
  json_write_int(w, "processes", r->processes);
  json_write_int(w, "threads_per_rank", r->threads_per_rank);
  json_write_array(w, "mesh");
  for (int a = 0; a < g->mesh.n_axes; a++) {
    json_write_object(w, NULL);
    json_write_text(w, "name", g->mesh.axes[a].name);
    json_write_int(w, "size", g->mesh.axes[a].size);
    json_write_end_object(w);
  }
  json_write_end_array(w);
  json_write_int(w, "zero", r->zero);
  json_write_text(w, "reduce", reduce_name(r->reduce));
  json_write_int(w, "micro_per_rank", r->micro_per_rank);
  json_write_int(w, "bucket_bytes", r->bucket_bytes);
  json_write_text(w, "precision", r->precision);
  json_write_text(w, "optimizer", r->optimizer);
  json_write_real(w, "lr", r->lr);
  json_write_text(w, "loss_output", r->loss_output);
  json_write_text(w, "loss_rule", r->loss_rule);
  json_write_object(w, "budget_bytes");
  for (int t = 0; t < TIER_COUNT; t++) {
    if (plan_budget_bytes(g, (Tier)t) == INT64_MAX) json_write_null(w, tier_name((Tier)t));
    else json_write_int(w, tier_name((Tier)t), plan_budget_bytes(g, (Tier)t));
  }
  json_write_end_object(w);
  json_write_text(w, "chosen", r->chosen);
  json_write_text(w, "isa", r->isa);
  json_write_text(w, "numerics_key", r->numerics_key);
  json_write_text(w, "bits", plan_bits_rule(g, bits));
  json_write_int(w, "padded_param_bytes", v->bytes.padded_param_bytes);
}

static Status json_guarded(JsonWriter *w, const Graph *g, Arena *arena) {
  ARENA_GUARD(arena);
  PlanView v = plan_view(g, arena);
  json_write_object(w, NULL);
  json_header(w, &v);
  json_ledger(w, &v);
  json_transfers(w, &v);
  json_savings(w, g);
  show_write_account(w, &v);
  json_causes(w, &v);
  report_write_sent_bytes(w, g, NULL, arena);
  report_write_peak_bytes(w, g, NULL, arena);
  json_estimate(w, &v);
  json_layers(w, &v);
  json_buckets(w, &v);
  json_memory(w, &v);
  json_buffers(w, g);
  json_write_array(w, "steps");
  for (size_t i = 0; i < g->n_nodes; i++) json_step(w, &v, g->nodes[i]);
  json_write_end_array(w);
  json_write_end_object(w);
  ARENA_RETURN(arena, STATUS_OK);
}

Status show_plan_json(JsonWriter *w, const Graph *g) {
  Arena *arena = arena_create(0);
  Status status = arena ? json_guarded(w, g, arena) : status_fail(STATUS_RESOURCE, NULL, "out of memory while showing a plan");
  arena_destroy(arena);
  return status;
}
