// Recurrent layers free of operators: what recurrent.c (rows, attributes) and recurrent_walk.c (arithmetic) share. The walk is compiled twice,
// in double (the reference) and in float (run_cpu), from one text.
//
// Gates stand in ONNX's order: RNN h; GRU z r h; LSTM i o f c. Weights are [directions, gates hidden, input or hidden], B [directions, 2 gates
// hidden] with W's half first, P [directions, 3 hidden] in the order i o f.
#ifndef TESSERA_RECURRENT_H
#define TESSERA_RECURRENT_H

#include "kernel.h"

typedef enum Cell { CELL_RNN, CELL_GRU, CELL_LSTM } Cell;
typedef struct CellFunction { int kind; double alpha, beta; } CellFunction;   // recurrent.c numbers the kinds

typedef struct Recurrent {
  Cell cell;
  int64_t steps, batch, input, hidden, directions, gates;
  bool backward_only;                    // the only direction runs from the last step to the first
  bool batch_first;                      // layout = 1
  bool linear_before_reset, input_forget;
  double clip;                           // 0: none
  CellFunction functions[2][3];          // per direction: f g h
} Recurrent;

// Operands. Absent ones are NULL. `lengths` [batch] in its own dtype. all_c [steps, directions, batch, hidden] and all_gates [.., gates hidden]
// are LSTM's cells and gates of every step; given back as saved_* (saved_h: Y), they spare the way back a second way forward, under the usual
// functions only.
#define RECURRENT_OPERANDS(T, suffix)                                                                                    \
  typedef struct RecurrentForward_##suffix {                                                                             \
    const T *x, *w, *r, *b, *h0, *c0, *p;                                                                                \
    T *y, *y_h, *y_c, *all_c, *all_gates;                                                                                \
    const T *saved_h, *saved_c, *saved_gates;                                                                            \
  } RecurrentForward_##suffix;                                                                                           \
  typedef struct RecurrentBackward_##suffix { const T *dy, *dy_h, *dy_c; T *dx, *dw, *dr, *db, *dh0, *dc0, *dp; } RecurrentBackward_##suffix;
RECURRENT_OPERANDS(double, f64)
RECURRENT_OPERANDS(float, f32)

// Elements of workspace that a walk needs; `trace`: it is to be walked back.
int64_t recurrent_space_elems(const Recurrent *r, bool trace);

// out = f(in) for n elements, with slopes where `slope` is not NULL; in place is fine.
void recurrent_apply_f64(const CellFunction *f, double clip, const Loops *loops, double *x, double *slope, int64_t n);
void recurrent_apply_f32(const CellFunction *f, double clip, const Loops *loops, float *x, float *slope, int64_t n);

void recurrent_forward_f64(const Recurrent *r, const RecurrentForward_f64 *io, const Tensor *lengths, const Loops *loops, double *space);
void recurrent_forward_f32(const Recurrent *r, const RecurrentForward_f32 *io, const Tensor *lengths, const Loops *loops, float *space);

// Walks forward again (io->y and so on are not written) and back. Outputs of `g` that are not NULL are set.
void recurrent_backward_f64(const Recurrent *r, const RecurrentForward_f64 *io, const RecurrentBackward_f64 *g, const Tensor *lengths,
                            const Loops *loops, double *space);
void recurrent_backward_f32(const Recurrent *r, const RecurrentForward_f32 *io, const RecurrentBackward_f32 *g, const Tensor *lengths,
                            const Loops *loops, float *space);

#endif
