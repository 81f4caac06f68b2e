#!/usr/bin/env python3
"""--loss cross_entropy over scores [N, C, H, W]: the labels come with the data, the classes are on axis 1 as in torch.nn.functional.cross_entropy.

    test_loss.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, need, tessera

need("numpy", "safetensors", "onnx")
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

N, C, H, W = 4, 5, 3, 2


def main():
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((C, 2, 1, 1), np.float32), rng.standard_normal(C, np.float32)
    x, y = rng.standard_normal((N, 2, H, W), np.float32), rng.integers(0, C, (N, H, W))
    y[0, 0] = -100
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w", "b"], ["scores"])], "segments",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [N, 2, H, W])],
                              [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [N, C, H, W])],
                              [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")])
    scores = (np.einsum("oi,nihw->nohw", weight[:, :, 0, 0], x) + bias[:, None, None]).astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    counted = y >= 0
    want = -np.take_along_axis(logs, np.where(counted, y, 0)[:, None], 1)[:, 0][counted].mean()
    with tempfile.TemporaryDirectory() as tmp:
        path, data, report = (os.path.join(tmp, f) for f in ("m.onnx", "d.safetensors", "r.json"))
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
        for labels, code in ((y, 0), (y.reshape(N, 1, H * W)[:, :, :4], 2)):
            save_file({"x.0": x, "y.0": np.ascontiguousarray(labels)}, data)
            p = tessera("run", path, "--data", data, "--loss", "cross_entropy", "--labels", "y", "--steps", 1, "--report", report)
            check(p.returncode == code, "labels %s: exit %d: %s" % (labels.shape, p.returncode, p.stderr))
            if code == 0:
                loss = json.load(open(report))["losses"][0]
                check(abs(loss - want) < 1e-5 * abs(want), "loss %r, wanted %r" % (loss, want))
    finish()


if __name__ == "__main__":
    main()
