// Ways to break a plan: each changes a graph in memory in one random place, as somebody might who edits the file by hand. What a plan computes, that is
// the model's own operators, their attributes and what they read of each other, stays as it is: with another one it would be a right plan of another model.
#ifndef TESSERA_TESTS_MUTATIONS_H
#define TESSERA_TESTS_MUTATIONS_H

#include "../../ir/graph.h"

typedef struct Random { uint64_t state; } Random;
uint64_t random_next(Random *r);
size_t random_below(Random *r, size_t n);           // n 0: 0

enum { WHAT_BYTES = 200 };
typedef struct Mutation {
  const char *name;
  bool (*apply)(Graph *g, Random *r, char what[WHAT_BYTES]);   // false: there is nothing of the kind; the graph may be spoilt then
  const char *equivalent;                           // when it changes nothing: why that may be
} Mutation;

extern const Mutation mutations[];                  // ends with name NULL

#endif
