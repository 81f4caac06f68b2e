// --resume and what it needs at --save: the options that decide results travel in the checkpoint, and a checkpoint goes on with its own model only.
//
// Threads: the main thread only.
#ifndef TESSERA_RESUME_H
#define TESSERA_RESUME_H

#include "../runtime/checkpoint.h"
#include "../runtime/data.h"
#include "compile_flow.h"

// Opens options->resume, checks that it is of the model or plan that `flow` has open, and gives in *out (options_finish, also after an error) the
// options with which it is continued: what the command line does not say is as it was. What differs is said on stderr.
MUST_USE Status resume_open(const Options *options, const Flow *flow, Checkpoint **out_checkpoint, Options *out);

// What the data are (data_fingerprint), where a checkpoint is read or will be written, and at which batch the run begins: where `checkpoint` (may be NULL) was,
// which must have been reading them: USAGE names the first that it was not. With --new-data nothing is asked, and it is the first batch.
MUST_USE Status resume_data(const Options *options, const Checkpoint *checkpoint, const Data *data, Arena *arena, const char *const **out_texts, size_t *out_n,
                            int64_t *out_batch);

// What a checkpoint of this run records in `options` and `defaults` of its CheckpointInfo; heap, ended by options_free_texts.
MUST_USE Status resume_record(const Options *options, const Flow *flow, int64_t total_steps, TextList *given, TextList *defaults);

// The parameters that the recorded options (resume_record) tie; names of `weights`, the model's. In `arena`.
MUST_USE Status resume_ties(const TextList *given, const WeightSource *weights, Arena *arena, const WeightTie **out, size_t *n_out);

// What a plan file records in its recipe: one option a line, in `arena`.
MUST_USE Status resume_plan_options(const Options *options, Arena *arena, const char **out);

#endif
