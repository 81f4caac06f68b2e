// Where micro-batches come from: the sources of `--data`.
//
//   NAME=FILE.npy          one input; first axis = samples
//   FILE.safetensors       one tensor per input, first axis = samples; or one per input and batch: INPUT.0, INPUT.1, ...
//   FILE.bin               tokens, uint16 little-endian, or as llm.c's header says; FILE.u32.bin: uint32; FILE.npy of one axis of integers.
//                          Sample s = tokens [s seq, (s + 1) seq), labels = the same `shift` later
//   any other file         text: each byte is a token
//   random                 seeded: floats normal, integers below what their use in the graph allows
//   -                      a stream of safetensors files on stdin, one per micro-batch, back to back (the header tells the length of each)
//
// A folder or a pattern stands for its files by name. Several files by sample for the same inputs follow each other as if they were one.
// Packed (data_pack.c), a sample holds whole documents; labels of what follows another document, and of padding, are -100; an input of integers whose name
// has "position" in it takes the tokens' places in their documents.
// Files are read where and when a sample lies there: they may be larger than memory.
//
// Global batch b of a source by sample holds samples [b B, (b + 1) B), wrapping at the end; shuffled: of a seeded permutation, another one
// each epoch, the same for any number of ranks. A source by batch gives batch b modulo its number of batches, or permutes batches.
// Batches of a source by batch may differ in shape, and so may those of a stream. Each distinct set of the inputs' shapes is a *variant*, numbered in
// order of appearance: of files all are known from data_open on (headers are read, no data); of a stream those of batches that data_available has seen.
// Sources by sample have one variant.
// Life: data_open -> data_shapes (before compiling) -> data_bind (a compiled program, for each variant in use) -> data_feed.
// Threads: filling is safe from several threads at a time and allocates nothing (but for the stream, whose headers are parsed as they come);
// all else one thread at a time, not while filling.
#ifndef TESSERA_DATA_H
#define TESSERA_DATA_H

#include "executor.h"

typedef struct DataInput {
  const char *name;
  Dtype dtype;                     // NONE: any
  int rank;                        // -1: unknown
  int64_t dims[RANK_MAX];          // -1: unknown (symbolic)
} DataInput;

typedef struct DataOptions {
  const char *const *sources;      // as given to --data; the strings are borrowed until data_close
  size_t n_sources;
  int64_t batch;                   // samples per micro-batch; 0: the model says, or the data comes by batch
  int64_t seq;                     // tokens per sample; 0: the model says
  int shift;                       // 0, 1; -1: 0 where the graph shifts labels itself, else 1
  Dtype token_dtype;               // of files of tokens; NONE: their header or suffix says it
  bool packs;                      // tokens: documents that end with `eos` are packed into samples
  int64_t eos;
  bool shuffle;
  uint64_t seed;
  int stream_fd;                   // for "-": 0 is stdin
  int64_t deadline_ns;             // longest wait for a batch of the stream; 0: 600 s
} DataOptions;

typedef struct Data Data;

// Opens and checks everything. Every input must be fed by exactly one source: USAGE names those that are not, and what would feed them.
// `inputs` are the model's, before symbols are bound; copied.
MUST_USE Status data_open(const DataOptions *options, const DataInput *inputs, size_t n_inputs, Data **out);
void data_close(Data *data);                                  // NULL is fine

// What the source knows of input i's micro-batch: its dtype in the file and its shape. dtype NONE: nothing (random).
const Type *data_shapes(const Data *data, int variant);       // [n_inputs], order of data_open; valid until data_available or data_close
int data_n_variants(const Data *data);                        // at least 1
int data_variant(Data *data, int64_t batch);                  // of a batch; a stream's: one that data_available has seen lately, else -1. Any thread

// Fixes the order and the types of the program's inputs (graph->inputs), finds out what `shift auto` and `random` need, allocates buffers. Called
// again with the programs of other variants, whose inputs must be the same but for their shapes.
// MALFORMED when a file's dtype or shape does not fit.
MUST_USE Status data_bind(Data *data, int variant, const Graph *program);

DataFeed data_feed(Data *data);                               // valid until data_close
int64_t data_batches(const Data *data);                       // whole micro-batches in one epoch; -1: unknown (stream, random)
double data_samples_per_batch(const Data *data);              // first axis of the first input with one, 1 when there is none; mean over known batches
// Packed documents: how many, and the share of the samples' elements that is padding; false: nothing is packed.
bool data_packing(const Data *data, int64_t *out_documents, double *out_padding);
int64_t data_samples(const Data *data);                       // in the sources; -1: they come by batch, or without end
bool data_has_tokens(const Data *data);                       // samples are token sequences
double data_tokens_per_batch(const Data *data);               // elements of the first integer input of rank 2; mean over known batches

// What the data are, for checkpoints: texts in `arena`, one a file (bytes, XXH3-128 of pieces of it, path) or other source. Reads the pieces.
MUST_USE Status data_fingerprint(const Data *data, Arena *arena, const char *const **out, size_t *n_out);
// The first difference in what was read, wherever files lie: "had 'a.bin' (...), and now comes 'b.bin' (...)", in `arena`; NULL: there is none.
MUST_USE Status data_difference(const char *const *before, size_t n_before, const char *const *now, size_t n_now, Arena *arena, const char **out);

// Are batches [first, first + n) there? Always, but for a stream that ends: blocks until it knows. A last batch of a shape that the model does not take
// (what is left over of the data, smaller than the others) is not there; another one is MALFORMED.
MUST_USE Status data_available(Data *data, int64_t first, int64_t n, bool *out);
const char *data_left_out(const Data *data);                  // what that last batch was, in a sentence; NULL: there was none. Valid until data_close

#endif
