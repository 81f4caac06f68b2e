// The section `memory`: what a process holds, by tier and category, when most is live, in which buffers.
#include <inttypes.h>
#include <string.h>

#include "progress.h"
#include "show_plan.h"

enum { TOP = 12, CURVE_ROWS = 8, CURVE_COLUMNS = 72 };

static void category_row(const Style *s, const char *name, int64_t bytes, int64_t total) {
  char exact[COUNT_BYTES], text[32];
  fprintf(s->to, "  %-26s %s%20s%s %10s %5.1f %%\n", name, style_on(s, TONE_NUMBER), count_text(bytes, exact), style_off(s), bytes_text(bytes, text),
          total > 0 ? 100.0 * (double)bytes / (double)total : 0);
}

static const char *layer_of(const PlanView *v, uint32_t step) { return v->layers.items[v->layers.of_step[step]].name; }

static void peak_line(const Style *s, const PlanView *v, const MemoryCurve *curve) {
  const Node *n = v->graph->nodes[curve->peak];
  char live[32], reserved[32];
  fprintf(s->to, "  most is live at step %s%u%s: %s of phase %s", style_on(s, TONE_NUMBER), n->id, style_off(s), n->op->name, phase_name(n->phase));
  if (layer_of(v, n->id)[0]) fprintf(s->to, ", layer %s%s", layer_of(v, n->id), n->backward ? " backward" : n->phase == PHASE_MICRO ? " forward" : "");
  if (n->origin) fprintf(s->to, ", node '%s'", n->origin);
  fprintf(s->to, ": %s; reserved are %s, %.4f of the lower bound\n", bytes_text(curve->total[curve->peak], live), bytes_text(curve->arena_bytes, reserved),
          curve_above_bound(curve));
}

// The peak of each of CURVE_COLUMNS spans of steps as a bar from what never goes away to the most.
static void curve_picture(const Style *s, const PlanView *v, const MemoryCurve *curve) {
  size_t n = v->graph->n_nodes, columns = n < CURVE_COLUMNS ? n : CURVE_COLUMNS;
  int64_t most[CURVE_COLUMNS] = {0}, low = curve->total[curve->peak], high = low;
  for (size_t i = 0; i < n; i++) {
    size_t c = i * columns / n;
    if (curve->total[i] > most[c]) most[c] = curve->total[i];
    if (curve->total[i] < low) low = curve->total[i];
  }
  if (low == high) return;
  int64_t base = low - (high - low) / 8;
  if (base < 0) base = 0;
  for (int row = CURVE_ROWS; row > 0; row--) {
    char text[32];
    int64_t level = base + (int64_t)((double)(high - base) * row / CURVE_ROWS);
    fprintf(s->to, "  %s%10s |%s", style_on(s, TONE_DIM), bytes_text(level, text), style_off(s));
    for (size_t c = 0; c < columns; c++) {
      double filled = (double)(most[c] - base) / (double)(high - base) * CURVE_ROWS;
      fputc(filled >= row - 0.25 ? '#' : filled >= row - 0.75 ? '.' : ' ', s->to);
    }
    fputc('\n', s->to);
  }
  char phases[CURVE_COLUMNS + 1];
  for (size_t c = 0; c < columns; c++) {
    const Node *node = v->graph->nodes[c * n / columns];
    phases[c] = node->phase == PHASE_INIT ? 'i' : node->phase == PHASE_UPDATE ? 'u' : node->backward ? 'b' : 'f';
  }
  phases[columns] = 0;
  fprintf(s->to, "  %s%10s +%s  i: start, f: forward, b: backward, u: update%s\n", style_on(s, TONE_DIM), "", phases, style_off(s));
}

static void buffer_row(const Style *s, const PlanView *v, uint32_t index) {
  const Buffer *b = &v->graph->buffers[index];
  char exact[COUNT_BYTES], name[NAME_BYTES], life[48] = "always";
  bool lives = b->persistent;
  if (!lives) snprintf(life, sizeof life, "%u-%u", b->first, b->last);
  fprintf(s->to, "  #%-6u %16s  %-7s %-12s %-14s %-16s %s\n", index, count_text(b->bytes, exact), scope_name(b->scope), tier_name(b->tier),
          category_name(b->category), life,
          name_text(b->name, 60, name));
}

static bool buffer_wanted(const PlanView *v, const PlanSections *sections, const Buffer *b) {
  if (!sections->layer) return true;
  bool of_step = !b->persistent && b->first < v->graph->n_nodes && layer_pattern_takes_step(sections->layer, &v->layers, v->graph->nodes[b->first]);
  return of_step || layer_pattern_matches(sections->layer, b->name);
}

// Buffers of one size and kind, one after another in the order by size, are one line from the second on.
static void top_buffers(const Style *s, const PlanView *v, const PlanSections *sections, Arena *arena) {
  uint32_t *order;
  size_t n = plan_largest_buffers(v->graph, arena, &order), limit = sections->memory ? 4 * TOP : TOP, shown = 0;
  style_heading(s, "largest buffers", "bytes of one copy: of scope rank there is one per rank; life in steps");
  for (size_t i = 0; i < n && shown < limit; i++) {
    const Buffer *b = &v->graph->buffers[order[i]];
    if (!buffer_wanted(v, sections, b)) continue;
    buffer_row(s, v, order[i]);
    shown++;
    size_t alike = 0;
    while (i + 1 < n && v->graph->buffers[order[i + 1]].bytes == b->bytes && v->graph->buffers[order[i + 1]].category == b->category &&
           v->graph->buffers[order[i + 1]].scope == b->scope && buffer_wanted(v, sections, &v->graph->buffers[order[i + 1]])) {
      i++;
      alike++;
    }
    if (alike) fprintf(s->to, "  %s%24s  and %zu more of this size and kind%s\n", style_on(s, TONE_DIM), "", alike, style_off(s));
  }
}

static void tier_memory(const Style *s, const PlanView *v, const MemoryCurve *curve) {
  fprintf(s->to, "  %s%s%s\n", style_on(s, TONE_HEADING), tier_name(curve->tier), style_off(s));
  int64_t counted = 0;
  for (int c = 0; c < CATEGORY_COUNT; c++) {
    int64_t bytes = curve->live[c] ? curve->live[c][curve->peak] : 0;
    counted = bytes_add(counted, bytes);
    if (bytes) category_row(s, category_name((Category)c), bytes, curve->arena_bytes);
  }
  if (curve->arena_bytes > counted) category_row(s, category_name(CATEGORY_PADDING), curve->arena_bytes - counted, curve->arena_bytes);
  category_row(s, "total", curve->arena_bytes, curve->arena_bytes);
}

void show_memory(const Style *s, const PlanView *v, const PlanSections *sections, Arena *arena) {
  const TierBytes *device = &v->bytes.tiers[TIER_DEVICE];
  char rank[32], process[32];
  int ranks = v->graph->recipe.ranks_per_process > 0 ? v->graph->recipe.ranks_per_process : 1;
  style_heading(s, "memory", arena_printf(arena, "bytes of a process of %d rank%s when most is live: %s; %s for each rank", ranks, ranks == 1 ? "" : "s",
                                          bytes_text(device->peak_bytes, process),
                                          bytes_text(bytes_add(device->rank_arena_bytes, device->process_arena_bytes / ranks), rank)));
  for (int t = 0; t < v->n_curves && !sections->layer; t++) {
    tier_memory(s, v, &v->curves[t]);
    peak_line(s, v, &v->curves[t]);
    curve_picture(s, v, &v->curves[t]);
  }
  top_buffers(s, v, sections, arena);
}
