#include "torch_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"
#include "tied_weights.h"

enum { PARTS_MAX = 16, ORDERS_TRIED = 24 };

// How an initializer holds `n` entries: their elements (rows in gate order where `gates` says so) side by side, and then perhaps the last two axes
// swapped.
typedef struct Holding {
  const WeightOrigin *origin;
  const Weight *parts[PARTS_MAX];
  int n;
  bool swapped;
} Holding;

// What an entry of the state file becomes.
typedef struct Entry {
  TorchSource source;
  Holding from;
  const char *why;                 // NONE: what was found out
} Entry;

typedef struct Restore {
  const CheckpointInfo *info;
  const WeightSource *params;      // trained, by every name
  const Safetensors *state;
  Arena *arena;
  const WeightOrigin *origins;
  size_t n_origins, n_entries;
  const WeightOrigin **by_name, **by_contents;
  bool *claimed;                   // per origin: an entry has its name
  bool *restored;                  // per origin: an entry takes its trained values
  Entry *entries;                  // per tensor of the state
} Restore;

// ---- Layouts ------------------------------------------------------------------------------------------------------------------

// order[i]: which gate of PyTorch's order stands at place i of ONNX's.
static int gates_of(const char *op, const int **order) {
  static const int lstm[] = {0, 3, 1, 2};     // i o f c from i f g o
  static const int gru[] = {1, 0, 2};         // z r h from r z n
  static const int plain[] = {0};
  *order = !op ? plain : !strcmp(op, "LSTM") ? lstm : !strcmp(op, "GRU") ? gru : plain;
  return *order == lstm ? 4 : *order == gru ? 3 : 1;
}

// [batch, rows, cols] -> [batch, cols, rows]
static void swap_axes(char *to, const char *from, int64_t batch, int64_t rows, int64_t cols, int64_t width) {
  for (int64_t b = 0; b < batch; b++)
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < cols; c++) memcpy(to + ((b * cols + c) * rows + r) * width, from + ((b * rows + r) * cols + c) * width, (size_t)width);
}

typedef struct Matrix { int64_t batch, rows, cols; } Matrix;       // the last two axes of an initializer

static Matrix matrix_of(const Type *type) {
  Matrix m = {1, 1, 1};
  for (int d = 0; d + 2 < type->rank; d++) m.batch *= type->dims[d];
  if (type->rank >= 2) m = (Matrix){m.batch, type->dims[type->rank - 2], type->dims[type->rank - 1]};
  return m;
}

static bool same_matrix(const Type *a, const Type *b) {
  Matrix x = matrix_of(a), y = matrix_of(b);
  return x.batch == y.batch && x.rows == y.rows && x.cols == y.cols;
}

static int64_t min_int64(int64_t a, int64_t b) { return a < b ? a : b; }

// The initializer that the entries make up, in its element type, into `out`; `temp` has room for as much.
static void assemble(const Holding *h, char *out, char *temp) {
  const int *order;
  int n_gates = gates_of(h->origin->gates, &order);
  int64_t width = dtype_bytes(h->origin->type.dtype), at = 0;
  char *flat = h->swapped ? temp : out;
  for (int p = 0; p < h->n; p++) {
    const Weight *part = h->parts[p];
    int64_t gate = type_elems(&part->type) / n_gates, part_width = dtype_bytes(part->type.dtype);
    for (int i = 0; i < n_gates; i++, at += gate)
      elements_convert(flat + at * width, h->origin->type.dtype, (const char *)part->bytes + order[i] * gate * part_width, part->type.dtype, gate);
    if (part->mapped) mapped_let_go(part->bytes, type_bytes(&part->type));
  }
  Matrix m = matrix_of(&h->origin->type);
  if (h->swapped) swap_axes(out, flat, m.batch, m.cols, m.rows, width);
}

// The entry `part` out of trained values of the initializer (`dtype`), into `out` in the entry's element type; `temp` has room for all values.
static void take_apart(const Holding *h, const Weight *part, const void *trained, Dtype dtype, char *out, char *temp) {
  const int *order;
  int n_gates = gates_of(h->origin->gates, &order);
  int64_t width = dtype_bytes(dtype), at = 0;
  const char *flat = trained;
  Matrix m = matrix_of(&h->origin->type);
  if (h->swapped) {
    swap_axes(temp, trained, m.batch, m.rows, m.cols, width);
    flat = temp;
  }
  for (int p = 0; h->parts[p] != part; p++) at += type_elems(&h->parts[p]->type);
  int64_t gate = type_elems(&part->type) / n_gates, part_width = dtype_bytes(part->type.dtype);
  for (int i = 0; i < n_gates; i++, at += gate)
    elements_convert(out + order[i] * gate * part_width, part->type.dtype, flat + at * width, dtype, gate);
}

static bool fills(const Holding *h) {
  const int *order;
  int n_gates = gates_of(h->origin->gates, &order);
  int64_t elems = 0, wanted = type_elems(&h->origin->type);
  for (int p = 0; p < h->n; p++) {
    if (!dtype_is_float(h->parts[p]->type.dtype) != !dtype_is_float(h->origin->type.dtype)) return false;
    if (type_elems(&h->parts[p]->type) % n_gates) return false;
    elems += min_int64(type_elems(&h->parts[p]->type), wanted - elems + 1);
  }
  return elems == wanted;
}

// ---- Proof by contents --------------------------------------------------------------------------------------------------------

// Room for twice the initializer.
static Status make_room(const WeightOrigin *origin, char **out, char **out_temp) {
  size_t n = (size_t)type_bytes(&origin->type);
  char *room = malloc(2 * n + 1);
  if (!room) FAIL(RESOURCE, origin->name, "no memory for twice its %zu bytes", n);
  *out = room;
  *out_temp = room + n;
  return STATUS_OK;
}

// Do the entries in this order make up the initializer? Sets h->swapped.
static Status proves(Holding *h, bool *out) {
  char *room, *temp;
  *out = false;
  if (!fills(h)) return STATUS_OK;
  TRY(make_room(h->origin, &room, &temp));
  Status status = STATUS_OK;
  for (int swapped = 0; swapped <= (h->origin->type.rank >= 2) && !status && !*out; swapped++) {
    uint64_t contents[2];
    h->swapped = swapped;
    assemble(h, room, temp);
    status = weight_hash(&(Weight){.name = h->origin->name, .type = h->origin->type, .bytes = room}, contents);
    *out = !status && contents[0] == h->origin->contents[0] && contents[1] == h->origin->contents[1];
  }
  free(room);
  return status;
}

static void exchange(int *rank, const Weight **parts, int a, int b) {
  int r = rank[a];
  const Weight *part = parts[a];
  rank[a] = rank[b];
  parts[a] = parts[b];
  rank[b] = r;
  parts[b] = part;
}

// The next permutation of `parts` in lexical order of `rank`; false after the last.
static bool next_order(int *rank, const Weight **parts, int n) {
  int i = n - 2, j = n - 1;
  while (i >= 0 && rank[i] >= rank[i + 1]) i--;
  if (i < 0) return false;
  while (rank[j] <= rank[i]) j--;
  exchange(rank, parts, i, j);
  for (int a = i + 1, b = n - 1; a < b; a++, b--) exchange(rank, parts, a, b);
  return true;
}

static Status proves_in_any_order(Holding *h, bool *out) {
  int rank[PARTS_MAX];
  *out = false;
  for (int i = 0; i < h->n; i++) rank[i] = i;
  for (int tried = 0; tried < ORDERS_TRIED && !*out; tried++) {
    TRY(proves(h, out));
    if (!*out && !next_order(rank, h->parts, h->n)) break;
  }
  return STATUS_OK;
}

// ---- Names --------------------------------------------------------------------------------------------------------------------

static int compare_name(const void *a, const void *b) { return strcmp((*(WeightOrigin *const *)a)->name, (*(WeightOrigin *const *)b)->name); }

static int compare_contents(const void *a, const void *b) {
  const WeightOrigin *x = *(WeightOrigin *const *)a, *y = *(WeightOrigin *const *)b;
  for (int i = 0; i < 2; i++)
    if (x->contents[i] != y->contents[i]) return x->contents[i] < y->contents[i] ? -1 : 1;
  return 0;
}

static const WeightOrigin *find_origin(const Restore *r, const char *name) {
  const WeightOrigin wanted = {.name = name}, *key = &wanted;
  const WeightOrigin *const *found = r->n_origins ? bsearch(&key, r->by_name, r->n_origins, sizeof *r->by_name, compare_name) : NULL;
  return found ? *found : NULL;
}

// One is the other with a module's name in front ("model.head.weight", "head.weight").
static bool names_alike(const char *a, const char *b) {
  size_t na = strlen(a), nb = strlen(b);
  if (na < nb) return names_alike(b, a);
  return nb && !strcmp(a + na - nb, b) && (na == nb || a[na - nb - 1] == '.');
}

static int compare_weight(const void *name, const void *weight) { return strcmp(name, ((const Weight *)weight)->name); }

static const Weight *trained_values(const Restore *r, const WeightOrigin *origin) {
  const WeightSource *params = r->params;                                  // in name order
  return params->n_weights ? bsearch(origin->name, params->weights, params->n_weights, sizeof *params->weights, compare_weight) : NULL;
}

static Entry *entry_of(const Restore *r, const Weight *part) { return &r->entries[part - safetensors_tensors(r->state)]; }

static void settle(Restore *r, const Weight *part, TorchSource source, const Holding *from) {
  *entry_of(r, part) = (Entry){trained_values(r, from->origin) ? source : TORCH_KEPT, *from, NULL};
  r->restored[from->origin - r->origins] = true;
}

// Same name: same shape suffices, unless the contents say that the axes are swapped.
static Status match_by_name(Restore *r, const Weight *part) {
  Holding h = {.origin = find_origin(r, part->name), .parts = {part}, .n = 1};
  if (!h.origin) return STATUS_OK;
  bool proved = false, same_shape = type_same_shape(&h.origin->type, &part->type);
  r->claimed[h.origin - r->origins] = true;
  Matrix m = matrix_of(&part->type);
  if (!same_shape || m.rows == m.cols) TRY(proves(&h, &proved));
  if (!proved) h.swapped = false;
  if (proved || same_shape) settle(r, part, TORCH_NAME, &h);
  else entry_of(r, part)->why = "the model's initializer of that name has another shape, and other contents";
  return STATUS_OK;
}

// ---- Folded -------------------------------------------------------------------------------------------------------------------

// PyTorch's order within an ONNX operand: forward before reverse, input before hidden.
static int part_rank(const Weight *part) { return (strstr(part->name, "_reverse") ? 2 : 0) + (strstr(part->name, "_hh_") ? 1 : 0); }

static Status match_folded(Restore *r, const WeightOrigin *origin) {
  Holding h = {.origin = origin};
  bool all_matched = true, proved;
  for (size_t i = 0; i < origin->n_folded_from; i++) {
    const Weight *part = safetensors_find(r->state, origin->folded_from[i]);
    if (!part) continue;
    if (h.n == PARTS_MAX) return STATUS_OK;
    int at = h.n++;
    for (; origin->gates && at && part_rank(h.parts[at - 1]) > part_rank(part); at--) h.parts[at] = h.parts[at - 1];
    h.parts[at] = part;
    all_matched &= entry_of(r, part)->source != TORCH_NONE;
  }
  if (!h.n || all_matched) return STATUS_OK;
  TRY(proves_in_any_order(&h, &proved));
  for (int p = 0; p < h.n; p++) {
    Entry *e = entry_of(r, h.parts[p]);
    if (e->source != TORCH_NONE) continue;
    if (proved) settle(r, h.parts[p], TORCH_FOLDED, &h);
    else if (!e->why)
      e->why = arena_printf(r->arena, "the exporter folded it into '%s', whose contents are not those of the state file, as they are or transposed",
                            origin->name);
  }
  return STATUS_OK;
}

// ---- Contents -----------------------------------------------------------------------------------------------------------------

// Better candidates for an entry have more points.
static int points(const Restore *r, const WeightOrigin *origin, const Weight *part) {
  if (names_alike(origin->name, part->name)) return 3;
  return r->claimed[origin - r->origins] ? 1 : 2;
}

typedef struct Candidates { Holding best; int points, n; } Candidates;

// Initializers of these contents.
static void look_up(const Restore *r, const uint64_t contents[2], const Holding *h, Candidates *c) {
  const WeightOrigin wanted = {.contents = {contents[0], contents[1]}}, *key = &wanted;
  const WeightOrigin **at = r->n_origins ? bsearch(&key, r->by_contents, r->n_origins, sizeof *r->by_contents, compare_contents) : NULL;
  if (!at) return;
  while (at > r->by_contents && !compare_contents(at - 1, &key)) at--;
  for (; at < r->by_contents + r->n_origins && !compare_contents(at, &key); at++) {
    Holding candidate = *h;
    candidate.origin = *at;
    if ((*at)->type.dtype != h->origin->type.dtype || (*at)->gates || !fills(&candidate)) continue;
    if (h->swapped && !same_matrix(&(*at)->type, &h->origin->type)) continue;
    int p = points(r, *at, h->parts[0]);
    if (p < c->points) continue;
    c->n = p > c->points ? 1 : c->n + 1;
    c->points = p;
    c->best = candidate;
  }
}

// As it is and with swapped axes, in each element type that an initializer may have it in.
static Status find_candidates(const Restore *r, const Weight *part, Candidates *out) {
  static const Dtype floats[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_F64};
  for (int i = -1; i < 4 && !out->n; i++) {
    WeightOrigin like = {.name = part->name, .type = part->type};
    if (i >= 0 && (floats[i] == part->type.dtype || !dtype_is_float(part->type.dtype))) continue;
    if (i >= 0) like.type.dtype = floats[i];
    Holding h = {.origin = &like, .parts = {part}, .n = 1};
    char *room, *temp;
    TRY(make_room(&like, &room, &temp));
    Status status = STATUS_OK;
    for (int swapped = 0; swapped <= (like.type.rank >= 2) && !status; swapped++) {
      uint64_t contents[2];
      Type as = like.type;
      h.swapped = swapped;
      if (swapped) {                                  // the initializer's shape, from the entry's
        as.dims[as.rank - 1] = like.type.dims[as.rank - 2];
        as.dims[as.rank - 2] = like.type.dims[as.rank - 1];
      }
      WeightOrigin target = {.name = part->name, .type = as};
      h.origin = &target;
      assemble(&h, room, temp);
      status = weight_hash(&(Weight){.name = part->name, .type = as, .bytes = room}, contents);
      if (!status) look_up(r, contents, &h, out);
      if (out->n) break;
    }
    free(room);
    TRY(status);
  }
  return STATUS_OK;
}

static Status match_by_contents(Restore *r, const Weight *part) {
  Candidates c = {0};
  Entry *e = entry_of(r, part);
  TRY(find_candidates(r, part, &c));
  if (c.n == 1) settle(r, part, TORCH_CONTENTS, &c.best);
  else if (c.n > 1) e->why = arena_printf(r->arena, "%d initializers began with its contents, '%s' among them, and no name decides", c.n,
                                       c.best.origin->name);
  else if (!e->why) e->why = "no initializer has its name, and none began with its contents";
  return STATUS_OK;
}

static Status match_all(Restore *r) {
  const Weight *parts = safetensors_tensors(r->state);
  for (size_t i = 0; i < r->n_entries; i++) TRY(match_by_name(r, &parts[i]));
  for (size_t i = 0; i < r->n_origins; i++) TRY(match_folded(r, &r->origins[i]));
  for (size_t i = 0; i < r->n_entries; i++) {
    Entry *e = &r->entries[i];
    if (e->source == TORCH_NONE && dtype_is_float(parts[i].type.dtype)) TRY(match_by_contents(r, &parts[i]));
    else if (e->source == TORCH_NONE) e->source = TORCH_KEPT;      // counters and masks: nothing trains integers
  }
  return STATUS_OK;
}

// ---- Writing ------------------------------------------------------------------------------------------------------------------

// torch.nn.BatchNorm counts the batches that its running statistics have seen: is that the entry, and were the statistics trained?
static bool is_batch_count(const Restore *r, const Weight *part) {
  static const char count[] = ".num_batches_tracked";
  size_t n = strlen(part->name), m = strlen(count);
  if (n < m || strcmp(part->name + n - m, count) || type_elems(&part->type) != 1 || dtype_is_float(part->type.dtype)) return false;
  const Weight *mean = safetensors_find(r->state, arena_printf(r->arena, "%.*s.running_mean", (int)(n - m), part->name));
  return mean && entry_of(r, mean)->source != TORCH_NONE && entry_of(r, mean)->source != TORCH_KEPT;
}

static Status write_count(const Restore *r, SafetensorsWriter *writer, size_t at, const Weight *part) {
  int64_t bytes = 0;
  element_write_int(&bytes, part->type.dtype, 0, weight_read_int(part, 0) + r->info->step * r->info->micro_per_rank);
  return safetensors_write(writer, at, &bytes);
}

static Status write_entry(const Restore *r, SafetensorsWriter *writer, size_t at, const Weight *part) {
  const Entry *e = entry_of(r, part);
  if (e->source == TORCH_KEPT && is_batch_count(r, part)) return write_count(r, writer, at, part);
  if (e->source == TORCH_KEPT) return safetensors_write_weight(writer, at, part);
  const Weight *trained = trained_values(r, e->from.origin);
  if (type_elems(&trained->type) != type_elems(&e->from.origin->type))
    FAIL(MALFORMED, trained->name, "%" PRId64 " elements in the checkpoint, %" PRId64 " in the model", type_elems(&trained->type),
         type_elems(&e->from.origin->type));
  char *out = malloc((size_t)(type_bytes(&part->type) + type_bytes(&trained->type)) + 1);
  if (!out) FAIL(RESOURCE, part->name, "no memory for the tensor");
  take_apart(&e->from, part, trained->bytes, trained->type.dtype, out, out + type_bytes(&part->type));
  if (trained->mapped) mapped_let_go(trained->bytes, type_bytes(&trained->type));
  Status status = safetensors_write(writer, at, out);
  free(out);
  return status;
}

static Status write_all(const Restore *r, const char *path) {
  static const char *const metadata[] = {"format", "pt", NULL};
  const Weight *parts = safetensors_tensors(r->state);
  SafetensorsEntry *entries = ARENA_ARRAY(r->arena, SafetensorsEntry, r->n_entries);
  size_t n = 0;
  for (size_t i = 0; i < r->n_entries; i++)
    if (r->entries[i].source != TORCH_NONE) entries[n++] = (SafetensorsEntry){parts[i].name, parts[i].type};
  SafetensorsWriter *writer;
  TRY(safetensors_create(path, entries, n, metadata, &writer));
  Status status = STATUS_OK;
  n = 0;
  for (size_t i = 0; i < r->n_entries && !status; i++)
    if (r->entries[i].source != TORCH_NONE) status = write_entry(r, writer, n++, &parts[i]);
  if (!status) return safetensors_finish(writer);
  safetensors_abandon(writer);
  return status;
}

// Does an entry take its values, under this name or another that is tied to it?
static bool is_restored(const Restore *r, const char *name) {
  const char *kept = ties_kept(r->info->ties, r->info->n_ties, name);
  const WeightOrigin *origin = find_origin(r, kept);
  bool restored = origin && r->restored[origin - r->origins];
  for (size_t i = 0; i < r->info->n_ties && !restored; i++) {
    if (strcmp(r->info->ties[i].kept, kept)) continue;
    origin = find_origin(r, r->info->ties[i].tied);
    restored = origin && r->restored[origin - r->origins];
  }
  return restored;
}

static size_t list_missing(const Restore *r, FILE *to) {
  size_t n = 0;
  for (size_t i = 0; i < r->n_entries; i++) {
    if (r->entries[i].source != TORCH_NONE) continue;
    fprintf(to, "\n  '%s': %s", safetensors_tensors(r->state)[i].name, r->entries[i].why);
    n++;
  }
  for (size_t i = 0; i < r->params->n_weights; i++) {
    const char *name = r->params->weights[i].name;
    if (is_restored(r, name)) continue;
    fprintf(to, "\n  parameter '%s' of the model: no entry of the state file stands for it", name);
    n++;
  }
  return n;
}

static Status verdict(const Restore *r) {
  char *text = NULL;
  size_t bytes;
  FILE *to = open_memstream(&text, &bytes);
  if (!to) FAIL(RESOURCE, NULL, "out of memory");
  size_t n = list_missing(r, to);
  Status status = STATUS_OK;
  if (fclose(to)) status = status_fail(STATUS_RESOURCE, NULL, "no memory to list %zu tensors", n);
  else if (n) status = status_fail(STATUS_CHECK, NULL, "%zu tensor%s no counterpart (all others are written):%s", n, n > 1 ? "s have" : " has", text);
  free(text);
  return status;
}

static Status match_and_write(Restore *r, const char *out_path, TorchSummary *out) {
  r->n_entries = safetensors_count(r->state);
  r->by_name = ARENA_ARRAY(r->arena, const WeightOrigin *, r->n_origins);
  r->by_contents = ARENA_ARRAY(r->arena, const WeightOrigin *, r->n_origins);
  r->claimed = ARENA_ARRAY(r->arena, bool, r->n_origins);
  r->restored = ARENA_ARRAY(r->arena, bool, r->n_origins);
  r->entries = ARENA_ARRAY(r->arena, Entry, r->n_entries);
  for (size_t i = 0; i < r->n_origins; i++) r->by_name[i] = r->by_contents[i] = &r->origins[i];
  qsort(r->by_name, r->n_origins, sizeof *r->by_name, compare_name);
  qsort(r->by_contents, r->n_origins, sizeof *r->by_contents, compare_contents);
  TRY(match_all(r));
  TRY(write_all(r, out_path));
  *out = (TorchSummary){0};
  for (size_t i = 0; i < r->n_entries; i++) out->count[r->entries[i].source]++;
  return verdict(r);
}

static Status restore(Restore *r, const char *out_path, TorchSummary *out) {
  ARENA_GUARD(r->arena);
  ARENA_RETURN(r->arena, match_and_write(r, out_path, out));
}

Status torch_state_export(Checkpoint *checkpoint, const char *state_path, const char *out_path, TorchSummary *out) {
  const CheckpointInfo *info = checkpoint_info(checkpoint);
  if (!info->n_origins)
    FAIL(UNSUPPORTED, NULL, "the checkpoint does not say what its model's initializers began with: save it anew with 'tessera run --resume'");
  Safetensors *state = NULL;
  const WeightSource *params;
  TRY(checkpoint_named_params(checkpoint, &params));
  Arena *arena = arena_create(0);
  if (!arena) FAIL(RESOURCE, NULL, "out of memory");
  Status status = safetensors_open(state_path, &state);
  if (!status) {
    Restore r = {.info = info, .params = params, .state = state, .arena = arena, .origins = info->origins, .n_origins = info->n_origins};
    status = restore(&r, out_path, out);
  }
  safetensors_close(state);
  arena_destroy(arena);
  return status;
}
