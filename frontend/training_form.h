// Graphs that contain their training: what forms there are, and which of a graph's inputs and outputs are not data. Decided by names and
// operators alone, before anything is imported.
//
//   FORM_FORWARD   no gradients; the parameter rule and build_backward find what trains
//   FORM_INFO      training_info: a Gradient node says what trains and by which loss, an optimizer node how (ai.onnx.preview.training)
//   FORM_ORT       ONNX Runtime training artifacts: each gradient goes into an InPlaceAccumulatorV2; values in the file `checkpoint`
//   FORM_ADJOINT   output adj_X is the gradient of input X, input adj_Y the seed of output Y
//   FORM_JOINT     output X.new is input X after the step, output X.grad its gradient
//
// Ownership: all in the arena. Threads: pure, but for mapping the checkpoint. Call under an arena guard.
#ifndef TESSERA_TRAINING_FORM_H
#define TESSERA_TRAINING_FORM_H

#include "../ir/weights.h"
#include "onnx_decode.h"
#include "onnx_import.h"

typedef enum FormKind { FORM_FORWARD, FORM_INFO, FORM_ORT, FORM_ADJOINT, FORM_JOINT } FormKind;
typedef struct FormParam {
  const char *name;
  const char *grad;                // value that is its gradient; NULL: none is named
  const char *updated;             // JOINT: output that is its next value
} FormParam;
typedef struct NameList { const char **names; size_t n, capacity; } NameList;      // sorted once it is complete

typedef struct Form {
  FormKind kind;
  FormParam *params;
  size_t n_params, params_capacity;
  const char *loss;                // NULL: not decided by the form
  NameList dropped;                // inputs that nothing feeds: accumulation buffers, reset flags
  NameList seeds;                  // inputs that are all ones
  NameList trained;                // inputs that are parameters by the form
  NameList hidden;                 // outputs of the training itself
  const Weight *const *given;      // values for inputs, in name order: from the checkpoint, or the user
  size_t n_given;
} Form;

// Is this input a parameter of the form that nothing gives a value? In an adjoint graph such an input is data, unless no value is given at all.
bool form_lacks(const Form *form, const char *name);
bool name_listed(const NameList *list, const char *name);
const Weight *form_given(const Form *form, const char *name);       // NULL: none
MUST_USE Status form_detect(Model *model, const OnnxModel *onnx, Arena *arena, Form *out);

#endif
