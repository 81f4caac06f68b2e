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
    """Windows fit into their input: a wider one gives something in onnxruntime where ceil_mode rounds up, and is refused by Tessera."""
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
        need(all(d * (k - 1) + 1 <= s for d, k, s in zip(attrs["dilations"], kernel, spatial)))
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
    v = b.value(rank=4, where=lambda o: o.shape[2] >= 2 and o.shape[3] >= 2 and o.data.size and o.shape[2] % 2 == o.shape[3] % 2 == 0)
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
