"""Rare operators (see graph_operators.py). Not a test itself."""
import numpy as np
from onnx import TensorProto

from graph_operators import builder, need, some, within


# ---- Rare ones, mostly on what no parameter reaches ----

def untrained(b, where=None, **more):
    return b.value(where=lambda o: not o.grad and (where is None or where(o)), **more)


@builder()
def windows(b):
    need(b.opset >= 17)
    v = b.value(min_rank=1, where=lambda o: o.shape[-1] >= 2)
    kind = b.pick(["HannWindow", "HammingWindow", "BlackmanWindow"])
    w = b.op(kind, [b.constant(np.array(v.shape[-1], np.int64))], periodic=b.integer(0, 1), grad=False)
    return b.op("Mul", [v, w])


@builder()
def constant_nodes(b):
    need(b.opset >= 12)
    v = b.value(min_rank=1)
    how = b.integer(0, 3)
    if how == 0:
        return b.op("Mul", [v, b.op("Constant", [], value_float=0.75)])
    if how == 1:
        return b.op("Add", [v, b.op("Constant", [], value_floats=[float(i) / 7 for i in range(v.shape[-1])])])
    if how == 2:
        return b.op("Reshape", [v, b.op("Constant", [], value_ints=[v.data.size])])
    axis = b.op("Constant", [], value_int=0)
    return b.op("Gather", [v, axis], axis=v.rank - 1)


@builder()
def bits(b):
    ids = b.pick([v for v in b.pool if v.data.dtype == np.int64 and v.kind == "input"])
    if b.opset >= 18 and b.chance(0.5):
        made = b.op("BitwiseNot", [ids]) if b.chance(0.5) else b.op("BitwiseAnd", [ids, b.ints(6)])
    else:
        made = b.op("BitShift", [b.op("Cast", [ids], to=TensorProto.UINT8), b.constant(np.array(b.integer(0, 3), np.uint8))], direction=b.pick(["LEFT", "RIGHT"]))
    return b.op("Mul", [b.op("Cast", [made], to=TensorProto.FLOAT, grad=False), b.scalar(0.05)])


@builder()
def quantized_products(b):
    b.discontinuous = True
    v = untrained(b, min_rank=2, max_rank=4)
    scale, zero = b.scalar(0.05), b.constant(np.array(120, np.uint8))
    q = b.op("QuantizeLinear", [v, scale, zero])
    if v.rank == 2:
        w = b.constant(b.rng.integers(100, 140, size=(v.shape[1], 3)).astype(np.uint8))
        return b.op("DequantizeLinear", [b.op("QLinearMatMul", [q, scale, zero, w, scale, zero, b.scalar(0.1), zero]), b.scalar(0.1), zero], grad=False)
    need(v.rank == 4)
    w = b.constant(b.rng.integers(100, 140, size=(2, v.shape[1], 1, 1)).astype(np.uint8))
    if b.chance(0.5):
        return b.op("Mul", [b.op("Cast", [some(b.op("ConvInteger", [q, w, zero, zero]))], to=TensorProto.FLOAT, grad=False), b.scalar(0.001)])
    return b.op("DequantizeLinear", [some(b.op("QLinearConv", [q, scale, zero, w, scale, zero, b.scalar(0.1), zero])), b.scalar(0.1), zero], grad=False)


@builder()
def spectrum(b):
    need(b.opset >= 17)
    v = untrained(b, min_rank=2, where=lambda o: 2 <= o.shape[1] <= 64)
    n = v.shape[1]
    signal = b.op("Reshape", [v, b.ints(v.shape[0], n, -1)])
    need(signal.shape[2] == 1)
    if b.chance(0.3):
        return b.op("STFT", [signal, b.constant(np.array(2, np.int64)), None, b.constant(np.array(min(4, n), np.int64))], grad=False)
    return b.op("DFT", [signal, None, b.constant(np.array(1, np.int64))], grad=False) if b.opset >= 20 else b.op("DFT", [signal], axis=1, grad=False)


@builder()
def mel(b):
    need(b.opset >= 17)
    sizes = [b.constant(np.array(x, np.int64)) for x in (4, 16, 8000)]
    m = b.op("MelWeightMatrix", sizes + [b.scalar(0.0), b.scalar(4000.0)], grad=False)
    return b.op("MatMul", [m, b.param([4, 3])])


@builder()
def unique(b):
    v = b.value(min_rank=1)
    at = b.constant(b.rng.integers(0, v.shape[0], size=5).astype(np.int64))
    return b.op("Gather", [v, b.op("Unique", [at], sorted=1)], axis=0)


@builder(minimum=24)
def newest(b):
    kind = b.pick(["Swish", "CumProd", "TensorScatter"])
    if kind == "Swish":
        return b.op("Swish", [b.value()], alpha=float(b.pick([1.0, 0.5])))
    if kind == "CumProd":
        need(b.opset >= 26)
        return b.op("CumProd", [within(b, b.value(min_rank=1), 1.2), b.constant(np.array(0, np.int64))], exclusive=b.integer(0, 1), reverse=b.integer(0, 1))
    v = untrained(b, min_rank=3, max_rank=4)
    axis = v.rank - 2
    piece = list(v.shape)
    piece[axis] = 1
    update = b.constant(b.rng.normal(size=piece).astype(np.float32))
    return b.op("TensorScatter", [v, update], axis=axis, grad=False)


@builder()
def drawn(b):
    b.random = True
    v = b.value(rank=2, where=lambda o: o.shape[1] >= 2)
    at = b.op("Multinomial", [v], computed=[np.zeros((v.shape[0], 2), np.int64)], sample_size=2, dtype=TensorProto.INT64)
    table = b.param([v.shape[1], 3])
    return b.op("Gather", [table, at], grad=table.grad)
