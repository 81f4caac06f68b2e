// Inside of graph_diff: what its parts share. Everything lies in the arena, under the caller's guard.
#ifndef TESSERA_DIFFER_H
#define TESSERA_DIFFER_H

#include "../ir/meta.h"
#include "graph_diff.h"

typedef struct Differ {
  const GraphMatch *m;
  const Graph *a, *b;
  Arena *arena;
  GraphDiff *out;
} Differ;

void differ_add(Differ *d, Difference difference);
void differ_note(Differ *d, const char *text);

// A changed field; nothing where both texts are equal. x, y: the nodes, NULL: none.
void differ_change(Differ *d, Topic topic, const char *what, const char *field, const char *before, const char *after, const Node *x, const Node *y);
void differ_change_int(Differ *d, Topic topic, const char *what, const char *field, int64_t before, int64_t after, const Node *x, const Node *y);
void differ_change_type(Differ *d, Topic topic, const char *what, const char *field, const Type *x, const Type *y, const Node *n, const Node *o);

// What values and nodes carry in text and has no comparison of its own: a pair that is new to a Graph is told without a change here.
void differ_change_other_pairs(Differ *d, const char *what, const MetaPair *x, size_t nx, const MetaPair *y, size_t ny, const Node *n, const Node *o);

const char *differ_node(const Differ *d, const Node *node);                          // "MatMul of 'fc1'", "AllGather for 'w1'"
const char *differ_value(const Differ *d, const Graph *graph, const Value *value);   // "param 'w1'"; NULL: "none"
const char *differ_bucket(const Differ *d, const Bucket *bucket);
const char *differ_type(const Differ *d, const Type *type);
bool differ_same_text(const char *a, const char *b);
bool differ_same_bucket(const Differ *d, int64_t x, int64_t y);                      // -1: none

void differ_compare_values(Differ *d);      // diff_values.c: parameters, constants, inputs, outputs, buckets
void differ_compare_options(Differ *d);     // diff_options.c: recipe, mesh, facts
void differ_compare_memory(Differ *d);      // diff_memory.c: buffers and places

#endif
