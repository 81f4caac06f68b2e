#!/usr/bin/env python3
"""Writes gpt.onnx: a small GPT as an exporter would leave it, ready to train on bytes. Needs onnx and numpy (tools/setup: .deps/venv/bin/python).

    make_gpt.py [OUT [BATCH SEQ VOCABULARY WIDTH HEADS BLOCKS]]

Embedding and positions, two blocks of pre-LayerNorm attention and GELU MLP, final LayerNorm, untied head, SoftmaxCrossEntropyLoss.
Inputs per micro-batch: tokens and labels, int64[8,64]. Random start from a fixed seed, so that the file is the same every time.
"""
import os
import sys

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

BATCH, SEQ, VOCABULARY, WIDTH, HEADS, BLOCKS = [int(x) for x in sys.argv[2:8]] if len(sys.argv) > 2 else (8, 64, 256, 64, 4, 2)
HEAD = WIDTH // HEADS

rng = np.random.default_rng(17)
nodes, weights, constants = [], [], {}


def weight(name, *shape, scale=0.02):
    weights.append(numpy_helper.from_array(rng.normal(0, scale, shape).astype(np.float32), name))
    return name


def filled(name, value, *shape):
    weights.append(numpy_helper.from_array(np.full(shape, value, np.float32), name))
    return name


def constant(array):
    array = np.asarray(array)
    key = (array.dtype.str, array.shape, array.tobytes())
    if key not in constants:
        constants[key] = "const_%d" % len(constants)
        nodes.insert(len(constants) - 1, helper.make_node("Constant", [], [constants[key]], value=numpy_helper.from_array(array)))
    return constants[key]


def op(kind, *inputs, name, **attributes):
    nodes.append(helper.make_node(kind, list(inputs), [name + ".out"], name=name, **attributes))
    return name + ".out"


def norm(x, name):
    return op("LayerNormalization", x, filled(name + ".weight", 1, WIDTH), filled(name + ".bias", 0, WIDTH), name=name, axis=-1, epsilon=1e-5)


def linear(x, name, n_in, n_out, scale=0.02):
    product = op("MatMul", x, weight(name + ".weight", n_in, n_out, scale=scale), name=name + ".matmul")
    return op("Add", product, filled(name + ".bias", 0, n_out), name=name)


def heads(x, name, order):
    split = op("Reshape", x, constant(np.array([BATCH, SEQ, HEADS, HEAD], np.int64)), name=name + ".split")
    return op("Transpose", split, name=name, perm=order)


def attention(x, name):
    q = heads(linear(x, name + ".q", WIDTH, WIDTH), name + ".q.heads", [0, 2, 1, 3])
    k = heads(linear(x, name + ".k", WIDTH, WIDTH), name + ".k.heads", [0, 2, 3, 1])
    v = heads(linear(x, name + ".v", WIDTH, WIDTH), name + ".v.heads", [0, 2, 1, 3])
    scores = op("Mul", op("MatMul", q, k, name=name + ".scores"), constant(np.float32(HEAD ** -0.5)), name=name + ".scaled")
    mask = np.where(np.tril(np.ones((SEQ, SEQ))), 0, -1e9).astype(np.float32)
    p = op("Softmax", op("Add", scores, constant(mask), name=name + ".masked"), name=name + ".softmax", axis=-1)
    y = op("Transpose", op("MatMul", p, v, name=name + ".mix"), name=name + ".merge", perm=[0, 2, 1, 3])
    y = op("Reshape", y, constant(np.array([BATCH, SEQ, WIDTH], np.int64)), name=name + ".joined")
    return linear(y, name + ".proj", WIDTH, WIDTH, scale=0.02 / (2 * BLOCKS) ** 0.5)


def gelu(x, name):
    erf = op("Erf", op("Div", x, constant(np.float32(2 ** 0.5)), name=name + ".div"), name=name + ".erf")
    half = op("Mul", x, constant(np.float32(0.5)), name=name + ".half")
    return op("Mul", half, op("Add", erf, constant(np.float32(1)), name=name + ".one"), name=name)


def mlp(x, name):
    hidden = gelu(linear(x, name + ".up", WIDTH, 4 * WIDTH), name + ".gelu")
    return linear(hidden, name + ".down", 4 * WIDTH, WIDTH, scale=0.02 / (2 * BLOCKS) ** 0.5)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpt.onnx")
    x = op("Gather", weight("embedding.weight", VOCABULARY, WIDTH), "tokens", name="embedding")
    x = op("Add", x, weight("positions.weight", SEQ, WIDTH), name="positions")
    for b in range(BLOCKS):
        name = "blocks.%d." % b
        x = op("Add", x, attention(norm(x, name + "norm_1"), name + "attention"), name=name + "add_1")
        x = op("Add", x, mlp(norm(x, name + "norm_2"), name + "mlp"), name=name + "add_2")
    logits = op("MatMul", norm(x, "norm"), weight("head.weight", WIDTH, VOCABULARY), name="head")
    flat = op("Reshape", logits, constant(np.array([BATCH * SEQ, VOCABULARY], np.int64)), name="head.flat")
    labels = op("Reshape", "labels", constant(np.array([BATCH * SEQ], np.int64)), name="labels.flat")
    nodes.append(helper.make_node("SoftmaxCrossEntropyLoss", [flat, labels], ["loss"], name="loss", reduction="mean"))
    graph = helper.make_graph(
        nodes, "gpt", [helper.make_tensor_value_info(n, TensorProto.INT64, [BATCH, SEQ]) for n in ("tokens", "labels")],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], producer_name="make_gpt.py")
    model.ir_version = 10
    checker.check_model(model, full_check=True)
    save(model, out)
    print("%s: %d nodes, %d parameters" % (out, len(nodes), sum(int(np.prod(w.dims)) for w in weights)))


if __name__ == "__main__":
    main()
