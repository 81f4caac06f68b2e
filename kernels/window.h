// Sliding windows of convolution and pooling: from ONNX attributes to numbers.
#ifndef TESSERA_WINDOW_H
#define TESSERA_WINDOW_H

#include "../ir/op.h"

enum { WINDOW_AXES = 3 };      // spatial axes at most; a model with more is refused by name

typedef struct WindowAttrs { const char *auto_pad; AttrInts dilations, kernel_shape, pads, strides; } WindowAttrs;
// Rows for the table of attributes of a struct T with a member `WindowAttrs window`.
#define WINDOW_ATTRS(T)                                                                                                                     \
  {"auto_pad", ATTR_STRING, offsetof(T, window.auto_pad), .default_string = "NOTSET", .help = "NOTSET, VALID, SAME_UPPER or SAME_LOWER"},    \
  {"dilations", ATTR_INTS, offsetof(T, window.dilations), .min = 1, .max = INT32_MAX, .help = "step within the window, per spatial axis"},   \
  {"kernel_shape", ATTR_INTS, offsetof(T, window.kernel_shape), .min = 1, .max = INT32_MAX, .help = "extent of the window"},                 \
  {"pads", ATTR_INTS, offsetof(T, window.pads), .min = 0, .max = INT32_MAX, .help = "padding: all begins, then all ends"},                   \
  {"strides", ATTR_INTS, offsetof(T, window.strides), .min = 1, .max = INT32_MAX, .help = "step of the window, per spatial axis"}

// Spatial axes are aligned to the end: with fewer than WINDOW_AXES the leading ones are 1 wide and not padded.
typedef struct Window {
  int n_axes;
  int64_t in[WINDOW_AXES], out[WINDOW_AXES], kernel[WINDOW_AXES], stride[WINDOW_AXES], dilation[WINDOW_AXES];
  int64_t pad_begin[WINDOW_AXES], pad_end[WINDOW_AXES];
} Window;

// `in`: spatial extents; `kernel`: extents of the window, NULL: kernel_shape must say. MALFORMED with the numbers where nothing fits.
MUST_USE Status window_make(const Node *node, const WindowAttrs *attrs, int n_axes, const int64_t *in, const int64_t *kernel, bool ceil_mode,
                            Window *out);

// Element (of one channel of what the window slides over) under tap `tap` of window place `place`, both row-major; -1 in the padding.
int64_t window_element(const Window *window, int64_t place, int64_t tap);

static inline int64_t window_elems(const int64_t extents[WINDOW_AXES]) { return extents[0] * extents[1] * extents[2]; }

#endif
