#!/usr/bin/env python3
"""Functions, If, Loop, Scan, sequences, optionals and operators that are made of others: each small model's loss as `tessera run` finds it against onnxruntime, and
what is refused with the reason.

    test_expand.py build/tessera
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    import onnxruntime
    from safetensors.numpy import load_file, save_file
except ImportError as e:
    print("skipped: %s (run tools/setup)" % e)
    sys.exit(77)

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W = np.array([[0.5, -0.2, 0.1], [0.3, 0.8, -0.6], [-0.4, 0.2, 0.9]], np.float32)


def parse(text):
    """A graph in ONNX's text syntax with input x[4,3], parameter W[3,3] and output loss."""
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 18, "own": 1, "com.microsoft": 1]>\n' + text)


def finish(body, functions="", opset=18):
    model = parse("g (float[4,3] x) => (float loss) <float[3,3] W> { %s loss = ReduceMean <keepdims = 0> (z) }\n%s" % (body, functions))
    model.graph.initializer.append(numpy_helper.from_array(W, "W"))
    model.opset_import[0].version = opset
    return model


def newest(body):
    """The same at the newest opset of the package, which onnxruntime may not know."""
    model = finish(body, opset=onnx.defs.onnx_opset_version())
    model.opset_import.append(helper.make_opsetid("ai.onnx.preview", 1))
    return model


ROWS = """m = MatMul (x, W) qs = Constant <value_ints: ints = [1,2,2,3]> () ks = Constant <value_ints: ints = [1,1,4,3]> ()
        q = Reshape (m, qs) k = Reshape (x, ks) v = Reshape (m, ks) w1 = ReduceSum <keepdims = 0> (W) """
TURNED = """t = Transpose (x) zero = Constant <value_ints: ints = [0]> () u = Unsqueeze (t, zero) ws = Constant <value_ints: ints = [3,1,3]> () w = Reshape (W, ws) """
IMAGE = """is = Constant <value_ints: ints = [1,2,2,3]> () i = Reshape (x, is) flat = Constant <value_ints: ints = [-1]> () wf = Reshape (W, flat)
        from = Constant <value_ints: ints = [0]> () eight = Constant <value_ints: ints = [8]> () two = Constant <value_ints: ints = [2]> () k0 = Slice (wf, from, eight)
        ks = Constant <value_ints: ints = [2,1,2,2]> () k = Reshape (k0, ks) kb = Slice (wf, from, two) m = MatMul (x, W) s = Sigmoid (m) sf = Reshape (s, flat)
        third = Constant <value_float: float = 0.33> () c = Concat <axis = 0> (sf, sf) c3 = Mul (c, third) sixteen = Constant <value_ints: ints = [16]> ()
        o16 = Slice (c3, from, sixteen) os = Constant <value_ints: ints = [1,8,1,2]> () o = Reshape (o16, os) m8 = Slice (sf, from, eight)
        ms = Constant <value_ints: ints = [1,4,1,2]> () mask = Reshape (m8, ms) """
SPELT_SCORES = ROWS + "kt = Transpose <perm = [0,1,3,2]> (k) s0 = MatMul (q, kt) "
LOOP = "{ h1 = MatMul (h, W) h2 = Tanh (h1) g = Identity (c) }"
ACCEPTED = {
    "function in function": finish("z = own.outer (x, W)", """
        <domain: "own", opset_import: ["": 18, "own": 1]> outer (a, w) => (r) { t = own.inner <alpha = 0.3> (a, w) r = own.inner (t, w) }
        <domain: "own", opset_import: ["": 18]> inner <alpha: float = 2.0> (a, w) => (r) { m = MatMul (a, w) s = Constant <value_float: float = @alpha> () r = Mul (m, s) }"""),
    "function without an optional input": finish("z = own.f (x, W)", """
        <domain: "own", opset_import: ["": 18]> f (a, w, axes) => (r) { m = MatMul (a, w) i = Constant <value_ints: ints = [1]> () k = Constant <value_ints: ints = [3]> () r = Slice (m, i, k, axes) }"""),
    "function with its own opset": finish("z = own.f (x, W)", """
        <domain: "own", opset_import: ["": 11]> f (a, w) => (r) { m = MatMul (a, w) u = Unsqueeze <axes = [0]> (m) r = Squeeze <axes = [0]> (u) }"""),
    "function that gives its input": finish("y, m = own.f (x, W) z = Add (y, m)", """
        <domain: "own", opset_import: ["": 18]> f (a, w) => (a, m) { m = MatMul (a, w) }"""),
    "If on data": finish("""m = MatMul (x, W) s = ReduceSum <keepdims = 0> (m) zero = Constant <value_float: float = 0.0> () p = Greater (s, zero)
        z = If (p) <then_branch = t () => (float[4,3] a) { a = Tanh (m) }, else_branch = e () => (float[4,3] b) { b = Neg (m) }>"""),
    "If on a shape": finish("""n = Shape (x) i = Constant <value_int: int = 0> () d = Gather (n, i) four = Constant <value_int: int = 4> () p = Equal (d, four)
        z = If (p) <then_branch = t () => (float[4,3] a) { a = MatMul (x, W) }, else_branch = e () => (float[1,3] b) { k = Constant <value_int: int = 0> () b = Gather (x, k) }>"""),
    "Loop": finish("""n = Shape <start = 1, end = 2> (x) one = Constant <value_ints: ints = [0]> () trips = Squeeze (n, one) go = Constant <value = bool {1}> ()
        z = Loop (trips, go, x) <body = b (int64 i, bool c, float[4,3] h) => (bool g, float[4,3] h2) """ + LOOP + ">"),
    "Loop with scan outputs": finish("""trips = Constant <value_int: int = 3> ()
        y, z = Loop (trips, , x) <body = b (int64 i, bool c, float[4,3] h) => (bool g, float[4,3] h2, float[4,3] h1) """ + LOOP + ">"),
    "Loop until a condition": finish("""go = Constant <value = bool {1}> ()
        z = Loop (, go, x) <body = b (int64 i, bool c, float[4,3] h) => (bool g, float[4,3] h1)
        { h1 = MatMul (h, W) two = Constant <value_int: int = 2> () g = Less (i, two) }>"""),
    "Loop in Loop": finish("""trips = Constant <value_int: int = 2> () go = Constant <value = bool {1}> ()
        z = Loop (trips, go, x) <body = b (int64 i, bool c, float[4,3] h) => (bool g, float[4,3] h3)
        { h3 = Loop (trips, c, h) <body = bb (int64 ii, bool cc, float[4,3] hh) => (bool gg, float[4,3] h2) { h1 = MatMul (hh, W) h2 = Tanh (h1) gg = Identity (c) }> g = Identity (go) }>"""),
    "Scan": finish("""s = Constant <value = float[3] {0.1, 0.2, 0.3}> ()
        last, z = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1], body = b (float[3] h, float[3] xi) => (float[3] h2, float[3] o)
        { m = MatMul (h, W) h1 = Add (m, xi) h2 = Tanh (h1) o = Mul (h2, xi) }> (s, x)"""),
    "sequences": finish("""m = MatMul (x, W) q = SplitToSequence <axis = 0> (m) i = Constant <value_int: int = -1> () zero = Constant <value_int: int = 0> ()
        last = SequenceAt (q, i) q2 = SequenceErase (q, zero) q3 = SequenceInsert (q2, last, zero) q4 = Identity (q3) z = ConcatFromSequence <axis = 1> (q4)"""),
    "sequence without kept axis": finish("""m = MatMul (x, W) q = SplitToSequence <axis = 1, keepdims = 0> (m) z = ConcatFromSequence <axis = 0, new_axis = 1> (q)"""),
    "sequence carried by a Loop": finish("""trips = Constant <value_int: int = 3> () go = Constant <value = bool {1}> () m = MatMul (x, W) q = SequenceEmpty ()
        r = Loop (trips, go, q) <body = b (int64 i, bool c, seq(float[4,3]) s) => (bool g, seq(float[4,3]) s2)
        { f = Cast <to = 1> (i) mi = Mul (m, f) s2 = SequenceInsert (s, mi) g = Identity (c) }> z = ConcatFromSequence <axis = 0> (r)"""),
    "optional": finish("""o = Optional (x) h = OptionalHasElement (o) v = OptionalGetElement (o) hf = Cast <to = 1> (h) m = MatMul (v, W) z = Mul (m, hf)"""),
    "GroupNormalization with factors of groups": finish("""us = Constant <value_ints: ints = [1,6,2]> () u = Reshape (x, us) zero = Constant <value_int: int = 0> ()
        one = Constant <value_int: int = 1> () s = Gather (W, zero) b = Gather (W, one) z = GroupNormalization <num_groups = 3> (u, s, b)"""),
    "SwiGLU": newest("m = MatMul (x, W) z = SwiGLU <alpha = 1.5> (m, x)"),
    "CausalConvWithState": newest(TURNED + 'y, p = CausalConvWithState <activation = "silu"> (u, w) z = Concat <axis = 2> (y, p)'),
    "CausalConvWithState behind a past": newest(TURNED + """a = Constant <value_ints: ints = [0]> () e = Constant <value_ints: ints = [2]> () two = Constant <value_ints: ints = [2]> ()
        past = Slice (u, a, e, two) y, p = CausalConvWithState (u, w, , past) z = Concat <axis = 2> (y, p)"""),
    "DeformConv": finish(IMAGE + "z = DeformConv <group = 2> (i, k, o, kb, mask)", opset=22),
    "MaxRoiPool": finish("""m = MatMul (x, W) is = Constant <value_ints: ints = [1,1,4,3]> () i = Reshape (m, is)
        boxes = Constant <value = float[2,5] {0.0,0.0,0.0,2.0,3.0,0.0,1.5,0.4,4.0,2.6}> () z = MaxRoiPool <pooled_shape = [3,2], spatial_scale = 0.9> (i, boxes)"""),
    "FlexAttention": newest(ROWS + "z = ai.onnx.preview.FlexAttention (q, k, v)"),
    "FlexAttention with modifiers": newest(ROWS + """z = ai.onnx.preview.FlexAttention <scale = 0.4, softmax_precision = 11,
        score_mod = sm (double[1,2,2,4] s) => (double[1,2,2,4] r) { wd = Cast <to = 11> (w1) c = Mul (s, wd) r = Tanh (c) },
        prob_mod = pm (double[1,2,2,4] s) => (double[1,2,2,4] r) { r = Mul (s, s) }> (q, k, v)"""),
    "what onnxruntime's optimizations make": finish("""b = Constant <value = float[3] {0.1,0.2,-0.3}> () m = com.microsoft.FusedMatMul <transB = 1, alpha = 0.7> (x, W)
        p = com.microsoft.Gelu (m) q = com.microsoft.BiasGelu (p, b) r = com.microsoft.FastGelu (q, b) s = com.microsoft.FastGelu (r) z = com.microsoft.QuickGelu (s)"""),
    "nodes in any order": finish("z = Add (m, c) c = If (p) <then_branch = t () => (float[4,3] a) { a = Neg (m) }, else_branch = e () => (float[4,3] b) { b = Identity (m) }> "
                                 "m = MatMul (x, W) p = Constant <value = bool {1}> ()"),
}

# What onnxruntime does not take: a plain model that is the same.
SAME_AS = {
    "function with its own opset": finish("z = MatMul (x, W)"), "function that gives its input": finish("m = MatMul (x, W) z = Add (x, m)"),
    "GroupNormalization with factors of groups": finish("""us = Constant <value_ints: ints = [1,3,4]> () u = Reshape (x, us) f = Constant <value_ints: ints = [3]> ()
        zero = Constant <value_int: int = 0> () one = Constant <value_int: int = 1> () s = Gather (W, zero) b = Gather (W, one) z = InstanceNormalization (u, s, b)"""),
    "SwiGLU": finish("m = MatMul (x, W) a = Constant <value_float: float = 1.5> () am = Mul (m, a) g = Sigmoid (am) mg = Mul (m, g) z = Mul (mg, x)"),
    "CausalConvWithState": finish(TURNED + """ps = Constant <value_ints: ints = [0,0,2,0,0,0]> () j = Pad (u, ps) c = Conv <group = 3> (j, w) g = Sigmoid (c) y = Mul (c, g)
        a = Constant <value_ints: ints = [4]> () e = Constant <value_ints: ints = [6]> () two = Constant <value_ints: ints = [2]> () p = Slice (j, a, e, two) z = Concat <axis = 2> (y, p)"""),
    "CausalConvWithState behind a past": finish(TURNED + """a = Constant <value_ints: ints = [0]> () e = Constant <value_ints: ints = [2]> () two = Constant <value_ints: ints = [2]> ()
        four = Constant <value_ints: ints = [4]> () past = Slice (u, a, e, two) j = Concat <axis = 2> (past, u) y = Conv <group = 3> (j, w) p = Slice (u, e, four, two)
        z = Concat <axis = 2> (y, p)"""),
    "FlexAttention": finish(SPELT_SCORES + "f = Constant <value_float: float = 0.57735026> () s1 = Mul (s0, f) p = Softmax (s1) z = MatMul (p, v)"),
    "FlexAttention with modifiers": finish(SPELT_SCORES + """f = Constant <value_float: float = 0.4> () s1 = Mul (s0, f) s2 = Mul (s1, w1) s3 = Tanh (s2) p = Softmax (s3)
        p2 = Mul (p, p) z = MatMul (p2, v)"""),
}

doubling = "".join('<domain: "own", opset_import: ["": 18, "own": 1]> f%d (a) => (r) { t = own.f%d (a) r = own.f%d (t) }\n' % (i, i + 1, i + 1) for i in range(40))
REFUSED = {
    "recursion": (finish("m = MatMul (x, W) z = own.f (m)", '<domain: "own", opset_import: ["": 18, "own": 1]> f (a) => (r) { r = own.f (a) }'), 3, "calls itself"),
    "doubling": (finish("m = MatMul (x, W) z = own.f0 (m)", doubling + '<domain: "own", opset_import: ["": 18]> f40 (a) => (r) { r = Neg (a) }'), 7, "expands to more than"),
    "trip count from data": (finish("""s = ReduceSum <keepdims = 0> (x) trips = Cast <to = 7> (s) go = Constant <value = bool {1}> ()
        z = Loop (trips, go, x) <body = b (int64 i, bool c, float[4,3] h) => (bool g, float[4,3] h2) """ + LOOP + ">"), 4, "trip count is computed from data"),
    "branches of two shapes": (finish("""s = ReduceSum <keepdims = 0> (x) p = Cast <to = 9> (s)
        z = If (p) <then_branch = t () => (float[4,3] a) { a = MatMul (x, W) }, else_branch = e () => (float[3,3] b) { b = Neg (W) }>"""), 4, "float[3,3]"),
    "unknown attribute of a function": (finish("z = own.f <beta = 1.0> (x, W)", '<domain: "own", opset_import: ["": 18]> f (a, w) => (r) { r = MatMul (a, w) }'), 3, "no attribute 'beta'"),
    "a gate of another shape": (newest("z = SwiGLU (x, W)"), 3, "must be alike"),
    "an activation that is none": (newest(TURNED + 'y, p = CausalConvWithState <activation = "relu"> (u, w) z = Add (y, y)'), 3, 'must be silu, swish or none'),
    "a past of another length": (newest(TURNED + "y, p = CausalConvWithState (u, w, , u) z = Add (y, y)"), 3, "past_state must be [1, 3, 2]"),
    "a modifier that changes the shape": (newest(ROWS + """z = ai.onnx.preview.FlexAttention <score_mod = sm (float[1,2,2,4] s) => (float[] r)
        { r = ReduceSum <keepdims = 0> (s) }> (q, k, v)"""), 3, "what score_mod gives is not of the type that it takes"),
    "an unknown preview operator": (newest("z = ai.onnx.preview.FlexAttentio (x, x, x)"), 3, "FlexAttentio is no operator of ai.onnx.preview"),
    "an optimization of onnxruntime": (finish("m = MatMul (x, W) z = com.microsoft.SkipLayerNormalization (m, x, W)"), 4,
                                       "com.microsoft::SkipLayerNormalization is not supported; it is an optimization of ONNX Runtime: give the model as it was exported"),
    "an optimizer of onnxruntime": (finish("m = MatMul (x, W) z = com.microsoft.AdamWOptimizer (m, x)"), 4, "it belongs to ONNX Runtime's training artifacts: give training_model.onnx"),
    "a gradient of onnxruntime in a forward graph": (finish("m = MatMul (x, W) z = com.microsoft.ReluGrad (m, x)"), 4, "ReluGrad has no gradient"),
    "position beyond the end": (finish("q = SequenceConstruct (x, W) i = Constant <value_int: int = 2> () z = SequenceAt (q, i)"), 3, "position 2 in a sequence of 2"),
}


def run(tessera, model, folder, precision="fp64"):
    path, data, report = (os.path.join(folder, f) for f in ("m.onnx", "x.safetensors", "r.json"))
    onnx.save(model, path)
    save_file({"x.0": X}, data)
    if os.path.exists(report):
        os.remove(report)
    p = subprocess.run([tessera, "run", path, "--data", data, "--steps", "1", "--no-shuffle", "--optimizer", "sgd", "--lr", "0.1", "--precision", precision, "--params", "W",
                        "--dump-grads", os.path.join(folder, "g.safetensors"), "--report", report], capture_output=True, text=True, timeout=120)
    loss = json.load(open(report))["losses"][0] if p.returncode == 0 else None
    return p, loss


def reference(model, w):
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "W"))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(changed.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return float(session.run(None, {"x": X})[0])


def numeric_gradient(model):
    """Of the f32 evaluator, central differences with a large step: good to some percent, which tells a wrong graph."""
    g = np.zeros_like(W)
    for i in np.ndindex(W.shape):
        up, down = W.copy(), W.copy()
        up[i] += 0.01
        down[i] -= 0.01
        g[i] = (reference(model, up) - reference(model, down)) / (float(up[i]) - float(down[i]))
    return g


def main():
    tessera, bad = os.path.abspath(sys.argv[1]), 0
    with tempfile.TemporaryDirectory() as folder:
        for name, model in ACCEPTED.items():
            p, loss = run(tessera, model, folder)
            model = SAME_AS.get(name, model)
            want = reference(model, W)
            problem = None
            if loss is None:
                problem = "exit %d: %s" % (p.returncode, p.stderr.strip()[-300:])
            elif not abs(loss - want) <= 1e-5 * max(1, abs(want)):
                problem = "loss %r, want %r" % (loss, want)
            else:
                got, grad = load_file(os.path.join(folder, "g.safetensors"))["W"], numeric_gradient(model)
                error = np.linalg.norm(got - grad) / max(np.linalg.norm(grad), 1e-6)
                if not error <= 0.02:
                    problem = "gradient off by %.2g" % error
            bad += problem is not None
            print("%-4s %s%s" % ("FAIL" if problem else "ok", name, ": " + problem if problem else ""))
        for name, (model, code, words) in REFUSED.items():
            p, _ = run(tessera, model, folder)
            ok = p.returncode == code and words in p.stderr
            bad += not ok
            print("%-4s refused: %s%s" % ("ok" if ok else "FAIL", name, "" if ok else ": exit %d: %s" % (p.returncode, p.stderr.strip()[-300:])))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
