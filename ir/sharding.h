// Multi-device annotations of ONNX IR 11: which devices a model may be spread over, how tensors of a node are sharded across them, which pipeline
// stage it runs in. Tessera keeps and checks them; its own plans decide placement otherwise (graph.h: Placement).
// Source: onnx.proto of the pinned package (DeviceConfigurationProto, NodeDeviceConfigurationProto, ShardingSpecProto), docs/proposals there.
//
// Ownership: everything in the graph's arena; read-only once it hangs on a graph.
#ifndef TESSERA_SHARDING_H
#define TESSERA_SHARDING_H

#include "arena.h"
#include "status.h"

typedef struct Graph Graph;
typedef struct Node Node;
typedef struct Value Value;

#define SHARDING_ABSENT INT64_MIN              // a number that the file does not give

typedef struct DeviceConfiguration {
  const char *name;
  int64_t n_devices;
  const char *const *names;                    // of the devices
  size_t n_names;
} DeviceConfiguration;

typedef struct ShardPart { int64_t size; const char *symbol; int64_t shards; } ShardPart;       // `size` or `symbol` elements in `shards` parts
typedef struct ShardedAxis { int64_t axis; const ShardPart *parts; size_t n_parts; } ShardedAxis;    // several parts: fused axes, outermost first
typedef struct DeviceGroup { int64_t key; const int64_t *devices; size_t n_devices; } DeviceGroup;   // devices that hold the same shard

typedef struct ShardingSpec {
  const char *tensor;                          // its name in the file
  int slot;                                    // what it is of the node, also when values are renamed: input k is k, output k is ~k
  const int64_t *devices;                      // one per shard, row-major over the axes; a key of a group stands for all its devices
  size_t n_devices;
  const DeviceGroup *groups;
  size_t n_groups;
  const ShardedAxis *axes;
  size_t n_axes;
} ShardingSpec;
enum { SHARDING_NO_SLOT = INT32_MAX };         // the node has no such tensor

typedef struct NodeSharding {                  // of one node in one configuration
  const char *configuration;
  int64_t stage;                               // SHARDING_ABSENT: none
  const ShardingSpec *specs;
  size_t n_specs;
} NodeSharding;

// The tensor of a spec; NULL where a pass has taken it from the node.
const Value *sharding_tensor(const Node *node, const ShardingSpec *spec);
// As it is called now. A tensor that the node never had, a defect that check_sharding names, keeps its name in the file; NULL: a pass has taken it.
const char *sharding_tensor_name(const Node *node, const ShardingSpec *spec);

// As JSON on one line, with the names of the protobuf fields; NULL where there is nothing to say.
const char *sharding_configurations_text(const Graph *graph, Arena *arena);
const char *sharding_node_text(const Node *node, Arena *arena);
// From that JSON, onto graph or node. MALFORMED where it is not of that form; call under the guard of the graph's arena.
MUST_USE Status sharding_read_configurations(Graph *graph, const char *text);
MUST_USE Status sharding_read_node(Graph *graph, Node *node, const char *text);

// One line for people: "tp: 'w' axis 1 in 4 over devices 0,1,2,3; stage 2".
const char *sharding_describe(const Node *node, const NodeSharding *sharding, Arena *arena);

// Reports every defect with its code (docs/models.md lists them). Values without type: what needs their shape is not checked. `node` may be NULL.
typedef void (*ShardingReport)(void *self, const Node *node, const char *code, const char *what);
void sharding_check_configurations(const Graph *graph, Arena *arena, ShardingReport report, void *self);
void sharding_check_node(const Graph *graph, const Node *node, Arena *arena, ShardingReport report, void *self);

#endif
