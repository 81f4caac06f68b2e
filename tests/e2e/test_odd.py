#!/usr/bin/env python3
"""Parameters of odd shapes: a scalar, one element, none at all, fewer elements than ranks, one used twice, one not used, frozen ones. Trained with SGD at 1 to 8
ranks and every stage, against numpy in float64.

    test_odd.py TESSERA
"""
import os
import tempfile

from e2e import check, finish, need, tessera, weights

need("numpy", "safetensors", "onnx")
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

BATCHES, SAMPLES, WIDTH, LR, STEPS = 8, 4, 3, 0.05, 4


def make_model(path):
    """out = (x w) s + x w + b with s = concat(empty, s); loss = mean((out - y)^2)"""
    rng = np.random.default_rng(1)
    start = {"w": rng.normal(size=(WIDTH, 1)), "b": np.array(0.25), "s": np.array([0.5]), "empty": np.zeros(0), "wide": rng.normal(size=(1, 1)),
             "unused": np.ones(5)}
    start = {k: v.astype(np.float32) for k, v in start.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="h"),
        helper.make_node("Concat", ["empty", "s"], ["s_all"], name="s_all", axis=0),
        helper.make_node("Mul", ["h", "s_all"], ["hs"], name="hs"),
        helper.make_node("MatMul", ["x", "w"], ["again"], name="again"),
        helper.make_node("Add", ["hs", "again"], ["sum"], name="sum"),
        helper.make_node("MatMul", ["sum", "wide"], ["scaled"], name="scaled"),
        helper.make_node("Add", ["scaled", "b"], ["out"], name="out"),
        helper.make_node("Sub", ["out", "y"], ["d"], name="d"),
        helper.make_node("Mul", ["d", "d"], ["dd"], name="dd"),
        helper.make_node("ReduceMean", ["dd"], ["loss"], name="loss", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "odd", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [SAMPLES, WIDTH]), helper.make_tensor_value_info("y", TensorProto.FLOAT, [SAMPLES, 1])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], [numpy_helper.from_array(v, k) for k, v in start.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return {k: v.astype(np.float64) for k, v in start.items()}


def reference(p, data, micro, frozen):
    p, losses = {k: v.copy() for k, v in p.items()}, []
    for t in range(STEPS):
        total, grads = 0.0, {k: np.zeros_like(v) for k, v in p.items()}
        for i in range(micro):
            b = (t * micro + i) % BATCHES
            x, y = data["x.%d" % b].astype(np.float64), data["y.%d" % b].astype(np.float64)
            h, factor = x @ p["w"], p["s"][0] + 1
            d = h * factor * p["wide"][0, 0] + p["b"] - y
            total += (d ** 2).mean() / micro
            g = 2 * d / d.size / micro
            grads["b"] += g.sum()
            grads["wide"] += (g * h * factor).sum()
            grads["s"] += (g * h * p["wide"][0, 0]).sum()
            grads["w"] += x.T @ (g * factor * p["wide"][0, 0])
        losses.append(total)
        for k in p:
            if k not in frozen:
                p[k] -= LR * grads[k]
    return losses, p


def main():
    with tempfile.TemporaryDirectory() as tmp:
        path, report, saved = (os.path.join(tmp, n) for n in ("odd.onnx", "report.json", "saved"))
        start = make_model(path)
        rng = np.random.default_rng(2)
        data = {}
        for b in range(BATCHES):
            data["x.%d" % b] = rng.normal(size=(SAMPLES, WIDTH)).astype(np.float32)
            data["y.%d" % b] = rng.normal(size=(SAMPLES, 1)).astype(np.float32)
        inputs = os.path.join(tmp, "inputs.safetensors")
        save_file(data, inputs)
        for frozen in ([], ["w"], ["s", "b"]):
            losses, params = reference(start, data, 8, frozen)
            hashes = set()
            for ranks in (1, 2, 4, 8):
                for zero in range(4):
                    tag = "ranks %d stage %d frozen %s: " % (ranks, zero, frozen)
                    extra = ["--params", "w,b,s,empty,wide,unused"] + (["--freeze", ",".join(frozen)] if frozen else [])   # the rule takes no scalars
                    p = tessera("run", path, "--data", inputs, "--no-shuffle", "--steps", STEPS, "--ranks", ranks, "--zero", zero, "--micro-batches", 8,
                                "--optimizer", "sgd", "--lr", LR, "--report", report, "--save", saved, *extra)
                    if not check(p.returncode == 0, tag + p.stderr.strip()):
                        continue
                    r = json.load(open(report))
                    hashes.add(r["params_hash"])
                    check(np.allclose(r["losses"], losses, rtol=1e-5), tag + "losses %s, wanted %s" % (r["losses"], losses))
                    got = weights(saved)
                    for k, v in params.items():
                        if k in got:
                            check(got[k].shape == v.shape and np.allclose(got[k], v, rtol=1e-4, atol=1e-6), tag + "'%s' is %s, wanted %s" % (k, got[k], v))
                        check(k in got or k in ("unused", "empty"), tag + "'%s' is not in the checkpoint" % k)
                    s = r["sent_bytes_per_step"]
                    check(s["planned"] == s["measured"], tag + "sent %s" % s)
                    plan = os.path.join(tmp, "plan.onnx")
                    p = tessera("compile", path, "-o", plan, "--ranks", ranks, "--zero", zero, "--micro-batches", 8, *extra)
                    v = tessera("verify", plan)
                    check(p.returncode == 0 and v.returncode == 0, tag + "verify: " + p.stderr + v.stdout)
            check(len(hashes) == 1, "frozen %s: %d different parameter hashes" % (frozen, len(hashes)))
    finish()


if __name__ == "__main__":
    main()
