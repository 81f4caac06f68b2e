// tessera verify: the static proof of a plan file; exit 1 names every defect.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../passes/verify_plan.h"
#include "command.h"
#include "graph_file.h"
#include "json_write.h"
#include "printable.h"
#include "progress.h"

typedef struct Proof {
  const Graph *graph;              // the first program
  const Graph *const *programs;
  int n_programs;
  Arena *arena;
  const PlanDefect *defects;
  size_t n;
  PlanCounts counts;
} Proof;

static void print_json(const Proof *p) {
  JsonWriter w = {.to = stdout};
  json_write_object(&w, NULL);
  json_write_bool(&w, "ok", p->n == 0);
  json_write_array(&w, "defects");
  for (size_t i = 0; i < p->n; i++) {
    const PlanDefect *d = &p->defects[i];
    json_write_object(&w, NULL);
    json_write_text(&w, "code", d->code);
    if (d->step >= 0) json_write_int(&w, "step", d->step);
    else json_write_null(&w, "step");
    if (p->n_programs > 1) json_write_int(&w, "program", d->program);
    json_write_text(&w, "op", d->op);
    json_write_text(&w, "param", d->param);
    json_write_text(&w, "what", d->what);
    json_write_end_object(&w);
  }
  json_write_end_array(&w);
  json_write_object(&w, "checked");
  json_write_int(&w, "steps", (int64_t)p->graph->n_nodes);
  json_write_int(&w, "collectives", (int64_t)p->counts.collectives);
  json_write_int(&w, "waits", (int64_t)p->counts.waits);
  json_write_int(&w, "buckets", (int64_t)p->graph->n_buckets);
  json_write_int(&w, "buffers", (int64_t)p->graph->n_buffers);
  json_write_int(&w, "reads", (int64_t)p->counts.reads);
  json_write_int(&w, "accesses", (int64_t)p->counts.accesses);
  json_write_end_object(&w);
  json_write_end_object(&w);
}

// ---- Text ---------------------------------------------------------------------------------------------------------------------

static const char *plural(size_t n) { return n == 1 ? "" : "s"; }

static void print_queues(const Graph *g) {
  bool used[QUEUE_COUNT] = {false};
  const char *before = "";
  for (size_t i = 0; i < g->n_nodes; i++) used[g->nodes[i]->queue] = true;
  for (int q = 0; q < QUEUE_COUNT; q++) {
    if (!used[q]) continue;
    printf("%s%s", before, queue_name((Queue)q));
    before = ", ";
  }
}

static void print_proved(const Options *options, const Proof *p) {
  const Graph *g = p->graph;
  size_t steps = 0, buckets = 0, buffers = 0;
  int64_t params = 0, sent_bytes = 0, peak_bytes = 0;
  int ranks = mesh_ranks(&g->mesh);
  char peak[32], sent[32];
  for (int i = 0; i < p->n_programs; i++) {
    PlanBytes bytes = plan_bytes(p->programs[i], p->arena);
    steps += p->programs[i]->n_nodes;
    buckets += p->programs[i]->n_buckets;
    buffers += p->programs[i]->n_buffers;
    for (size_t b = 0; b < p->programs[i]->n_buckets; b++) params += p->programs[i]->buckets[b].n_params;
    if (bytes.sent_bytes > sent_bytes) sent_bytes = bytes.sent_bytes;
    if (bytes.tiers[TIER_DEVICE].peak_bytes > peak_bytes) peak_bytes = bytes.tiers[TIER_DEVICE].peak_bytes;
  }
  printf("%s: ok\n", options->input);
  if (p->n_programs > 1)
    printf("  programs    %d, one for each coordinate of axis '%s': they meet in the same collectives, in an order that holds none up\n", p->n_programs,
           PLAN_PROGRAM_AXIS);
  printf("  steps       %zu, each takes and makes what its operator says\n", steps);
  printf("  sends       %zu collective%s, the same in the same order on all %d rank%s; %s a rank and step, as the formula says with what is saved\n",
         p->counts.collectives, plural(p->counts.collectives), ranks, plural((size_t)ranks), bytes_text(sent_bytes, sent));
  printf("  ownership   %zu bucket%s of %" PRId64 " parameter tensors: loaded, summed over ranks and micro-batches, and updated once\n", buckets,
         plural(buckets), params);
  printf("  memory      %zu buffer%s, %s a process: in %zu reads every value is where it was made, and gathered ones lie between gather and release\n", buffers,
         plural(buffers), bytes_text(peak_bytes, peak), p->counts.reads);
  printf("  order       queues ");
  print_queues(g);
  printf(" with %zu wait%s: in %zu accesses no two unordered steps meet in the same bytes; no step waits in a circle\n", p->counts.waits, plural(p->counts.waits),
         p->counts.accesses);
}

static void print_code(const Proof *p, const PlanCode *code) {
  bool named = false;
  for (size_t i = 0; i < p->n; i++) {
    const PlanDefect *d = &p->defects[i];
    if (strcmp(d->code, code->code)) continue;
    if (!named) printf("%s (%s): %s\n", code->code, code->group, code->meaning);
    named = true;
    if (p->n_programs > 1) printf("  program %d:\n  ", d->program);
    printf("  ");
    if (d->step >= 0) printf("step %lld (%s): ", (long long)d->step, d->op);
    printable_print(stdout, d->what, false);
    if (d->param) {
      printf(" [");
      printable_print(stdout, d->param, false);
      printf("]");
    }
    printf("\n");
  }
}

// The first one found is the likeliest cause: its code comes first, then the others by groups.
static void print_defects(const Options *options, const Proof *p) {
  const PlanCode *first = plan_code_find(p->defects[0].code);
  print_code(p, first);
  for (const PlanCode *c = plan_codes; c->code; c++)
    if (c != first) print_code(p, c);
  printf("%s: %zu defect%s%s; the first found: %s\n", options->input, p->n, plural(p->n), p->n == PLAN_DEFECTS_MAX ? " (more are not shown)" : "", first->code);
}

static Status print_guarded(const Options *options, const Proof *p) {
  ARENA_GUARD(p->arena);
  if (options->json) print_json(p);
  else if (p->n) print_defects(options, p);
  else print_proved(options, p);
  ARENA_RETURN(p->arena, STATUS_OK);
}

static void print_codes(void) {
  for (const PlanCode *c = plan_codes; c->code; c++) {
    if (c == plan_codes || strcmp(c->group, c[-1].group)) printf("%s\n", c->group);
    printf("  %-22s %s\n", c->code, c->meaning);
  }
}

static Status verify(GraphFile *file, const Options *options) {
  TRY(graph_file_open_plan(options, file));
  const Flow *flow = &file->flow;
  const Graph *text[] = {flow->graph}, *const *programs = flow->n_programs ? flow->programs : text;
  int n_programs = flow->n_programs ? flow->n_programs : 1;
  if (!flow->is_plan) FAIL(USAGE, NULL, "'%s' is a model, not a plan; 'tessera compile' makes one of it", options->input);
  Proof p = {.graph = flow->graph, .programs = programs, .n_programs = n_programs, .arena = flow->arena};
  TRY(verify_programs(programs, n_programs, p.arena, &p.defects, &p.n, &p.counts));
  TRY(print_guarded(options, &p));
  return command_exit_silently(p.n ? STATUS_CHECK : STATUS_OK);
}

Status command_verify(const Options *options) {
  if (options->codes) {
    print_codes();
    return STATUS_OK;
  }
  GraphFile file = {0};
  Status status = verify(&file, options);
  graph_file_close(&file);
  return status;
}
