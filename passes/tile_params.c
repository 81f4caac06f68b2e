// tile_params: matrices of more than --tile-bytes are cut by their rows into tiles, parameters of their own (tile.h), so that no device ever needs one of them
// whole: each tile is gathered, used, and its gradient reduced, by itself (Rajbhandari and others, 2021, "ZeRO-Infinity", section 5.2). What reads the matrix
// reads its tiles:
//
//   x W^T (FusedMatMul, Gemm with transB)   products with the tiles, side by side: the tiles are columns of the result
//   x W   (MatMul, FusedMatMul, Gemm)       the sum of products of columns of x with the tiles
//   rows of W (Gather)                      GatherRows, one tile after another
//
// A result that sums over the rows of W (the second, and backward of the first) adds up tile by tile: other bits than without the cut, and the same for all
// ranks, stages and buckets.
#include <inttypes.h>
#include <string.h>

#include "../ir/tile.h"
#include "../kernels/ops.h"
#include "optimizer_rules.h"
#include "pass_list.h"

enum { TILES_MAX = 4096 };

typedef struct Tiles {
  Value **items;
  int64_t *firsts;               // n + 1: where each begins, and the end
  int n;
} Tiles;

typedef struct Tiler {
  Graph *graph;
  Tiles *tiles;                  // per value that stood at the beginning; n 0: it is not cut
  size_t n_values;
} Tiler;

static const Tiles *tiles_of(const Tiler *t, const Value *v) { return v && v->id < t->n_values && t->tiles[v->id].n ? &t->tiles[v->id] : NULL; }

// ---- Cutting ------------------------------------------------------------------------------------------------------------------

// Whole chunks in every tile but the last, where that is possible: then norms, and states by blocks, are cut where they are in the whole.
static int64_t rows_that_fill_chunks(int64_t columns) {
  int64_t rows = 1;
  while (rows < CHUNK_ELEMS && rows * columns % CHUNK_ELEMS) rows *= 2;
  return rows;
}

static const Weight *slice_weight(Arena *arena, const Weight *whole, const char *name, const Type *type, int64_t offset_bytes) {
  if (!whole) return NULL;
  Weight *w = ARENA_NEW(arena, Weight);
  *w = *whole;
  w->name = name;
  w->type = *type;
  if (w->bytes) w->bytes = (const char *)w->bytes + offset_bytes;
  w->offset_bytes += offset_bytes;
  return w;
}

static Status cut(Tiler *t, Value *whole, int64_t tile_bytes, const CompileOptions *options) {
  Arena *arena = t->graph->arena;
  int64_t rows = whole->type.dims[0], columns = whole->type.dims[1], row_bytes = columns * dtype_bytes(whole->type.dtype);
  int64_t step = rows_that_fill_chunks(columns), most = tile_bytes / row_bytes / step * step;
  if (!most) step = 1;
  if (!most) most = tile_bytes > row_bytes ? tile_bytes / row_bytes : 1;
  int64_t n = (rows + most - 1) / most, each = ((rows + n - 1) / n + step - 1) / step * step;
  if (n < 2 || each >= rows) return STATUS_OK;
  if (n > TILES_MAX)
    FAIL(RESOURCE, whole->name, "--tile-bytes %" PRId64 " cuts it into %" PRId64 " tiles; at most %d are supported: give more", tile_bytes, n, TILES_MAX);
  const OptimizerRule *rule = optimizer_rule_find(options->optimizer);
  const ParamGroup *group = param_group_find(options, whole->name, &whole->type);
  if (group && group->optimizer) rule = optimizer_rule_find(group->optimizer);
  if (whole->trainable && rule && rule->by_blocks && each * columns % CHUNK_ELEMS)
    FAIL(UNSUPPORTED, whole->name, "the optimizer '%s' keeps numbers for blocks of elements, which tiles of %" PRId64 " rows of %" PRId64 " would cut: leave "
                                   "--tile-bytes out, or give it another optimizer (--group)", rule->name, each, columns);
  if (whole->trainable && rule && rule->reach != REACH_ELEMENT)
    FAIL(UNSUPPORTED, whole->name, "the optimizer '%s'%s cannot update it in tiles: leave --tile-bytes out, or give it another optimizer (--group)", rule->name,
         optimizer_reach_text(rule->name));
  Tiles *tiles = &t->tiles[whole->id];
  tiles->items = ARENA_ARRAY(arena, Value *, n);
  tiles->firsts = ARENA_ARRAY(arena, int64_t, n + 1);
  for (int64_t first = 0; first < rows; first += each) {
    int64_t end = first + each < rows ? first + each : rows;
    const char *name = tile_name(arena, whole->name, first, end);
    if (graph_find_value(t->graph, name)) FAIL(UNSUPPORTED, name, "a value has the name of a tile of '%s': rename it, or leave --tile-bytes out", whole->name);
    Value *tile = graph_add_value(t->graph, name);
    tile->type = whole->type;
    tile->type.dims[0] = end - first;
    tile->role = ROLE_PARAM;
    tile->trainable = whole->trainable;
    tile->doc = whole->doc;
    tile->weight = slice_weight(arena, whole->weight, tile->name, &tile->type, first * row_bytes);
    tiles->firsts[tiles->n] = first;
    tiles->firsts[tiles->n + 1] = end;
    tiles->items[tiles->n++] = tile;
  }
  return STATUS_OK;
}

// ---- Products -----------------------------------------------------------------------------------------------------------------

typedef struct Product {
  bool trans_a, trans_b;
  float alpha, beta;
  Value *addend;                 // NULL: none
} Product;

static Product read_product(const Node *n) {
  Product p = {.alpha = 1, .beta = 1};
  if (n->op == &op_MatMul) return p;
  p.trans_a = attr_int(n, "transA");
  p.trans_b = attr_int(n, "transB");
  p.alpha = attr_float(n, "alpha");
  if (n->op == &op_Gemm && n->n_inputs > 2) p.addend = n->inputs[2];
  if (p.addend) p.beta = attr_float(n, "beta");
  return p;
}

static Value *product(Emit *e, const Node *n, const Product *p, Value *a, Value *b) {
  if (n->op == &op_MatMul) return emit(e, &op_MatMul, INPUTS(a, b), NULL);
  return emit(e, n->op, INPUTS(a, b), ATTRS(A_INT("transA", p->trans_a), A_INT("transB", p->trans_b), A_FLOAT("alpha", p->alpha)));
}

// Columns [first, end) of what is multiplied by these rows.
static Value *columns(Emit *e, const Product *p, Value *a, int64_t first, int64_t end) {
  int64_t axis = a->type.rank - (p->trans_a ? 2 : 1);
  Value *from = emit_int64s(e, "tile.first", &first, 1), *to = emit_int64s(e, "tile.end", &end, 1), *along = emit_int64s(e, "tile.axis", &axis, 1);
  return e->status ? NULL : emit(e, &op_Slice, INPUTS(a, from, to, along), NULL);
}

static Value *add(Emit *e, const Product *p, Value *y) {
  if (!p->addend) return y;
  Value *c = p->addend;
  if (p->beta != 1) c = emit(e, &op_Mul, INPUTS(c, emit_float(e, "beta", c->type.dtype, p->beta)), NULL);
  return emit(e, &op_Add, INPUTS(y, c), NULL);
}

static Value *reshaped(Emit *e, Value *v, const int64_t *dims, int rank) {
  Value *shape = emit_int64s(e, "tile.shape", dims, rank);
  return e->status ? NULL : emit(e, &op_Reshape, INPUTS(v, shape), ATTRS(A_INT("allowzero", 1)));
}

static Value *side_by_side(Emit *e, const Node *n, const Product *p, const Tiles *tiles) {
  Value **parts = ARENA_ARRAY(e->graph->arena, Value *, tiles->n);
  for (int i = 0; i < tiles->n && !e->status; i++) parts[i] = product(e, n, p, n->inputs[0], tiles->items[i]);
  return e->status ? NULL : emit(e, &op_Concat, parts, tiles->n, ATTRS(A_INT("axis", -1)));
}

// Each product takes the sum so far as its addend: a chain of Adds would be fused into one step, for which all products live.
static Value *summed(Emit *e, const Node *n, const Product *p, const Tiles *tiles) {
  const Type *x = &n->inputs[0]->type, *out = &n->outputs[0]->type;
  Value *a = n->inputs[0], *sum = NULL;
  if (x->rank != 2) a = reshaped(e, a, (const int64_t[]){type_elems(x) / x->dims[x->rank - 1], x->dims[x->rank - 1]}, 2);
  for (int i = 0; i < tiles->n && !e->status; i++) {
    Value *part = columns(e, p, a, tiles->firsts[i], tiles->firsts[i + 1]);
    if (e->status) return NULL;
    sum = emit(e, &op_Gemm, (Value *const[]){part, tiles->items[i], sum}, sum ? 3 : 2, ATTRS(A_INT("transA", p->trans_a), A_FLOAT("alpha", p->alpha)));
  }
  return e->status || x->rank == 2 ? sum : reshaped(e, sum, out->dims, out->rank);
}

static Value *tiled_product(Emit *e, const Node *n, const Tiles *tiles) {
  Product p = read_product(n);
  if (p.trans_a && n->inputs[0]->type.rank != 2) {
    e->status = status_fail(STATUS_UNSUPPORTED, n->name, "its first operand is transposed and has more than two axes: '%s' cannot be cut by --tile-bytes",
                            n->inputs[1]->name);
    return NULL;
  }
  Value *y = p.trans_b ? side_by_side(e, n, &p, tiles) : summed(e, n, &p, tiles);
  return y ? add(e, &p, y) : NULL;
}

// ---- Rows ---------------------------------------------------------------------------------------------------------------------

static Value *tiled_rows(Emit *e, const Node *n, const Tiles *tiles) {
  Value *y = NULL, *indices = n->inputs[1];
  for (int i = 0; i < tiles->n && !e->status; i++) {
    const AttrInit *attrs = ATTRS(A_INT("first", tiles->firsts[i]), A_INT("count", tiles->firsts[i + 1] - tiles->firsts[i]), A_INT("rows", tiles->firsts[tiles->n]));
    y = emit(e, &op_GatherRows, (Value *const[]){indices, tiles->items[i], y}, y ? 3 : 2, attrs);
  }
  return y;
}

// ---- The pass -----------------------------------------------------------------------------------------------------------------

static bool takes_tiles(const Node *n, int input) {
  if (n->op == &op_Gather) return input == 0 && (attr_int(n, "axis") == 0 || attr_int(n, "axis") == -2);
  return input == 1 && (n->op == &op_MatMul || n->op == &op_FusedMatMul || n->op == &op_Gemm);
}

static Status append(Tiler *t, Node *node) {
  const Tiles *tiles = NULL;
  for (int i = 0; i < node->n_inputs; i++) {
    const Tiles *cut_here = tiles_of(t, node->inputs[i]);
    if (cut_here && !takes_tiles(node, i))
      FAIL(UNSUPPORTED, node->name, "%s reads parameter '%s', which --tile-bytes cuts by rows; products from the right and rows can be taken of tiles: give a size of at "
                                    "least %" PRId64 " bytes", node->op->name, node->inputs[i]->name, type_bytes(&node->inputs[i]->type));
    if (cut_here) tiles = cut_here;
  }
  if (!tiles) {
    graph_append(t->graph, node);
    return STATUS_OK;
  }
  Emit e = {.graph = t->graph, .at = node, .phase = node->phase, .backward = node->backward, .cause = node->cause};
  Value *y = node->op == &op_Gather ? tiled_rows(&e, node, tiles) : tiled_product(&e, node, tiles);
  TRY(e.status);
  if (!type_equal(&y->type, &node->outputs[0]->type)) FAIL(UNSUPPORTED, node->name, "bug: of tiles its result has another type");
  y->producer->outputs[0] = node->outputs[0];            // the name stays
  node->outputs[0]->producer = y->producer;
  node->outputs[0]->output_index = 0;
  return STATUS_OK;
}

Status pass_tile_params(Graph *graph, const CompileOptions *options) {
  if (!options->tile_bytes) return STATUS_OK;
  if (graph->facts & FACT_BACKWARD)
    FAIL(UNSUPPORTED, NULL, "--tile-bytes: the model brings its gradients, whose parameters cannot be cut any more; leave it out, or train the graph without them");
  Tiler t = {.graph = graph, .n_values = graph->n_values, .tiles = ARENA_ARRAY(graph->arena, Tiles, graph->n_values)};
  graph->recipe.tile_bytes = options->tile_bytes;
  for (size_t i = 0; i < t.n_values; i++) {
    Value *v = graph->values[i];
    Tile tile;
    if (v->role != ROLE_PARAM || v->producer) continue;
    if (tile_parse(v->name, &tile)) FAIL(UNSUPPORTED, v->name, "a parameter has the name of a tile: rename it, or leave --tile-bytes out");
    if (v->type.rank == 2 && value_bytes(v) > options->tile_bytes && type_elems(&v->type)) TRY(cut(&t, v, options->tile_bytes, options));
  }
  size_t n = graph->n_nodes;
  Node **nodes = arena_copy(graph->arena, graph->nodes, sizeof *nodes * n);
  graph->n_nodes = 0;
  for (size_t i = 0; i < n; i++) TRY(append(&t, nodes[i]));
  for (size_t i = 0; i < t.n_values; i++)
    if (t.tiles[i].n) graph->values[i]->role = ROLE_ACTIVATION;        // nothing reads the whole: it goes
  graph_set_nodes(graph, graph->nodes, graph->n_nodes);
  return STATUS_OK;
}
