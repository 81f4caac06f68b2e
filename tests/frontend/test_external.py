#!/usr/bin/env python3
"""Tensor bytes in odd places: checksums and links of external data, sparse initializers, a file that is cut while it is mapped.

    test_external.py build/tessera
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from safetensors.numpy import save, save_file
except ImportError as e:
    print("skipped: %s (run tools/setup)" % e)
    sys.exit(77)

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W = np.array([[1.5, 0], [0, 0], [0, -2]], np.float32)


def model(initializer=None, sparse=None):
    nodes = [helper.make_node("MatMul", ["x", "W"], ["p"]), helper.make_node("Mul", ["p", "p"], ["q"]), helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 3))], [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
                              [initializer] if initializer else [], sparse_initializer=[sparse] if sparse else [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def external(**entries):
    t = numpy_helper.from_array(W, "W")
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        t.external_data.add(key=key, value=str(value))
    return model(t)


def sparse(indices, dims=(3, 2)):
    values = numpy_helper.from_array(np.array([1.5, -2], np.float32), "W")
    return model(sparse=helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices, np.int64), "i"), list(dims)))


def main(tessera):
    failed = 0

    def record(name, problem):
        nonlocal failed
        failed += bool(problem)
        print("%-4s %s%s" % ("FAIL" if problem else "ok", name, ": " + problem if problem else ""))

    with tempfile.TemporaryDirectory() as folder:
        path, data, report = (os.path.join(folder, f) for f in ("m.onnx", "x.safetensors", "r.json"))
        save_file({"x.0": X}, data)
        with open(os.path.join(folder, "w.bin"), "wb") as f:
            f.write(W.tobytes())
        os.symlink("w.bin", os.path.join(folder, "link.bin"))
        os.mkdir(os.path.join(folder, "sub"))
        os.symlink("..", os.path.join(folder, "sub", "up"))
        sha1 = hashlib.sha1(W.tobytes()).hexdigest()

        def attempt(name, proto, code, words):
            onnx.save_model(proto, path) if not isinstance(proto, bytes) else open(path, "wb").write(proto)
            p = subprocess.run([tessera, "run", path, "--data", data, "--steps", "1", "--params", "W", "--report", report], capture_output=True, text=True, timeout=60)
            if p.returncode != code or words not in p.stderr:
                record(name, "exit %d: %s" % (p.returncode, p.stderr.strip()[-200:]))
            elif code == 0:
                loss, want = json.load(open(report))["losses"][0], float(np.mean((X.astype(np.float64) @ W) ** 2))
                record(name, "" if abs(loss - want) < 1e-5 else "loss %r, want %r" % (loss, want))
            else:
                record(name, "")

        attempt("external", external(location="w.bin"), 0, "")
        attempt("right checksum", external(location="w.bin", checksum=sha1), 0, "")
        attempt("right checksum in capitals", external(location="w.bin", checksum=sha1.upper()), 0, "")
        attempt("wrong checksum", external(location="w.bin", checksum="0" * 40), 3, sha1)
        attempt("a link", external(location="link.bin"), 3, "through a link")
        attempt("a link on the way", external(location="sub/up/w.bin"), 3, "through a link")
        os.link(os.path.join(folder, "w.bin"), os.path.join(folder, "hard.bin"))
        attempt("two names", external(location="w.bin"), 3, "2 hard links")
        os.remove(os.path.join(folder, "hard.bin"))
        attempt("sparse, linear indices", sparse([0, 5]), 0, "")
        attempt("sparse, pairs", sparse([[0, 0], [2, 1]]), 0, "")
        attempt("sparse, out of order", sparse([5, 0]), 3, "ascend")
        attempt("sparse, twice", sparse([5, 5]), 3, "ascend")
        attempt("sparse, beyond", sparse([0, 6]), 3, "beyond")
        attempt("sparse, negative", sparse([-1, 5]), 3, "beyond")
        attempt("sparse, huge when dense", sparse([0, 5], (1 << 20, 1 << 10)), 7, "when dense")

        # The model is mapped while the program waits for data; then it is cut, and the import reads on.
        big = model(numpy_helper.from_array(np.zeros((3, 1 << 20), np.float32), "W"))
        onnx.save_model(big, path)
        p = subprocess.Popen([tessera, "run", path, "--data", "-", "--steps", "1", "--params", "W"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1)
        os.truncate(path, 4096)
        said = p.communicate(save({"x": X}), timeout=60)[1].decode()
        record("cut while mapped", "" if p.returncode in (3, 5) and said else "exit %d: %s" % (p.returncode, said[-300:]))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
