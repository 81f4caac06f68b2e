// Where the bytes of initial values lie. Bytes are borrowed: never copied, never aligned on purpose, little-endian, row-major.
//
// Ownership: whoever maps the file (frontend, checkpoint) keeps it mapped as long as any Weight that points into it is used.
// Threads: read-only after creation, any thread.
#ifndef TESSERA_WEIGHTS_H
#define TESSERA_WEIGHTS_H

#include "type.h"

typedef struct Weight {
  const char *name;
  Type type;
  const void *bytes;        // type_bytes(&type) bytes; may be unaligned: read it with weight_read_* or memcpy, never by a cast.
                            // NULL: only the place is known (a graph read from text; weights that are absent)
  const char *path;         // the file that `bytes` lie in; NULL: only in memory (folded, decoded)
  int64_t offset_bytes;     // within `path`
  bool mapped;              // `bytes` are of a read-only mapping, whose pages may be let go
} Weight;

typedef struct WeightSource {
  const char *path;         // as the user named it; recorded in plans and checkpoints
  const Weight *weights;
  size_t n_weights;
  uint64_t fingerprint[2];  // XXH3-128 of names, dtypes, shapes and locations; not of contents
} WeightSource;

// What is known of an initial weight beyond its bytes. Checkpoints record it, so that trained weights find the way back to where the exporter of the
// model took them from, even when the model is gone.
typedef struct WeightOrigin {
  const char *name;
  Type type;
  uint64_t contents[2];             // weight_hash of its bytes
  const char *const *folded_from;   // values that the exporter folded into it (metadata `folded_from`); in no useful order
  size_t n_folded_from;
  const char *gates;                // "LSTM", "GRU", "RNN": it is the W, R or B of that operator, its rows in that operator's order; NULL: of none
} WeightOrigin;

// One parameter under two names: `tied` is `kept`, or `kept` with its two axes swapped. `kept` itself is no other's `tied`.
typedef struct WeightTie {
  const char *kept, *tied;
  bool transposed;
} WeightTie;

const Weight *weights_find(const WeightSource *source, const char *name);   // NULL when absent; linear in n_weights

// Walks over mapped files that may be larger than memory: read mapped_step bytes, let them go, read on. Pages let go leave this process and stay in the
// page cache; whoever reads them again gets them again. The step, at most 4 MiB and at least 1 byte of n, ends where the system would not map pages again
// that are gone already; callers that read whole elements round it up to one.
int64_t mapped_step(const void *at, int64_t n_bytes);
void mapped_let_go(const void *at, int64_t n_bytes);                        // of a mapping only (Weight.mapped)

// Are they the same bytes, as far as is known: by their place in a file, or up to WEIGHT_COMPARE_BYTES_MAX by contents? The types are the same.
#define WEIGHT_COMPARE_BYTES_MAX (INT64_C(1) << 20)
bool weight_same_bytes(const Weight *a, const Weight *b);

// XXH3-128 of the bytes. Pages of a mapped file are let go on the way, so that they do not stay resident.
MUST_USE Status weight_hash(const Weight *weight, uint64_t out[2]);

int64_t weight_read_int(const Weight *weight, int64_t index);      // any integer or bool dtype
double weight_read_float(const Weight *weight, int64_t index);     // any dtype

// One element of any dtype, at an address that may be unaligned. f16 and bf16 widen exactly; stores round to nearest, ties to even.
double element_read(const void *base, Dtype dtype, int64_t index);
void element_write(void *base, Dtype dtype, int64_t index, double value);
int64_t element_read_int(const void *base, Dtype dtype, int64_t index);    // exact for 64-bit integers
void element_write_int(void *base, Dtype dtype, int64_t index, int64_t value);

// `n` elements from one dtype to another (f32 <-> f64 and so on), rounding once. Source and destination may be unaligned, not overlapping.
void elements_convert(void *to, Dtype to_dtype, const void *from, Dtype from_dtype, int64_t n);

#endif
