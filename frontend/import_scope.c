// What names mean in a graph, a subgraph or a function: a table from names to bindings, open addressing, in the arena.
#include <string.h>
#include <xxhash.h>

#include "import_state.h"

NameScope *scope_create(Import *import, const NameScope *parent, const char *prefix) {
  NameScope *s = ARENA_NEW(import->arena, NameScope);
  s->prefix = prefix;
  s->parent = parent;
  if (!parent) return s;
  s->function = parent->function;
  s->opsets = parent->opsets;
  s->n_opsets = parent->n_opsets;
  s->attrs = parent->attrs;
  s->n_attrs = parent->n_attrs;
  s->depth = parent->depth + 1;
  return s;
}

static ScopeEntry *slot(ScopeEntry *entries, size_t capacity, const char *name) {
  size_t i = XXH3_64bits(name, strlen(name)) & (capacity - 1);
  while (entries[i].name && strcmp(entries[i].name, name)) i = (i + 1) & (capacity - 1);
  return &entries[i];
}

ScopeEntry *scope_find_here(const NameScope *scope, const char *name) {
  if (!scope->capacity) return NULL;
  ScopeEntry *e = slot(scope->entries, scope->capacity, name);
  return e->name ? e : NULL;
}

ScopeEntry *scope_entry(Import *import, NameScope *scope, const char *name) {
  if (2 * (scope->count + 1) > scope->capacity) {
    size_t capacity = scope->capacity ? 2 * scope->capacity : 16;
    ScopeEntry *entries = ARENA_ARRAY(import->arena, ScopeEntry, capacity);
    for (size_t i = 0; i < scope->capacity; i++)
      if (scope->entries[i].name) *slot(entries, capacity, scope->entries[i].name) = scope->entries[i];
    scope->entries = entries;
    scope->capacity = capacity;
  }
  ScopeEntry *e = slot(scope->entries, scope->capacity, name);
  if (!e->name) {
    e->name = name;
    scope->count++;
  }
  return e;
}

const Binding *scope_find(const NameScope *scope, const char *name) {
  for (; scope; scope = scope->parent) {
    const ScopeEntry *e = scope_find_here(scope, name);
    if (e && e->defined) return &e->binding;
  }
  return NULL;
}

void scope_bind(Import *import, NameScope *scope, const char *name, Binding binding) {
  ScopeEntry *e = scope_entry(import, scope, name);
  e->binding = binding;
  e->defined = true;
}

int64_t scope_opset(const NameScope *scope, const char *domain) { return onnx_opset(scope->opsets, scope->n_opsets, domain); }
