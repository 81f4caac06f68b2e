#!/usr/bin/env python3
"""tessera reduce with planted conditions: what is left is exactly what the condition needs, every candidate that the command sees is valid, and limits, time-outs and
Ctrl-C leave the best graph so far.

    test_reduce.py TESSERA
"""
import glob
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
from e2e import TESSERA, check, finish, need, tessera

need("numpy", "onnx", "onnxruntime", "safetensors")
import onnx

from generate import generate, write

CHAIN = """chain (float[6,8] x, float[6,8] unused) => (y, z) {
  a = Exp (x)
  b = Tanh (a)
  c = Erf (b)
  d = Mul (c, x)
  e = LeakyRelu <alpha = 0.3> (d)
  f = Concat <axis = 1> (e, d, x)
  s = Softmax <axis = 0> (f)
  y = Neg (s)
  z = Log (a)
}
"""


def reduce(source, out, *arguments, command, **more):
    return tessera("reduce", source, "-o", out, *arguments, "--", *command, **more)


def operators(path):
    text = open(path).read()
    return [line.split(" = ", 1)[1].split(" ")[0] for line in text.split("{\n")[-1].splitlines() if " = " in line]


def script(folder, name, body):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write("#!/bin/sh\n" + body)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
    return path


def polarities(folder):
    source, out = os.path.join(folder, "chain.onnxtxt"), os.path.join(folder, "out", "small.onnxtxt")
    open(source, "w").write(CHAIN)
    p = reduce(source, out, "--while-succeeds", command=["grep", "-q", "Erf", "{}"])
    check(p.returncode == 0 and operators(out) == ["Erf"], "one operator is left: %s %s" % (p.stderr, open(out).read()))
    check("float[1]" in open(out).read() or "float[1,1]" in open(out).read(), "sizes shrink: " + open(out).read())
    both = script(folder, "both", "grep -q Tanh $1 && grep -q Softmax $1 && exit 9\nexit 3\n")
    p = reduce(source, out, command=[both, "{}"])
    check(p.returncode == 0 and sorted(operators(out)) == ["Softmax", "Tanh"], "the exit code of the first run stays: %s %s" % (p.stderr, operators(out)))
    text = script(folder, "text", "if grep -q Log $1; then echo planted: Log >&2; exit 5; fi\nexit 5\n")
    p = reduce(source, out, "--match", "planted: Log", command=[text, "{}"])
    check(p.returncode == 0 and operators(out) == ["Log"], "--match: %s %s" % (p.stderr, operators(out)))
    anyhow = script(folder, "anyhow", "grep -q Erf $1 && exit 4\ngrep -q LeakyRelu $1 && exit 6\nexit 0\n")
    p = reduce(source, out, "--while-fails", command=[anyhow, "{}"])
    check(p.returncode == 0 and operators(out) in (["Erf"], ["LeakyRelu"]), "--while-fails takes any failure: %s" % operators(out))
    kept = script(folder, "kept", "grep -q 'Concat.*(.*,.*,' $1 && grep -q 'alpha = 0.3' $1\n")
    p = reduce(source, out, "--while-succeeds", command=[kept, "{}"])
    check(sorted(operators(out)) == ["Concat", "LeakyRelu"] and "alpha" in open(out).read(), "attributes and operands that matter stay: " + open(out).read())
    crash = script(folder, "crash", "grep -q Erf $1 && kill -SEGV $$\nexit 1\n")
    p = reduce(source, out, command=[crash, "{}"])
    check(p.returncode == 0 and operators(out) == ["Erf"] and "signal 11" in p.stderr, "death by a signal: " + p.stderr)


def usage(folder):
    source, out = os.path.join(folder, "chain.onnxtxt"), os.path.join(folder, "none.onnxtxt")
    for arguments, command, text in (([], ["false"], "has no {}"), ([], [], "no command is given"), ([], ["true", "{}"], "--while-succeeds or --match"),
                                     (["--while-fails"], ["true", "{}"], "does not fail"), (["--while-succeeds"], ["false", "{}"], "does not succeed"),
                                     (["--while-fails", "--while-succeeds"], ["true", "{}"], "contradict"), ([], ["/no/such/program", "{}"], "cannot run"),
                                     (["--match", "never"], ["false", "{}"], "does not hold 'never'")):
        p = reduce(source, out, *arguments, command=command)
        check(p.returncode == 2 and text in p.stderr, "%s %s: exit %d, %s" % (arguments, command, p.returncode, p.stderr))
    p = tessera("reduce", source, "--while-fails", "--", "false", "{}")
    check(p.returncode == 2 and "-o OUT" in p.stderr, p.stderr)
    p = reduce(source, source, "--while-fails", command=["false", "{}"])
    check(p.returncode == 2 and "would overwrite" in p.stderr, p.stderr)
    check(not glob.glob(os.path.join(folder, "*candidate*")), "no candidate is left behind")


def limits(folder):
    source, out = os.path.join(folder, "chain.onnxtxt"), os.path.join(folder, "limited.onnxtxt")
    p = reduce(source, out, "--while-succeeds", "--runs", 2, command=["grep", "-q", "Erf", "{}"])
    check(p.returncode == 1 and "as many as --runs allows" in p.stderr and "Erf" in operators(out), "--runs: " + p.stderr)
    slow = script(folder, "slow", "grep -q Exp $1 || sleep 100\nexit 0\n")
    start = time.monotonic()
    p = reduce(source, out, "--while-succeeds", "--timeout", 0.1, command=[slow, "{}"])
    check(p.returncode == 0 and operators(out) == ["Exp"] and time.monotonic() - start < 60, "--timeout: %s %s" % (p.stderr, operators(out)))
    late = script(folder, "late", "grep -q Exp $1 || exit 1\nsleep 0.3\n")
    p = subprocess.Popen([TESSERA, "reduce", source, "-o", out, "--while-succeeds", "--", late, "{}"], stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    p.send_signal(signal.SIGINT)
    said = p.communicate(timeout=30)[1]
    check(p.returncode == 1 and "interrupted" in said and "Exp" in operators(out), "Ctrl-C leaves the best so far: %s" % said)
    check(tessera("opt", out).returncode == 0, "and it is valid")
    check(not glob.glob(os.path.join(folder, "*candidate*")), "and no candidate")


def always_valid(folder, seed):
    """Every graph that the command sees passes onnx.checker and is read by Tessera."""
    case = generate(seed)
    model, _ = write(case, folder)
    wanted = case.model.graph.node[len(case.model.graph.node) // 2].op_type
    if wanted in ("If", "Loop", "Scan", "Einsum") or case.model.functions:
        wanted = "Mul"
    kept, out = os.path.join(folder, "kept%d" % seed), os.path.join(folder, "small%d.onnx" % seed)
    os.mkdir(kept)
    oracle = script(folder, "oracle%d" % seed, "cp $1 %s/$(date +%%N).onnx\n%s opt $1 --passes=none | grep -qw %s\n" % (kept, TESSERA, wanted))
    p = reduce(model, out, "--while-succeeds", *(["--dim", "N=%d" % case.batch]), command=[oracle, "{}"])
    if p.returncode == 2 and "does not succeed" in p.stderr:
        return 0
    check(p.returncode == 0, "seed %d: %s" % (seed, p.stderr))
    candidates = glob.glob(os.path.join(kept, "*.onnx"))
    for path in candidates:
        try:
            onnx.checker.check_model(onnx.load(path), full_check=True)
        except Exception as e:
            check(False, "seed %d: onnx.checker of a candidate: %s" % (seed, str(e)[:300]))
    left = [n.op_type for n in onnx.load(out).graph.node]
    check(left == [wanted], "seed %d: %s is left of %d nodes, not %s alone" % (seed, left, len(case.model.graph.node), wanted))
    return len(candidates)


def main():
    with tempfile.TemporaryDirectory() as folder:
        polarities(folder)
        usage(folder)
        limits(folder)
        seen = sum(always_valid(folder, seed) for seed in range(20, 22))
        check(seen > 20, "%d candidates" % seen)
    finish()


if __name__ == "__main__":
    main()
