#!/usr/bin/env python3
"""tessera opt --equivalent: graphs that are the same pass, planted differences are found and named, integer inputs stay in range.

    test_equivalent.py TESSERA
"""
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
from e2e import check, finish, need, tessera

need("numpy", "onnx", "onnxruntime", "safetensors")
import numpy as np
import onnx
from onnx import numpy_helper

from generate import generate, write

MODEL = """net (float[4,3] x, int64[4] ids, int64[4] labels) => (loss)
<
  float[3,5] w = {0.1, 0.2, -0.3, 0.4, 0.5, -0.6, 0.7, 0.8, -0.9, 1.0, 0.15, 0.25, 0.35, 0.45, -0.55},  #@ role="param"
  float[3,3] table = {0.5, -0.5, 0.25, 0.1, 0.2, 0.3, -0.1, -0.2, -0.3},  #@ role="param"
  float one = {1.0}, float zero = {0.0}
>
{
  e = Gather (table, ids)
  h = Add (x, e)
  t = Tanh (h)
  s = MatMul (t, w)
  loss = SoftmaxCrossEntropyLoss (s, labels)
}
"""


def compare(folder, a, b, *arguments):
    paths = []
    for name, text in (("a", a), ("b", b)):
        paths.append(os.path.join(folder, name + ".onnxtxt"))
        open(paths[-1], "w").write(text)
    return tessera("opt", "--equivalent", *paths, *arguments)


def texts(folder):
    same = [("t = Tanh (h)", "t0 = Tanh (h)\n  t = Mul (t0, one)"), ("h = Add (x, e)", "h = Add (e, x)"), ("s = MatMul (t, w)", "s = Gemm (t, w)")]
    p = compare(folder, MODEL, MODEL)
    check(p.returncode == 0 and "1 outputs, 2 gradients; largest difference 0 of" in p.stdout, "itself: %s%s" % (p.stdout, p.stderr))
    for old, new in same:
        p = compare(folder, MODEL, MODEL.replace(old, new))
        check(p.returncode == 0, "%s for %s: %s%s" % (new, old, p.stdout, p.stderr))
    planted = [("t = Tanh (h)", "t = Sin (h)", "'t'"), ("s = MatMul (t, w)", "s0 = MatMul (t, w)\n  s = Neg (s0)", "'s'"), ("h = Add (x, e)", "h = Add (x, x)", "'h'"),
               ("SoftmaxCrossEntropyLoss (s", "SoftmaxCrossEntropyLoss <reduction = \"sum\"> (s", "'loss'"), ("{0.1, 0.2", "{0.1001, 0.2", "'s'")]
    for old, new, first in planted:
        p = compare(folder, MODEL, MODEL.replace(old, new))
        check(p.returncode == 1 and ("both compute: " + first) in p.stdout, "planted %s: exit %d, %s%s" % (new, p.returncode, p.stdout, p.stderr))
    # The same outputs, but what Floor gives carries no gradient.
    stopped = MODEL.replace("t = Tanh (h)", "t0 = Tanh (h)\n  f = Floor (t0)\n  r = Sub (t0, f)\n  t1 = Floor (r)\n  n = Mul (t0, zero)\n  t2 = Add (t0, t1)\n  t = Add (t2, n)")
    p = compare(folder, MODEL, stopped)
    check(p.returncode == 0, "zero times the value has its gradient, too: %s%s" % (p.stdout, p.stderr))
    doubled = MODEL.replace("t = Tanh (h)", "t0 = Tanh (h)\n  f = Round (t0)\n  r = Sub (t0, f)\n  r2 = Sub (r, r)\n  m = Mod <fmod = 1> (t0, one)\n  m2 = Sub (m, m)\n  t3 = Add (t0, r2)\n  t = Add (t3, m2)")
    p = compare(folder, MODEL, doubled)
    check(p.returncode == 0, "what cancels in values cancels in gradients: %s%s" % (p.stdout, p.stderr))
    ceil = MODEL.replace("t = Tanh (h)", "t0 = Tanh (h)\n  f = Floor (t0)\n  c = Ceil (t0)\n  g = Sub (c, f)\n  u = Mul (t0, g)\n  v = Sub (u, t0)\n  w1 = Neg (v)\n  w2 = Add (t0, w1)\n  t = Add (w2, v)")
    p = compare(folder, MODEL, ceil)
    check(p.returncode == 0, "whole parts are constants to a gradient: %s%s" % (p.stdout, p.stderr))
    cut = MODEL.replace("t = Tanh (h)", "t0 = Tanh (h)\n  b = Greater (t0, zero)\n  k = Cast <to = 1> (b)\n  sign = Sign (t0)\n  a = Abs (t0)\n  t = Mul (a, sign)")
    p = compare(folder, MODEL, cut)
    check(p.returncode == 0, "|t| sign(t) has t's gradient: %s%s" % (p.stdout, p.stderr))
    gradient_only = MODEL.replace("t = Tanh (h)", "t0 = Tanh (h)\n  big = Mul (t0, k)\n  i = Cast <to = 7> (big)\n  j = Cast <to = 1> (i)\n  t = Div (j, k)").replace(
        "float one = {1.0}", "float one = {1.0}, float k = {1e12}")
    p = compare(folder, MODEL, gradient_only, "--tolerance", 1e-6)
    check(p.returncode == 1 and "parameter 'table' has a gradient in A only" in p.stderr, "a gradient that is lost: %s%s" % (p.stdout, p.stderr))
    p = compare(folder, MODEL, MODEL.replace("(float[4,3] x,", "(float[4,3] x, float[2] z,").replace("=> (loss)", "=> (loss, z)"))
    check(p.returncode == 1 and "1 outputs in A, 2 in B" in p.stderr, p.stderr)
    p = compare(folder, MODEL, MODEL.replace("{0.1, 0.2", "{0.10001, 0.2"), "--tolerance", 1e-3, "--cases", 5, "--seed", 9)
    check(p.returncode == 0 and "5 cases" in p.stdout, "--tolerance: " + p.stderr)
    p = compare(folder, MODEL, MODEL.replace("{0.1, 0.2", "{0.10001, 0.2"), "--precision", "f32")
    check(p.returncode == 0 and "of 0.0001 allowed" in p.stdout, "in f32 less is seen: " + p.stderr)
    p = compare(folder, MODEL, MODEL, "--passes=none")
    check(p.returncode == 2 and "runs no pass" in p.stderr, p.stderr)


def reaching(case):
    """Names that the loss is computed from."""
    names = {case.loss}
    for n in reversed(case.model.graph.node):
        if names & set(n.output):
            names |= set(n.input) | {name for a in n.attribute for inner in a.g.node for name in inner.input}
    return names


def mutants(folder, seeds):
    """A random graph, and the same with one trained parameter's elements moved: found; with nothing changed: not."""
    found = 0
    for seed in seeds:
        case = generate(seed)
        model, _ = write(case, folder)
        changed = onnx.ModelProto()
        changed.CopyFrom(case.model)
        grown = [t for t in changed.graph.initializer if t.name in case.params and t.name in reaching(case)][-1]
        grown.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(grown) * np.float32(1.25) + np.float32(0.01), grown.name))
        other = os.path.join(folder, "changed.onnx")
        onnx.save(changed, other)
        common = ["--params", ",".join(case.params), "--dim", "N=%d" % case.batch, "--cases", 1]
        p = tessera("opt", "--equivalent", model, model, *common)
        check(p.returncode == 0, "seed %d is itself: %s%s" % (seed, p.stdout, p.stderr))
        p = tessera("opt", "--equivalent", model, other, *common)
        check(p.returncode in (0, 1), "seed %d: %s" % (seed, p.stderr))
        found += p.returncode == 1
    check(found >= len(seeds) * 3 // 4, "%d of %d changed parameters are seen (an activation may be 0 whatever they are)" % (found, len(seeds)))


def main():
    with tempfile.TemporaryDirectory() as folder:
        texts(folder)
        mutants(folder, range(300, 312))
    finish()


if __name__ == "__main__":
    main()
