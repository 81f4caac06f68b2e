"""Builds ONNX training graphs node by node. Each node is computed by onnxruntime as it is added, so that shapes, types and ranges of values are known, and
what onnxruntime refuses, what is not finite or grows out of hand is never part of a graph. Not a test itself.
"""
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

LARGEST = 50.0          # magnitude of a value that others may be computed from
ELEMENTS_MAX = 6000     # of an activation
DTYPES = {np.dtype("float32"): TensorProto.FLOAT, np.dtype("int64"): TensorProto.INT64, np.dtype("bool"): TensorProto.BOOL,
          np.dtype("int32"): TensorProto.INT32, np.dtype("uint8"): TensorProto.UINT8, np.dtype("int8"): TensorProto.INT8,
          np.dtype("float64"): TensorProto.DOUBLE, np.dtype("float16"): TensorProto.FLOAT16}


class Reject(Exception):
    """What was tried gives no valid node here; nothing was added."""


class Value:
    """A tensor of the graph: `data` are its elements for the first batch; `grad`: a trainable parameter reaches it through slots with a gradient."""

    def __init__(self, name, data, grad=False, kind="activation"):
        self.name, self.data, self.grad, self.kind = name, data, grad, kind

    shape = property(lambda self: self.data.shape)
    rank = property(lambda self: self.data.ndim)
    is_float = property(lambda self: self.data.dtype == np.float32)


class Builder:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice([11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 23, 23, 24, 26]))
        self.batch = int(self.rng.choice([1, 2, 3, 4, 5, 7]))
        self.nodes, self.initializers, self.inputs, self.pool = [], {}, [], []
        self.used = []                         # operators, in order
        self.names = {}
        self.draws = {}                        # input -> function of (rng) that draws a batch
        self.trainable, self.frozen = [], []
        self.random = self.discontinuous = self.without_ort = False
        self.symbolic = self.rng.random() < 0.3
        self.functions = []

    # ---- choices ----

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, items):
        items = list(items)
        if not items:
            raise Reject("nothing to pick from")
        return items[int(self.rng.integers(len(items)))]

    def integer(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def name(self, hint):
        self.names[hint] = self.names.get(hint, 0) + 1
        return "%s_%d" % (hint, self.names[hint])

    def value(self, rank=None, min_rank=0, max_rank=8, where=None):
        """A float activation of the pool, late ones more often."""
        fits = [v for v in self.pool if v.is_float and v.data.size and min_rank <= v.rank <= max_rank and (rank is None or v.rank == rank)
                and (where is None or where(v))]
        if not fits:
            raise Reject("no value fits")
        return fits[max(int(self.rng.integers(len(fits))), int(self.rng.integers(len(fits))))]

    # ---- leaves ----

    def constant(self, data, hint="c"):
        data = np.array(data, order="C")
        name = self.name(hint)
        self.initializers[name] = data
        return Value(name, data, kind="constant")

    def ints(self, *items):
        return self.constant(np.array(items, np.int64), "k")

    def scalar(self, x):
        return self.constant(np.array(x, np.float32), "s")

    def param(self, shape, scale=None, offset=0.0, never_shared=False):
        """A parameter: trainable, frozen now and then, or one that is used already."""
        shape = tuple(int(d) for d in shape)
        same = [p for p in self.trainable if p.shape == shape and abs(float(p.data.mean() if p.data.size else 0) - offset) < 0.5]
        if same and not never_shared and self.chance(0.25):
            return self.pick(same)
        fan = shape[-1] if shape else 1
        scale = scale if scale is not None else 1 / np.sqrt(max(fan, 1))
        data = (offset + scale * self.rng.standard_normal(shape)).astype(np.float32)
        frozen = self.chance(0.12)
        name = self.name("f" if frozen else "w")
        self.initializers[name] = data
        v = Value(name, data, grad=not frozen, kind="parameter")
        (self.frozen if frozen else self.trainable).append(v)
        return v

    def input(self, shape, draw, hint="x"):
        """`draw(rng, shape)`: elements of one batch."""
        name = self.name(hint)
        self.draws[name] = lambda rng: draw(rng, shape)
        v = Value(name, self.draws[name](self.rng), kind="input")
        self.inputs.append(v)
        self.pool.append(v)
        return v

    # ---- nodes ----

    def op(self, op_type, inputs, n_out=1, grad=None, captured=(), computed=None, domain="", **attrs):
        """Adds a node and returns its outputs (one: itself). `grad`: do its float outputs carry a gradient (default: when an input does)? `computed`: its outputs
        where onnxruntime cannot compute them."""
        names = [self.name(op_type.lower()) for _ in range(n_out)]
        node = helper.make_node(op_type, [v.name if v is not None else "" for v in inputs], names, name=self.name("n_" + op_type), domain=domain, **attrs)
        feeds = [v for v in list(inputs) + list(captured) if v is not None]
        results = computed if computed is not None else self.compute(node, feeds)
        self.without_ort |= computed is not None
        for r in results:
            if r.size > ELEMENTS_MAX:
                raise Reject("%s gives %d elements" % (op_type, r.size))
            if r.dtype == np.float32 and (not np.isfinite(r).all() or (r.size and np.abs(r).max() > 1e4)):
                raise Reject("%s leaves the range" % op_type)
        self.nodes.append(node)
        self.used.append((domain + "." if domain else "") + op_type)
        carries = any(v.grad for v in feeds) if grad is None else grad
        out = [Value(n, r, grad=carries and r.dtype == np.float32) for n, r in zip(names, results)]
        return out[0] if n_out == 1 else out

    def compute(self, node, feeds):
        seen, unique = set(), []
        for v in feeds:
            if v.name not in seen:
                seen.add(v.name)
                unique.append(v)
        declared = [helper.make_tensor_value_info(v.name, DTYPES[v.data.dtype], list(v.shape)) for v in unique if v.name not in self.initializers]
        constants = [numpy_helper.from_array(self.initializers[v.name], v.name) for v in unique if v.name in self.initializers]
        graph = helper.make_graph([node], "g", declared, [helper.make_empty_tensor_value_info(n) for n in node.output], constants)
        model = self.model(graph)
        return run_onnx(model, {v.name: v.data for v in unique if v.name not in self.initializers})

    def model(self, graph):
        imports = [helper.make_opsetid("", self.opset)] + ([helper.make_opsetid("local", 1)] if self.functions else [])
        return helper.make_model(graph, opset_imports=imports, ir_version=min(10, 6 if self.opset < 12 else 8 if self.opset < 19 else 10), functions=self.functions)

    def keep(self, v):
        """Puts a result into the pool, tamed where it has grown."""
        if v.is_float and v.data.size and float(np.abs(v.data).max()) > LARGEST:
            most = float(np.abs(v.data).max())
            v = self.op("Tanh", [v]) if self.chance(0.3) else self.op("Mul", [v, self.scalar(4 / most)])
        self.pool.append(v)
        return v

    def mark(self):
        return len(self.nodes), len(self.used), len(self.pool), len(self.trainable), len(self.frozen), len(self.inputs), len(self.functions), set(self.initializers)

    def undo(self, mark):
        nodes, used, pool, trainable, frozen, inputs, functions, initializers = mark
        del self.nodes[nodes:], self.used[used:], self.pool[pool:], self.trainable[trainable:], self.frozen[frozen:], self.functions[functions:]
        for v in self.inputs[inputs:]:
            del self.draws[v.name]
        del self.inputs[inputs:]
        for name in set(self.initializers) - initializers:
            del self.initializers[name]

    def grow(self, builder):
        """One step: everything that builder(self) adds, or nothing."""
        mark = self.mark()
        flags = self.random, self.discontinuous, self.without_ort
        try:
            made = builder(self)
            for v in made if isinstance(made, (list, tuple)) else [made]:
                self.keep(v)
            return True
        except Reject:
            self.undo(mark)
            self.random, self.discontinuous, self.without_ort = flags
            return False

    def finish(self, loss, outputs):
        n = "N" if self.symbolic else self.batch
        declared = [helper.make_tensor_value_info(v.name, DTYPES[v.data.dtype], [n] + list(v.shape[1:]) if v.rank and v.shape[0] == self.batch else list(v.shape))
                    for v in self.inputs]
        outs = [helper.make_tensor_value_info(v.name, DTYPES[v.data.dtype], list(v.shape)) for v in [loss] + outputs]
        graph = helper.make_graph(self.nodes, "random", declared, outs, [numpy_helper.from_array(a, k) for k, a in self.initializers.items()])
        return self.model(graph)


def run_onnx(model, feeds, outputs=None):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(r) for r in session.run(outputs, feeds)]
    except Exception as e:
        raise Reject("onnxruntime: %s" % str(e)[:200]) from None
