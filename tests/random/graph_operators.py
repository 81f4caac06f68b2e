"""What a random graph is made of: functions (Builder) -> value(s), each of which adds a node or a few, or raises Reject. BUILDERS lists them. Not a test itself."""
import numpy as np
from onnx import TensorProto, helper

from graph_builder import DTYPES, Reject

BUILDERS = []


def builder(minimum=1, weight=1):
    def add(function):
        BUILDERS.extend([(function, minimum)] * weight)
        return function
    return add


def need(condition, why="does not fit"):
    if not condition:
        raise Reject(why)


def some(v):
    """A window wider than its input gives nothing in onnxruntime; Tessera, like PyTorch, refuses it."""
    need(v.data.size)
    return v


# ---- Values within a range ----

def positive(b, v):
    how = b.integer(0, 4)
    if how == 0:
        return b.op("Add", [b.op("Softplus", [v]), b.scalar(0.1)])
    if how == 1:
        return b.op("Exp", [b.op("Tanh", [v])])
    if how == 2:
        return b.op("Add", [b.op("Abs", [v]), b.scalar(0.5)])
    if how == 3:
        return b.op("Add", [b.op("Sigmoid", [v]), b.scalar(0.1)])
    return b.op("Add", [b.op("Mul", [v, v]), b.scalar(0.3)])


def within(b, v, limit):
    return b.op("Mul", [b.op(b.pick(["Tanh", "Sin"]), [v]), b.scalar(limit)])


def small(b, v, limit=3.0):
    """The value itself where it is small, else squashed."""
    return v if v.data.size and float(np.abs(v.data).max()) <= limit else within(b, v, limit)


def axes_of(b, v, least=1):
    need(v.rank >= least)
    n = b.integer(least, v.rank)
    axes = [int(a) for a in b.rng.permutation(v.rank)[:n]]
    return [a - v.rank if b.chance(0.3) else a for a in sorted(axes)]


# ---- One operand ----

UNARY_ANY = ["Neg", "Tanh", "Erf", "Sigmoid", "Relu", "Abs", "Sin", "Cos", "Atan", "Asinh", "Identity", "Softplus", "Softsign", "LeakyRelu", "Elu", "Selu",
             "HardSigmoid", "ThresholdedRelu", "Shrink"]


@builder(weight=4)
def unary(b):
    kind, attrs = b.pick(UNARY_ANY), {}
    if b.chance(0.5):
        if kind in ("LeakyRelu", "Elu", "ThresholdedRelu"):
            attrs = {"alpha": float(b.rng.uniform(0.05, 1.5))}
        elif kind == "HardSigmoid":
            attrs = {"alpha": float(b.rng.uniform(0.1, 0.5)), "beta": float(b.rng.uniform(0.2, 0.8))}
        elif kind == "Selu":
            attrs = {"alpha": float(b.rng.uniform(0.5, 2)), "gamma": float(b.rng.uniform(0.5, 2))}
        elif kind == "Shrink":
            attrs = {"lambd": float(b.rng.uniform(0.1, 1)), "bias": float(b.rng.uniform(0, 0.5))}
    return b.op(kind, [b.value()], **attrs)


@builder(weight=2)
def unary_new(b):
    kind, since = b.pick([("Celu", 12), ("HardSwish", 14), ("Mish", 18), ("Gelu", 20), ("Gelu", 20)])
    need(b.opset >= since)
    attrs = {"approximate": b.pick(["none", "tanh"])} if kind == "Gelu" else {"alpha": float(b.rng.uniform(0.5, 2))} if kind == "Celu" else {}
    return b.op(kind, [b.value()], **attrs)


@builder(weight=2)
def unary_limited(b):
    kind = b.pick(["Log", "Sqrt", "Reciprocal", "Acosh", "Exp", "Sinh", "Cosh", "Tan", "Asin", "Acos", "Atanh"])
    v = b.value()
    if kind in ("Log", "Sqrt", "Reciprocal"):
        return b.op(kind, [positive(b, v)])
    if kind == "Acosh":
        return b.op(kind, [b.op("Add", [positive(b, v), b.scalar(1.0)])])
    return b.op(kind, [small(b, v, 2.0) if kind in ("Exp", "Sinh", "Cosh") else within(b, v, 0.9)])


@builder()
def rounding(b):
    b.discontinuous = True
    kind = b.pick(["Floor", "Ceil", "Round", "Sign"])
    v = b.value()
    return b.op("Add", [b.op(kind, [v], grad=False), v]) if b.chance(0.6) else b.op(kind, [v], grad=False)


@builder()
def clip(b):
    v = b.value()
    low, high = sorted(float(x) for x in b.rng.normal(size=2))
    inputs = [v, b.scalar(low), b.scalar(high)]
    how = b.integer(0, 3)
    return b.op("Clip", inputs[:2] if how == 0 else [v, None, inputs[2]] if how == 1 else inputs)


@builder()
def prelu(b):
    v = b.value(min_rank=1)
    shape = v.shape[-b.integer(1, v.rank):]
    return b.op("PRelu", [v, b.param([d if b.chance(0.6) else 1 for d in shape], 0.3)])


@builder()
def cast(b):
    v, kind = b.value(), b.integer(0, 3)
    if kind == 0:
        return b.op("Cast", [b.op("Cast", [v], to=TensorProto.DOUBLE, grad=v.grad)], to=TensorProto.FLOAT, grad=v.grad)
    if kind == 1:
        b.discontinuous = True
        whole = b.op("Cast", [small(b, v, 100)], to=b.pick([TensorProto.INT32, TensorProto.INT64]))
        return b.op("Mul", [b.op("Cast", [whole], to=TensorProto.FLOAT, grad=False), b.scalar(0.25)])
    if kind == 2:
        need(b.opset >= 15)
        return b.op("CastLike", [v, b.scalar(1.0)])
    b.discontinuous = True
    mask = b.op("Greater", [v, b.scalar(0.0)])
    return b.op("Mul", [b.op("Cast", [mask], to=TensorProto.FLOAT, grad=False), v])


# ---- Two and more operands, broadcast ----

def partner(b, v):
    """Something that broadcasts against v: of the pool, a parameter, an input."""
    how = b.integer(0, 3)
    if how == 0:
        return b.value(where=lambda o: broadcasts(o.shape, v.shape))
    shape = v.shape[b.integer(0, v.rank):]
    shape = [1 if b.chance(0.25) else d for d in shape]
    if how == 1 or (how == 2 and not shape):
        return b.param(shape, 0.5)
    if how == 2:
        return b.constant(b.rng.normal(size=shape).astype(np.float32))
    return b.op("Mul", [v, b.param([], 0.5)])


def broadcasts(a, c):
    try:
        return np.prod(np.broadcast_shapes(a, c)) <= 4000
    except ValueError:
        return False


@builder(weight=5)
def binary(b):
    v = b.value()
    o = partner(b, v)
    kind = b.pick(["Add", "Sub", "Mul", "Add", "Mul", "Div"])
    if kind == "Div":
        o = positive(b, o)
    pair = [v, o] if kind == "Div" or b.chance(0.5) else [o, v]
    return b.op(kind, pair)


@builder()
def variadic(b):
    v = b.value()
    operands = [v] + [partner(b, v) for _ in range(b.integer(0, 3))]
    return b.op(b.pick(["Min", "Max", "Sum", "Mean"]), [operands[int(i)] for i in b.rng.permutation(len(operands))])


@builder()
def power(b):
    v = b.value()
    how = b.integer(0, 3)
    if how == 0:
        return b.op("Pow", [small(b, v), b.scalar(float(b.pick([2.0, 3.0, 1.0, 0.0])))])
    if how == 1:
        return b.op("Pow", [small(b, v), b.constant(np.array(b.pick([2, 3]), b.pick([np.int64, np.int32, np.float32])))])
    base = positive(b, small(b, v))
    return b.op("Pow", [base, b.scalar(float(b.rng.uniform(-1.5, 1.5))) if how == 2 else within(b, partner(b, v), 1.0)])


@builder()
def modulo(b):
    b.discontinuous = True
    v = b.value()
    return b.op("Mod", [v, positive(b, b.param(v.shape[-1:], 0.5))], fmod=1)


@builder(weight=2)
def where(b):
    b.discontinuous = True
    v = b.value()
    o = partner(b, v)
    kinds = ["Greater", "Less"] + (["GreaterOrEqual", "LessOrEqual"] if b.opset >= 12 else [])
    mask = b.op(b.pick(kinds), [o, b.scalar(float(b.rng.normal()))])
    if b.chance(0.3):
        mask = b.op(b.pick(["And", "Or", "Xor"]), [mask, b.op("Less", [v, b.scalar(0.1)])])
    if b.chance(0.3):
        mask = b.op("Not", [mask])
    return b.op("Where", [mask, v, partner(b, v)])


@builder()
def special_masks(b):
    v = b.value()
    odd = b.op(b.pick(["IsNaN", "IsInf"]), [v])
    return b.op("Where", [odd, b.scalar(0.0), v])


# ---- Products ----

@builder(weight=4)
def matmul(b):
    how = b.integer(0, 4)
    if how <= 1:
        v = b.value(min_rank=1)
        need(v.shape[-1] <= 64)
        out = b.pick([1, 2, 3, 5, 8, 13, 16])
        return b.op("MatMul", [v, b.param([v.shape[-1]] + ([out] if b.chance(0.9) else []))])
    if how == 2:
        v = b.value(min_rank=1)
        n = b.pick([1, 3, 7])
        return b.op("MatMul", [b.param(([n] if b.chance(0.8) or v.rank == 1 else []) + [v.shape[-2] if v.rank > 1 else v.shape[0]]), v])
    v = b.value(min_rank=2, max_rank=4)
    axes = list(range(v.rank))
    axes[-1], axes[-2] = axes[-2], axes[-1]
    t = b.op("Transpose", [v], perm=axes)
    product = b.op("MatMul", [v, t] if how == 3 else [t, v])
    return b.op("Mul", [product, b.scalar(1 / max(v.shape[-1 if how == 3 else -2], 1))])


@builder(weight=3)
def gemm(b):
    v = b.value(rank=2)
    attrs = {k: 1 for k in ("transA", "transB") if b.chance(0.5)}
    if b.chance(0.4):
        attrs["alpha"] = float(b.rng.uniform(0.3, 1.5))
    if b.chance(0.4):
        attrs["beta"] = float(b.rng.uniform(0.3, 1.5))
    m, k = v.shape[::-1] if attrs.get("transA") else v.shape
    need(k <= 64)
    n = b.pick([1, 2, 5, 8, 11])
    w = b.param([n, k] if attrs.get("transB") else [k, n])
    shape = b.pick([None, [n], [1, n], [m, 1], [1], [], [m, n]])
    return b.op("Gemm", [v, w] + ([b.param(shape, 0.3)] if shape is not None else []), **attrs)


@builder(minimum=12)
def einsum(b):
    v = b.value(min_rank=2, max_rank=3)
    s = v.shape
    if v.rank == 2:
        how = b.pick(["ij,jk->ik", "ij,kj->ik", "ij,ij->i", "ij->j", "ij->ji", "ij,j->i", "ij,ik->jk", "i j -> ij", "...j,jk->...k", "ij,jk"])
        second = {"ij,jk->ik": [s[1], 4], "ij,kj->ik": [3, s[1]], "ij,ij->i": s, "ij,j->i": [s[1]], "ij,ik->jk": [s[0], 3], "...j,jk->...k": [s[1], 2],
                  "ij,jk": [s[1], 3]}.get(how)
    else:
        how = b.pick(["bij,jk->bik", "bij,bjk->bik", "bij,bkj->bik", "bij->bji", "bij->b", "bij,i->bj", "bij,bij->b", "bij,ijk->bk", "bij,kl,j->bkil"])
        second = {"bij,jk->bik": [s[2], 3], "bij,bjk->bik": [s[0], s[2], 2], "bij,bkj->bik": [s[0], 2, s[2]], "bij,i->bj": [s[1]], "bij,bij->b": s,
                  "bij,ijk->bk": [s[1], s[2], 3]}.get(how)
        if how == "bij,kl,j->bkil":
            return b.op("Einsum", [v, b.param([2, 3]), b.param([s[2]])], equation=how)
    return b.op("Einsum", [v] + ([b.param(second, 0.4)] if second is not None else []), equation=how)


@builder()
def det(b):
    v = b.value(min_rank=2, where=lambda o: o.shape[-1] == o.shape[-2] and o.shape[-1] <= 4)
    return b.op("Det", [small(b, v)])


# ---- Windows ----

def image(b):
    """[N, C, H...] with some size: of the pool, or made by reshaping."""
    def fits(o):
        return all(d >= 1 for d in o.shape) and o.shape[-1] >= 2
    if b.chance(0.6):
        try:
            return b.value(min_rank=3, max_rank=4, where=fits)
        except Reject:
            pass
    v = b.value(min_rank=1, where=lambda o: o.data.size % 4 == 0 and o.data.size >= 8)
    n = v.data.size
    channels = b.pick([c for c in (1, 2, 4) if n % (4 * c) == 0])
    batch = b.pick([k for k in (1, 2, 3, b.batch) if n // (4 * channels) % k == 0])
    shape = b.pick([[batch, channels, 4, -1], [batch, channels, 2, -1], [batch, channels, -1]])
    return b.op("Reshape", [v, b.ints(*shape)])


def window_attrs(b, spatial, dilated=True, strided=True):
    rank = len(spatial)
    kernel = [b.integer(1, min(3, max(s, 1))) for s in spatial]
    attrs = {"kernel_shape": kernel}
    if strided and b.chance(0.5):
        attrs["strides"] = [b.integer(1, 3) for _ in range(rank)]
    if b.chance(0.4):
        attrs["pads"] = [b.integer(0, (kernel[i % rank] - 1)) for i in range(2 * rank)]
    elif b.chance(0.3):
        attrs["auto_pad"] = b.pick(["SAME_UPPER", "SAME_LOWER", "VALID"])
    if dilated and "auto_pad" not in attrs and b.chance(0.25):
        attrs["dilations"] = [b.integer(1, 2) for _ in range(rank)]
    return attrs


@builder(weight=3)
def conv(b):
    v = image(b)
    channels = v.shape[1]
    attrs = window_attrs(b, v.shape[2:])
    group = b.pick([g for g in (1, 1, 2, channels) if channels % g == 0])
    out = group * b.pick([1, 2, 3])
    if group > 1:
        attrs["group"] = group
    w = b.param([out, channels // group] + attrs["kernel_shape"], 1 / np.sqrt(np.prod(attrs["kernel_shape"]) * channels))
    return some(b.op("Conv", [v, w] + ([b.param([out], 0.2)] if b.chance(0.6) else []), **attrs))


@builder()
def conv_transpose(b):
    v = image(b)
    channels = v.shape[1]
    attrs = window_attrs(b, v.shape[2:])
    attrs.pop("auto_pad", None)
    if b.chance(0.3) and "strides" in attrs:
        attrs["output_padding"] = [b.integer(0, s - 1) for s in attrs["strides"]]
    group = b.pick([g for g in (1, 1, channels) if channels % g == 0])
    out = b.pick([1, 2, 3])
    if group > 1:
        attrs["group"] = group
    w = b.param([channels, out] + attrs["kernel_shape"], 0.4)
    return b.op("ConvTranspose", [v, w] + ([b.param([out * group], 0.2)] if b.chance(0.5) else []), **attrs)


@builder(weight=2)
def pool(b):
    v = image(b)
    kind = b.pick(["MaxPool", "AveragePool", "LpPool", "MaxPool"])
    attrs = window_attrs(b, v.shape[2:], dilated=kind == "MaxPool" or b.opset >= 19)
    if kind == "LpPool":
        attrs = window_attrs(b, v.shape[2:], dilated=False)
        v = b.op("Add", [v, b.scalar(0.05)])
        if b.chance(0.5):
            attrs["p"] = b.pick([1, 2, 3])
    elif b.chance(0.3) and "auto_pad" not in attrs:
        attrs["ceil_mode"] = 1
    if kind == "AveragePool" and b.chance(0.4):
        attrs["count_include_pad"] = 1
    return some(b.op(kind, [v], **attrs))


@builder()
def pool_global(b):
    v = image(b)
    kind = b.pick(["GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"])
    return b.op(kind, [b.op("Add", [v, b.scalar(0.05)]) if kind == "GlobalLpPool" else v])


@builder()
def unpool(b):
    v = b.value(rank=4, where=lambda o: o.shape[2] >= 2 and o.shape[3] >= 2 and o.data.size)
    pooled, where_at = b.op("MaxPool", [v], n_out=2, kernel_shape=[2, 2], strides=[2, 2])
    return b.op("MaxUnpool", [pooled, where_at], kernel_shape=[2, 2], strides=[2, 2], grad=pooled.grad)


@builder(minimum=18)
def col2im(b):
    v = b.value(rank=3, where=lambda o: o.shape[1] % 4 == 0 and 1 <= o.shape[2] <= 12 and o.data.size)
    return b.op("Col2Im", [v, b.ints(2, v.shape[2] + 1), b.ints(2, 2)])


@builder()
def resize(b):
    v = image(b)
    scales = [1.0, 1.0] + [float(b.pick([0.5, 1.5, 2.0, 1.0])) for _ in v.shape[2:]]
    need(all(int(s * d) >= 1 for s, d in zip(scales, v.shape)))
    mode = b.pick(["nearest", "linear", "cubic"])
    need(mode != "cubic" or v.rank == 4)
    attrs = {"mode": mode, "coordinate_transformation_mode": b.pick(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])}
    if attrs["coordinate_transformation_mode"] == "align_corners":     # onnxruntime takes the resized length as a whole number, the standard's tests do not
        need(all((s * d) % 1 == 0 for s, d in zip(scales, v.shape)))
    if mode == "nearest":
        attrs["nearest_mode"] = b.pick(["floor", "ceil", "round_prefer_floor"])
    if b.opset >= 18 and mode != "nearest" and b.chance(0.3):
        attrs["antialias"] = 1
    empty = b.constant(np.zeros(0, np.float32)) if b.opset < 13 else None
    if b.chance(0.6):
        return b.op("Resize", [v, empty, b.constant(np.array(scales, np.float32))], **attrs)
    sizes = b.ints(*[int(s * d) for s, d in zip(scales, v.shape)])
    return b.op("Resize", [v, empty, b.constant(np.zeros(0, np.float32)) if b.opset < 13 else None, sizes], **attrs)


@builder(minimum=16)
def grid_sample(b):
    v = b.value(rank=4, where=lambda o: o.data.size and o.shape[2] >= 2 and o.shape[3] >= 2)
    grid = within(b, b.param([v.shape[0], 2, 3, 2], 0.7), 0.9)
    mode = b.pick(["bilinear", "nearest", "bicubic"] if b.opset < 20 else ["linear", "nearest", "cubic"])
    b.discontinuous |= mode == "nearest"
    return b.op("GridSample", [v, grid], mode=mode, padding_mode=b.pick(["zeros", "border", "reflection"]), align_corners=b.integer(0, 1))


@builder(minimum=20)
def affine_grid(b):
    theta = b.param([b.batch, 2, 3], 0.4)
    return b.op("AffineGrid", [theta, b.ints(b.batch, 1, 2, 3)], align_corners=b.integer(0, 1))


@builder(minimum=16)
def roi_align(b):
    v = b.value(rank=4, where=lambda o: o.data.size and o.shape[2] >= 2 and o.shape[3] >= 2)
    boxes = b.constant(np.array([[0.1, 0.2, 1.7, 1.6], [0.0, 0.0, 1.3, 1.9]], np.float32))
    which = b.constant(np.array([0, v.shape[0] - 1], np.int64))
    return b.op("RoiAlign", [v, boxes, which], mode=b.pick(["avg", "max"]), output_height=2, output_width=b.pick([1, 2]), sampling_ratio=b.pick([1, 2]), spatial_scale=1.0)


# ---- Normalisation ----

@builder(minimum=17, weight=3)
def layer_norm(b):
    v = b.value(min_rank=1, where=lambda o: o.shape[-1] > 1)
    axis = b.integer(0, v.rank - 1)
    shape = v.shape[axis:]
    attrs = {"axis": axis - v.rank if b.chance(0.5) else axis}
    if b.chance(0.5):
        attrs["epsilon"] = 1e-3
    return b.op("LayerNormalization", [v, b.param(shape, 0.2, 1.0)] + ([b.param(shape, 0.2)] if b.chance(0.6) else []), **attrs)


@builder(minimum=23, weight=2)
def rms_norm(b):
    v = b.value(min_rank=1)
    axis = b.integer(0, v.rank - 1)
    return b.op("RMSNormalization", [v, b.param(v.shape[axis:], 0.2, 1.0)], axis=axis, epsilon=1e-3)


def channels_of(b, least=2):
    return b.value(min_rank=least, where=lambda o: 1 <= o.shape[1] <= 16 and o.data.size)


@builder(weight=2)
def batch_norm(b):
    v = channels_of(b)
    c = v.shape[1]
    mean = b.constant(b.rng.normal(size=c).astype(np.float32) * 0.3, "mean")
    variance = b.constant((0.5 + b.rng.random(c)).astype(np.float32), "variance")
    inputs = [v, b.param([c], 0.2, 1.0), b.param([c], 0.2), mean, variance]
    if b.opset < 14 or b.chance(0.5):
        return b.op("BatchNormalization", inputs, epsilon=1e-3)
    axes = tuple(a for a in range(v.rank) if a != 1)
    need(v.data.size // c > 1)
    m, var = v.data.mean(axes), v.data.var(axes)
    side = [1, c] + [1] * (v.rank - 2)
    y = (v.data - m.reshape(side)) / np.sqrt(var.reshape(side) + 1e-3) * inputs[1].data.reshape(side) + inputs[2].data.reshape(side)
    momentum = 0.8
    computed = [y.astype(np.float32), (mean.data * momentum + m * (1 - momentum)).astype(np.float32), (variance.data * momentum + var * (1 - momentum)).astype(np.float32)]
    return b.op("BatchNormalization", inputs, n_out=3, computed=computed, training_mode=1, momentum=momentum, epsilon=1e-3)[0]


@builder()
def instance_norm(b):
    v = channels_of(b, 3)
    need(v.data.size // (v.shape[0] * v.shape[1]) > 1)
    return b.op("InstanceNormalization", [v, b.param([v.shape[1]], 0.2, 1.0), b.param([v.shape[1]], 0.2)], epsilon=1e-3)


@builder(minimum=21)
def group_norm(b):
    v = channels_of(b, 3)
    c = v.shape[1]
    groups = b.pick([g for g in (1, 2, c) if c % g == 0])
    need(v.data.size // (v.shape[0] * groups) > 1)
    return b.op("GroupNormalization", [v, b.param([c], 0.2, 1.0), b.param([c], 0.2)], num_groups=groups, epsilon=1e-3)


@builder()
def lrn(b):
    return b.op("LRN", [channels_of(b, 3)], size=b.pick([1, 3, 5]), alpha=0.1, beta=0.75, bias=1.0)


@builder()
def vector_norm(b):
    v = b.value(min_rank=1)
    if b.chance(0.5):
        return b.op("LpNormalization", [b.op("Add", [v, b.scalar(0.05)])], axis=b.integer(-1, v.rank - 1), p=b.pick([1, 2]))
    need(v.rank >= 2)
    axes = axes_of(b, v)
    need(all(a >= 0 for a in axes) and np.prod([v.shape[a] for a in axes]) > 1)
    return b.op("MeanVarianceNormalization", [v], axes=axes)


@builder(weight=2)
def softmax(b):
    v = b.value(min_rank=1)
    return b.op(b.pick(["Softmax", "LogSoftmax"]), [v], axis=b.integer(-1 if b.opset >= 13 else 0, v.rank - 1))


@builder()
def hardmax(b):
    b.discontinuous = True
    v = b.value(min_rank=1, where=lambda o: not o.grad)
    return b.op("Hardmax", [v], axis=v.rank - 1)


# ---- Reductions ----

@builder(weight=4)
def reduce(b):
    v = b.value()
    kind = b.pick(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
                   "ReduceSum", "ReduceMean"])
    if kind == "ReduceLogSum":
        v = positive(b, v)
    elif kind == "ReduceProd":
        v = within(b, v, 1.2)
    elif kind in ("ReduceLogSumExp", "ReduceL2"):
        v = b.op("Add", [small(b, v), b.scalar(0.03)])
    attrs = {"keepdims": b.integer(0, 1)}
    as_input = b.opset >= (13 if kind == "ReduceSum" else 18)
    axes = axes_of(b, v) if v.rank and b.chance(0.8) else None
    if axes is not None and not as_input:
        return b.op(kind, [v], axes=axes, **attrs)
    if axes is None and as_input and b.chance(0.3):
        return b.op(kind, [v, b.constant(np.zeros(0, np.int64))], noop_with_empty_axes=b.integer(0, 1), **attrs)
    return b.op(kind, [v] + ([b.ints(*axes)] if axes is not None else []), **attrs)


@builder()
def cumulative(b):
    v = b.value(min_rank=1)
    return b.op("CumSum", [v, b.constant(np.array(b.integer(-v.rank, v.rank - 1), b.pick([np.int64, np.int32])))], exclusive=b.integer(0, 1), reverse=b.integer(0, 1))


@builder()
def top_k(b):
    b.discontinuous = True
    v = b.value(min_rank=1)
    axis = b.integer(-v.rank, v.rank - 1)
    k = b.integer(1, v.shape[axis])
    values, _ = b.op("TopK", [v, b.ints(k)], n_out=2, axis=axis, largest=b.integer(0, 1), grad=v.grad)
    return values


@builder()
def arg(b):
    b.discontinuous = True
    v = b.value(min_rank=1)
    attrs = {"axis": b.integer(-v.rank, v.rank - 1), "keepdims": b.integer(0, 1)}
    if b.opset >= 12 and b.chance(0.3):
        attrs["select_last_index"] = 1
    at = b.op(b.pick(["ArgMax", "ArgMin"]), [v], **attrs)
    table = b.param([v.shape[attrs["axis"]], b.pick([1, 3])])
    return b.op("Gather", [table, at], axis=0, grad=table.grad)


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
        condition = b.op("Greater", [total, b.scalar(0.0)])
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
