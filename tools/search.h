// The search among ways to run a model that send, hold and take different amounts: stage, offload, recomputation, micro-batch, keep, bucket size,
// prefetch. `tune` searches all of them, `compile` and `run` under budgets those that change no result. What the command line says stays as it is.
//
// A candidate is a set of options. It is compiled by the pipeline as any other, but for what candidates share: the file is imported and its backward
// pass built once per micro-batch size and recomputation, the rest works on a clone of that graph. Then `simulate_step` says how long a step takes and
// the plan what it holds. Nothing runs and no weight is read, so the machine need not be here. Candidates are tried in a fixed order, on one thread: the
// same input gives the same table.
//
// Not tried is what cannot win: recomputing more, or offloading more, than what fits already with the same stage and micro-batch.
//
// Ownership: everything lies in flow->arena. Threads: one.
#ifndef TESSERA_SEARCH_H
#define TESSERA_SEARCH_H

#include "compile_flow.h"
#include "machine_json.h"

// Later ones are tuned for the best of the earlier ones only.
typedef enum SearchDim { DIM_ZERO, DIM_BATCH, DIM_OFFLOAD, DIM_RECOMPUTE, DIM_KEEP, DIM_BUCKET, DIM_PREFETCH, DIM_COUNT } SearchDim;

typedef struct SearchValue { const char *text[2]; } SearchValue;      // as on the command line; of the dimension's second option, too; NULL: not given

enum { SEARCH_VALUES_MAX = 24 };   // of a dimension

typedef struct SearchDimension {
  const char *options[2];          // names; the second is NULL but for DIM_BATCH
  SearchValue *values;
  int n;                           // at least 1: what is fixed, or the default
  int start;                       // the value that is tried first
} SearchDimension;

typedef struct SearchBudget { int64_t bytes[TIER_COUNT]; } SearchBudget;      // per process; INT64_MAX: no limit

typedef struct Candidate {
  uint8_t at[DIM_COUNT];           // of each dimension's values
  const char *refused;             // why it cannot be compiled; NULL: it can
  bool fits;
  int64_t samples;                 // of a step over all ranks
  int64_t bytes[TIER_COUNT];       // per process, at the peak
  int64_t by_category[CATEGORY_COUNT];   // of the device's
  int64_t sent_bytes;
  double step_s;                   // = compute_s + exposed_s + transfer_s + overhead_s
  double compute_s, exposed_s, overhead_s;
  double transfer_s;               // between tiers, exposed
} Candidate;

typedef struct SearchRequest {
  bool tune;                       // stages and micro-batches, too
  bool run;                        // what runs: there will be programs for all shapes of the data
  Cluster cluster;
  SearchBudget budget;
  FILE *alive;                     // says now and then how far it is; NULL: nobody asks
} SearchRequest;

typedef struct Search {
  Flow *flow;
  const Options *options;          // as given
  SearchRequest request;
  SearchDimension dims[DIM_COUNT];
  const char *shares[SEARCH_VALUES_MAX][SEARCH_VALUES_MAX];      // [batch][recompute]: "budget=50%" of its activations as a size; NULL: none, or not known
  const Candidate **items;         // all that were compiled, the best first: those that fit by time per sample, then the others by what they lack
  size_t n, capacity;
  size_t n_fit;
  bool open_batch;                 // the model leaves the size of a micro-batch open
  const Candidate *chosen;         // NULL: nothing fits
  size_t not_tried;                // since they cannot win
  struct SearchState *state;       // while it runs
} Search;

// `flow` is open and holds a model. data: NULL where options->data names what can be opened again for every micro-batch, or nothing.
MUST_USE Status search_run(Flow *flow, const Options *options, const Data *data, const SearchRequest *request, Search *out);

// A copy of the options that says what the candidate chose; ended with options_finish. Its texts lie in flow->arena.
MUST_USE Status search_options(const Search *search, const Candidate *candidate, Options *out);

// What an option of a dimension is for the candidate, as on the command line; NULL: left alone.
const char *search_text(const Search *search, const Candidate *candidate, SearchDim dim, int option);

// " --zero 2 --bucket-bytes 1MiB": what the candidate chose and the command line did not say; "" for nothing.
const char *search_choices(const Search *search, const Candidate *candidate);

// Value of a dimension as text, "" where nothing is given.
const char *search_value(const Search *search, const Candidate *candidate, SearchDim dim);

// Why it is where it is in the list: what it lacks, what it takes longer for, why another one as fast was taken.
const char *search_reason(const Search *search, const Candidate *candidate);

// Why the chosen one has what it has beyond the defaults: "without --recompute blocks it needs 1.2 GiB more"; "" where it has nothing.
const char *search_why(const Search *search);

// RESOURCE with numbers: the smallest candidate, by how much it does not fit, and what would.
MUST_USE Status search_nothing_fits(const Search *search);

// Predictions nearer to each other than this share are taken for the same.
#define SEARCH_SAME 0.02
// Of a budget: what should be left free where the stage is in doubt.
#define SEARCH_ROOM 0.1

// The first machine for budgets: --cluster, else the default one.
MUST_USE Status search_read_cluster(const Options *options, Cluster *out);

// What --ranks-per-process says; else a rank is a process, or where ranks share memory those of a node.
int64_t search_ranks_per_process(const Options *options, const Cluster *cluster);

// --memory, --host-memory and --nvme; without --memory what the cluster (NULL: none) says a rank has. Tiers that are not given are not used: 0.
SearchBudget search_budget(const Options *options, const Cluster *cluster);

#endif
