"""A random training graph, its parameters and data: a function of the seed alone.

    generate.py SEED FOLDER     writes FOLDER/model.onnx, data.safetensors
"""
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto

from graph_builder import Builder, Reject, run_onnx
import graph_moves  # noqa: F401: adds its builders
import graph_rare  # noqa: F401
from graph_operators import BUILDERS, need, small

BATCHES = 12


class Case:
    """model (ModelProto), params (trainable names), data ({INPUT.i: array}), and what may be asked of it."""


def make_inputs(b):
    d = b.pick([1, 2, 3, 5, 7, 8, 13, 16])
    normal = lambda rng, shape: rng.standard_normal(shape).astype(np.float32)
    b.vocabulary = b.pick([2, 5, 11, 37, 530])
    for kind in b.rng.choice(["dense", "sequence", "image", "tokens"], size=b.integer(1, 3)):
        if kind == "dense":
            b.input([b.batch, d], normal)
        elif kind == "sequence":
            b.input([b.batch, b.pick([1, 2, 3, 5, 7]), b.pick([1, 3, 4, 8, 16])], normal)
        elif kind == "image":
            b.input([b.batch, b.pick([1, 2, 3, 4])] + [b.pick([1, 3, 4, 5, 8]) for _ in range(b.pick([1, 2, 2]))], normal)
        else:
            vocabulary = b.vocabulary
            shape = [b.batch] + ([b.pick([1, 3, 5, 7])] if b.chance(0.8) else [])
            b.input(shape, lambda rng, s: rng.integers(0, vocabulary, s), "ids")
            table = b.param([vocabulary, b.pick([2, 4, 5, 8])], 0.6)
            b.pool.append(b.op("Gather", [table, b.pool[-1]], grad=table.grad))


def trained(b):
    """A value that a parameter reaches."""
    fits = [v for v in b.pool if v.is_float and v.grad and v.data.size]
    if fits and b.chance(0.9):
        return fits[max(int(b.rng.integers(len(fits))), int(b.rng.integers(len(fits))))]
    v = b.value(min_rank=1, where=lambda o: o.shape[-1] <= 64)
    return b.op("MatMul", [v, b.param([v.shape[-1], 3], never_shared=True)])


def with_leaves(b, v):
    """v, and a little of what nobody has used so far."""
    used = {name for n in b.nodes for name in n.input}
    leaves = [o for o in b.pool if o.is_float and o.grad and o.data.size and o.name not in used and o.name != v.name]
    for leaf in leaves[-b.integer(0, 5):]:
        m = b.op("ReduceMean", [leaf], keepdims=0) if leaf.rank else leaf
        v = b.op("Add", [v, b.op("Mul", [b.op("Tanh", [m]), b.scalar(0.2)])])
    return v


def rows(b, v):
    """[samples, classes >= 2]"""
    if v.rank == 0:
        v = b.op("Reshape", [v, b.ints(1, 1)])
    flat = v if v.rank == 2 else b.op("Flatten", [v], axis=b.integer(0, max(v.rank - 1, 0)) if v.rank > 1 else 0)
    need(flat.shape[1] <= 200)
    classes = b.pick([2, 3, 10, 17])
    w = b.param([flat.shape[1], classes], never_shared=True)
    return small(b, b.op("MatMul", [flat, w]), 8.0)


def loss_cross_entropy(b, v):
    need(b.opset >= 12)
    scores = rows(b, v)
    n, classes = scores.shape
    ignore = b.chance(0.4)

    def labels(rng, shape):
        y = rng.integers(0, classes, shape)
        ignored = (rng.random(shape) < 0.25) & (np.arange(shape[0]) > 0) & ignore      # one counts at least
        return np.where(ignored, -100, y)
    y = b.input([n], labels, "labels")
    weights = [b.constant((0.5 + b.rng.random(classes)).astype(np.float32))] if b.chance(0.3) else []
    attrs = {"ignore_index": -100} if ignore else {}
    reduction = b.pick(["mean", "mean", "sum"])
    if b.chance(0.5):
        return b.op("SoftmaxCrossEntropyLoss", [scores, y] + weights, reduction=reduction, **attrs)
    logs = b.op("LogSoftmax", [scores], axis=1)
    return b.op("NegativeLogLikelihoodLoss", [logs, y] + weights, reduction=reduction, **attrs)


def difference(b, v):
    if v.rank and v.shape[0] == b.batch:
        y = b.input(list(v.shape), lambda rng, s: rng.standard_normal(s).astype(np.float32), "y")
        return b.op("Sub", [v, y])
    return b.op("Sub", [v, b.scalar(0.3)])


def mean(b, v):
    if v.rank and b.chance(0.4):
        axes = list(range(v.rank))
        return b.op("ReduceMean", [v, b.ints(*axes)], keepdims=0) if b.opset >= 18 else b.op("ReduceMean", [v], axes=axes, keepdims=0)
    if b.chance(0.3):
        m = b.op("ReduceMean", [v], keepdims=1)
        return b.op("Reshape", [m, b.constant(np.zeros(0, np.int64))]) if b.chance(0.5) else m
    return b.op("ReduceMean", [v], keepdims=0)


def loss_square(b, v):
    d = difference(b, small(b, v, 8.0))
    return mean(b, b.op("Mul", [d, d]) if b.chance(0.5) else b.op("Pow", [d, b.scalar(2.0)]))


def loss_absolute(b, v):
    return mean(b, b.op("Abs", [difference(b, v)]))


def loss_huber(b, v):
    d = b.op("Abs", [difference(b, v)])
    quadratic = b.op("Mul", [b.op("Mul", [d, d]), b.scalar(0.5)])
    return mean(b, b.op("Where", [b.op("Less", [d, b.scalar(1.0)]), quadratic, b.op("Sub", [d, b.scalar(0.5)])]))


def loss_binary(b, v):
    p = b.op("Sigmoid", [small(b, v, 4.0)])
    y = b.constant((b.rng.random(v.shape) < 0.5).astype(np.float32))
    one = b.scalar(1.0)
    right = b.op("Mul", [y, b.op("Log", [p])])
    wrong = b.op("Mul", [b.op("Sub", [one, y]), b.op("Log", [b.op("Sub", [one, p])])])
    return b.op("Neg", [mean(b, b.op("Add", [right, wrong]))])


def loss_sum(b, v):
    total = b.op("ReduceSum", [b.op("Mul", [v, v]) if b.chance(0.7) else b.op("Cos", [v])], keepdims=0)
    return b.op("Mul", [total, b.scalar(1.0 / max(v.data.size, 1))])


LOSSES = [loss_cross_entropy, loss_cross_entropy, loss_square, loss_square, loss_absolute, loss_huber, loss_binary, loss_sum]


def make_loss(b):
    loss = b.pick(LOSSES)(b, with_leaves(b, trained(b)))
    if b.chance(0.2):
        other = b.pick(LOSSES)(b, trained(b))
        need(loss.data.size == 1 and other.data.size == 1)
        loss = b.op("Add", [loss, b.op("Mul", [other, b.scalar(0.5)])])
    need(loss.grad and loss.data.size == 1 and np.isfinite(loss.data).all())
    return loss


def find_loss(b):
    for _ in range(20):
        mark = b.mark()
        try:
            return make_loss(b)
        except Reject:
            b.undo(mark)
    return None


def generate(seed, largest=26):
    """The case of a seed; seeds that lead nowhere go on with another number of theirs."""
    for attempt in range(50):
        b = Builder([seed, attempt])
        make_inputs(b)
        for _ in range(b.integer(1, largest)):
            function, minimum = BUILDERS[int(b.rng.integers(len(BUILDERS)))]
            if b.opset >= minimum:
                b.grow(function)
        loss = find_loss(b)
        if loss is None:
            continue
        extra = [v for v in b.pool if v.kind == "activation" and v.name in {o for n in b.nodes for o in n.output}]
        outputs = [b.pick(extra)] if extra and b.chance(0.3) else []
        outputs = [v for v in outputs if v.name != loss.name and v.data.size != 1 and v.is_float]
        case = Case()
        case.seed, case.model, case.batch, case.loss, case.used = seed, b.finish(loss, outputs), b.batch, loss.name, list(b.used)
        case.params = [p.name for p in b.trainable]
        case.random, case.discontinuous, case.without_ort, case.opset = b.random, b.discontinuous, b.without_ort, b.opset
        case.batches = [{v.name: np.array(b.draws[v.name](b.rng), order="C") for v in b.inputs} for _ in range(BATCHES)]
        return case
    raise RuntimeError("seed %d gives no graph" % seed)


def write(case, folder):
    from safetensors.numpy import save_file
    model, data = os.path.join(folder, "model.onnx"), os.path.join(folder, "data.safetensors")
    onnx.save(case.model, model)
    save_file({"%s.%d" % (k, i): v for i, batch in enumerate(case.batches) for k, v in batch.items()}, data)
    return model, data


def reference_losses(case):
    """onnxruntime's loss of each batch, in float32; NaN where it is none."""
    return [float(run_onnx(case.model, batch, [case.loss])[0].reshape(())) for batch in case.batches]


if __name__ == "__main__":
    made = generate(int(sys.argv[1]))
    print(write(made, sys.argv[2])[0], "opset", made.opset, "batch", made.batch, " ".join(made.used))
