// The inside of Data: one Feed per input says where its elements come from.
#ifndef TESSERA_DATA_SOURCE_H
#define TESSERA_DATA_SOURCE_H

#include <pthread.h>

#include "data.h"
#include "safetensors.h"

typedef enum FeedKind {
  FEED_NONE,
  FEED_ROWS,         // sample s = elements [s row_elems, (s + 1) row_elems)
  FEED_TOKENS,       // sample s = row_elems tokens from token s seq + shift on
  FEED_BATCHES,      // batch b at batch_offsets[b]
  FEED_RANDOM,
  FEED_STREAM
} FeedKind;

// A file, or a tensor of one: elements [first_elem, first_elem + n_elems) of the feed.
typedef struct DataPart {
  char *path;                  // owned
  int fd;                      // owned by Data
  int64_t offset_bytes, first_elem, n_elems;
} DataPart;

typedef struct DataFile { int fd; char *path; } DataFile;      // both owned

typedef struct Feed {
  FeedKind kind;
  const char *source;          // as the user named it first
  DataPart *parts;             // BATCHES: one, whose offset is 0
  size_t n_parts;
  Dtype file_dtype;
  int64_t row_elems, n_samples;
  int64_t seq;                 // TOKENS
  bool labels, one_each;       // TOKENS: shifted; one label per sample, the token after it
  bool positions;              // TOKENS: their places in their documents (packed only)
  int64_t *batch_offsets;      // BATCHES
  Type *batch_types;           // BATCHES: as delivered
  int64_t n_batches;
  int64_t limit;               // RANDOM, TOKENS: integers below it; 0: any
} Feed;

// The stream: a ring of parsed batches. A rank asks for batches of the step under way only, so the ring has one slot per micro-batch of a step.
typedef struct StreamSlot { char *bytes; size_t capacity; Safetensors *file; int64_t batch; int variant; } StreamSlot;
typedef struct Stream {
  int fd;
  int64_t deadline_ns;
  pthread_mutex_t mutex;
  StreamSlot *slots;
  int64_t n_slots, next_batch; // next to be read
  bool ended;
} Stream;

// Where packed samples begin: sample s = tokens [starts[s], starts[s + 1]), n of them.
typedef struct DataPack { int64_t *starts, n, capacity, n_documents; } DataPack;

struct Data {
  DataOptions options;
  const char *source;          // under way in data_open
  size_t n_inputs;
  DataInput *inputs;           // names owned
  Type *shapes;                // [n_variants][n_inputs]: of one micro-batch, as delivered
  int64_t *variant_batches;    // [n_variants]: batches known of each
  int n_variants;
  int *batch_variants;         // [n_batches], sources by batch; NULL: all are of variant 0
  Feed *feeds;                 // per input
  DataFile *files;             // in the order of opening
  size_t n_files;
  Stream stream;
  bool has_stream;
  char *left_out;              // why the stream's last batch is not taken; NULL: it is
  int64_t n_samples, n_batches;        // of one epoch; -1: not of that kind
  DataPack pack;                       // of options.packs
  int64_t batch_size;                  // samples per micro-batch, for sources by sample
  int shift;                           // resolved by data_bind
  size_t *order;                       // graph input -> input; by data_bind
  size_t n_bound;
};

// ---- data_files.c: recognises a file and describes its tensors ----

typedef struct NpyFile { Dtype dtype; int64_t offset_bytes; int rank; int64_t dims[RANK_MAX]; } NpyFile;
MUST_USE Status npy_read_header(int fd, const char *path, NpyFile *out);
MUST_USE Status data_file_open(Data *data, const char *path, int *out_fd);   // keeps the descriptor until data_close
MUST_USE Status data_file_bytes(int fd, const char *path, int64_t *out);

// `n` elements at a byte offset of a file, as `to` wants them. Allocates nothing.
MUST_USE Status data_file_read(const DataPart *part, Dtype file_dtype, int64_t offset_bytes, void *to, Dtype to_dtype, int64_t n);
bool data_dtype_fits(Dtype from, Dtype to);                                   // every value of `from` has a place in `to` (floats may round)

// ---- data_parts.c ----

// The files that a name stands for: those of a folder with a suffix of data (all the same), by name; those that match a pattern, by name; else itself.
typedef struct DataPaths { char **items; size_t n; } DataPaths;
MUST_USE Status data_paths_list(const char *path, DataPaths *out);             // data_paths_finish ends it
void data_paths_finish(DataPaths *paths);

MUST_USE Status feed_add_part(Feed *feed, const char *path, int fd, int64_t offset_bytes, int64_t n_elems);     // after those that it has
int64_t feed_elems(const Feed *feed);
const DataPart *feed_part(const Feed *feed, int64_t elem);                     // that the element lies in
MUST_USE Status feed_read(const Feed *feed, int64_t elem, void *to, Dtype to_dtype, int64_t n);   // from one part into the next. Allocates nothing
void feed_finish(Feed *feed);

// ---- token_file.c ----

typedef struct TokenFile { Dtype dtype; int64_t offset_bytes, n_tokens; } TokenFile;
// asked: --token-dtype; NONE: header or suffix say it.
MUST_USE Status token_file_read(int fd, const char *path, Dtype asked, TokenFile *out);

// ---- data_pack.c ----

enum { LABEL_OF_NOTHING = -100 };     // what follows another document, and padding
// Reads all tokens once. *out is zeroed before; its starts are heap, also after an error. MALFORMED: no document ends.
MUST_USE Status data_pack(const Feed *feed, int64_t eos, DataPack *out);
// One sample of feed->seq elements as the feed takes it; *out_tokens of them are tokens of the file. Allocates nothing.
MUST_USE Status data_pack_fill(const DataPack *pack, const Feed *feed, int64_t sample, int shift, int64_t eos, void *to, Dtype dtype, int64_t *out_tokens);

// ---- data_stream.c ----

MUST_USE Status stream_start(Stream *stream, int fd, int64_t deadline_ns);
MUST_USE Status stream_widen(Stream *stream, int64_t n_slots);
// Reads up to `batch`; *out NULL when the stream ends before it. Under the mutex, which the caller holds until it is done with the slot.
MUST_USE Status stream_seek(Stream *stream, int64_t batch, StreamSlot **out);
int stream_variant(const Stream *stream, int64_t batch);      // of a batch in the ring whose shapes were looked at; else -1
void stream_finish(Stream *stream);

#endif
