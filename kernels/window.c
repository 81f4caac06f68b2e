#include "window.h"

#include <string.h>

typedef enum AutoPad { PAD_NOTSET, PAD_VALID, PAD_SAME_UPPER, PAD_SAME_LOWER } AutoPad;

static Status auto_pad_parse(const Node *node, const char *text, AutoPad *out) {
  static const char *const names[] = {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"};
  for (int i = 0; i < 4; i++)
    if (!strcmp(text, names[i])) {
      *out = (AutoPad)i;
      return NULL;
    }
  FAIL(MALFORMED, node->name, "attribute auto_pad = \"%s\" must be NOTSET, VALID, SAME_UPPER or SAME_LOWER", text);
}

static Status length_check(const Node *node, const char *name, AttrInts given, int64_t want) {
  if (given.n && given.n != want)
    FAIL(MALFORMED, node->name, "attribute %s has %lld numbers; the spatial axes need %lld", name, (long long)given.n, (long long)want);
  return NULL;
}

static Status axis_make(const Node *node, AutoPad pad, bool ceil_mode, Window *w, int d, int axis) {
  int64_t span = (w->kernel[d] - 1) * w->dilation[d] + 1;   // all below 2^31: no overflow
  if (pad == PAD_SAME_UPPER || pad == PAD_SAME_LOWER) {
    w->out[d] = (w->in[d] + w->stride[d] - 1) / w->stride[d];
    int64_t total = (w->out[d] - 1) * w->stride[d] + span - w->in[d];
    if (total < 0) total = 0;
    w->pad_begin[d] = pad == PAD_SAME_UPPER ? total / 2 : total - total / 2;
    w->pad_end[d] = total - w->pad_begin[d];
    return NULL;
  }
  int64_t room = w->in[d] + w->pad_begin[d] + w->pad_end[d] - span;
  if (room < 0)
    FAIL(MALFORMED, node->name, "spatial axis %d: the window spans %lld, and the input has %lld with pads %lld and %lld", axis, (long long)span,
         (long long)w->in[d], (long long)w->pad_begin[d], (long long)w->pad_end[d]);
  w->out[d] = (ceil_mode ? room + w->stride[d] - 1 : room) / w->stride[d] + 1;
  // A window must not begin in the padding at the end.
  if (ceil_mode && (w->out[d] - 1) * w->stride[d] >= w->in[d] + w->pad_begin[d]) w->out[d]--;
  return NULL;
}

Status window_make(const Node *node, const WindowAttrs *a, int n_axes, const int64_t *in, const int64_t *kernel, bool ceil_mode, Window *out) {
  if (n_axes < 1 || n_axes > WINDOW_AXES)
    FAIL(UNSUPPORTED, node->name, "%d spatial axes; 1 to %d are supported", n_axes, WINDOW_AXES);
  AutoPad pad = PAD_NOTSET;
  TRY(auto_pad_parse(node, a->auto_pad, &pad));
  TRY(length_check(node, "dilations", a->dilations, n_axes));
  TRY(length_check(node, "kernel_shape", a->kernel_shape, n_axes));
  TRY(length_check(node, "strides", a->strides, n_axes));
  TRY(length_check(node, "pads", a->pads, 2 * n_axes));
  if (!kernel && !a->kernel_shape.n) FAIL(MALFORMED, node->name, "the required attribute kernel_shape is missing");
  Window w = {.n_axes = n_axes};
  for (int d = 0; d < WINDOW_AXES; d++) w.in[d] = w.out[d] = w.kernel[d] = w.stride[d] = w.dilation[d] = 1;
  for (int axis = 0; axis < n_axes; axis++) {
    int d = axis + WINDOW_AXES - n_axes;
    w.in[d] = in[axis];
    w.kernel[d] = kernel ? kernel[axis] : a->kernel_shape.items[axis];
    if (kernel && a->kernel_shape.n && a->kernel_shape.items[axis] != kernel[axis])
      FAIL(MALFORMED, node->name, "attribute kernel_shape says %lld on spatial axis %d, and W has %lld", (long long)a->kernel_shape.items[axis], axis,
           (long long)kernel[axis]);
    if (w.kernel[d] < 1 || w.kernel[d] > INT32_MAX || w.in[d] > INT32_MAX)
      FAIL(MALFORMED, node->name, "spatial axis %d: a window of %lld over %lld", axis, (long long)w.kernel[d], (long long)w.in[d]);
    if (a->strides.n) w.stride[d] = a->strides.items[axis];
    if (a->dilations.n) w.dilation[d] = a->dilations.items[axis];
    if (a->pads.n && pad == PAD_NOTSET) {
      w.pad_begin[d] = a->pads.items[axis];
      w.pad_end[d] = a->pads.items[n_axes + axis];
    }
    TRY(axis_make(node, pad, ceil_mode, &w, d, axis));
  }
  *out = w;
  return NULL;
}

int64_t window_element(const Window *w, int64_t place, int64_t tap) {
  int64_t element = 0, step = 1;
  for (int d = WINDOW_AXES - 1; d >= 0; d--) {
    int64_t at = place % w->out[d] * w->stride[d] + tap % w->kernel[d] * w->dilation[d] - w->pad_begin[d];
    if (at < 0 || at >= w->in[d]) return -1;
    element += at * step;
    step *= w->in[d];
    place /= w->out[d];
    tap /= w->kernel[d];
  }
  return element;
}
