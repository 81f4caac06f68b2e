#!/usr/bin/env python3
"""tessera diff: what is the same under other names and numbers, what moved, what each change is told as, limits, and that no change goes unseen.

    test_diff.py TESSERA
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/tessera"
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "gpt_merged", "model.onnx")
failures = []
n_cases = 0

TEXT = """<opset_import: ["" : 23]>
g (
  float[4,8] x,
  int64[4] y,
  float[6,8] w1,  #@ role="param"
  float[6] b1,  #@ role="param"
  float[3,6] w2  #@ role="param"
) => (
  loss, s
)
<
  float half = {0.5}
>
{
  [fc1] h = Gemm <transB = 1> (x, w1, b1)
  [act] r = Relu (h)
  [scale] q = Mul (r, half)
  [side] e = Exp (h)
  [sum] t = Add (q, e)
  [fc2] s = Gemm <transB = 1> (t, w2)
  loss = SoftmaxCrossEntropyLoss (s, y)
}
"""


def tessera(*args):
    p = subprocess.run([TESSERA, *args], capture_output=True, text=True)
    return p.returncode, p.stdout, p.stderr


def fail(title, why):
    failures.append(title)
    print(f"FAIL {title}: {why}")


def count():
    global n_cases
    n_cases += 1


def diff(a, b, *args):
    rc, out, err = tessera("diff", a, b, "--json", *args)
    return rc, json.loads(out) if out else None, err


def brief(d):
    return [(x["topic"], x["kind"], x["what"], x["field"], x["a"], x["b"]) for x in d["differences"]]


def expect(title, a, b, wanted, *args):
    """wanted: list of (topic, kind, part of what, field, a, b); None: anything. Exactly those, in any order."""
    count()
    rc, d, err = diff(a, b, *args)
    got = brief(d) if d else err
    rest = list(got) if d else []
    missing = []
    for w in wanted:
        hit = next((g for g in rest if all(x is None or (x in (y or "") if i == 2 else x == y) for i, (x, y) in enumerate(zip(w, g)))), None)
        if hit:
            rest.remove(hit)
        else:
            missing.append(w)
    if rc != (1 if wanted else 0) or missing or rest:
        fail(title, f"exit {rc}; missing {missing}; unexpected {rest[:6]} {err[:300]}")


def code(title, args, wanted, *said):
    count()
    rc, out, err = tessera(*args)
    missing = [s for s in said if s not in err + out]
    if rc != wanted or missing:
        fail(title, f"exit {rc}, wanted {wanted}; not said: {missing}\n  {(err + out)[:600]}")


def write(path, text):
    with open(path, "w") as f:
        f.write(text)
    return path


def models(tmp):
    a = write(os.path.join(tmp, "a.onnxtxt"), TEXT)

    def other(title, changes, wanted, *args):
        text = TEXT
        for old, new in changes:
            if old not in text:
                fail(title, f"the case itself: no {old!r}")
            text = text.replace(old, new)
        expect(title, a, write(os.path.join(tmp, "b.onnxtxt"), text), wanted, *args)

    other("the same", [], [])
    renamed = [("[fc1]", "[n1]"), ("[act]", "[n2]"), ("[scale]", "[n3]"), ("[side]", "[act]"), (" h ", " v9 "), ("(h)", "(v9)"), (" r ", " h "), ("(r,", "(h,"), ("half", "Constant_7")]
    other("nodes, values and constants under other names", renamed, [])
    swapped = ("  [act] r = Relu (h)\n  [scale] q = Mul (r, half)\n  [side] e = Exp (h)\n", "  [side] e = Exp (h)\n  [act] r = Relu (h)\n  [scale] q = Mul (r, half)\n")
    other("a node that moved", [swapped], [("order", "moved", "Exp of 'side'", None, "after Mul of 'scale'", "after Gemm of 'fc1'")])
    other("a node that moved, ignored", [swapped], [], "--ignore", "order")
    other("a node that moved, not asked for", [swapped], [], "--only", "comm,operators")
    other("a node that moved and all other names", [swapped, *renamed], [("order", "moved", "Exp", None, None, None)])
    other("another attribute", [("Relu (h)", "Gemm <alpha = 2.0, transB = 1> (x, w1, b1)")], [("operators", "changed", "Relu of 'act'", "operator", "Relu", "Gemm"), *(
        ("operators", "changed", "Relu of 'act'", f"operand {i}", None, None) for i in range(3))])
    other("an attribute", [("[fc2] s = Gemm <transB = 1>", "[fc2] s = Gemm <alpha = 0.5, transB = 1>")], [("operators", "changed", "Gemm of 'fc2'", "alpha", "1", "0.5")])
    other("an operator", [("Relu (h)", "Tanh (h)")], [("operators", "changed", "Relu of 'act'", "operator", "Relu", "Tanh")])
    other("an operand", [("Exp (h)", "Exp (r)")], [("operators", "changed", "Exp of 'side'", "operand 0", "Gemm of 'fc1'", "Relu of 'act'")])
    other("swapped operands", [("Add (q, e)", "Add (e, q)")], [("operators", "changed", "Add of 'sum'", "operand 0", None, None), ("operators", "changed", "Add of 'sum'", "operand 1", None, None)])
    other("a node more", [("[sum] t = Add (q, e)", "[new] n = Neg (e)\n  [sum] t = Add (q, n)")], [
        ("operators", "added", "Neg of 'new'", None, None, "float[4,6]"), ("operators", "changed", "Add of 'sum'", "operand 1", "Exp of 'side'", "Neg of 'new'")])
    other("a node less", [("  [scale] q = Mul (r, half)\n", ""), ("Add (q, e)", "Add (r, e)"), ("<\n  float half = {0.5}\n>\n", "")], [
        ("operators", "removed", "Mul of 'scale'", None, "float[4,6]", None), ("operators", "changed", "Add of 'sum'", "operand 0", "Mul of 'scale'", "Relu of 'act'"),
        ("parameters", "removed", "const 'half'", None, None, None)])
    other("a constant", [("{0.5}", "{0.25}")], [("parameters", "changed", "const 'half'", "contents", None, None)])
    other("a parameter's shape", [("[6,8] w1", "[7,8] w1"), ("[6] b1", "[7] b1"), ("[3,6] w2", "[3,7] w2")], [
        *(("operators", "changed", w, "result", "float[4,6]", "float[4,7]") for w in ("fc1", "act", "scale", "side", "sum")),
        ("parameters", "changed", "'w1'", "type", "float[6,8]", "float[7,8]"), ("parameters", "changed", "'b1'", "type", None, None), ("parameters", "changed", "'w2'", "type", None, None)])
    other("a parameter's name", [("b1", "bias")], [("parameters", "changed", "param 'b1'", "name", "b1", "bias")])
    other("a frozen parameter", [('w2  #@ role="param"', 'w2  #@ role="frozen"')], [("parameters", "changed", "'w2'", "trains", "yes", "no")])
    other("an element type", [("float", "double")], [("precision", "changed", None, None, "float", "double")] * 12)
    other("a new size of the batch", [("[4,8] x", "[5,8] x"), ("[4] y", "[5] y")], [("operators", "changed", None, None, None, None)] * 8)
    other("an output's name", [(" s = ", " logits = "), ("loss, s\n", "loss, logits\n"), ("Loss (s, y)", "Loss (logits, y)")], [("operators", "changed", "output 1", "name", "s", "logits")])
    other("outputs in another order", [("loss, s\n", "s, loss\n")], [("operators", "changed", "output", None, None, None)] * 4)
    code("mistyped topic", ["diff", a, a, "--only", "memroy"], 2, "did you mean memory?")
    code("nothing left", ["diff", a, a, "--only", "comm", "--ignore", "comm"], 2, "nothing to compare")
    code("an empty topic", ["diff", a, a, "--only", ","], 2, "names nothing")
    code("one file", ["diff", a], 2, "two files")
    code("three files", ["diff", a, a, a], 2, "two files are expected")
    code("no file", ["diff", a, os.path.join(tmp, "none.onnx")], 5)
    code("no model", ["diff", a, __file__], 3)
    code("twice standard input", ["diff", "-", "-"], 2, "standard input")


def plans(tmp):
    def compile_to(name, *args):
        path = os.path.join(tmp, name)
        rc, _, err = tessera("compile", MODEL, "--isa", "scalar", "--ranks", "4", "--bucket-bytes", "32KiB", *args, "-o", path)
        if rc:
            fail("compile " + name, err)
        return path

    base, same = compile_to("p.onnx", "--zero", "3"), compile_to("q.onnx", "--zero", "3")
    expect("compiled twice", base, same, [])
    text, again = os.path.join(tmp, "p.onnxtxt"), os.path.join(tmp, "again.onnx")
    tessera("opt", base, "--passes=none", "--renumber", "-o", text)
    expect("renumbered text", base, text, [])
    tessera("opt", text, "--passes=none", "-o", again)
    expect("and back", again, base, [])
    expect("learning rate", base, compile_to("lr.onnx", "--zero", "3", "--lr", "0.5"), [("options", "changed", "option lr", "value", None, "0.5"), ("options", "changed", "option --lr", "value", None, None)])
    for name, args, topics in [("stage 1", ["--zero", "1"], {"comm", "memory", "operators", "options"}), ("one bucket", ["--zero", "3", "--bucket-bytes", "16MiB"], {"comm", "memory", "operators", "parameters"}),
                               ("fp64", ["--zero", "3", "--precision", "fp64"], {"comm", "memory", "precision"}), ("sgd", ["--zero", "3", "--optimizer", "sgd"], {"memory", "operators", "options"}),
                               ("unfused", ["--zero", "3", "--skip-passes=fuse_elementwise"], {"operators", "memory"}), ("prefetch", ["--zero", "3", "--prefetch", "1"], {"order"})]:
        count()
        other = compile_to("other.onnx", *args)
        rc, d, err = diff(base, other)
        got = {x["topic"] for x in d["differences"]}
        if rc != 1 or not topics <= got:
            fail(name, f"exit {rc}, topics {got}, wanted {topics}")
        for topic in ("comm", "memory", "order", "operators", "precision", "parameters", "options"):
            count()
            rc, only, _ = diff(base, other, "--only", topic)
            if rc != (topic in got) or len(only["differences"]) != sum(x["topic"] == topic for x in d["differences"]) or any(t["topic"] != topic for t in only["totals"]):
                fail(f"{name} --only {topic}", f"exit {rc}")
        back = diff(other, base)[1]
        if {x["topic"] for x in back["differences"]} != got or sorted((t["metric"], t["b"], t["a"]) for t in d["totals"]) != sorted((t["metric"], t["a"], t["b"]) for t in back["totals"]):
            fail(name + " backwards", "other topics or totals")
    waits(tmp, compile_to("ahead.onnx", "--zero", "3", "--prefetch", "1"))
    limits(base, compile_to("two.onnx", "--zero", "2"), compile_to("bucket.onnx", "--zero", "3", "--bucket-bytes", "4KiB"), same)
    code("a plan and a model", ["diff", base, MODEL], 2, "is a plan and")
    code("two models with open dimensions", ["diff", MODEL, MODEL, "--dim", "none=3"], 0, "are the same")
    text_lines = tessera("diff", base, compile_to("zero.onnx", "--zero", "0"), "--lines", "2")[1].splitlines()
    for topic in ("comm:", "memory:", "operators:", "options:"):
        if not any(line.startswith(topic) for line in text_lines) or not any("more: --lines 0 shows all" in line for line in text_lines):
            fail("text", f"no section {topic} in\n" + "\n".join(text_lines))
    return text


def waits(tmp, plan):
    """A wait less, and a wait for another step, are each the one difference."""
    path = os.path.join(tmp, "waits.onnxtxt")
    tessera("opt", plan, "--passes=none", "-o", path)
    text = open(path).read()
    found = list(re.finditer(r'waits=\["([^",]+)"\]', text))
    assert len(found) > 1, "the case itself: a plan that waits"
    m, other = next((b, a) for a, b in zip(found, found[1:]) if a[1] != b[1])       # of an earlier step
    for title, instead in (("a wait less", ""), ("another wait", f'waits=["{other[1]}"]')):
        changed = write(os.path.join(tmp, "changed.onnxtxt"), text[:m.start()] + instead + text[m.end():])
        expect(title, path, changed, [("order", "changed", None, "waits", None, None)])


def limits(base, less, more, same):
    d = diff(base, more)[1]
    before, after = next((t["a"], t["b"]) for t in d["totals"] if t["metric"] == "sent_bytes")
    percent = 100 * (after - before) / before
    assert percent > 1, "the case itself: more buckets send more"
    code("within", ["diff", base, more, "--max-bytes", f"+{percent + 0.1:.2f}%"], 0, "limit kept: sent_bytes")
    code("above", ["diff", base, more, "--max-bytes", f"+{percent - 0.1:.2f}%"], 1, "limit exceeded: sent_bytes", "comm:")
    code("within, absolute growth", ["diff", base, more, "--max-bytes", f"+{after - before}"], 0)
    code("above, absolute growth", ["diff", base, more, "--max-bytes", f"+{after - before - 1}B"], 1)
    code("within, absolute", ["diff", base, more, "--max-bytes", f"{after}"], 0)
    code("above, absolute", ["diff", base, more, "--max-bytes", f"{after - 1}"], 1)
    code("must fall, does not", ["diff", base, same, "--max-bytes", "-1%"], 1)
    code("may not grow", ["diff", base, same, "--max-bytes", "+0%", "--max-peak", "+0%", "--max-steps", "+0"], 0)
    code("one of two", ["diff", base, more, "--max-bytes", "+1000%", "--max", "buckets=+0"], 1, "limit kept: sent_bytes", "limit exceeded: buckets")
    code("less is fine", ["diff", base, less, "--max-bytes", "+0%", "--max", "AllGather.bytes=+0"], 0)
    for text, said in [("1%", "say how much more or less"), ("+x", "no limit"), ("", "no limit"), ("+1%%", "no known unit"), ("+0x1", "no limit"), ("+1 furlong", "no known unit"), ("+nan%", "no limit"), ("+1e999%", "no limit")]:
        code("limit " + text, ["diff", base, same, "--max-bytes", text], 2, said)
    code("limit of nothing", ["diff", base, same, "--max", "AllGathr=+1%"], 2, "did you mean AllGather?")
    code("limit without one", ["diff", base, same, "--max", "steps"], 2, "METRIC=LIMIT")


# What the text says and diff does not count: names, places, reasons; and what only numbers things.
NOT_COUNTED = re.compile(r'(origin|cause\.node|cause\.pass|doc|recipe\.fingerprint|recipe\.model|source_ir_version|facts)=|fingerprint = "')


def mutants(tmp, text_path):
    """Any number of the text made larger by one: whatever can still be read must be told."""
    lines = open(text_path).read().split("\n")
    rng = random.Random(7)
    spots = [(i, m) for i, line in enumerate(lines) if i for m in re.finditer(r"(?<![\w.\"/])\d+(?![\w.]*\")(?=[\]\s,}+\"*]|$)|(?<=\+)\d+|(?<=\*)\d+|(?<=\")\d+(?=\+)", line) if not NOT_COUNTED.search(line[:m.start()].split("#@")[-1].split('" ')[-1])]
    read = told = 0
    for i, m in rng.sample(spots, 220):
        changed = lines[i][:m.start()] + str(int(m[0]) + 1) + lines[i][m.end():]
        path = write(os.path.join(tmp, "mutant.onnxtxt"), "\n".join(lines[:i] + [changed] + lines[i + 1:]))
        rc, out, err = tessera("diff", text_path, path)
        read += rc in (0, 1)
        told += rc == 1
        if rc == 0:
            fail("a change goes unseen", f"{lines[i].strip()[:200]}\n  {changed.strip()[:200]}")
        if rc not in (0, 1, 3, 4):
            fail("a mutant", f"exit {rc}: {err[:200]} {changed.strip()[:200]}")
    count()
    print(f"mutants of a plan: {read} of 220 could be read, {told} were told")
    if read < 60:
        fail("mutants", "too few could be read")


def scale(tmp):
    """50,000 nodes, all under other names, one inserted and one replaced: linear time."""
    def chain(layers, name, edit):
        lines, x = [], "x"
        for i in range(layers):
            if edit and i == 10:
                lines.append("  extra = Sigmoid (%s)" % x)
                x = "extra"
            n = f"{name}{i}"
            lines += [f"  t{n} = MatMul ({x}, w{i})", f"  r{n} = {'Tanh' if edit and i == layers // 2 else 'Relu'} (t{n})", f"  a{n} = Add (r{n}, {x})", f"  m{n} = Mul (a{n}, half)"]
            x = f"m{n}"
        params = ",\n".join(f"  float[8,8] w{i}" for i in range(layers))
        return f'<opset_import: ["" : 23]>\ng (\n  float[8,8] x,\n{params}\n) => (y)\n<\n  float half = {{0.5}}\n>\n{{\n' + "\n".join(lines) + f"\n  y = Identity ({x})\n}}\n"

    seconds = []
    for layers in (3125, 12500):
        a, b = write(os.path.join(tmp, "big_a.onnxtxt"), chain(layers, "n", False)), write(os.path.join(tmp, "big_b.onnxtxt"), chain(layers, "other", True))
        start = time.monotonic()
        expect(f"{4 * layers} nodes", a, b, [("operators", "added", "Sigmoid", None, None, None), ("operators", "changed", None, "operator", "Relu", "Tanh"),
                                             ("operators", "changed", None, "operand 0", None, None), ("operators", "changed", None, "operand 1", None, None)])
        seconds.append(time.monotonic() - start)
    print("diff of 12,500 and 50,000 nodes: %.2f s, %.2f s" % tuple(seconds))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        models(tmp)
        text = plans(tmp)
        mutants(tmp, text)
        scale(tmp)
    print(f"{n_cases} cases, {len(failures)} failed")
    sys.exit(1 if failures or not n_cases else 0)


if __name__ == "__main__":
    main()
