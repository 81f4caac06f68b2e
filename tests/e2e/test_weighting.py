#!/usr/bin/env python3
"""Every counted label of the global batch weighs the same, however labels fall on ranks: ignored labels, uneven ranks, ranks without any label.

    test_weighting.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, need, tessera

need("numpy", "onnx", "safetensors")
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

LABELS = np.array([0, -100, 2, 1])
LOGITS = np.array([[2, 0, -1], [0, 1, 0], [1, 1, 3], [0, -2, 1]], np.float32)
PRECISIONS = {"f32": 1e-6, "bf16": 2e-2, "fp16": 2e-3}


def write_model(path, weight):
    """loss(x W, y) with -100 ignored, any number of rows."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"]),
         helper.make_node("SoftmaxCrossEntropyLoss", ["scores", "y"], ["loss"], reduction="mean", ignore_index=-100)], "scores",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", weight.shape[0]]), helper.make_tensor_value_info("y", TensorProto.INT64, ["rows"])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def reference(weight, batches):
    """Loss and gradient of the mean over all counted labels, in float64."""
    x, y = (np.concatenate([b[k] for b in batches]) for k in ("x", "y"))
    scores = x.astype(np.float64) @ weight.astype(np.float64)
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    counted = np.flatnonzero(y != -100)
    d = np.zeros_like(p)
    d[counted] = p[counted]
    d[counted, y[counted]] -= 1
    return -np.log(p[counted, y[counted]]).mean(), x.astype(np.float64).T @ d / len(counted)


def run(tmp, weight, batches, ranks, *options):
    path, data, report, grads = (os.path.join(tmp, f) for f in ("m.onnx", "d.safetensors", "r.json", "g.safetensors"))
    write_model(path, weight)
    save_file({"%s.%d" % (k, i): v for i, b in enumerate(batches) for k, v in b.items()}, data)
    p = tessera("run", path, "--data", data, "--no-shuffle", "--ranks", ranks, "--micro-batches", len(batches), "--steps", 1, "--dump-grads", grads,
                "--report", report, *options)
    if not check(p.returncode == 0, "%s ranks %s: exit %d: %s" % (ranks, options, p.returncode, p.stderr)):
        return None, None
    return json.load(open(report)), load_file(grads)["w"]


def compare(tag, weight, batches, ranks_list, precisions=PRECISIONS):
    loss, gradient = reference(weight, batches)
    with tempfile.TemporaryDirectory() as tmp:
        for precision, tolerance in precisions.items():
            first = None
            for ranks in ranks_list:
                for zero in (0, 3) if ranks > 1 else (0,):
                    r, g = run(tmp, weight, batches, ranks, "--precision", precision, "--zero", zero)
                    if r is None:
                        continue
                    where = "%s, %s, %d ranks, stage %d: " % (tag, precision, ranks, zero)
                    check(abs(r["losses"][0] - loss) <= tolerance * abs(loss), where + "loss %r, wanted %r" % (r["losses"][0], loss))
                    error = np.linalg.norm(g - gradient) / np.linalg.norm(gradient)
                    check(error <= tolerance, where + "gradient off by %g" % error)
                    check(not r.get("skipped_steps"), where + "skipped %s" % r.get("skipped_steps"))
                    result = (r["losses"], r["params_hash"])
                    first = first or result
                    check(result == first, where + "other bits than on one rank")
    return loss


def known_loss():
    rows = [{"x": LOGITS[i:j].copy(), "y": LABELS[i:j].copy()} for i, j in ((0, 2), (2, 4))]
    loss = compare("ignored label", np.eye(3, dtype=np.float32), rows, (1, 2))
    check(abs(loss - 1.252801) < 1e-6, "the example's loss is %r" % loss)


def uneven():
    rng = np.random.default_rng(5)
    weight, x, y = rng.standard_normal((7, 4), np.float32), rng.standard_normal((6, 7), np.float32), rng.integers(0, 4, 6)
    compare("5 + 1", weight, [{"x": x[:5].copy(), "y": y[:5]}, {"x": x[5:].copy(), "y": y[5:]}], (1, 2))


def nothing_to_count():
    rng = np.random.default_rng(6)
    weight, x, y = rng.standard_normal((7, 4), np.float32), rng.standard_normal((8, 7), np.float32), rng.integers(0, 4, 8)
    y[2:4] = y[6:] = -100
    compare("ranks 1 and 3 of 4 ignore all", weight, [{"x": x[i:i + 2].copy(), "y": y[i:i + 2]} for i in range(0, 8, 2)], (1, 2, 4))


def main():
    known_loss()
    uneven()
    nothing_to_count()
    finish()


if __name__ == "__main__":
    main()
