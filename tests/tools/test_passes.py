#!/usr/bin/env python3
"""tessera opt, one pass at a time: each pass alone, from text and from binary, at every place of the pipeline; the list with its examples; reproducers.

    test_passes.py TESSERA
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import run as goldens

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/tessera"
failures = []
n_cases = 0
OPTIONS = ["--ranks", "2", "--zero", "3", "--isa", "scalar", "--micro-batches", "4"]

MODEL = """<opset_import: ["" : 23]>
mlp (
  float[4,8] x,
  int64[4] y,
  float[6,8] w1,  #@ role="param"
  float[6] b1,  #@ role="param"
  float[3,6] w2  #@ role="param"
) => (loss)
<
  float half = {0.5}
>
{
  h = Gemm <transB = 1> (x, w1, b1)
  r = Gelu (h)
  q = Mul (r, half)
  s = Gemm <transB = 1> (q, w2)
  loss = SoftmaxCrossEntropyLoss (s, y)
}
"""


def tessera(args, cwd, stdin=""):
    p = subprocess.run([TESSERA, *args], cwd=cwd, input=stdin, capture_output=True, text=True)
    return p.returncode, p.stdout, p.stderr


def need(condition, title, why=""):
    global n_cases
    n_cases += 1
    if not condition:
        failures.append(title)
        print(f"FAIL {title}: {str(why)[:800]}")


def opt(path, out, passes, cwd):
    return tessera(["opt", path, "--passes=" + ",".join(passes), *OPTIONS, "-o", out], cwd)


def read(cwd, name):
    """Without the path of the file that the graph came from."""
    text = open(os.path.join(cwd, name)).read() if os.path.exists(os.path.join(cwd, name)) else ""
    return re.sub(r'#@ recipe\.model=.*\n|source = "[^"]*", ', "", text)


def alone(tmp, listed):
    """The pipeline pass by pass, each time from the file before, equals the pipeline in one go."""
    open(os.path.join(tmp, "start.onnxtxt"), "w").write(MODEL)
    rc, _, err = tessera(["opt", "start.onnxtxt", "--passes=train", *OPTIONS, "--time-passes", "-o", "whole.onnxtxt"], tmp)
    order = [line.split()[0] for line in err.splitlines() if line.endswith(" ms")]
    need(rc == 0 and len(order) > 15, "the pipeline", err)
    tessera(["opt", "start.onnxtxt", "--passes=none", "-o", "text.onnxtxt"], tmp)
    tessera(["opt", "start.onnxtxt", "--passes=none", "-o", "binary.onnx"], tmp)
    for i, name in enumerate(order):
        opt("text.onnxtxt", "text2.onnxtxt", [name], tmp)
        rc, _, err = opt("binary.onnx", "binary2.onnx", [name], tmp)
        need(rc == 0, f"{name} from binary", err)
        tessera(["opt", "binary2.onnx", "--passes=none", "-o", "binary2.onnxtxt"], tmp)
        os.replace(os.path.join(tmp, "text2.onnxtxt"), os.path.join(tmp, "text.onnxtxt"))
        os.replace(os.path.join(tmp, "binary2.onnx"), os.path.join(tmp, "binary.onnx"))
        need(read(tmp, "text.onnxtxt") == read(tmp, "binary2.onnxtxt"), f"{i}: {name}: text and binary differ")
        if order.index(name) == i and name not in order[i + 1:]:
            rc, _, err = tessera(["opt", "start.onnxtxt", "--passes=train", "--stop-after=" + name, *OPTIONS, "-o", "stopped.onnxtxt"], tmp)
            need(rc == 0 and read(tmp, "stopped.onnxtxt") == read(tmp, "text.onnxtxt"), f"--stop-after={name}", err)
    need(read(tmp, "whole.onnxtxt") == read(tmp, "text.onnxtxt"), "pass by pass and in one go")
    need(tessera(["diff", "whole.onnxtxt", "binary.onnx"], tmp)[0] == 0, "tessera diff says so, too")
    tessera(["opt", "start.onnxtxt", "--passes=none", "-o", "graph.onnx"], tmp)
    rc, _, err = tessera(["compile", "graph.onnx", "-o", "plan.onnx"], tmp)
    need(rc == 2 and "is a graph that 'tessera opt' wrote" in err, "compile of what opt wrote", err)
    rc, _, err = tessera(["compile", "binary.onnx", "-o", "plan.onnx"], tmp)
    need(rc == 2 and "is a plan already" in err, "compile of a plan", err)
    need(not set(listed) - set(order), "passes that no pipeline has", set(listed) - set(order))


def listed_passes(tmp):
    """Name, lines below: of opt --list-passes."""
    out = tessera(["opt", "--list-passes"], tmp)[1]
    return {block.split()[0]: block.split("\n")[1:] for block in re.split(r"\n(?=\S)", out)}


def field(lines, title):
    return next((line[14:] for line in lines if line[4:14].strip() == title), None)


def seen(name):
    """What stands before and after the pass in its goldens."""
    before = after = ""
    for case in goldens.read_cases(HERE.parent / "passes" / f"{name}.txt")[1]:
        command = re.sub(r" --print-ir-\S+", "", case.command) + f" --print-ir-after={name} --print-ir-diff"
        rc, out, err = goldens.run(TESSERA, command, case.stdin, HERE.parent.parent)
        before += case.stdin + "".join(line[2:] + "\n" for line in err.splitlines() if line.startswith("-"))
        after += (err if rc else case.expected + "".join(line[2:] + "\n" for line in err.splitlines() if line.startswith("+")))
    return before, after


def examples(listed):
    for name, lines in listed.items():
        old, new = field(lines, "before"), field(lines, "after")
        need(old or new, f"{name} has no example in tools/list_passes.c")
        before, after = seen(name)
        need(not old or old in before, f"{name}: its example's line before is in no golden", old)
        need(not new or new in after, f"{name}: its example's line after is in no golden", new)
        need(old != new, f"{name}: the example shows nothing")


def orders(tmp, listed):
    """What the list says is what the runner does: a pass without what it requires names the pass that provides it."""
    for name, lines in listed.items():
        required = re.findall(r"\((\w+)\)", field(lines, "requires") or "")
        rc, _, err = tessera(["opt", "-", "--passes=" + name, *OPTIONS], tmp, MODEL)
        if required:
            need(rc == 2 and f"pass {name} needs what pass {required[0]} provides" in err, f"{name} without {required}", err)
        else:
            need(rc == 0, f"{name} first", err)
    rc, _, err = tessera(["opt", "-", "--passes=infer_typ"], tmp, MODEL)
    need(rc == 2 and "no pass is named 'infer_typ'; did you mean infer_types;" in err, "a mistyped pass", err)
    for extra, code, said in [(["--stop-after=fold_constant"], 2, "cannot stop after 'fold_constant'"), (["--skip-passes=infer_types"], 2, "later passes build on it"),
                              (["--print-ir-after=nothing"], 2, "cannot print after 'nothing'"), (["--verify-each"], 0, ""), (["--verify-each", "--no-verify-each"], 2, "contradict"),
                              (["--passes="], 2, "--passes is empty"), (["--passes=,"], 2, "--passes is empty")]:
        rc, _, err = tessera(["opt", "-", *extra], tmp, MODEL)
        need(rc == code and said in err, " ".join(extra), err)


BROKEN = [
    ("shapes that do not fit", MODEL.replace("[3,6] w2", "[3,7] w2"), [], "infer_types"),
    ("no loss", MODEL.replace("(loss)", "(s)").replace("  loss = SoftmaxCrossEntropyLoss (s, y)\n", ""), [], "attach_loss"),
    ("another loss", MODEL, ["--loss-output", "the 'loss'"], "attach_loss"),
]


def reproducers(tmp):
    written = 0
    sharded = next(c for c in goldens.read_cases(HERE.parent / "passes" / "check_sharding.txt")[1] if c.kind == "error 3")
    for title, text, options, stage in [*BROKEN, ("annotations", sharded.stdin, [], "check_sharding")]:
        open(os.path.join(tmp, "broken.onnxtxt"), "w").write(text)
        rc, _, err = tessera(["opt", "broken.onnxtxt", "--passes=train", *OPTIONS, *options, "--reproducer", "again.onnxtxt"], tmp)
        if rc == 0:
            need(False, title, "it does not fail")
            continue
        if "the graph before it is in again.onnxtxt" not in err:
            need(rc == 2, title + ": no reproducer", err)       # a mistake of usage has none
            continue
        written += 1
        command = open(os.path.join(tmp, "again.onnxtxt")).readline()
        need(command.startswith("# tessera opt again.onnxtxt --passes=" + stage), title + ": its command", command)
        rc2, _, err2 = tessera(shlex.split(command[2:])[1:], tmp)
        need(rc2 == rc and err2 == err.replace("the graph before it is in again.onnxtxt: ", ""), title + ": the command reproduces", err + err2)
    need(written >= 2, "reproducers", f"{written} were written")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        listed = listed_passes(tmp)
        need(len(listed) > 15, "--list-passes", listed)
        alone(tmp, listed)
        examples(listed)
        orders(tmp, listed)
        reproducers(tmp)
    print(f"{n_cases} cases, {len(failures)} failed")
    sys.exit(1 if failures or not n_cases else 0)


if __name__ == "__main__":
    main()
