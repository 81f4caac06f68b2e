#include "strided.h"

#include <string.h>

typedef struct Walk {
  int rank;
  int64_t dims[RANK_MAX], to[RANK_MAX], from[RANK_MAX];
  int64_t element_bytes;
} Walk;

void strided_row_major(const int64_t *dims, int rank, int64_t *strides) {
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= dims[i];
  }
}

// Drops axes of one element, merges neighbours. False when there is nothing to copy.
static bool walk_begin(Walk *w, const int64_t *to, const int64_t *from, const int64_t *dims, int rank, int64_t element_bytes) {
  w->rank = 0;
  w->element_bytes = element_bytes;
  for (int i = 0; i < rank; i++) {
    if (dims[i] == 0) return false;
    if (dims[i] == 1) continue;
    int last = w->rank - 1;
    if (last >= 0 && w->to[last] == to[i] * dims[i] && w->from[last] == from[i] * dims[i]) {
      w->dims[last] *= dims[i];
    } else {
      last = w->rank++;
      w->dims[last] = dims[i];
    }
    w->to[last] = to[i];
    w->from[last] = from[i];
  }
  if (w->rank == 0) {
    w->rank = 1;
    w->dims[0] = w->to[0] = w->from[0] = 1;
  }
  return true;
}

static void move_axis_to(Walk *w, int axis, int place) {
  int64_t d = w->dims[axis], t = w->to[axis], f = w->from[axis];
  for (; axis < place; axis++) w->dims[axis] = w->dims[axis + 1], w->to[axis] = w->to[axis + 1], w->from[axis] = w->from[axis + 1];
  w->dims[place] = d;
  w->to[place] = t;
  w->from[place] = f;
}

enum { TILE = 16 };

// A plane of rows x columns: the source runs along rows (step 1). Tiles pass through a local square, its lines one element apart from a
// power of two: whole cache lines are read, then written, and bad strides cost few conflicts. Tiles follow the source's lines. Loads and
// stores go through memcpy, since constants may lie unaligned.
#define PLANE(T)                                                                                                     \
  static void plane_##T(char *to, const char *from, int64_t rows, int64_t columns, int64_t to_row, int64_t to_column, \
                        int64_t from_column) {                                                                      \
    const int64_t bytes = sizeof(T);                                                                                \
    T tile[TILE][TILE + 1];                                                                                         \
    for (int64_t c0 = 0; c0 < columns; c0 += TILE)                                                                  \
      for (int64_t r0 = 0; r0 < rows; r0 += TILE) {                                                                 \
        int64_t r1 = r0 + TILE < rows ? TILE : rows - r0, c1 = c0 + TILE < columns ? TILE : columns - c0;           \
        for (int64_t c = 0; c < c1; c++) memcpy(tile[c], from + (r0 + (c0 + c) * from_column) * bytes, (size_t)(r1 * bytes)); \
        if (c1 == TILE && to_column == 1) {                                                                         \
          for (int64_t r = 0; r < r1; r++) {                                                                        \
            T line[TILE];                                                                                           \
            for (int c = 0; c < TILE; c++) line[c] = tile[c][r];                                                    \
            memcpy(to + ((r0 + r) * to_row + c0) * bytes, line, sizeof line);                                       \
          }                                                                                                         \
          continue;                                                                                                 \
        }                                                                                                           \
        for (int64_t r = 0; r < r1; r++)                                                                            \
          for (int64_t c = 0; c < c1; c++) memcpy(to + ((r0 + r) * to_row + (c0 + c) * to_column) * bytes, &tile[c][r], sizeof(T)); \
      }                                                                                                             \
  }                                                                                                                 \
  static void row_##T(T *to, const T *from, int64_t n, int64_t to_step, int64_t from_step) {                        \
    if (from_step == 0 && to_step == 1) {                                                                           \
      T v;                                                                                                          \
      memcpy(&v, from, sizeof v);                                                                                   \
      for (int64_t i = 0; i < n; i++) memcpy((char *)to + i * (int64_t)sizeof v, &v, sizeof v);                     \
      return;                                                                                                       \
    }                                                                                                               \
    for (int64_t i = 0; i < n; i++)                                                                                 \
      memcpy((char *)to + i * to_step * (int64_t)sizeof(T), (const char *)from + i * from_step * (int64_t)sizeof(T), sizeof(T)); \
  }
PLANE(uint8_t)
PLANE(uint16_t)
PLANE(uint32_t)
PLANE(uint64_t)

static void copy_row(const Walk *w, void *to, const void *from) {
  int last = w->rank - 1;
  int64_t n = w->dims[last], ts = w->to[last], fs = w->from[last];
  if (ts == 1 && fs == 1) {
    memcpy(to, from, (size_t)(n * w->element_bytes));
    return;
  }
  switch (w->element_bytes) {
  case 1: row_uint8_t(to, from, n, ts, fs); break;
  case 2: row_uint16_t(to, from, n, ts, fs); break;
  case 4: row_uint32_t(to, from, n, ts, fs); break;
  default: row_uint64_t(to, from, n, ts, fs); break;
  }
}

static void copy_plane(const Walk *w, void *to, const void *from) {
  int r = w->rank - 2, c = w->rank - 1;
  switch (w->element_bytes) {
  case 1: plane_uint8_t(to, from, w->dims[r], w->dims[c], w->to[r], w->to[c], w->from[c]); break;
  case 2: plane_uint16_t(to, from, w->dims[r], w->dims[c], w->to[r], w->to[c], w->from[c]); break;
  case 4: plane_uint32_t(to, from, w->dims[r], w->dims[c], w->to[r], w->to[c], w->from[c]); break;
  default: plane_uint64_t(to, from, w->dims[r], w->dims[c], w->to[r], w->to[c], w->from[c]); break;
  }
}

void strided_copy(void *to, const int64_t *to_strides, const void *from, const int64_t *from_strides, const int64_t *dims, int rank,
                  int64_t element_bytes) {
  Walk w;
  if (!walk_begin(&w, to_strides, from_strides, dims, rank, element_bytes)) return;
  int inner = 1;   // axes that one call of copy_row or copy_plane covers
  if (w.rank >= 2 && w.from[w.rank - 1] != 1 && w.from[w.rank - 1] != 0)
    for (int i = 0; i < w.rank - 1; i++)
      if (w.from[i] == 1) {   // the source runs along another axis: cross the two in tiles
        move_axis_to(&w, i, w.rank - 2);
        inner = 2;
        break;
      }
  int outer = w.rank - inner;
  int64_t index[RANK_MAX] = {0};
  char *t = to;
  const char *f = from;
  for (;;) {
    inner == 2 ? copy_plane(&w, t, f) : copy_row(&w, t, f);
    int i = outer - 1;
    for (; i >= 0; i--) {
      t += w.to[i] * element_bytes;
      f += w.from[i] * element_bytes;
      if (++index[i] < w.dims[i]) break;
      t -= w.to[i] * w.dims[i] * element_bytes;
      f -= w.from[i] * w.dims[i] * element_bytes;
      index[i] = 0;
    }
    if (i < 0) return;
  }
}
