// oneDNN, C interface, versions 2.6 and 3.x. Scratchpads are the caller's; reordered copies lie in the kernel's workspace.
//
// Matrix products take plain strides, transposed operands included. Measured with 2.6.3 on one core of an EPYC 9004 (GFLOP/s, m n k):
// 512 768 256: 100; 512 256 1024 with B transposed: 107; 256 1024 512 with A transposed: 110; 512 8192 256: 90; 16 x 256 256 64 with B
// transposed: 110. dnnl_sgemm is within 10% either way (75 to 116) and takes no scratchpad of the caller's.
#include "dnnl_primitive.h"

#include <dnnl.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "cost.h"

enum { OPERANDS_MAX = 12, STEPS_MAX = 4, ARGS_MAX = 5, ALIGN_BYTES = 64 };

typedef enum Where { AT_POINTER, AT_WORKSPACE, AT_SCRATCH } Where;
typedef struct Operand { dnnl_memory_t memory; Where where; int64_t at; } Operand;      // at: index of the pointer, or offset in bytes
typedef struct Step { dnnl_primitive_t primitive; int n_args; dnnl_exec_arg_t args[ARGS_MAX]; } Step;

struct LibraryCall {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  Operand operands[OPERANDS_MAX];
  int n_operands;
  Step steps[STEPS_MAX];
  int n_steps;
};

// ---- The two versions ----------------------------------------------------------------------------------------------------------

// A memory descriptor: a struct in version 2, a handle in version 3. Md owns one, MdRef points at one.
typedef struct Md { dnnl_memory_desc_t desc; } Md;
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t MdRef;
static MdRef md_ref(const Md *md) { return md ? md->desc : NULL; }
static void md_finish(Md *md) {
  if (md->desc) dnnl_memory_desc_destroy(md->desc);
  md->desc = NULL;
}
static dnnl_status_t md_strides(Md *md, int rank, const dnnl_dims_t dims, const dnnl_dims_t strides) {
  return dnnl_memory_desc_create_with_strides(&md->desc, rank, dims, dnnl_f32, strides);
}
static dnnl_status_t md_any(Md *md, int rank, const dnnl_dims_t dims) {
  return dnnl_memory_desc_create_with_tag(&md->desc, rank, dims, dnnl_f32, dnnl_format_tag_any);
}
static dnnl_status_t post_linear(dnnl_post_ops_t ops, float alpha) { return dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_linear, alpha, 0); }
#else
typedef const dnnl_memory_desc_t *MdRef;
static MdRef md_ref(const Md *md) { return md ? &md->desc : NULL; }
static void md_finish(Md *md) { (void)md; }
static dnnl_status_t md_strides(Md *md, int rank, const dnnl_dims_t dims, const dnnl_dims_t strides) {
  return dnnl_memory_desc_init_by_strides(&md->desc, rank, dims, dnnl_f32, strides);
}
static dnnl_status_t md_any(Md *md, int rank, const dnnl_dims_t dims) {
  return dnnl_memory_desc_init_by_tag(&md->desc, rank, dims, dnnl_f32, dnnl_format_tag_any);
}
static dnnl_status_t post_linear(dnnl_post_ops_t ops, float alpha) { return dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_linear, alpha, 0); }
#endif

static dnnl_status_t matmul_descriptor(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const Md *a, const Md *b, const Md *bias, const Md *c,
                                       dnnl_primitive_attr_t attr) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_matmul_primitive_desc_create(out, engine, md_ref(a), md_ref(b), md_ref(bias), md_ref(c), attr);
#else
  dnnl_matmul_desc_t desc;
  dnnl_status_t status = dnnl_matmul_desc_init(&desc, md_ref(a), md_ref(b), md_ref(bias), md_ref(c));
  return status ? status : dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
#endif
}

// Layouts of X, W, bias and Y as the library is free to choose them, with the window's numbers.
typedef struct ConvShape {
  Md x, w, bias, y;
  dnnl_dims_t strides, dilates, pad_begin, pad_end;
} ConvShape;

static dnnl_status_t conv_forward_descriptor(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const ConvShape *s, bool bias,
                                             dnnl_primitive_attr_t attr) {
  const Md *b = bias ? &s->bias : NULL;
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_convolution_forward_primitive_desc_create(out, engine, dnnl_forward_training, dnnl_convolution_direct, md_ref(&s->x), md_ref(&s->w),
                                                        md_ref(b), md_ref(&s->y), s->strides, s->dilates, s->pad_begin, s->pad_end, attr);
#else
  dnnl_convolution_desc_t desc;
  dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(&desc, dnnl_forward_training, dnnl_convolution_direct, md_ref(&s->x),
                                                                    md_ref(&s->w), md_ref(b), md_ref(&s->y), s->strides, s->dilates,
                                                                    s->pad_begin, s->pad_end);
  return status ? status : dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
#endif
}

static dnnl_status_t conv_grad_descriptor(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const ConvShape *s, bool input,
                                          dnnl_primitive_desc_t hint, dnnl_primitive_attr_t attr) {
#if DNNL_VERSION_MAJOR >= 3
  if (input)
    return dnnl_convolution_backward_data_primitive_desc_create(out, engine, dnnl_convolution_direct, md_ref(&s->x), md_ref(&s->w), md_ref(&s->y),
                                                                s->strides, s->dilates, s->pad_begin, s->pad_end, hint, attr);
  return dnnl_convolution_backward_weights_primitive_desc_create(out, engine, dnnl_convolution_direct, md_ref(&s->x), md_ref(&s->w), NULL,
                                                                 md_ref(&s->y), s->strides, s->dilates, s->pad_begin, s->pad_end, hint, attr);
#else
  dnnl_convolution_desc_t desc;
  dnnl_status_t status =
      input ? dnnl_dilated_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, md_ref(&s->x), md_ref(&s->w), md_ref(&s->y),
                                                               s->strides, s->dilates, s->pad_begin, s->pad_end)
            : dnnl_dilated_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, md_ref(&s->x), md_ref(&s->w), NULL,
                                                                  md_ref(&s->y), s->strides, s->dilates, s->pad_begin, s->pad_end);
  return status ? status : dnnl_primitive_desc_create(out, &desc, attr, engine, hint);
#endif
}

// ---- Building a call -------------------------------------------------------------------------------------------------------------

// State while a call is built. Where `make` is false only descriptors are made, to learn the sizes.
typedef struct Builder {
  const Node *node;
  bool make;
  LibraryCall *call;
  dnnl_primitive_attr_t attr;
  int64_t workspace_bytes, scratch_bytes;
} Builder;

static Status library_failure(const Node *node, const char *what, dnnl_status_t status) {
  if (status == dnnl_out_of_memory) FAIL(RESOURCE, node->name, "the matrix library has no memory for %s", what);
  FAIL(UNSUPPORTED, node->name, "the matrix library refuses %s (its status %d); --isa scalar runs the reference instead", what, (int)status);
}
#define LIBRARY(node, what, expression)                                 \
  do {                                                                  \
    dnnl_status_t library_status_ = (expression);                       \
    if (library_status_) return library_failure(node, what, library_status_); \
  } while (0)

// The library takes its instruction set once per process, before its first primitive.
static Status library_isa(const Node *node, Isa isa) {
  static const dnnl_cpu_isa_t of[ISA_COUNT] = {[ISA_SCALAR] = dnnl_cpu_isa_sse41,
                                               [ISA_AVX2] = dnnl_cpu_isa_avx2,
                                               [ISA_AVX512] = dnnl_cpu_isa_avx512_core,
                                               [ISA_AMX] = dnnl_cpu_isa_avx512_core_amx};
  if (dnnl_version()->cpu_runtime != DNNL_RUNTIME_OMP && dnnl_version()->cpu_runtime != DNNL_RUNTIME_SEQ)
    FAIL(UNSUPPORTED, node->name, "this build of oneDNN runs on a thread pool of its own; one built for OpenMP or sequential is needed");
  omp_set_num_threads(1);
  // Setting comes first: asking for the effective ISA freezes it.
  if (dnnl_set_max_cpu_isa(of[isa]) == dnnl_success || dnnl_get_effective_cpu_isa() == of[isa]) return NULL;
  FAIL(UNSUPPORTED, node->name, "the matrix library of this process already runs with another instruction set than %s; one process has one",
       isa_name(isa));
}

static Status builder_begin(Builder *b, const KernelPrepare *prepare, bool make) {
  *b = (Builder){.node = prepare->node, .make = make};
  TRY(library_isa(b->node, prepare->isa));
  b->call = calloc(1, sizeof *b->call);
  if (!b->call) FAIL(RESOURCE, b->node->name, "no memory for a matrix primitive");
  LIBRARY(b->node, "an engine", dnnl_engine_create(&b->call->engine, dnnl_cpu, 0));
  LIBRARY(b->node, "a stream", dnnl_stream_create(&b->call->stream, b->call->engine, dnnl_stream_default_flags));
  LIBRARY(b->node, "attributes", dnnl_primitive_attr_create(&b->attr));
  LIBRARY(b->node, "a caller's scratchpad", dnnl_primitive_attr_set_scratchpad_mode(b->attr, dnnl_scratchpad_mode_user));
  return NULL;
}

static void library_call_destroy(void *pointer) {
  LibraryCall *call = pointer;
  if (!call) return;
  for (int i = 0; i < call->n_steps; i++)
    if (call->steps[i].primitive) dnnl_primitive_destroy(call->steps[i].primitive);
  for (int i = 0; i < call->n_operands; i++)
    if (call->operands[i].memory) dnnl_memory_destroy(call->operands[i].memory);
  if (call->stream) dnnl_stream_destroy(call->stream);
  if (call->engine) dnnl_engine_destroy(call->engine);
  free(call);
}

// Hands over what was asked for, and frees the rest.
static Status builder_end(Builder *b, KernelPrepare *prepare, Status status) {
  if (b->attr) dnnl_primitive_attr_destroy(b->attr);
  if (status || !b->make) library_call_destroy(b->call);
  if (status) return status;
  if (b->make) {
    prepare->prepared = b->call;
    prepare->destroy = library_call_destroy;
  } else {
    prepare->workspace_bytes = b->workspace_bytes;
    prepare->scratch_bytes = b->scratch_bytes;
  }
  return NULL;
}

static int64_t aligned(int64_t bytes) { return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES; }

// A new operand at a pointer or, for AT_WORKSPACE, in fresh workspace. Its index in *out.
static Status add_operand(Builder *b, MdRef md, Where where, int64_t at, int *out) {
  LibraryCall *call = b->call;
  if (where == AT_WORKSPACE) {
    at = b->workspace_bytes;
    b->workspace_bytes += aligned((int64_t)dnnl_memory_desc_get_size(md));
  }
  Operand *operand = &call->operands[call->n_operands];
  *operand = (Operand){.where = where, .at = at};
  if (b->make) LIBRARY(b->node, "an operand", dnnl_memory_create(&operand->memory, md, call->engine, DNNL_MEMORY_NONE));
  *out = call->n_operands++;
  return NULL;
}

typedef struct Arg { int name, operand; } Arg;

// The next primitive of the chain. Steps run one after another, so they share one scratchpad. Takes ownership of `descriptor`.
static Status add_step(Builder *b, dnnl_primitive_desc_t descriptor, const Arg *args, int n_args) {
  MdRef scratch = dnnl_primitive_desc_query_md(descriptor, dnnl_query_scratchpad_md, 0);
  int64_t scratch_bytes = scratch ? (int64_t)dnnl_memory_desc_get_size(scratch) : 0;
  if (scratch_bytes > b->scratch_bytes) b->scratch_bytes = scratch_bytes;
  Status status = NULL;
  if (b->make) {
    Step *step = &b->call->steps[b->call->n_steps++];
    for (int i = 0; i < n_args; i++) step->args[i] = (dnnl_exec_arg_t){args[i].name, b->call->operands[args[i].operand].memory};
    step->n_args = n_args;
    if (scratch_bytes) {
      int operand;
      status = add_operand(b, scratch, AT_SCRATCH, 0, &operand);
      if (!status) step->args[step->n_args++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, b->call->operands[operand].memory};
    }
    dnnl_status_t made = status ? dnnl_success : dnnl_primitive_create(&step->primitive, descriptor);
    if (made) status = library_failure(b->node, "a primitive", made);
  }
  dnnl_primitive_desc_destroy(descriptor);
  return status;
}

Status library_call_run(const LibraryCall *call, const Node *node, void *const pointers[LIBRARY_POINTERS], void *workspace, void *scratch) {
  omp_set_num_threads(1);
  for (int i = 0; i < call->n_operands; i++) {
    const Operand *operand = &call->operands[i];
    void *data = operand->where == AT_POINTER ? pointers[operand->at] : operand->where == AT_SCRATCH ? scratch : (char *)workspace + operand->at;
    LIBRARY(node, "an address", dnnl_memory_set_data_handle(operand->memory, data));
  }
  for (int i = 0; i < call->n_steps; i++)
    LIBRARY(node, "to run", dnnl_primitive_execute(call->steps[i].primitive, call->stream, call->steps[i].n_args, call->steps[i].args));
  LIBRARY(node, "to finish", dnnl_stream_wait(call->stream));
  return NULL;
}

// ---- Matrix products -------------------------------------------------------------------------------------------------------------

typedef struct MatmulMds { Md a, b, c, bias; } MatmulMds;

// Strides of axes of one element mean nothing, and are those of a plain matrix: where they look transposed, the library (2.6) joins the batch to the rows, and
// then refuses to run what it has made.
typedef struct Strides { int64_t a_row, a_col, b_row, b_col; } Strides;
static Strides matmul_strides(const Product *p) {
  Strides s = {.a_col = p->k == 1 ? 1 : p->a_col, .b_col = p->n == 1 ? 1 : p->b_col};
  s.a_row = p->m == 1 ? p->k * s.a_col : p->a_row;
  s.b_row = p->k == 1 ? p->n * s.b_col : p->b_row;
  return s;
}

static dnnl_status_t matmul_layouts(const LibraryMatmul *m, MatmulMds *mds) {
  const Product *p = &m->product;
  const Strides strides = matmul_strides(p);
  int batch = p->n_batch, rank = batch + 2;
  dnnl_dims_t a_dims = {0}, b_dims = {0}, c_dims = {0}, a_strides = {0}, b_strides = {0}, c_strides = {0}, bias_dims = {0}, bias_strides = {0};
  int64_t step = p->m * p->n;
  for (int d = batch - 1; d >= 0; d--) {
    c_dims[d] = p->batch[d];
    a_dims[d] = p->a_batch[d] ? p->batch[d] : 1;
    b_dims[d] = p->b_batch[d] ? p->batch[d] : 1;
    a_strides[d] = p->a_batch[d] ? p->a_batch[d] : p->m * p->k;
    b_strides[d] = p->b_batch[d] ? p->b_batch[d] : p->k * p->n;
    c_strides[d] = step;
    step *= p->batch[d];
    bias_dims[d] = 1;
    bias_strides[d] = p->n;
  }
  a_dims[batch] = c_dims[batch] = p->m;
  a_dims[batch + 1] = b_dims[batch] = p->k;
  b_dims[batch + 1] = c_dims[batch + 1] = bias_dims[batch + 1] = p->n;
  bias_dims[batch] = 1;
  a_strides[batch] = strides.a_row;
  a_strides[batch + 1] = strides.a_col;
  b_strides[batch] = strides.b_row;
  b_strides[batch + 1] = strides.b_col;
  c_strides[batch] = bias_strides[batch] = p->n;
  c_strides[batch + 1] = bias_strides[batch + 1] = 1;
  dnnl_status_t status = md_strides(&mds->a, rank, a_dims, a_strides);
  if (!status) status = md_strides(&mds->b, rank, b_dims, b_strides);
  if (!status) status = md_strides(&mds->c, rank, c_dims, c_strides);
  if (!status && m->bias) status = md_strides(&mds->bias, rank, bias_dims, bias_strides);
  return status;
}

static Status matmul_build(Builder *b, const LibraryMatmul *m, MatmulMds *mds) {
  LIBRARY(b->node, "the layouts of a product", matmul_layouts(m, mds));
  if (m->alpha != 1) {
    dnnl_post_ops_t ops;
    LIBRARY(b->node, "a factor", dnnl_post_ops_create(&ops));
    dnnl_status_t status = post_linear(ops, m->alpha);
    if (!status) status = dnnl_primitive_attr_set_post_ops(b->attr, ops);
    dnnl_post_ops_destroy(ops);
    LIBRARY(b->node, "a factor", status);
  }
  dnnl_primitive_desc_t descriptor;
  LIBRARY(b->node, "this product", matmul_descriptor(&descriptor, b->call->engine, &mds->a, &mds->b, m->bias ? &mds->bias : NULL, &mds->c, b->attr));
  Arg args[4] = {{DNNL_ARG_SRC, 0}, {DNNL_ARG_WEIGHTS, 0}, {DNNL_ARG_DST, 0}, {DNNL_ARG_BIAS, 0}};
  Status status = add_operand(b, md_ref(&mds->a), AT_POINTER, LIBRARY_A, &args[0].operand);
  if (!status) status = add_operand(b, md_ref(&mds->b), AT_POINTER, LIBRARY_B, &args[1].operand);
  if (!status) status = add_operand(b, md_ref(&mds->c), AT_POINTER, LIBRARY_OUT, &args[2].operand);
  if (!status && m->bias) status = add_operand(b, md_ref(&mds->bias), AT_POINTER, LIBRARY_BIAS, &args[3].operand);
  if (status) {
    dnnl_primitive_desc_destroy(descriptor);
    return status;
  }
  return add_step(b, descriptor, args, m->bias ? 4 : 3);
}

Status library_matmul(KernelPrepare *prepare, const LibraryMatmul *matmul, bool make) {
  Builder b;
  MatmulMds mds = {0};
  Status status = builder_begin(&b, prepare, make);
  if (!status) status = matmul_build(&b, matmul, &mds);
  md_finish(&mds.a);
  md_finish(&mds.b);
  md_finish(&mds.c);
  md_finish(&mds.bias);
  return builder_end(&b, prepare, status);
}

// ---- Convolutions ----------------------------------------------------------------------------------------------------------------

// Plain (row-major) strides of `dims`.
static void plain_strides(int rank, const dnnl_dims_t dims, dnnl_dims_t strides) {
  int64_t step = 1;
  for (int d = rank - 1; d >= 0; d--) {
    strides[d] = step;
    step *= dims[d];
  }
}

static dnnl_status_t conv_layouts(const LibraryConv *c, bool plain, ConvShape *s) {
  const Window *w = &c->window;
  int n = w->n_axes, first = WINDOW_AXES - n, grouped = c->groups > 1;
  dnnl_dims_t x = {c->batch, c->in_channels}, y = {c->batch, c->out_channels}, k = {0}, bias = {c->out_channels}, strides = {0};
  if (grouped) k[0] = c->groups;
  k[grouped] = c->out_channels / c->groups;
  k[grouped + 1] = c->in_channels / c->groups;
  for (int d = 0; d < n; d++) {
    x[2 + d] = w->in[first + d];
    y[2 + d] = w->out[first + d];
    k[grouped + 2 + d] = w->kernel[first + d];
    s->strides[d] = w->stride[first + d];
    s->dilates[d] = w->dilation[first + d] - 1;   // the library counts the gaps
    s->pad_begin[d] = w->pad_begin[first + d];
    s->pad_end[d] = w->pad_end[first + d];
  }
  int ranks[] = {n + 2, n + 2 + grouped, 1, n + 2};
  Md *mds[] = {&s->x, &s->w, &s->bias, &s->y};
  const int64_t *dims[] = {x, k, bias, y};
  for (int i = 0; i < 4; i++) {
    plain_strides(ranks[i], dims[i], strides);
    dnnl_status_t status = plain || i == 2 ? md_strides(mds[i], ranks[i], dims[i], strides) : md_any(mds[i], ranks[i], dims[i]);
    if (status) return status;
  }
  return dnnl_success;
}

// An operand of the convolution: the pointer itself where the library takes the plain layout, else a reordered copy in workspace.
// An input is reordered before (here); for the output *out_plain is the operand to reorder to after, or -1.
static Status conv_operand(Builder *b, MdRef wanted, const Md *plain, int pointer, bool output, int *out, int *out_plain) {
  int given;
  TRY(add_operand(b, md_ref(plain), AT_POINTER, pointer, &given));
  *out = given;
  *out_plain = -1;
  if (dnnl_memory_desc_equal(wanted, md_ref(plain))) return NULL;
  TRY(add_operand(b, wanted, AT_WORKSPACE, 0, out));
  if (output) {
    *out_plain = given;
    return NULL;
  }
  dnnl_primitive_desc_t reorder;
  LIBRARY(b->node, "a reorder",
          dnnl_reorder_primitive_desc_create(&reorder, md_ref(plain), b->call->engine, wanted, b->call->engine, b->attr));
  return add_step(b, reorder, (const Arg[]){{DNNL_ARG_FROM, given}, {DNNL_ARG_TO, *out}}, 2);
}

// Which argument of the library and which plain layout belong to A, B and OUT.
typedef struct ConvRole { int arg; dnnl_query_t query; const Md *plain; } ConvRole;

static Status conv_chain(Builder *b, const LibraryConv *c, dnnl_primitive_desc_t descriptor, const ConvShape *plain, Arg args[4], int *n_args,
                         int *to) {
  ConvRole x = {DNNL_ARG_SRC, dnnl_query_src_md, &plain->x}, w = {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, &plain->w};
  ConvRole y = {DNNL_ARG_DST, dnnl_query_dst_md, &plain->y}, dx = {DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, &plain->x};
  ConvRole dw = {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, &plain->w}, dy = {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, &plain->y};
  ConvRole roles[3];
  if (c->kind == CONV_FORWARD) memcpy(roles, (ConvRole[]){x, w, y}, sizeof roles);
  else if (c->kind == CONV_INPUT_GRAD) memcpy(roles, (ConvRole[]){dy, w, dx}, sizeof roles);
  else memcpy(roles, (ConvRole[]){x, dy, dw}, sizeof roles);
  *n_args = 3;
  for (int i = 0; i < 3; i++) {
    MdRef wanted = dnnl_primitive_desc_query_md(descriptor, roles[i].query, 0);
    args[i].name = roles[i].arg;
    TRY(conv_operand(b, wanted, roles[i].plain, LIBRARY_A + i, i == LIBRARY_OUT, &args[i].operand, to));
  }
  if (!c->bias) return NULL;
  args[3].name = DNNL_ARG_BIAS;
  *n_args = 4;
  return add_operand(b, md_ref(&plain->bias), AT_POINTER, LIBRARY_BIAS, &args[3].operand);
}

static Status conv_build(Builder *b, const LibraryConv *c, ConvShape *any, ConvShape *plain) {
  LIBRARY(b->node, "the layouts of a convolution", conv_layouts(c, false, any));
  LIBRARY(b->node, "the layouts of a convolution", conv_layouts(c, true, plain));
  dnnl_primitive_desc_t forward, descriptor;
  LIBRARY(b->node, "this convolution", conv_forward_descriptor(&forward, b->call->engine, any, c->bias, b->attr));
  descriptor = forward;
  if (c->kind != CONV_FORWARD) {
    dnnl_status_t status = conv_grad_descriptor(&descriptor, b->call->engine, any, c->kind == CONV_INPUT_GRAD, forward, b->attr);
    dnnl_primitive_desc_destroy(forward);
    LIBRARY(b->node, "the gradient of this convolution", status);
  }
  Arg args[4];
  int n_args = 0, to = -1;
  Status status = conv_chain(b, c, descriptor, plain, args, &n_args, &to);
  dnnl_primitive_desc_t back = NULL;
  if (!status && to >= 0) {
    static const dnnl_query_t out_of[] = {dnnl_query_dst_md, dnnl_query_diff_src_md, dnnl_query_diff_weights_md};
    MdRef out = dnnl_primitive_desc_query_md(descriptor, out_of[c->kind], 0);
    const Md *plain_out = c->kind == CONV_FORWARD ? &plain->y : c->kind == CONV_INPUT_GRAD ? &plain->x : &plain->w;
    dnnl_status_t made = dnnl_reorder_primitive_desc_create(&back, out, b->call->engine, md_ref(plain_out), b->call->engine, b->attr);
    if (made) status = library_failure(b->node, "a reorder", made);
  }
  if (status) {
    dnnl_primitive_desc_destroy(descriptor);
    return status;
  }
  status = add_step(b, descriptor, args, n_args);
  if (!back) return status;
  if (status) {
    dnnl_primitive_desc_destroy(back);
    return status;
  }
  return add_step(b, back, (const Arg[]){{DNNL_ARG_FROM, args[LIBRARY_OUT].operand}, {DNNL_ARG_TO, to}}, 2);
}

static void shape_finish(ConvShape *s) {
  md_finish(&s->x);
  md_finish(&s->w);
  md_finish(&s->bias);
  md_finish(&s->y);
}

void library_conv_cost(const LibraryConv *c, NodeCost *cost) {
  int64_t places = c->batch * window_elems(c->window.out), window = c->in_channels / c->groups * window_elems(c->window.kernel), out = c->out_channels / c->groups;
  if (c->kind == CONV_FORWARD) cost_add_conv(cost, places, out, window, (double)c->groups);
  else if (c->kind == CONV_INPUT_GRAD) cost_add_conv(cost, places, window, out, (double)c->groups);
  else cost_add_conv(cost, window, out, places, (double)c->groups);
}

Status library_conv(KernelPrepare *prepare, const LibraryConv *conv, bool make) {
  Builder b;
  ConvShape any = {0}, plain = {0};
  Status status = builder_begin(&b, prepare, make);
  if (!status) status = conv_build(&b, conv, &any, &plain);
  shape_finish(&any);
  shape_finish(&plain);
  return builder_end(&b, prepare, status);
}
