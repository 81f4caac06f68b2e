// Which source feeds which input, in what shape; then filling micro-batches.
#include "data.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../ir/path.h"
#include "data_graph.h"
#include "data_source.h"

enum { FREE_INTEGERS_LIMIT = 2 };   // --data random: integers that index nothing are 0 and 1
static const int64_t default_deadline_ns = 600 * INT64_C(1000000000);

static bool fits_integers(const DataInput *in) { return in->dtype == DTYPE_NONE || dtype_is_integer(in->dtype); }

static int find_input(const Data *d, const char *name, size_t n) {
  for (size_t i = 0; i < d->n_inputs; i++)
    if (strlen(d->inputs[i].name) == n && !memcmp(d->inputs[i].name, name, n)) return (int)i;
  return -1;
}

static void list_inputs(const Data *d, bool unfed_only, char *out, size_t out_bytes) {
  size_t used = 0;
  out[0] = 0;
  for (size_t i = 0; i < d->n_inputs && used + 8 < out_bytes; i++)
    if (!unfed_only || d->feeds[i].kind == FEED_NONE) {
      int n = snprintf(out + used, out_bytes - used, "%s'%s'", used ? ", " : "", d->inputs[i].name);
      used += n > 0 && (size_t)n < out_bytes - used ? (size_t)n : out_bytes - used - 1;
    }
}

// ---- Shapes -------------------------------------------------------------------------------------------------------------------

// The dtype that is delivered: what the input declares, where the file's elements fit.
static Status delivered(const DataInput *in, Dtype file, const char *source, Dtype *out) {
  *out = in->dtype == DTYPE_NONE ? file : in->dtype;
  if (!data_dtype_fits(file, *out)) FAIL(MALFORMED, in->name, "%s holds %s, the input takes %s", source, dtype_name(file), dtype_name(*out));
  return NULL;
}

static Status batch_axis(const Data *d, const DataInput *in, const char *source, int64_t n_samples, int64_t *out) {
  int64_t declared = in->rank > 0 ? in->dims[0] : -1, asked = d->options.batch;
  if (declared > 0 && asked > 0 && declared != asked)
    FAIL(USAGE, in->name, "--batch %" PRId64 ", but the model fixes %" PRId64 " samples per micro-batch", asked, declared);
  *out = declared > 0 ? declared : asked;
  for (size_t i = 0; *out <= 0 && in->rank < 0 && i < d->n_inputs; i++)                 // labels of a loss that is added: as many as the others
    if (d->inputs[i].rank > 0 && d->inputs[i].dims[0] > 0) *out = d->inputs[i].dims[0];
  if (*out <= 0)
    FAIL(USAGE, NULL, "input '%s': the model leaves dimension 0 open; give --batch INT (%s holds %" PRId64 " samples)", in->name, source, n_samples);
  return NULL;
}

static Status check_declared(const DataInput *in, const Type *shape, const char *source) {
  char text[160];
  if (in->rank < 0) return NULL;
  bool same = in->rank == shape->rank;
  for (int k = 0; same && k < in->rank; k++) same = in->dims[k] < 0 || in->dims[k] == shape->dims[k];
  if (same) return NULL;
  char declared[200] = "";
  for (int k = 0; k < in->rank; k++) {
    size_t used = strlen(declared);
    if (in->dims[k] < 0) snprintf(declared + used, sizeof declared - used, "%s?", k ? "," : "");
    else snprintf(declared + used, sizeof declared - used, "%s%" PRId64, k ? "," : "", in->dims[k]);
  }
  FAIL(MALFORMED, in->name, "%s gives %s per micro-batch, the model takes [%s]", source, type_text(shape, text, sizeof text), declared);
}

static Status claim(Data *d, int i, const Feed *feed) {
  if (d->feeds[i].kind != FEED_NONE) FAIL(USAGE, d->inputs[i].name, "both %s and %s feed it", d->feeds[i].source, feed->source);
  d->feeds[i] = *feed;
  return NULL;
}

static Status same_samples(Data *d, int i, int64_t n, const char *source) {
  if (n < 1) FAIL(MALFORMED, d->inputs[i].name, "%s holds no sample", source);
  if (d->n_samples >= 0 && d->n_samples != n)
    FAIL(MALFORMED, d->inputs[i].name, "%s holds %" PRId64 " samples, another source %" PRId64, source, n, d->n_samples);
  d->n_samples = n;
  return NULL;
}

static Status same_batch(Data *d, int i, int64_t batch, const char *source) {
  if (d->batch_size && d->batch_size != batch)
    FAIL(MALFORMED, d->inputs[i].name, "%" PRId64 " samples of %s per micro-batch, of another input %" PRId64, batch, source, d->batch_size);
  d->batch_size = batch;
  return NULL;
}

static bool has_part(const Feed *feed, const char *path) {
  for (size_t p = 0; p < feed->n_parts; p++)
    if (!strcmp(feed->parts[p].path, path)) return true;
  return false;
}

// One more file for an input that has rows already.
static Status append_rows(Data *d, int i, const char *path, int fd, int64_t offset_bytes, const Type *file) {
  Feed *feed = &d->feeds[i];
  Type first = d->shapes[i];
  char have[160], want[160];
  first.dims[0] = file->rank ? file->dims[0] : 0;
  first.dtype = feed->file_dtype;
  if (!type_same_shape(&first, file) || file->dtype != feed->file_dtype)
    FAIL(MALFORMED, d->inputs[i].name, "%s holds %s of it and %s %s; files that follow each other differ in their first axis only", path,
         type_text(file, have, sizeof have), feed->source, type_text(&first, want, sizeof want));
  feed->n_samples += file->dims[0];
  return feed_add_part(feed, path, fd, offset_bytes, type_elems(file));
}

// A tensor whose first axis counts samples.
static Status feed_rows(Data *d, int i, const char *path, int fd, int64_t offset_bytes, const Type *file) {
  const DataInput *in = &d->inputs[i];
  if (d->feeds[i].kind == FEED_ROWS && !has_part(&d->feeds[i], path)) return append_rows(d, i, path, fd, offset_bytes, file);
  if (file->rank < 1) FAIL(MALFORMED, in->name, "%s holds a scalar for it; the first axis must count samples", path);
  if (file->dims[0] < 1) FAIL(MALFORMED, in->name, "%s holds no sample", path);
  Type *shape = &d->shapes[i], before = *shape;
  *shape = *file;
  TRY(batch_axis(d, in, path, file->dims[0], &shape->dims[0]));
  TRY(delivered(in, file->dtype, path, &shape->dtype));
  TRY(check_declared(in, shape, path));
  TRY(same_batch(d, i, shape->dims[0], path));
  Feed feed = {.kind = FEED_ROWS, .source = d->source, .file_dtype = file->dtype, .row_elems = type_elems(file) / file->dims[0], .n_samples = file->dims[0]};
  if (d->feeds[i].kind != FEED_NONE) *shape = before;
  TRY(claim(d, i, &feed));
  return feed_add_part(&d->feeds[i], path, fd, offset_bytes, type_elems(file));
}

// ---- Sources ------------------------------------------------------------------------------------------------------------------

static Status open_npy(Data *d, int i, const char *path) {
  int fd;
  NpyFile npy;
  TRY(data_file_open(d, path, &fd));
  TRY(npy_read_header(fd, path, &npy));
  Type type = type_make(npy.dtype, npy.rank, npy.dims);
  return feed_rows(d, i, path, fd, npy.offset_bytes, &type);
}

static const Weight *batch_tensor(const Safetensors *file, const char *input, int64_t batch) {
  char name[512];
  int n = snprintf(name, sizeof name, "%s.%" PRId64, input, batch);
  return n > 0 && n < (int)sizeof name ? safetensors_find(file, name) : NULL;
}

// INPUT.0, INPUT.1, ...: as many as there are without a gap. They may differ in shape (variants), not in dtype.
static Status feed_batches(Data *d, int i, const char *source, int fd, const Safetensors *file) {
  const DataInput *in = &d->inputs[i];
  const Weight *first = batch_tensor(file, in->name, 0), *w;
  Feed feed = {.kind = FEED_BATCHES, .source = d->source, .file_dtype = first->type.dtype};
  while (batch_tensor(file, in->name, feed.n_batches)) feed.n_batches++;
  if (d->n_batches >= 0 && d->n_batches != feed.n_batches)
    FAIL(MALFORMED, in->name, "%s holds %" PRId64 " batches of it, of another input %" PRId64, source, feed.n_batches, d->n_batches);
  d->n_batches = feed.n_batches;
  TRY(claim(d, i, &feed));
  TRY(feed_add_part(&d->feeds[i], source, fd, 0, 0));
  int64_t *offsets = d->feeds[i].batch_offsets = calloc((size_t)feed.n_batches, sizeof *offsets);
  Type *types = d->feeds[i].batch_types = calloc((size_t)feed.n_batches, sizeof *types);
  if (!offsets || !types) FAIL(RESOURCE, in->name, "no memory for %" PRId64 " batches", feed.n_batches);
  for (int64_t b = 0; (w = batch_tensor(file, in->name, b)); b++) {
    if (w->type.dtype != feed.file_dtype)
      FAIL(MALFORMED, w->name, "%s: batch %" PRId64 " is of %s and batch 0 of %s", source, b, dtype_name(w->type.dtype), dtype_name(feed.file_dtype));
    offsets[b] = w->offset_bytes;
    types[b] = w->type;
    TRY(delivered(in, w->type.dtype, source, &types[b].dtype));
    Status status = check_declared(in, &types[b], source);
    if (status) return status_context(status, "batch %" PRId64, b);
  }
  d->shapes[i] = types[0];
  return NULL;
}

static Status open_safetensors(Data *d, const char *source) {
  int fd;
  Safetensors *file;
  TRY(data_file_open(d, source, &fd));
  TRY(safetensors_open(source, &file));
  Status status = NULL;
  bool any = false;
  for (size_t i = 0; i < d->n_inputs && !status; i++) {
    const Weight *whole = safetensors_find(file, d->inputs[i].name);
    bool by_batch = batch_tensor(file, d->inputs[i].name, 0) != NULL;
    if (!whole && !by_batch) continue;
    any = true;
    status = whole ? feed_rows(d, (int)i, source, fd, whole->offset_bytes, &whole->type) : feed_batches(d, (int)i, source, fd, file);
  }
  size_t n = safetensors_count(file);
  const char *sample = n ? safetensors_tensors(file)[0].name : "";
  char names[512];
  list_inputs(d, false, names, sizeof names);
  if (!status && !any)
    status = status_fail(STATUS_MALFORMED, NULL, "%s holds %zu tensors ('%.100s'%s) and none for an input of the model: %s, or INPUT.0, INPUT.1, ... by batch", source,
                         n, sample, n > 1 ? ", ..." : "", names);
  safetensors_close(file);
  return status;
}

static Status token_axis(const Data *d, const DataInput *in, int64_t *out) {
  int64_t declared = in->rank == 2 ? in->dims[1] : -1, asked = d->options.seq;
  if (declared > 0 && asked > 0 && declared != asked) FAIL(USAGE, in->name, "--seq %" PRId64 ", but the model fixes %" PRId64 " tokens per sample", asked, declared);
  *out = declared > 0 ? declared : asked;
  if (*out <= 0) FAIL(USAGE, NULL, "input '%s': the model leaves dimension 1, the tokens of a sample, open; give --seq INT", in->name);
  return NULL;
}

enum { TOKENS, LABELS, POSITIONS, N_TOKEN_ROLES };

static Status feed_tokens(Data *d, int i, const char *path, const TokenFile *file, int64_t seq, int role) {
  const DataInput *in = &d->inputs[i];
  Type *shape = &d->shapes[i];
  bool one_each = role == LABELS && in->rank == 1;             // one label per sample: the token after it
  *shape = (Type){.rank = one_each ? 1 : 2};
  TRY(batch_axis(d, in, path, (file->n_tokens - 1) / seq, &shape->dims[0]));
  if (!one_each) shape->dims[1] = seq;
  TRY(delivered(in, file->dtype, path, &shape->dtype));
  if (in->dtype == DTYPE_NONE) shape->dtype = DTYPE_I64;
  TRY(check_declared(in, shape, path));
  TRY(same_batch(d, i, shape->dims[0], path));
  Feed feed = {.kind = FEED_TOKENS, .source = d->source, .file_dtype = file->dtype, .seq = seq, .labels = role == LABELS,
               .positions = role == POSITIONS, .one_each = one_each, .row_elems = one_each ? 1 : seq};
  if (d->options.packs && role == LABELS && (one_each || dtype_class(shape->dtype) != DTYPE_CLASS_INT))
    FAIL(UNSUPPORTED, in->name, "--eos gives a signed label for every token, -100 for those that count for nothing; this input takes %s",
         one_each ? "one for each sample" : dtype_name(shape->dtype));
  return claim(d, i, &feed);
}

static bool called_labels(const char *name) { return strstr(name, "label") || strstr(name, "target"); }

// Unfed integer inputs: one takes the tokens, a second one the labels; where documents are packed, one the positions.
static Status assign_tokens(const Data *d, const char *source, int out[N_TOKEN_ROLES]) {
  for (int role = 0; role < N_TOKEN_ROLES; role++) out[role] = -1;
  for (size_t i = 0; i < d->n_inputs; i++) {
    const DataInput *in = &d->inputs[i];
    if (d->feeds[i].kind != FEED_NONE) continue;
    bool second = called_labels(in->name) || out[TOKENS] >= 0;
    int *slot = &out[d->options.packs && strstr(in->name, "position") ? POSITIONS : second ? LABELS : TOKENS];
    if (!fits_integers(in) || *slot >= 0)
      FAIL(USAGE, in->name, "%s gives tokens and labels, neither of which is this input; feed it by --data %s=FILE.npy (before the tokens)", source, in->name);
    *slot = (int)i;
  }
  if (out[TOKENS] < 0) FAIL(USAGE, NULL, "%s gives tokens, and no integer input is left to take them", source);
  return NULL;
}

static Status first_tokens(Data *d, const char *path, const TokenFile *file) {
  int inputs[N_TOKEN_ROLES];
  int64_t seq;
  TRY(assign_tokens(d, path, inputs));
  TRY(token_axis(d, &d->inputs[inputs[TOKENS]], &seq));
  for (int role = 0; role < N_TOKEN_ROLES; role++)
    if (inputs[role] >= 0) TRY(feed_tokens(d, inputs[role], path, file, seq, role));
  return NULL;
}

// The first file says which inputs take tokens; others go on where it ends.
static Status open_tokens(Data *d, const char *path) {
  int fd;
  TokenFile file;
  bool any = false;
  TRY(data_file_open(d, path, &fd));
  TRY(token_file_read(fd, path, d->options.token_dtype, &file));
  for (size_t i = 0; i < d->n_inputs; i++) any |= d->feeds[i].kind == FEED_TOKENS;
  if (!any) TRY(first_tokens(d, path, &file));
  for (size_t i = 0; i < d->n_inputs; i++) {
    Feed *feed = &d->feeds[i];
    if (feed->kind != FEED_TOKENS) continue;
    if (has_part(feed, path)) FAIL(USAGE, NULL, "%s is named twice", path);
    if (feed->file_dtype != file.dtype)
      FAIL(MALFORMED, NULL, "%s holds tokens of %s and %s of %s; files that follow each other are of one type", path, dtype_name(file.dtype), feed->source,
           dtype_name(feed->file_dtype));
    TRY(feed_add_part(feed, path, fd, file.offset_bytes, file.n_tokens));
  }
  return NULL;
}

static Status count_samples(Data *d) {
  bool tokens = false;
  for (size_t i = 0; i < d->n_inputs; i++) tokens |= d->feeds[i].kind == FEED_TOKENS;
  if (d->options.packs && !tokens) FAIL(USAGE, NULL, "--eos packs documents of tokens, and the data are none");
  for (size_t i = 0; i < d->n_inputs; i++) {
    Feed *feed = &d->feeds[i];
    if (feed->kind != FEED_TOKENS && feed->kind != FEED_ROWS) continue;
    int64_t n = feed_elems(feed);
    if (feed->kind == FEED_TOKENS && d->options.packs) {
      if (!d->pack.n) TRY(data_pack(feed, d->options.eos, &d->pack));
      feed->n_samples = d->pack.n;
    } else if (feed->kind == FEED_TOKENS && n <= feed->seq) {
      FAIL(MALFORMED, d->inputs[i].name, "%s holds %" PRId64 " tokens; one sample and its labels need %" PRId64, feed->source, n, feed->seq + 1);
    } else if (feed->kind == FEED_TOKENS) {
      feed->n_samples = (n - 1) / feed->seq;
    }
    TRY(same_samples(d, (int)i, feed->n_samples, feed->source));
  }
  return NULL;
}

static Status open_random(Data *d) {
  for (size_t i = 0; i < d->n_inputs; i++)
    if (d->feeds[i].kind == FEED_NONE) d->feeds[i] = (Feed){.kind = FEED_RANDOM, .source = "random"};
  return NULL;
}

static Status open_stream(Data *d) {
  StreamSlot *slot;
  TRY(stream_start(&d->stream, d->options.stream_fd, d->options.deadline_ns > 0 ? d->options.deadline_ns : default_deadline_ns));
  d->has_stream = true;
  TRY(stream_seek(&d->stream, 0, &slot));
  if (!slot) FAIL(MALFORMED, NULL, "--data -: the stream on stdin ended before its first batch");
  for (size_t i = 0; i < d->n_inputs; i++) {
    const Weight *w = safetensors_find(slot->file, d->inputs[i].name);
    if (d->feeds[i].kind != FEED_NONE || !w) continue;
    d->shapes[i] = w->type;
    TRY(delivered(&d->inputs[i], w->type.dtype, "the stream", &d->shapes[i].dtype));
    TRY(check_declared(&d->inputs[i], &d->shapes[i], "the stream"));
    d->feeds[i] = (Feed){.kind = FEED_STREAM, .source = "-"};
  }
  return NULL;
}

// A file by its suffix.
static Status open_file(Data *d, const char *path) {
  NpyFile npy;
  int fd;
  if (has_suffix(path, ".safetensors")) return open_safetensors(d, path);
  if (!has_suffix(path, ".npy")) return open_tokens(d, path);
  TRY(data_file_open(d, path, &fd));
  TRY(npy_read_header(fd, path, &npy));
  bool takes_rows = d->n_inputs == 1 && (d->inputs[0].rank == npy.rank || npy.rank != 1 || dtype_is_float(npy.dtype));
  if (takes_rows) return open_npy(d, 0, path);
  if (npy.rank == 1 && !dtype_is_float(npy.dtype)) return open_tokens(d, path);
  char names[512];
  list_inputs(d, false, names, sizeof names);
  FAIL(USAGE, NULL, "--data %s: say which input it feeds, INPUT=%s; the inputs are %s", path, path, names);
}

static Status open_paths(Data *d, int input, const DataPaths *paths) {
  for (size_t i = 0; i < paths->n; i++) {
    if (input >= 0 && !has_suffix(paths->items[i], ".npy")) FAIL(USAGE, NULL, "--data %s: INPUT=FILE takes a .npy file, not %s", d->source, paths->items[i]);
    TRY(input >= 0 ? open_npy(d, input, paths->items[i]) : open_file(d, paths->items[i]));
  }
  return NULL;
}

static Status open_source(Data *d, const char *source) {
  const char *equals = strchr(source, '=');
  int input = equals ? find_input(d, source, (size_t)(equals - source)) : -1;
  char names[512];
  DataPaths paths;
  d->source = source;
  list_inputs(d, false, names, sizeof names);
  if (equals && input < 0 && has_suffix(source, ".npy") && access(source, F_OK))
    FAIL(USAGE, NULL, "--data %s: the model has no input '%.*s'; its inputs are %s", source, (int)(equals - source), source, names);
  if (!strcmp(source, "random")) return open_random(d);
  if (!strcmp(source, "-")) return open_stream(d);
  TRY(data_paths_list(input >= 0 ? equals + 1 : source, &paths));
  Status status = open_paths(d, input, &paths);
  data_paths_finish(&paths);
  return status;
}

// ---- Variants -----------------------------------------------------------------------------------------------------------------

// The number of this set of shapes, a new one when it is new.
static Status variant_of(Data *d, const Type *shapes, int *out) {
  for (int v = 0; v < d->n_variants; v++) {
    bool same = true;
    for (size_t i = 0; same && i < d->n_inputs; i++) same = type_same_shape(&shapes[i], &d->shapes[(size_t)v * d->n_inputs + i]);
    if (!same) continue;
    d->variant_batches[*out = v]++;
    return NULL;
  }
  size_t n = (size_t)d->n_variants + 1;
  Type *wider = realloc(d->shapes, (n * d->n_inputs + 1) * sizeof *wider);
  if (wider) d->shapes = wider;
  int64_t *counts = wider ? realloc(d->variant_batches, n * sizeof *counts) : NULL;
  if (counts) d->variant_batches = counts;
  if (!counts) FAIL(RESOURCE, NULL, "no memory for %zu sets of shapes", n);
  memcpy(d->shapes + (n - 1) * d->n_inputs, shapes, d->n_inputs * sizeof *shapes);
  d->variant_batches[n - 1] = 1;
  *out = d->n_variants++;
  return NULL;
}

static Status number_batches(Data *d, Type *shapes) {
  d->batch_variants = calloc((size_t)d->n_batches, sizeof *d->batch_variants);
  if (!d->batch_variants) FAIL(RESOURCE, NULL, "no memory for %" PRId64 " batches", d->n_batches);
  d->variant_batches[0] = 0;                                 // batch 0 is counted with the others
  for (int64_t b = 0; b < d->n_batches; b++) {
    for (size_t i = 0; i < d->n_inputs; i++)
      if (d->feeds[i].kind == FEED_BATCHES) shapes[i] = d->feeds[i].batch_types[b];
    TRY(variant_of(d, shapes, &d->batch_variants[b]));
  }
  return NULL;
}

// Variant 0 is what the sources said of their first batch.
static Status find_variants(Data *d) {
  d->n_variants = 1;
  if (!(d->variant_batches = calloc(1, sizeof *d->variant_batches))) FAIL(RESOURCE, NULL, "no memory for the shapes");
  d->variant_batches[0] = 1;
  if (d->has_stream) d->stream.slots[0].variant = 0;          // the first batch, which was read for its shapes
  if (d->n_batches < 0) return NULL;
  Type *shapes = malloc((d->n_inputs + 1) * sizeof *shapes);
  if (!shapes) FAIL(RESOURCE, NULL, "no memory for the shapes");
  memcpy(shapes, d->shapes, d->n_inputs * sizeof *shapes);
  Status status = number_batches(d, shapes);
  free(shapes);
  return status;
}

static Status shapes_of_slot(const Data *d, const StreamSlot *slot, Type *shapes) {
  memcpy(shapes, d->shapes, d->n_inputs * sizeof *shapes);
  for (size_t i = 0; i < d->n_inputs; i++) {
    if (d->feeds[i].kind != FEED_STREAM) continue;
    const Weight *w = safetensors_find(slot->file, d->inputs[i].name);
    if (!w) FAIL(MALFORMED, d->inputs[i].name, "batch %" PRId64 " of the stream lacks it", slot->batch);
    shapes[i] = w->type;
    TRY(delivered(&d->inputs[i], w->type.dtype, "the stream", &shapes[i].dtype));
    Status status = check_declared(&d->inputs[i], &shapes[i], "the stream");
    if (status) return status_context(status, "batch %" PRId64 " (a DataLoader with drop_last=True gives equal batches)", slot->batch);
  }
  return NULL;
}

static Status number_slot(Data *d, StreamSlot *slot) {
  if (slot->variant >= 0) return NULL;
  Type *shapes = malloc((d->n_inputs + 1) * sizeof *shapes);
  if (!shapes) FAIL(RESOURCE, NULL, "no memory for the shapes of a batch");
  Status status = shapes_of_slot(d, slot, shapes);
  if (!status) status = variant_of(d, shapes, &slot->variant);
  free(shapes);
  return status;
}

int data_n_variants(const Data *d) { return d->n_variants; }
const Type *data_shapes(const Data *d, int variant) { return d->shapes + (size_t)variant * d->n_inputs; }

// ---- Life ---------------------------------------------------------------------------------------------------------------------

static Status open_all(Data *d, const DataInput *inputs) {
  for (size_t i = 0; i < d->n_inputs; i++) {
    d->inputs[i] = inputs[i];
    if (!(d->inputs[i].name = strdup(inputs[i].name))) FAIL(RESOURCE, NULL, "no memory for the inputs' names");
  }
  for (size_t s = 0; s < d->options.n_sources; s++) TRY(open_source(d, d->options.sources[s]));
  TRY(count_samples(d));
  char names[512];
  list_inputs(d, true, names, sizeof names);
  if (names[0]) FAIL(USAGE, NULL, "no --data feeds %s; --data INPUT=FILE.npy does, or a .safetensors file with a tensor of that name", names);
  if (d->n_samples >= 0 && (d->n_batches >= 0 || d->has_stream)) FAIL(USAGE, NULL, "some inputs come by sample and some by batch; all must come alike");
  return find_variants(d);
}

Status data_open(const DataOptions *options, const DataInput *inputs, size_t n_inputs, Data **out) {
  Data *d = calloc(1, sizeof *d);
  if (!d) FAIL(RESOURCE, NULL, "no memory for the data");
  d->options = *options;
  d->n_inputs = n_inputs;
  d->n_samples = d->n_batches = -1;
  d->inputs = calloc(n_inputs + 1, sizeof *d->inputs);
  d->shapes = calloc(n_inputs + 1, sizeof *d->shapes);
  d->feeds = calloc(n_inputs + 1, sizeof *d->feeds);
  Status status = d->inputs && d->shapes && d->feeds ? open_all(d, inputs) : status_fail(STATUS_RESOURCE, NULL, "no memory for %zu inputs", n_inputs);
  if (status) data_close(d);
  else *out = d;
  return status;
}

void data_close(Data *d) {
  if (!d) return;
  for (size_t i = 0; i < d->n_inputs; i++) {
    if (d->inputs) free((char *)d->inputs[i].name);
    if (d->feeds) feed_finish(&d->feeds[i]);
  }
  for (size_t i = 0; i < d->n_files; i++) {
    close(d->files[i].fd);
    free(d->files[i].path);
  }
  if (d->has_stream) stream_finish(&d->stream);
  free(d->inputs);
  free(d->shapes);
  free(d->feeds);
  free(d->files);
  free(d->variant_batches);
  free(d->batch_variants);
  free(d->order);
  free(d->pack.starts);
  free(d->left_out);
  free(d);
}

static Status bind_input(Data *d, int variant, const Graph *program, const Value *v, size_t *out) {
  int i = find_input(d, v->name, strlen(v->name));
  if (i < 0) FAIL(USAGE, v->name, "the program takes this input and no source was opened for it");
  Feed *feed = &d->feeds[i];
  Type *shape = &d->shapes[(size_t)variant * d->n_inputs + (size_t)i];
  char have[160], want[160];
  if (feed->kind == FEED_RANDOM) {
    int64_t limit = graph_index_limit(program, v);
    feed->limit = limit ? limit : FREE_INTEGERS_LIMIT;
  } else if (!type_same_shape(shape, &v->type) || !data_dtype_fits(feed->kind == FEED_STREAM ? shape->dtype : feed->file_dtype, v->type.dtype)) {
    FAIL(MALFORMED, v->name, "%s gives %s, the program takes %s", feed->source, type_text(shape, have, sizeof have), type_text(&v->type, want, sizeof want));
  }
  const Node *counts = feed->kind == FEED_TOKENS && feed->labels && d->options.packs ? graph_loss_without(program, v, LABEL_OF_NOTHING) : NULL;
  if (counts)
    FAIL(UNSUPPORTED, counts->name, "--eos gives labels of %d where there is nothing to predict, and %s does not ignore them; export the loss with ignore_index=%d",
         LABEL_OF_NOTHING, counts->op->name, LABEL_OF_NOTHING);
  if (feed->kind == FEED_TOKENS) feed->limit = graph_index_limit(program, v);
  if (feed->kind == FEED_TOKENS && feed->labels && d->options.shift < 0) d->shift = graph_shifts_labels(program, v) ? 0 : 1;
  *shape = v->type;
  *out = (size_t)i;
  return NULL;
}

static Status bind_other(Data *d, int variant, const Graph *program) {
  if (program->n_inputs != d->n_bound) FAIL(USAGE, NULL, "the program takes %zu inputs, that of another variant %zu", program->n_inputs, d->n_bound);
  for (size_t i = 0; i < program->n_inputs; i++) {
    size_t input;
    TRY(bind_input(d, variant, program, program->inputs[i], &input));
    if (input != d->order[i]) FAIL(USAGE, program->inputs[i]->name, "the program of another variant takes its inputs in another order");
  }
  return NULL;
}

Status data_bind(Data *d, int variant, const Graph *program) {
  if (d->order) return bind_other(d, variant, program);
  d->order = calloc(program->n_inputs + 1, sizeof *d->order);
  if (!d->order) FAIL(RESOURCE, NULL, "no memory for %zu inputs", program->n_inputs);
  d->n_bound = program->n_inputs;
  d->shift = d->options.shift < 0 ? 1 : d->options.shift;
  for (size_t i = 0; i < program->n_inputs; i++) TRY(bind_input(d, variant, program, program->inputs[i], &d->order[i]));
  if (!d->has_stream) return NULL;
  return stream_widen(&d->stream, mesh_ranks(&program->mesh) * (program->recipe.micro_per_rank > 0 ? program->recipe.micro_per_rank : 1));
}

int64_t data_batches(const Data *d) {
  if (d->n_batches >= 0) return d->n_batches;
  if (d->n_samples < 0) return -1;
  int64_t n = d->n_samples / d->batch_size;
  return n ? n : 1;
}

static double samples_of(const Type *shapes, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (shapes[i].rank > 0) return (double)shapes[i].dims[0];
  return 1;
}

static double tokens_of(const Type *shapes, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (shapes[i].rank == 2 && dtype_is_integer(shapes[i].dtype)) return (double)type_elems(&shapes[i]);
  return 0;
}

static double mean_of(const Data *d, double (*items)(const Type *shapes, size_t n)) {
  double sum = 0, batches = 0;
  for (int v = 0; v < d->n_variants; v++) {
    sum += items(data_shapes(d, v), d->n_inputs) * (double)d->variant_batches[v];
    batches += (double)d->variant_batches[v];
  }
  return sum / batches;
}

double data_samples_per_batch(const Data *d) { return mean_of(d, samples_of); }
double data_tokens_per_batch(const Data *d) { return mean_of(d, tokens_of); }
bool data_packing(const Data *d, int64_t *out_documents, double *out_padding) {
  if (!d->options.packs) return false;
  const Feed *feed = d->feeds;
  while (feed->kind != FEED_TOKENS) feed++;                  // count_samples has found one
  *out_documents = d->pack.n_documents;
  *out_padding = 1 - (double)feed_elems(feed) / ((double)d->pack.n * (double)feed->seq);
  return true;
}

int64_t data_samples(const Data *d) { return d->n_samples; }
bool data_has_tokens(const Data *d) { return data_tokens_per_batch(d) > 0; }

const char *data_left_out(const Data *d) { return d->left_out; }

// What is left over when data are cut into equal batches: like batch 0, with fewer samples.
static bool is_remainder(const Data *d, const StreamSlot *slot) {
  for (size_t i = 0; i < d->n_inputs; i++) {
    const Weight *w = d->feeds[i].kind == FEED_STREAM ? safetensors_find(slot->file, d->inputs[i].name) : NULL;
    const Type *usual = &d->shapes[i];
    if (d->feeds[i].kind != FEED_STREAM) continue;
    if (!w || w->type.rank != usual->rank || (usual->rank > 0 && w->type.dims[0] > usual->dims[0])) return false;
    for (int k = 1; k < usual->rank; k++)
      if (w->type.dims[k] != usual->dims[k]) return false;
  }
  return true;
}

// A remainder that the model does not take: at the end of the stream it is left out, else it is an error.
static Status leave_out(Data *d, const StreamSlot *slot, Status refused) {
  StreamSlot *next = NULL;
  if (!is_remainder(d, slot)) return refused;
  Status status = stream_seek(&d->stream, slot->batch + 1, &next);
  bool last = !next && !status;
  status_free(status);
  if (!last) return refused;
  if (asprintf(&d->left_out, "%s%s%s%s", refused->node ? "input '" : "", refused->node ? refused->node : "", refused->node ? "': " : "",
               refused->what) < 0) d->left_out = NULL;
  status_free(refused);
  if (!d->left_out) FAIL(RESOURCE, NULL, "out of memory");
  return NULL;
}

Status data_available(Data *d, int64_t first, int64_t n, bool *out) {
  *out = true;
  if (!d->has_stream || n < 1) return NULL;
  pthread_mutex_lock(&d->stream.mutex);
  StreamSlot *slot = NULL;
  Status status = NULL;
  for (int64_t b = first; b < first + n && !status; b++) {     // one at a time: each must find its place in the ring
    status = stream_seek(&d->stream, b, &slot);
    if (!slot) break;
    status = number_slot(d, slot);
    if (status_code(status) != STATUS_MALFORMED) continue;
    status = leave_out(d, slot, status);
    slot = NULL;
    break;
  }
  pthread_mutex_unlock(&d->stream.mutex);
  if (!status) *out = slot != NULL;
  return status;
}

// ---- Filling ------------------------------------------------------------------------------------------------------------------

static uint64_t mix(uint64_t x) {      // splitmix64's finaliser
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// A permutation of [0, n): a four-round Feistel network over the next power of four, walked until it lands inside. Needs no memory.
static int64_t permuted(uint64_t seed, int64_t epoch, int64_t n, int64_t i) {
  int half = 1;
  while (half < 31 && INT64_C(1) << (2 * half) < n) half++;
  uint64_t mask = (UINT64_C(1) << half) - 1, key = mix(seed ^ mix((uint64_t)epoch));
  uint64_t x = (uint64_t)i;
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 4; round++) {
      uint64_t next = left ^ (mix(key + round * 0x632be59bd9b4e019u + right) & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= (uint64_t)n);
  return (int64_t)x;
}

static int64_t pick(const Data *d, int64_t n, int64_t index) {
  int64_t epoch = index / n, i = index % n;
  return d->options.shuffle ? permuted(d->options.seed, epoch, n, i) : i;
}

int data_variant(Data *d, int64_t batch) {
  if (d->batch_variants) return d->batch_variants[pick(d, d->n_batches, batch)];
  if (!d->has_stream) return 0;
  pthread_mutex_lock(&d->stream.mutex);
  int variant = stream_variant(&d->stream, batch);
  pthread_mutex_unlock(&d->stream.mutex);
  return variant;
}

static int64_t first_elem(const Data *d, const Feed *feed, int64_t sample) {
  if (feed->kind == FEED_ROWS) return sample * feed->row_elems;
  return sample * feed->seq + (feed->labels ? (feed->one_each ? feed->seq : d->shift) : 0);
}

// Tokens that the model has no row for: told by their place in the file.
static Status check_tokens(const Feed *feed, int64_t first, int64_t n, const void *tokens, Dtype dtype) {
  for (int64_t e = 0; feed->limit && !feed->labels && !feed->positions && e < n; e++) {
    int64_t token = element_read_int(tokens, dtype, e);
    if (token >= 0 && token < feed->limit) continue;
    const DataPart *part = feed_part(feed, first + e);
    FAIL(MALFORMED, NULL, "%s: token %" PRId64 " of it is %" PRId64 "; the model takes tokens from 0 to %" PRId64, part->path, first + e - part->first_elem, token,
         feed->limit - 1);
  }
  return NULL;
}

static Status fill_samples(const Data *d, const Feed *feed, int64_t batch, const Tensor *out) {
  int64_t n = out->type->dims[0], width = dtype_bytes(out->type->dtype);
  for (int64_t s = 0; s < n; s++) {
    int64_t sample = pick(d, feed->n_samples, batch * n + s), tokens = feed->row_elems;
    bool packed = feed->kind == FEED_TOKENS && d->options.packs;
    int64_t first = packed ? d->pack.starts[sample] : first_elem(d, feed, sample);
    void *to = (char *)out->data + s * feed->row_elems * width;
    if (packed) TRY(data_pack_fill(&d->pack, feed, sample, d->shift, d->options.eos, to, out->type->dtype, &tokens));
    else TRY(feed_read(feed, first, to, out->type->dtype, feed->row_elems));
    if (feed->kind == FEED_TOKENS) TRY(check_tokens(feed, first, tokens, to, out->type->dtype));
  }
  return NULL;
}

static void fill_random(const Data *d, const Feed *feed, int64_t batch, uint64_t input, const Tensor *out) {
  int64_t n = type_elems(out->type);
  uint64_t key = mix(mix(d->options.seed) ^ mix((uint64_t)batch) ^ mix(~input));
  for (int64_t e = 0; e < n; e++) {
    uint64_t r = mix(key + (uint64_t)e);
    if (!dtype_is_float(out->type->dtype)) {
      element_write_int(out->data, out->type->dtype, e, (int64_t)(r % (uint64_t)feed->limit));
    } else {                                                 // Box-Muller: normal, mean 0, deviation 1
      double u = ((double)(r >> 11) + 0.5) * 0x1p-53, v = (double)(mix(r) >> 11) * 0x1p-53;
      element_write(out->data, out->type->dtype, e, sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
  }
}

static Status copy_from_stream(const StreamSlot *slot, const char *name, const Tensor *out) {
  const Weight *w = safetensors_find(slot->file, name);
  char have[160], want[160];
  if (!w) FAIL(MALFORMED, name, "batch %" PRId64 " of the stream lacks it", slot->batch);
  if (!type_same_shape(&w->type, out->type) || !data_dtype_fits(w->type.dtype, out->type->dtype))
    FAIL(MALFORMED, name, "batch %" PRId64 " of the stream has %s, the program takes %s", slot->batch, type_text(&w->type, have, sizeof have),
         type_text(out->type, want, sizeof want));
  elements_convert(out->data, out->type->dtype, w->bytes, w->type.dtype, type_elems(&w->type));
  return NULL;
}

static Status fill_from_stream(Data *d, int64_t batch, const Tensor *out, size_t n) {
  pthread_mutex_lock(&d->stream.mutex);
  StreamSlot *slot;
  Status status = stream_seek(&d->stream, batch, &slot);
  if (!status && !slot) status = status_fail(STATUS_IO, NULL, "the stream on stdin ended after %" PRId64 " batches", d->stream.next_batch);
  for (size_t i = 0; i < n && !status; i++)
    if (out[i].data && d->feeds[d->order[i]].kind == FEED_STREAM) status = copy_from_stream(slot, d->inputs[d->order[i]].name, &out[i]);
  pthread_mutex_unlock(&d->stream.mutex);
  return status;
}

static Status data_fill(void *self, int64_t batch, const Tensor *out, size_t n_inputs) {
  Data *d = self;
  if (n_inputs != d->n_bound) FAIL(USAGE, NULL, "%zu inputs to fill, the data is bound to %zu", n_inputs, d->n_bound);
  for (size_t i = 0; i < n_inputs; i++) {
    const Feed *feed = &d->feeds[d->order[i]];
    if (!out[i].data || type_elems(out[i].type) == 0) continue;
    switch (feed->kind) {
    case FEED_ROWS:
    case FEED_TOKENS: TRY(fill_samples(d, feed, batch, &out[i])); break;
    case FEED_BATCHES:
      TRY(data_file_read(feed->parts, feed->file_dtype, feed->batch_offsets[pick(d, feed->n_batches, batch)], out[i].data, out[i].type->dtype, type_elems(out[i].type)));
      break;
    case FEED_RANDOM: fill_random(d, feed, batch, d->order[i], &out[i]); break;
    case FEED_STREAM:
    case FEED_NONE: break;
    }
  }
  return d->has_stream ? fill_from_stream(d, batch, out, n_inputs) : NULL;
}

static int feed_variant(void *self, int64_t batch) { return data_variant(self, batch); }

DataFeed data_feed(Data *d) { return (DataFeed){.fill = data_fill, .self = d, .variant = feed_variant}; }
