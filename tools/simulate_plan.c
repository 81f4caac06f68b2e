// tessera simulate: what a training step of a plan would take on a cluster, and what this machine is as a cluster file.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../passes/simulate.h"
#include "calibrate.h"
#include "command.h"
#include "compile_flow.h"
#include "json_write.h"
#include "machine_json.h"
#include "printable.h"

// ---- One prediction -------------------------------------------------------------------------------------------------------------------

typedef struct Prediction {
  const Graph *program;
  Cluster cluster;
  Simulation s;
  PlanBytes bytes;
  double mfu;                  // product flops a second over what the machine can do in the plan's precision
  int ranks, nodes;
} Prediction;

static Precision precision_of(const Graph *g) {
  const char *name = g->recipe.precision ? g->recipe.precision : "f32";
  if (!strcmp(name, "bf16")) return PRECISION_BF16;
  if (!strcmp(name, "fp16")) return PRECISION_F16;
  return !strcmp(name, "fp64") ? PRECISION_F64 : PRECISION_F32;
}

static Status predict(const Graph *program, const Cluster *cluster, Arena *arena, Prediction *out) {
  Prediction p = {.program = program, .cluster = *cluster, .ranks = mesh_ranks(&program->mesh)};
  const Machine *m = &p.cluster.machine;
  if (cluster->ranks && p.ranks > cluster->ranks)
    FAIL(USAGE, NULL, "the plan is for %d ranks, cluster '%s' has %" PRId64, p.ranks, m->name, cluster->ranks);
  TRY(simulate_step(program, m, arena, &p.s));
  p.bytes = plan_bytes(program, arena);
  p.nodes = (p.ranks + m->ranks_per_node - 1) / m->ranks_per_node;
  double peak = m->peak_flops_per_s > 0 ? m->peak_flops_per_s : m->work_per_s[WORK_PRODUCT];
  p.mfu = p.s.step_s > 0 ? (p.s.product_flops - p.s.recomputed_flops) / p.s.step_s / (peak * m->precision_share[precision_of(program)]) : 0;
  *out = p;
  return STATUS_OK;
}

// ---- As text --------------------------------------------------------------------------------------------------------------------------

static const char *seconds_text(double s, char out[32]) {
  const char *unit = s >= 1 ? "s" : s >= 1e-3 ? "ms" : "us";
  snprintf(out, 32, "%.4g %s", s >= 1 ? s : s >= 1e-3 ? s * 1e3 : s * 1e6, unit);
  return out;
}

static const char *bytes_text(double bytes, char out[32]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int u = 0;
  for (; bytes >= 1024 && u < 5; u++) bytes /= 1024;
  snprintf(out, 32, "%.4g %s", bytes, units[u]);
  return out;
}

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

static int by_exposed(const void *a, const void *b) {
  const CommTime *x = *(const CommTime *const *)a, *y = *(const CommTime *const *)b;
  if (x->exposed_s != y->exposed_s) return x->exposed_s < y->exposed_s ? 1 : -1;
  return x < y ? -1 : x > y;
}

static const CommTime **sorted_causes(const Prediction *p, Arena *arena) {
  const CommTime **list = ARENA_ARRAY(arena, const CommTime *, p->s.n_comm);
  for (size_t i = 0; i < p->s.n_comm; i++) list[i] = &p->s.comm[i];
  if (p->s.n_comm) qsort(list, p->s.n_comm, sizeof *list, by_exposed);
  return list;
}

static void print_causes(const Prediction *p, Arena *arena) {
  enum { SHOWN = 12 };
  const CommTime **list = sorted_causes(p, arena);
  char a[32], b[32], c[32];
  double rest = 0;
  if (p->s.n_comm) printf("exposed communication by cause, the largest first\n");
  if (p->s.n_comm) printf("  %-14s %-7s %12s %12s %12s  %s\n", "collective", "phase", "sent", "takes", "exposed", "for");
  for (size_t i = 0; i < p->s.n_comm; i++) {
    const CommTime *x = list[i];
    if (i >= SHOWN) {
      rest += x->exposed_s;
      continue;
    }
    printf("  %-14s %-7s %12s %12s %12s  %s%s%s\n", x->op, phase_name(x->phase), bytes_text(x->sent_bytes, a), seconds_text(x->seconds, b),
           seconds_text(x->exposed_s, c), x->cause.param ? printable_text(x->cause.param, arena) : "", x->cause.param && x->cause.node ? ", " : "",
           x->cause.node ? printable_text(x->cause.node, arena) : "");
  }
  if (p->s.n_comm > SHOWN) printf("  and %zu more, %s exposed\n", p->s.n_comm - SHOWN, seconds_text(rest, a));
}

static void print_prediction(const Prediction *p, Arena *arena) {
  const Simulation *s = &p->s;
  const Machine *m = &p->cluster.machine;
  int64_t k = p->program->recipe.micro_per_rank;
  char a[32], b[32], c[32], d[32];
  printf("cluster '%s': %d rank%s on %d node%s of %d\n", printable_text(m->name, arena), p->ranks, p->ranks == 1 ? "" : "s", p->nodes,
         p->nodes == 1 ? "" : "s", m->ranks_per_node);
  printf("step          %s: %" PRId64 " x %s micro-batch, %s update, %s overhead\n", seconds_text(s->step_s, a), k, seconds_text(s->phase_s[PHASE_MICRO], b),
         seconds_text(s->phase_s[PHASE_UPDATE], c), seconds_text(s->overhead_s, d));
  for (int q = 0; q < QUEUE_COUNT; q++)
    if (s->busy_s[q] > 0) printf("queue %-7s %s busy, %.1f %% of the step\n", queue_name((Queue)q), seconds_text(s->busy_s[q], a), percent(s->busy_s[q], s->step_s));
  printf("communication %s sent, %s; exposed %s, %.1f %% of the step; %.1f %% hidden behind computation\n", bytes_text((double)p->bytes.sent_bytes, a),
         seconds_text(s->comm_s, b), seconds_text(s->exposed_s, c), percent(s->exposed_s, s->step_s), s->comm_s > 0 ? 100 - percent(s->exposed_s, s->comm_s) : 0);
  if (s->transfer_s > 0)
    printf("transfers     %s between tiers; exposed %s, %.1f %% of the step\n", seconds_text(s->transfer_s, a), seconds_text(s->transfer_exposed_s, b),
           percent(s->transfer_exposed_s, s->step_s));
  printf("compute       %.4g TFLOP of products a rank, %.4g TFLOP/s, MFU %.1f %%\n", s->product_flops / 1e12, s->step_s > 0 ? s->product_flops / s->step_s / 1e12 : 0,
         100 * p->mfu);
  if (s->recomputed_s > 0)
    printf("recomputation %.4g TFLOP of products and %s of it, which MFU does not count\n", s->recomputed_flops / 1e12, seconds_text(s->recomputed_s, a));
  printf("memory        %s a rank%s", bytes_text((double)s->peak_bytes, a), m->memory_bytes > 0 ? "" : "\n");
  if (m->memory_bytes > 0) printf(" of %s%s\n", bytes_text(m->memory_bytes, b), (double)s->peak_bytes > m->memory_bytes ? ": DOES NOT FIT" : "");
  print_causes(p, arena);
}

// ---- As JSON --------------------------------------------------------------------------------------------------------------------------

static void write_cause(JsonWriter *w, const CommTime *c) {
  json_write_object(w, NULL);
  json_write_text(w, "op", c->op);
  json_write_text(w, "phase", phase_name(c->phase));
  json_write_int(w, "bucket", c->bucket);
  json_write_object(w, "cause");
  json_write_text(w, "param", c->cause.param);
  json_write_text(w, "node", c->cause.node);
  json_write_text(w, "pass", c->cause.pass);
  json_write_end_object(w);
  json_write_real(w, "sent_bytes", c->sent_bytes);
  json_write_real(w, "seconds", c->seconds);
  json_write_real(w, "exposed_s", c->exposed_s);
  json_write_end_object(w);
}

static void write_steps(JsonWriter *w, const Prediction *p) {
  json_write_array(w, "steps");
  for (size_t i = 0; i < p->program->n_nodes; i++) {
    const Node *n = p->program->nodes[i];
    if (n->phase == PHASE_INIT) continue;
    json_write_object(w, NULL);
    json_write_int(w, "step", n->id);
    json_write_text(w, "op", n->op->name);
    json_write_text(w, "phase", phase_name(n->phase));
    json_write_text(w, "queue", queue_name(n->queue));
    json_write_real(w, "start_s", p->s.steps[i].start_s);
    json_write_real(w, "end_s", p->s.steps[i].end_s);
    json_write_end_object(w);
  }
  json_write_end_array(w);
}

static void write_prediction(const Prediction *p, Arena *arena) {
  const Simulation *s = &p->s;
  const Machine *m = &p->cluster.machine;
  JsonWriter w = {.to = stdout};
  json_write_object(&w, NULL);
  json_write_text(&w, "cluster", m->name);
  json_write_int(&w, "ranks", p->ranks);
  json_write_int(&w, "nodes", p->nodes);
  json_write_real(&w, "step_s", s->step_s);
  json_write_real(&w, "micro_s", s->phase_s[PHASE_MICRO]);
  json_write_real(&w, "update_s", s->phase_s[PHASE_UPDATE]);
  json_write_real(&w, "overhead_s", s->overhead_s);
  json_write_int(&w, "micro_per_rank", p->program->recipe.micro_per_rank);
  json_write_object(&w, "busy_s");
  for (int q = 0; q < QUEUE_COUNT; q++) json_write_real(&w, queue_name((Queue)q), s->busy_s[q]);
  json_write_end_object(&w);
  json_write_int(&w, "sent_bytes", p->bytes.sent_bytes);
  json_write_real(&w, "comm_s", s->comm_s);
  json_write_real(&w, "exposed_s", s->exposed_s);
  json_write_real(&w, "transfer_s", s->transfer_s);
  json_write_real(&w, "transfer_exposed_s", s->transfer_exposed_s);
  json_write_real(&w, "product_flops", s->product_flops);
  json_write_real(&w, "recomputed_flops", s->recomputed_flops);
  json_write_real(&w, "recomputed_s", s->recomputed_s);
  json_write_real(&w, "mfu", p->mfu);
  json_write_int(&w, "peak_bytes_per_rank", s->peak_bytes);
  json_write_int(&w, "peak_step", s->peak_step);
  if (m->memory_bytes > 0) json_write_bool(&w, "fits", (double)s->peak_bytes <= m->memory_bytes);
  else json_write_null(&w, "fits");
  json_write_array(&w, "communication");
  const CommTime **list = sorted_causes(p, arena);
  for (size_t i = 0; i < s->n_comm; i++) write_cause(&w, list[i]);
  json_write_end_array(&w);
  write_steps(&w, p);
  json_write_end_object(&w);
}

// ---- The command ----------------------------------------------------------------------------------------------------------------------

static Status calibrate(const Options *o) {
  enum { RANKS_MAX = 256 };
  Cluster cluster = {0};
  if (o->input) FAIL(USAGE, NULL, "--calibrate measures this machine and takes no model; then: tessera simulate %s --cluster FILE.json", o->input);
  if (!o->output) FAIL(USAGE, NULL, "say where the measured machine goes: tessera simulate --calibrate -o machine.json");
  if (o->ranks > RANKS_MAX) FAIL(USAGE, NULL, "--ranks %" PRId64 ": at most %d ranks are measured at once", o->ranks, RANKS_MAX);
  TRY(command_make_folders(o->output));
  TRY(calibrate_machine((int)o->ranks, o->given.swap_dir ? o->swap_dir : NULL, stderr, &cluster.machine));
  TRY(machine_json_write(o->output, &cluster));
  printf("%s: %s\n", o->output, cluster.machine.name);
  return STATUS_OK;
}

static Status simulate_guarded(Flow *flow, const Cluster *cluster, const Options *o) {
  Prediction p;
  ARENA_GUARD(flow->arena);
  Status status = predict(flow->plan.programs[0], cluster, flow->arena, &p);
  if (!status && o->json) write_prediction(&p, flow->arena);
  else if (!status) print_prediction(&p, flow->arena);
  ARENA_RETURN(flow->arena, status);
}

static Status simulate_file(Flow *flow, const Options *given) {
  Options o = *given;
  Cluster cluster = {.machine = machine_default()};
  if (o.output) FAIL(USAGE, NULL, "-o is for --calibrate; a prediction goes to stdout (--json for programs)");
  if (o.cluster) TRY(machine_json_read(o.cluster, &cluster));
  TRY(flow_open(&o, flow));
  if (!flow->is_plan && !o.given.ranks && cluster.ranks) o.ranks = cluster.ranks;
  Data *data = NULL;
  Status status = o.data.n ? flow_open_data(flow, &o, 0, &data) : STATUS_OK;
  if (!status) status = flow_compile(flow, &o, data, false);
  if (!status) status = simulate_guarded(flow, &cluster, &o);
  data_close(data);
  return status;
}

Status command_simulate(const Options *options) {
  if (options->calibrate) return calibrate(options);
  Flow flow = {0};
  Status status = simulate_file(&flow, options);
  flow_finish(&flow);
  return status;
}
