#include "training_form.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../ir/path.h"
#include "import_state.h"
#include "ort_checkpoint.h"

// ---- Lists of names -----------------------------------------------------------------------------------------------------------

static int compare_names(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static void sort_names(NameList *list) {
  if (list->n) qsort(list->names, list->n, sizeof *list->names, compare_names);
}

bool name_listed(const NameList *list, const char *name) {
  return list->n && bsearch(&name, list->names, list->n, sizeof *list->names, compare_names);
}

static void add_name(Arena *arena, NameList *list, const char *name) { ARENA_PUSH(arena, list->names, list->n, list->capacity, name); }

static NameList list_values(Arena *arena, Onnx__ValueInfoProto *const *infos, size_t n) {
  NameList list = {0};
  for (size_t i = 0; i < n; i++) add_name(arena, &list, text_or_empty(infos[i]->name));
  sort_names(&list);
  return list;
}

static void add_param(Arena *arena, Form *form, FormParam param) { ARENA_PUSH(arena, form->params, form->n_params, form->params_capacity, param); }

static bool is_node(const OnnxNode *n, const char *domain, const char *op) {
  return !strcmp(text_or_empty(n->head->op_type), op) && !strcmp(onnx_domain(n->head->domain), domain);
}

static const char *nth(char *const *names, size_t n, size_t i) { return i < n ? text_or_empty(names[i]) : ""; }

// ---- ONNX Runtime artifacts ---------------------------------------------------------------------------------------------------

static void detect_ort(const OnnxGraph *g, Arena *arena, Form *form) {
  static const char suffix[] = "_grad.accumulation.buffer";
  for (size_t i = 0; i < g->n_nodes; i++) {
    const Onnx__NodeProto *n = g->nodes[i].head;
    if (!is_node(&g->nodes[i], "com.microsoft", "InPlaceAccumulatorV2")) continue;
    const char *buffer = nth(n->input, n->n_input, 0);
    form->kind = FORM_ORT;
    add_name(arena, &form->dropped, buffer);
    if (n->n_input > 2) add_name(arena, &form->dropped, text_or_empty(n->input[2]));
    for (size_t k = 0; k < n->n_output; k++) add_name(arena, &form->hidden, text_or_empty(n->output[k]));
    const char *name = has_suffix(buffer, suffix) ? arena_string_n(arena, buffer, strlen(buffer) - (sizeof suffix - 1)) : buffer;
    add_param(arena, form, (FormParam){name, nth(n->input, n->n_input, 1), NULL});
  }
}

// ---- Adjoint and joint graphs: by the names of inputs and outputs -------------------------------------------------------------

static void detect_adjoint(const OnnxGraph *g, const NameList *inputs, const NameList *outputs, Arena *arena, Form *form) {
  const char *loss = NULL;
  for (size_t i = 0; i < g->head->n_input; i++) {
    const char *name = text_or_empty(g->head->input[i]->name);
    if (strncmp(name, "adj_", 4) || !name_listed(outputs, name + 4)) continue;
    add_name(arena, &form->seeds, name);
    loss = name + 4;
  }
  if (form->seeds.n != 1) {                          // several seeds: the user's graph, not a training graph
    form->seeds.n = 0;
    return;
  }
  for (size_t i = 0; i < g->head->n_output; i++) {
    const char *name = text_or_empty(g->head->output[i]->name);
    if (strncmp(name, "adj_", 4) || !name_listed(inputs, name + 4)) continue;
    add_param(arena, form, (FormParam){name + 4, name, NULL});
    add_name(arena, &form->hidden, name);
  }
  if (form->n_params) {
    form->kind = FORM_ADJOINT;
    form->loss = loss;
  } else form->seeds.n = 0;
}

static void detect_joint(const OnnxGraph *g, const NameList *inputs, const NameList *outputs, Arena *arena, Form *form) {
  static const char *const suffixes[][2] = {{".new", ".grad"}, {"_new", "_grad"}};
  for (size_t i = 0; i < g->head->n_output; i++) {
    const char *updated = text_or_empty(g->head->output[i]->name);
    for (size_t s = 0; s < 2; s++) {
      if (!has_suffix(updated, suffixes[s][0])) continue;
      const char *name = arena_string_n(arena, updated, strlen(updated) - strlen(suffixes[s][0]));
      if (!name_listed(inputs, name)) continue;
      const char *grad = arena_printf(arena, "%s%s", name, suffixes[s][1]);
      bool named = name_listed(outputs, grad);
      add_param(arena, form, (FormParam){name, named ? grad : NULL, updated});
      add_name(arena, &form->hidden, updated);
      if (named) add_name(arena, &form->hidden, grad);
      form->kind = FORM_JOINT;
    }
  }
}

// ---- training_info ------------------------------------------------------------------------------------------------------------

static void detect_info(const OnnxGraph *g, Arena *arena, Form *form) {
  for (size_t i = 0; i < g->n_nodes; i++) {
    const OnnxNode *n = &g->nodes[i];
    if (!is_node(n, TRAINING_DOMAIN, "Gradient")) continue;
    const OnnxAttr *xs = onnx_attr(n, "xs"), *y = onnx_attr(n, "y");
    form->kind = FORM_INFO;
    if (y) form->loss = arena_string_n(arena, (const char *)y->head->s.data, y->head->s.len);
    for (size_t k = 0; xs && k < xs->head->n_strings; k++) {
      const char *name = arena_string_n(arena, (const char *)xs->head->strings[k].data, xs->head->strings[k].len);
      add_param(arena, form, (FormParam){name, k < n->head->n_output ? text_or_empty(n->head->output[k]) : NULL, NULL});
    }
  }
}

// ---- Values for inputs --------------------------------------------------------------------------------------------------------

static int compare_weights(const void *a, const void *b) { return strcmp((*(const Weight *const *)a)->name, (*(const Weight *const *)b)->name); }

const Weight *form_given(const Form *form, const char *name) {
  const Weight key = {.name = name}, *key_at = &key;
  if (!form->n_given) return NULL;
  const Weight *const *found = bsearch(&key_at, form->given, form->n_given, sizeof *form->given, compare_weights);
  return found ? *found : NULL;
}

bool form_lacks(const Form *form, const char *name) {
  bool all = form->kind == FORM_ORT || form->kind == FORM_JOINT || (form->kind == FORM_ADJOINT && !form->n_given);
  return all && name_listed(&form->trained, name) && !form_given(form, name);
}

static Status find_given(Model *model, Arena *arena, Form *form) {
  OrtCheckpoint checkpoint = {model->given, model->n_given};
  struct stat st;
  bool beside = form->kind == FORM_ORT && !model->n_given && !stat(arena_printf(arena, "%s/checkpoint", model->external.folder), &st);
  if (beside) {
    ExternalFile *file;
    TRY(external_open(&model->external, "checkpoint", "(parameters)", &file));
    TRY(ort_checkpoint_read((Bytes){file->bytes, file->n_bytes}, file->path, arena, &checkpoint));
  }
  const Weight **list = ARENA_ARRAY(arena, const Weight *, checkpoint.n_weights);
  for (size_t i = 0; i < checkpoint.n_weights; i++) list[i] = &checkpoint.weights[i];
  if (checkpoint.n_weights) qsort(list, checkpoint.n_weights, sizeof *list, compare_weights);
  form->given = list;
  form->n_given = checkpoint.n_weights;
  return STATUS_OK;
}

Status form_detect(Model *model, const OnnxModel *onnx, Arena *arena, Form *out) {
  const OnnxGraph *g = &onnx->graph;
  *out = (Form){0};
  NameList inputs = list_values(arena, g->head->input, g->head->n_input), outputs = list_values(arena, g->head->output, g->head->n_output);
  if (onnx->n_training_infos) detect_info(g, arena, out);
  else detect_ort(g, arena, out);
  if (!out->kind && !onnx->n_training_infos) detect_adjoint(g, &inputs, &outputs, arena, out);
  if (!out->kind && !onnx->n_training_infos) detect_joint(g, &inputs, &outputs, arena, out);
  for (size_t i = 0; i < out->n_params; i++) add_name(arena, &out->trained, out->params[i].name);
  sort_names(&out->trained);
  sort_names(&out->dropped);
  sort_names(&out->hidden);
  for (size_t i = 0; i < g->head->n_output && !out->loss && out->kind; i++)
    if (!name_listed(&out->hidden, text_or_empty(g->head->output[i]->name))) out->loss = text_or_empty(g->head->output[i]->name);
  return find_given(model, arena, out);
}
