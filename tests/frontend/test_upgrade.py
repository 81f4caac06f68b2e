#!/usr/bin/env python3
"""Old forms of operators, upgraded by the importer, mean what they meant: ONNX Runtime computes the old model and the upgraded one.

    test_upgrade.py build/tessera
"""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as e:
    print("skipped: %s (run tools/setup)" % e)
    sys.exit(77)

RNG = np.random.default_rng(7)


def tensor(name, *shape, dtype=np.float32):
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(dtype), name)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


# (title, opset, nodes, initializers, shape of x, outputs)
CASES = [
    ("Squeeze and Unsqueeze with axes attributes", 11, [node("Unsqueeze", "x", "u", axes=[0, 3]), node("Squeeze", "u", "y", axes=[3])], [], (3, 4), "y"),
    ("Squeeze without axes", 11, [node("Unsqueeze", "x", "u", axes=[0]), node("Squeeze", "u", "y")], [], (3, 4), "y"),
    ("ReduceSum with axes attribute", 11, [node("ReduceSum", "x", "y", axes=[1], keepdims=0)], [], (3, 4), "y"),
    ("ReduceSum over all", 11, [node("ReduceSum", "x", "y", keepdims=0)], [], (3, 4), "y"),
    ("ReduceMean with axes attribute", 17, [node("ReduceMean", "x", "y", axes=[-1])], [], (3, 4), "y"),
    ("ReduceMax with axes attribute", 13, [node("ReduceMax", "x", "y", axes=[0])], [], (3, 4), "y"),
    ("Split with split attribute", 11, [node("Split", "x", "y z", axis=1, split=[1, 3])], [], (3, 4), "y z"),
    ("Split evenly, before num_outputs", 11, [node("Split", "x", "y z", axis=1)], [], (3, 4), "y z"),
    ("Split evenly at 17", 17, [node("Split", "x", "y z", axis=1)], [], (3, 4), "y z"),
    ("Split with split input at 13", 13, [node("Split", "x s", "y z", axis=1)], [ints("s", 3, 1)], (3, 4), "y z"),
    ("Softmax of rows, default axis", 11, [node("Softmax", "x", "y")], [], (2, 3, 4), "y"),
    ("Softmax of rows, axis 0", 11, [node("Softmax", "x", "y", axis=0)], [], (2, 3, 4), "y"),
    ("Softmax of rows, axis 2", 11, [node("Softmax", "x", "y", axis=2)], [], (2, 3, 4), "y"),
    ("Hardmax of rows, default axis", 11, [node("Hardmax", "x", "y")], [], (2, 3, 4), "y"),
    ("Hardmax of rows, axis 0", 12, [node("Hardmax", "x", "y", axis=0)], [], (2, 3, 4), "y"),
    ("Hardmax since 13", 13, [node("Hardmax", "x", "y")], [], (2, 3, 4), "y"),
    ("sums and extremes without broadcasting", 7, [node("Sum", "x x", "a"), node("Max", "a x", "b"), node("Mean", "b x", "c"), node("Min", "c x", "y")], [], (3, 4), "y"),
    ("Softmax since 13", 13, [node("Softmax", "x", "y", axis=1)], [], (2, 3, 4), "y"),
    ("Slice with attributes", 9, [node("Slice", "x", "y", starts=[1, 0], ends=[3, -1], axes=[0, 1])], [], (3, 4), "y"),
    ("Slice with attributes, without axes", 9, [node("Slice", "x", "y", starts=[1, 0], ends=[1000, 2])], [], (3, 4), "y"),
    ("Slice with inputs", 10, [node("Slice", "x a b", "y")], [ints("a", 1, 0), ints("b", 3, 2)], (3, 4), "y"),
    ("Pad with attributes", 10, [node("Pad", "x", "y", pads=[0, 1, 1, 0], value=2.5)], [], (3, 4), "y"),
    ("Dropout with ratio attribute passes through", 10, [node("Dropout", "x", "d", ratio=0.3), node("Neg", "d", "y")], [], (3, 4), "y"),
    ("Gemm, Add, Relu at 9", 9, [node("Gemm", "x w b", "g", transB=1), node("Relu", "g", "r"), node("Add", "r b", "y")],
     [tensor("w", 2, 4), tensor("b", 2)], (3, 4), "y"),
    ("Flatten, Reshape, Transpose, Concat at 12", 12,
     [node("Transpose", "x", "t", perm=[1, 0]), node("Flatten", "t", "f", axis=0), node("Reshape", "f s", "r"), node("Concat", "r r", "y", axis=1)],
     [ints("s", -1, 2)], (3, 4), "y"),
    ("Cast, Pow, Sqrt, Erf, Where at 12", 12,
     [node("Pow", "x two", "p"), node("Sqrt", "p", "q"), node("Erf", "q", "e"), node("Greater", "x two", "c"), node("Where", "c e q", "y")],
     [numpy_helper.from_array(np.array(2.0, np.float32), "two")], (3, 4), "y"),
    ("constants of every kind", 13,
     [node("Constant", "", "c", value_float=2.0), node("Constant", "", "d", value_floats=[1.0, 2.0, 3.0, 4.0]),
      node("Constant", "", "i", value_ints=[4, 3]), node("Constant", "", "v", value=tensor("v", 4)),
      node("Mul", "x c", "a"), node("Add", "a d", "b"), node("Sub", "b v", "e"), node("Reshape", "e i", "y")], [], (3, 4), "y"),
    ("an If with a constant condition", 13, None, [], (3, 4), "y"),
    ("MaxPool and Conv at 11", 11, [node("Conv", "x w b", "c", pads=[1, 1, 1, 1], strides=[2, 1]), node("MaxPool", "c", "y", kernel_shape=[2, 2])],
     [tensor("w", 5, 3, 3, 3), tensor("b", 5)], (2, 3, 8, 8), "y"),
]


def constant_if():
    then = helper.make_graph([node("Neg", "x", "n")], "then", [], [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)])
    other = helper.make_graph([node("Relu", "x", "m")], "else", [], [helper.make_tensor_value_info("m", TensorProto.FLOAT, None)])
    condition = numpy_helper.from_array(np.array(False), "cond_value")
    return [node("Constant", "", "cond", value=condition), node("If", "cond", "i", then_branch=then, else_branch=other), node("Exp", "i", "y")]


def compute(path, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})


def run_case(tessera, folder, title, opset, nodes, initializers, shape, outputs):
    graph = helper.make_graph(nodes or constant_if(), "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs.split()], initializers)
    old, new = os.path.join(folder, "old.onnx"), os.path.join(folder, "new.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), old)
    done = subprocess.run([tessera, "opt", old, "--passes=infer_types", "-o", new], capture_output=True, text=True)
    if done.returncode:
        return "tessera opt failed: %s" % done.stderr.strip()
    onnx.checker.check_model(onnx.load(new))
    x = RNG.standard_normal(shape).astype(np.float32)
    for a, b in zip(compute(old, x), compute(new, x)):
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-6, atol=1e-6):
            return "results differ: shapes %s and %s, by %g" % (a.shape, b.shape, np.abs(a - b).max() if a.shape == b.shape else -1)
    return None


def main(tessera):
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            wrong = run_case(tessera, folder, *case)
            passed, failed = passed + (wrong is None), failed + (wrong is not None)
            if wrong:
                print("FAIL %s: %s" % (case[0], wrong))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/tessera")))
