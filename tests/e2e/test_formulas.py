#!/usr/bin/env python3
"""Numbers that other tests would not miss: masks of Dropout per micro-batch, step and node; the clipped update to 1e-12; Pow's exponent at x = 0.

    test_formulas.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, inputs, model, need, tessera, train, weights

need("numpy", "safetensors", "onnx")
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from safetensors.numpy import load_file, save_file

N = 512


def write(path, nodes, x, inits):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)], [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
                              [numpy_helper.from_array(v, n) for n, v in inits.items()])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def run(tmp, path, x, *arguments, batches=1):
    data, report, grads = (os.path.join(tmp, n) for n in ("d.safetensors", "r.json", "g.safetensors"))
    save_file({"x.%d" % i: x for i in range(batches)}, data)
    p = tessera("run", path, "--data", data, "--no-shuffle", "--optimizer", "sgd", "--report", report, "--dump-grads", grads, *arguments)
    check(p.returncode == 0, "%s %s: %s" % (path, arguments, p.stderr[-300:]))
    return json.load(open(report)), load_file(grads)


def check_dropout(tmp):
    """The loss is the sum of the kept elements, twice as heavy: it tells masks apart; lr 0 keeps all else the same."""
    w = np.random.default_rng(1).uniform(0.5, 1.5, N).astype(np.float32)
    path, x = os.path.join(tmp, "dropout.onnx"), np.ones(N, np.float32)
    nodes = [helper.make_node("Mul", ["x", "w"], ["h"], name="mul"), helper.make_node("Dropout", ["h", "ratio", "on"], ["a"], name="first"),
             helper.make_node("ReduceMean", ["a"], ["loss"], keepdims=0, name="mean")]
    constants = {"ratio": np.float32(0.5), "on": np.bool_(True)}
    write(path, nodes, x, {"w": w, **{n: np.array(v) for n, v in constants.items()}})
    masks = []
    for micro in (1, 2, 4):
        r, grads = run(tmp, path, x, "--lr", "0", "--steps", 3, "--micro-batches", micro)
        masks.append(grads["w"])
        check(len(set(r["losses"])) == 3, "steps have the same mask: %s" % r["losses"])
        check(abs(grads["w"].astype(np.float64) @ w - r["losses"][0]) < 1e-6, "forward and backward have other masks: %r, %r" % (grads["w"] @ w, r["losses"][0]))
        check(len(np.unique(grads["w"])) == micro + 1, "%d micro-batches: gradients of %s distinct sizes, their masks are not independent" % (micro, len(np.unique(grads["w"]))))
        for ranks in (2, 4):
            if micro % ranks == 0:
                sharded, g = run(tmp, path, x, "--lr", "0", "--steps", 3, "--micro-batches", micro, "--ranks", ranks, "--zero", 3)
                check(sharded["losses"] == r["losses"] and np.array_equal(g["w"], grads["w"]), "%d micro-batches on %d ranks have other masks" % (micro, ranks))
    _, other = run(tmp, path, x, "--lr", "0", "--steps", 1, "--seed", 5)
    check(not np.array_equal(other["w"], masks[0]), "another seed has the same mask")
    path = os.path.join(tmp, "two.onnx")
    nodes = nodes[:1] + [helper.make_node("Dropout", ["h", "ratio", "on"], [n], name=n) for n in "ab"] + [helper.make_node("Mul", ["a", "b"], ["c"]),
                                                                                                       helper.make_node("ReduceMean", ["c"], ["loss"], keepdims=0)]
    write(path, nodes, x, {"w": np.ones(N, np.float32), **{n: np.array(v) for n, v in constants.items()}})
    r, _ = run(tmp, path, x, "--lr", "0", "--steps", 1)
    check(0.6 < r["losses"][0] < 1.4, "two nodes drop the same elements: the loss is %r, 1 is expected, 2 if alike" % r["losses"][0])


def check_clipping(tmp):
    """torch.nn.utils.clip_grad_norm_: factor max_norm / (norm + 1e-6), at most 1."""
    for name, max_norm in (("linreg", 0.01), ("linreg", 1e9), ("mlp", 0.001)):
        before, after, grads, lr = os.path.join(tmp, "before"), os.path.join(tmp, "after"), os.path.join(tmp, "c.safetensors"), 0.5
        common = ["--precision", "fp64", "--optimizer", "sgd", "--lr", lr, "--clip-norm", max_norm]
        train(name, *common, "--steps", 0, "--save", before)
        r = train(name, *common, "--steps", 1, "--save", after, "--dump-grads", grads)
        p0, p1, g = weights(before), weights(after), load_file(grads)
        norm = np.sqrt(sum(float((v.astype(np.longdouble) ** 2).sum()) for v in g.values()))
        check(abs(norm - r["grad_norms"][0]) <= 1e-12 * norm, "%s: norm %r, wanted %r" % (name, r["grad_norms"][0], norm))
        factor = min(1.0, max_norm / (norm + 1e-6))
        for n, v in g.items():
            check(p1[n].dtype == np.float64 and g[n].dtype == np.float64, "%s: '%s' is not kept in fp64" % (name, n))
            step = p0[n] - p1[n]
            e = np.abs(step - lr * factor * v).max() / (lr * factor * np.abs(v).max())
            check(e <= 1e-12 + 4e-16 * np.abs(p0[n]).max() / (lr * factor * np.abs(v).max()), "%s, clipped to %g: the step of '%s' is off by %g" % (name, max_norm, n, e))


def check_pow(tmp):
    """As PyTorch: 0 at x = 0 with an exponent that is not negative, else y log x."""
    path, x = os.path.join(tmp, "pow.onnx"), np.array([[0, 2, 0.5], [3, 0, 0]], np.float32)
    for p in (np.array([2, 0.5, 0], np.float32), np.array([0, 1, 3], np.float32), np.array(2, np.float32)):
        nodes = [helper.make_node("Pow", ["x", "p"], ["y"], name="pow"), helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0, name="sum")]
        write(path, nodes, x, {"p": p})
        wide, e = x.astype(np.float64), p.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = np.where(wide == 0, 0, wide ** e * np.log(wide))
        want = whole.sum() if p.ndim == 0 else whole.sum(axis=0)
        for precision in ("f32", "fp64"):
            _, grads = run(tmp, path, x, "--lr", "0", "--steps", 1, "--precision", precision, "--params", "p")
            check(np.allclose(grads["p"], want, rtol=1e-6, atol=1e-7), "Pow, exponents %s, %s: gradient %s, wanted %s" % (p, precision, grads["p"], want))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_dropout(tmp)
        check_clipping(tmp)
        check_pow(tmp)
    finish()


if __name__ == "__main__":
    main()
