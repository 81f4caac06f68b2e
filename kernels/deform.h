// Columns of a deformable convolution free of operators: what deform.c (rows, attributes) and deform_walk.c (arithmetic) share. The walk is compiled
// twice, in double (the reference) and in float (run_cpu), from one text.
//
// Column element (channel, tap, place) is X, read between its elements (linearly; zeros outside) where the tap lies once it has moved by its
// offset, times its mask.
#ifndef TESSERA_DEFORM_H
#define TESSERA_DEFORM_H

#include "kernel.h"
#include "window.h"

typedef struct Deform {
  Window window;
  int64_t batch, channels, groups;        // channels of a group move together
} Deform;

// x [batch, channels, in]; offset [batch, groups, taps, axes, places]; mask [batch, groups, taps, places] or NULL; columns [batch, channels, taps, places].
void deform_forward_f64(const Deform *d, const double *x, const double *offset, const double *mask, double *columns);
void deform_forward_f32(const Deform *d, const float *x, const float *offset, const float *mask, float *columns);

// dx, doffset and dmask are set unless NULL.
#define DEFORM_GRADS(T, suffix) typedef struct DeformGrads_##suffix { const T *dcolumns; T *dx, *doffset, *dmask; } DeformGrads_##suffix;
DEFORM_GRADS(double, f64)
DEFORM_GRADS(float, f32)
void deform_backward_f64(const Deform *d, const double *x, const double *offset, const double *mask, const DeformGrads_f64 *g);
void deform_backward_f32(const Deform *d, const float *x, const float *offset, const float *mask, const DeformGrads_f32 *g);

#endif
