"""Movement, indices, recurrent networks, attention, random numbers, control flow, patterns (see graph_operators.py). Not a test itself."""
import numpy as np
from onnx import TensorProto, helper

from graph_builder import DTYPES, Reject
from graph_operators import builder, need, small, some, within


# ---- Movement ----

@builder(weight=3)
def reshape(b):
    v = b.value(min_rank=1)
    kind = b.pick(["Reshape", "Flatten", "Unsqueeze", "Squeeze", "Reshape"])
    if kind == "Flatten":
        return b.op("Flatten", [v], axis=b.integer(0, v.rank))
    if kind == "Unsqueeze":
        need(v.rank < 5)
        axes = [b.integer(-v.rank - 1, v.rank)]
        return b.op(kind, [v, b.ints(*axes)]) if b.opset >= 13 else b.op(kind, [v], axes=axes)
    if kind == "Squeeze":
        axes = [a for a in range(v.rank) if v.shape[a] == 1]
        need(axes)
        return b.op(kind, [v]) if b.chance(0.3) else b.op(kind, [v, b.ints(axes[0])]) if b.opset >= 13 else b.op(kind, [v], axes=axes)
    divisors = [d for d in range(1, v.data.size + 1) if v.data.size % d == 0]
    first = b.pick(divisors)
    shape = b.pick([[-1], [first, -1], [v.data.size // first, first], [0, -1], [1, first, -1]])
    if b.chance(0.3) and v.rank >= 2:           # computed from the shape itself
        whole = b.op("Shape", [v])
        head = b.op("Gather", [whole, b.ints(0)], axis=0)
        return b.op("Reshape", [v, b.op("Concat", [head, b.ints(-1)], axis=0)])
    return b.op("Reshape", [v, b.ints(*shape)])


@builder(weight=2)
def transpose(b):
    v = b.value(min_rank=2)
    return b.op("Transpose", [v]) if b.chance(0.2) else b.op("Transpose", [v], perm=[int(a) for a in b.rng.permutation(v.rank)])


@builder()
def expand(b):
    v = b.value()
    shape = [b.pick([1, d, 2]) if d == 1 else b.pick([1, d]) for d in v.shape]
    lead = [b.pick([1, 2, 3])] if v.rank < 4 and b.chance(0.5) else []
    if b.chance(0.5):
        return b.op("Expand", [v, b.ints(*(lead + shape))]) if lead + shape else v
    need(v.rank)
    return b.op("Tile", [v, b.ints(*[b.pick([1, 1, 2, 3]) for _ in v.shape])])


@builder(weight=2)
def concat(b):
    v = b.value(min_rank=1)
    axis = b.integer(0, v.rank - 1)
    others = [o for o in b.pool if o.is_float and o.rank == v.rank and all(x == y for a, (x, y) in enumerate(zip(o.shape, v.shape)) if a != axis)]
    parts = [v] + [b.pick(others) for _ in range(b.integer(0, 2))]
    if b.chance(0.3):
        shape = list(v.shape)
        shape[axis] = b.pick([0, 1, 2])
        parts.append(b.param(shape, 0.5) if shape[axis] else b.constant(np.zeros(shape, np.float32)))
    return b.op("Concat", parts, axis=axis - v.rank if b.chance(0.3) else axis)


@builder(weight=2)
def split(b):
    v = b.value(min_rank=1, where=lambda o: max(o.shape) >= 2)
    axis = int(np.argmax(v.shape))
    n = v.shape[axis]
    cut = b.integer(1, n - 1)
    if n % 2 == 0 and b.chance(0.4):
        attrs = {"num_outputs": 2} if b.opset >= 18 else {}
        return b.op("Split", [v], n_out=2, axis=axis, **attrs)
    if b.opset >= 13:
        return b.op("Split", [v, b.ints(cut, n - cut)], n_out=2, axis=axis)
    return b.op("Split", [v], n_out=2, axis=axis, split=[cut, n - cut])


@builder(weight=2)
def slice_(b):
    v = b.value(min_rank=1)
    axis = b.integer(0, v.rank - 1)
    n = v.shape[axis]
    start, end = sorted((b.integer(0, n), b.integer(0, n)))
    step = b.pick([1, 1, 2, -1])
    if step < 0:
        start, end = end - 1, start - 1 if start > 0 else -n - 5
    need(step < 0 or end > start or b.chance(0.1))
    inputs = [v, b.ints(start), b.ints(end if b.chance(0.8) or step < 0 else 2**31), b.ints(axis - v.rank if b.chance(0.3) else axis)]
    out = b.op("Slice", inputs + ([b.ints(step)] if step != 1 or b.chance(0.3) else []))
    return out if out.data.size else b.op("Concat", [out, v], axis=axis)


@builder()
def pad(b):
    v = b.value(min_rank=1)
    mode = b.pick(["constant", "constant", "reflect", "edge"] + (["wrap"] if b.opset >= 19 else []))
    low = -1 if mode == "constant" and min(v.shape) > 2 else 0
    pads = [b.integer(low, 0 if mode == "reflect" and v.shape[i % v.rank] < 2 else 1) for i in range(2 * v.rank)]
    fill = [b.scalar(float(b.rng.normal()))] if mode == "constant" and b.chance(0.5) else []
    return b.op("Pad", [v, b.ints(*pads)] + fill, mode=mode)


@builder()
def triangle(b):
    need(b.opset >= 14)
    v = b.value(min_rank=2)
    k = [b.constant(np.array(b.integer(-2, 2), np.int64))] if b.chance(0.5) else []
    return b.op("Trilu", [v] + k, upper=b.integer(0, 1))


@builder()
def space_depth(b):
    if b.chance(0.5):
        v = b.value(rank=4, where=lambda o: o.shape[1] % 4 == 0 and o.data.size)
        return b.op("DepthToSpace", [v], blocksize=2, mode=b.pick(["DCR", "CRD"]))
    v = b.value(rank=4, where=lambda o: o.shape[2] % 2 == 0 and o.shape[3] % 2 == 0 and o.data.size)
    return b.op("SpaceToDepth", [v], blocksize=2)


@builder()
def reverse_sequence(b):
    v = b.value(min_rank=2)
    lengths = b.constant(b.rng.integers(1, v.shape[0] + 1, size=v.shape[1]).astype(np.int64))
    return b.op("ReverseSequence", [v, lengths], time_axis=0, batch_axis=1)


@builder(minimum=18)
def center_crop_pad(b):
    v = b.value(min_rank=1)
    axis = b.integer(0, v.rank - 1)
    return b.op("CenterCropPad", [v, b.ints(max(1, v.shape[axis] + b.pick([-1, 1, 2])))], axes=[axis])


# ---- Indices ----

@builder(weight=3)
def embedding(b):
    tokens = [v for v in b.pool if v.kind == "input" and v.data.dtype.kind == "i"]
    ids = b.pick(tokens)
    table = b.param([b.vocabulary, b.pick([1, 3, 8])], 0.6)
    return b.op("Gather", [table, ids], grad=table.grad)


@builder()
def gather(b):
    v = b.value(min_rank=1)
    axis = b.integer(0, v.rank - 1)
    n = v.shape[axis]
    shape = b.pick([(), (1,), (3,), (2, 2)])
    return b.op("Gather", [v, b.constant(b.rng.integers(-n, n, size=shape).astype(np.int64))], axis=axis)


@builder()
def gather_elements(b):
    v = b.value(min_rank=1, max_rank=4)
    axis = b.integer(0, v.rank - 1)
    shape = list(v.shape)
    shape[axis] = b.pick([1, 2, 4])
    return b.op("GatherElements", [v, b.constant(b.rng.integers(-v.shape[axis], v.shape[axis], size=shape).astype(b.pick([np.int64, np.int32])))], axis=axis)


@builder()
def gather_nd(b):
    v = b.value(min_rank=2, max_rank=4)
    batch_dims = 1 if b.opset >= 12 and v.rank >= 3 and b.chance(0.4) else 0
    width = b.integer(1, v.rank - batch_dims)
    rows = [v.shape[0]] if batch_dims else []
    index = np.stack([b.rng.integers(-v.shape[batch_dims + i], v.shape[batch_dims + i], size=rows + [3]) for i in range(width)], -1).astype(np.int64)
    return b.op("GatherND", [v, b.constant(index)], **({"batch_dims": batch_dims} if batch_dims else {}))


@builder()
def scatter(b):
    v = b.value(min_rank=1, max_rank=4)
    kinds = ["none"] + (["add", "mul"] if b.opset >= 16 else []) + (["max", "min"] if b.opset >= 18 else [])
    kind = b.pick(kinds)
    attrs = {} if kind == "none" else {"reduction": kind}
    if b.chance(0.5):
        axis = b.integer(0, v.rank - 1)
        shape = list(v.shape)
        shape[axis] = b.pick([1, min(2, v.shape[axis])])
        index = b.rng.integers(0, v.shape[axis], size=shape)
        if kind == "none":                       # each place once: which of two wins is left open
            order = np.argsort(b.rng.random(v.shape), axis=axis)
            index = np.take(order, range(shape[axis]), axis=axis)
        return b.op("ScatterElements", [v, b.constant(index.astype(np.int64)), b.param(shape, 0.5)], axis=axis, **attrs)
    rows = b.rng.permutation(v.shape[0])[:b.integer(1, v.shape[0])] if kind == "none" else b.rng.integers(0, v.shape[0], size=3)
    return b.op("ScatterND", [v, b.constant(rows.reshape(-1, 1).astype(np.int64)), b.param([len(rows)] + list(v.shape[1:]), 0.5)], **attrs)


@builder()
def one_hot(b):
    tokens = [v for v in b.pool if v.kind == "input" and v.data.dtype.kind == "i"]
    hot = b.op("OneHot", [b.pick(tokens), b.constant(np.array(b.vocabulary, np.int64)), b.constant(np.array([0.0, 1.0], np.float32))], axis=-1)
    return b.op("MatMul", [hot, b.param([b.vocabulary, 3], 0.5)])


@builder()
def selections(b):
    """Constants that other operators choose by: NonZero, Compress, EyeLike, Unique, Range, ConstantOfShape, Size."""
    v = b.value(min_rank=1)
    how = b.integer(0, 5)
    if how == 0:
        keep = b.rng.random(v.shape[0]) < 0.6
        keep[0] = True
        return b.op("Compress", [v, b.constant(keep)], axis=0)
    if how == 1:
        need(v.rank == 2)
        return b.op("Add", [v, b.op("EyeLike", [v], dtype=TensorProto.FLOAT, grad=False)])
    if how == 2:
        at = b.op("NonZero", [b.constant((b.rng.random(v.shape[0]) < 0.5).astype(np.float32))])
        need(at.data.size)
        return b.op("Gather", [v, b.op("Reshape", [at, b.ints(-1)])], axis=0)
    if how == 3:
        steps = b.op("Range", [b.constant(np.array(x, np.float32)) for x in (0, v.shape[-1], 1)])
        return b.op("Mul", [v, b.op("Mul", [steps, b.scalar(0.1)])])
    if how == 4:
        filled = b.op("ConstantOfShape", [b.op("Shape", [v])], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5]))
        return b.op("Mul", [v, filled])
    count = b.op("Cast", [b.op("Size", [v])], to=TensorProto.FLOAT, grad=False)
    return b.op("Div", [v, count])


@builder()
def integers(b):
    """Integer arithmetic on inputs."""
    ids = b.pick([v for v in b.pool if v.data.dtype == np.int64 and v.kind == "input"])
    kind = b.pick(["Add", "Mul", "Sub", "Mod", "Div", "Max", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Neg", "Abs"])
    need(not kind.startswith("Bitwise") or b.opset >= 18)
    made = b.op(kind, [ids] if kind in ("Neg", "Abs") else [ids, b.ints(b.integer(2, 5))])
    return b.op("Mul", [b.op("Cast", [made], to=TensorProto.FLOAT, grad=False), b.scalar(0.1)])


@builder()
def quantized(b):
    """On what no parameter reaches: nothing flows back through quantization."""
    v = b.value(where=lambda o: not o.grad)
    b.discontinuous = True
    scale, zero = b.scalar(0.05), b.constant(np.array(120, np.uint8))
    how = b.integer(0, 2)
    if how == 0:
        return b.op("DequantizeLinear", [b.op("QuantizeLinear", [v, scale, zero]), scale, zero], grad=False)
    if how == 1:
        q, s, z = b.op("DynamicQuantizeLinear", [v], n_out=3)
        return b.op("DequantizeLinear", [q, s, z], grad=False)
    need(v.rank == 2)
    q = b.op("QuantizeLinear", [v, scale, zero])
    w = b.constant(b.rng.integers(0, 9, size=(v.shape[1], 3)).astype(np.uint8))
    return b.op("Mul", [b.op("Cast", [b.op("MatMulInteger", [q, w, zero])], to=TensorProto.FLOAT, grad=False), b.scalar(0.01)])


# ---- Recurrent, attention ----

@builder(weight=2)
def recurrent(b):
    kind, gates = b.pick([("RNN", 1), ("GRU", 3), ("LSTM", 4)])
    x = b.value(rank=3, where=lambda o: o.shape[0] <= 6 and o.shape[1] <= 8 and o.shape[2] <= 16 and o.data.size)
    hidden = b.pick([1, 2, 5])
    direction = b.pick(["forward", "reverse", "bidirectional"])
    d = 2 if direction == "bidirectional" else 1
    w = b.param([d, gates * hidden, x.shape[2]], 0.4)
    r = b.param([d, gates * hidden, hidden], 0.4)
    bias = b.param([d, 2 * gates * hidden], 0.2) if b.chance(0.6) else None
    lengths = b.constant(b.rng.integers(1, x.shape[0] + 1, size=x.shape[1]).astype(np.int32)) if b.chance(0.3) else None
    h0 = b.param([d, x.shape[1], hidden], 0.3) if b.chance(0.3) else None
    inputs = [small(b, x), w, r, bias, lengths, h0]
    attrs = {"hidden_size": hidden, "direction": direction}
    if kind == "GRU" and b.chance(0.5):
        attrs["linear_before_reset"] = 1
    if kind == "LSTM":
        inputs += [b.param([d, x.shape[1], hidden], 0.3) if b.chance(0.3) else None, b.param([d, 3 * hidden], 0.3) if b.chance(0.3) else None]
    while inputs[-1] is None:
        inputs.pop()
    out = b.op(kind, inputs, n_out=3 if kind == "LSTM" else 2, **attrs)
    y = b.op("Squeeze", [out[0], b.ints(1)]) if b.opset >= 13 and d == 1 else out[0]
    return [y, out[-1]] if b.chance(0.5) else y


@builder(minimum=23, weight=3)
def attention(b):
    v = b.value(rank=3, where=lambda o: o.shape[1] <= 8 and o.shape[2] <= 32 and o.data.size)
    heads, kv_heads = b.pick([(1, 1), (2, 2), (2, 1), (4, 2)])
    size = b.pick([2, 4])
    q = b.op("MatMul", [v, b.param([v.shape[2], heads * size])])
    k = b.op("MatMul", [v, b.param([v.shape[2], kv_heads * size])])
    x = b.op("MatMul", [v, b.param([v.shape[2], kv_heads * size])])
    attrs = {"q_num_heads": heads, "kv_num_heads": kv_heads}
    if b.chance(0.5):
        attrs["is_causal"] = 1
    if b.chance(0.3):
        attrs["scale"] = 0.5
    if b.chance(0.2):
        attrs["softcap"] = 2.0
    mask = []
    if b.chance(0.4):
        t = v.shape[1]
        mask = [b.param([t, t], 0.5) if b.chance(0.5) else b.constant(np.tril(np.ones((t, t), bool)))]
    return b.op("Attention", [q, k, x] + mask, **attrs)


@builder(weight=2)
def attention_parts(b):
    """As exporters write it."""
    v = b.value(rank=3, where=lambda o: o.shape[1] <= 8 and o.shape[2] <= 32 and o.data.size)
    t, width = v.shape[1], 4
    q, k, x = (b.op("MatMul", [v, b.param([v.shape[2], width])]) for _ in range(3))
    scores = b.op("Mul", [b.op("MatMul", [q, b.op("Transpose", [k], perm=[0, 2, 1])]), b.scalar(0.5)])
    if b.chance(0.5):
        keep = b.constant(np.tril(np.ones((t, t), bool)), "mask")
        scores = b.op("Where", [keep, scores, b.scalar(-1e4)])
    elif b.chance(0.5):
        scores = b.op("Add", [scores, b.constant(np.triu(np.full((t, t), -1e4, np.float32), 1), "mask")])
    scores = b.op("Softmax", [scores], axis=-1 if b.opset >= 13 else 2)
    return b.op("MatMul", [scores, x])


@builder(minimum=23)
def rotary(b):
    v = b.value(rank=3, where=lambda o: o.shape[2] % 4 == 0 and o.shape[2] <= 16 and o.shape[1] <= 8 and o.data.size)
    t, half = v.shape[1], v.shape[2] // 4
    angles = np.outer(np.arange(t), 1.0 / (10.0 ** np.arange(half)))
    cos, sin = (b.constant(np.broadcast_to(f(angles), (v.shape[0], t, half)).astype(np.float32)) for f in (np.cos, np.sin))
    return b.op("RotaryEmbedding", [v, cos, sin], num_heads=2, interleaved=b.integer(0, 1))


# ---- Dropout, random numbers ----

@builder()
def dropout(b):
    b.random = True
    v = b.value()
    if b.opset < 12:
        return b.op("Dropout", [v], ratio=0.3)               # inference: the identity
    return b.op("Dropout", [v, b.scalar(b.pick([0.0, 0.3, 0.5])), b.constant(np.array(True))], computed=[v.data], seed=3)


@builder()
def noise(b):
    b.random = True
    v = b.value()
    kind = b.pick(["RandomNormalLike", "RandomUniformLike", "Bernoulli", "RandomNormal", "RandomUniform"])
    if kind == "Bernoulli":
        need(b.opset >= 15)
        made = b.op(kind, [b.op("Sigmoid", [v])], computed=[np.ones(v.shape, np.float32)], grad=False)
    elif kind.endswith("Like"):
        made = b.op(kind, [v], computed=[np.ones(v.shape, np.float32)], grad=False)
    else:
        need(v.rank)
        made = b.op(kind, [], computed=[np.ones(v.shape, np.float32)], grad=False, shape=list(v.shape))
    return b.op("Add", [v, b.op("Mul", [made, b.scalar(0.1)])])


# ---- Control flow, functions ----

def subgraph(b, name, nodes, inputs, outputs):
    infos = lambda vs: [helper.make_tensor_value_info(n, DTYPES[d.dtype], list(d.shape)) for n, d in vs]
    return helper.make_graph(nodes, name, infos(inputs), infos(outputs))


@builder()
def conditional(b):
    v = b.value()
    w = b.param(v.shape[-1:] if v.rank else [], 0.5)
    y, z = b.name("then_y"), b.name("else_y")
    then_branch = subgraph(b, "then", [helper.make_node("Mul", [v.name, w.name], [y], name=b.name("n_then"))], [], [(y, v.data)])
    else_branch = subgraph(b, "else", [helper.make_node(b.pick(["Add", "Sub"]), [v.name, w.name], [z], name=b.name("n_else"))], [], [(z, v.data)])
    if b.chance(0.5):
        condition = b.constant(np.array(b.chance(0.5)))
    else:
        b.discontinuous = True
        total = b.op("ReduceSum", [v], keepdims=0)
        condition = b.op("Greater", [total, b.scalar(0.37)])        # sums of normalised values are 0 up to rounding
    return b.op("If", [condition], captured=[v, w], grad=v.grad or w.grad, then_branch=then_branch, else_branch=else_branch)


@builder()
def loop(b):
    v = b.value()
    w = b.param(v.shape[-1:] if v.rank else [], 0.3)
    n = {k: b.name(k) for k in ("i", "keep", "h", "keep_out", "h_out", "scan", "t")}
    nodes = [helper.make_node("Identity", [n["keep"]], [n["keep_out"]], name=b.name("n_keep")),
             helper.make_node("Mul", [n["h"], w.name], [n["t"]], name=b.name("n_mul")),
             helper.make_node(b.pick(["Tanh", "Sin"]), [n["t"]], [n["h_out"]], name=b.name("n_act")),
             helper.make_node("Neg", [n["h_out"]], [n["scan"]], name=b.name("n_neg"))]
    flag = np.array(True)
    body = subgraph(b, "body", nodes, [(n["i"], np.array(0)), (n["keep"], flag), (n["h"], v.data)], [(n["keep_out"], flag), (n["h_out"], v.data), (n["scan"], v.data)])
    trips = b.constant(np.array(b.integer(1, 3), np.int64))
    last, stack = b.op("Loop", [trips, b.constant(flag), v], n_out=2, captured=[w], body=body, grad=v.grad or w.grad)
    return [last, stack]


@builder()
def scan(b):
    v = b.value(min_rank=1, where=lambda o: 1 <= o.shape[0] <= 5)
    start = b.param(v.shape[1:], 0.3)
    n = {k: b.name(k) for k in ("h", "x", "h_out", "y")}
    nodes = [helper.make_node("Add", [n["h"], n["x"]], [n["h_out"]], name=b.name("n_add")),
             helper.make_node("Tanh", [n["h_out"]], [n["y"]], name=b.name("n_tanh"))]
    row = v.data[0]
    body = subgraph(b, "step", nodes, [(n["h"], row), (n["x"], row)], [(n["h_out"], row), (n["y"], row)])
    last, rows = b.op("Scan", [start, v], n_out=2, body=body, num_scan_inputs=1, grad=v.grad or start.grad)
    return [last, rows]


@builder()
def function(b):
    name = b.name("f")
    need(b.opset >= 15)
    nodes = [helper.make_node("Mul", ["a", "c"], ["p"], name="p"), helper.make_node("Tanh", ["p"], ["q"], name="q"), helper.make_node("Add", ["q", "a"], ["r"], name="r")]
    b.functions.append(helper.make_function("local", name, ["a", "c"], ["r"], nodes, [helper.make_opsetid("", b.opset)]))
    v = b.value()
    w = b.param(v.shape[-1:] if v.rank else [], 0.5)
    return b.op(name, [v, w], domain="local")


# ---- Patterns that passes look for ----

@builder(weight=2)
def gelu_parts(b):
    v = small(b, b.value(), 4.0)
    if b.chance(0.5):
        inner = b.op("Add", [b.op("Erf", [b.op("Div", [v, b.scalar(np.sqrt(2))])]), b.scalar(1.0)])
        if b.chance(0.5):
            return b.op("Mul", [b.op("Mul", [v, inner]), b.scalar(0.5)])
        return b.op("Mul", [b.op("Mul", [v, b.scalar(0.5)]), inner])
    cube = b.op("Mul", [b.op("Pow", [v, b.scalar(3.0)]), b.scalar(0.044715)])
    inner = b.op("Tanh", [b.op("Mul", [b.op("Add", [v, cube]), b.scalar(np.sqrt(2 / np.pi))])])
    return b.op("Mul", [b.op("Mul", [v, b.scalar(0.5)]), b.op("Add", [inner, b.scalar(1.0)])])


@builder(weight=2)
def repeated(b):
    """The same twice, for merge_common; and constants to fold."""
    v = b.value()
    kind = b.pick(["Tanh", "Sigmoid", "Softplus"])
    one, two = b.op(kind, [v]), b.op(kind, [v])
    folded = b.op("Exp", [b.op("Neg", [b.scalar(0.7)])])
    return b.op("Mul", [b.op("Add", [one, two]), folded])


@builder()
def dead(b):
    """Nobody uses it."""
    v = b.value()
    b.op("Cos", [b.op("Exp", [small(b, v)])])
    return v


@builder(weight=2)
def residual(b):
    v = b.value(min_rank=2, where=lambda o: o.shape[-1] <= 32)
    h = b.op(b.pick(["Relu", "Tanh", "Sigmoid"]), [b.op("MatMul", [v, b.param([v.shape[-1], 8])])])
    return b.op("Add", [v, b.op("MatMul", [h, b.param([8, v.shape[-1]])])])
