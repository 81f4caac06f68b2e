#!/usr/bin/env python3
"""The runner of passes refuses an order that would make a wrong graph: each pass after what it must not follow, and twice.

    test_pass_order.py TESSERA
"""
import os
import subprocess
import sys

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/tessera"
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models", "mlp", "model.onnx")
PLAN = ["infer_types", "attach_loss", "sum_loss", "dead_code", "build_backward", "attach_optimizer", "accumulate", "partition", "insert_collectives", "schedule",
        "plan_memory"]
AGAIN = {"infer_types", "plan_memory"}      # these find the graph as they left it


def opt(passes):
    p = subprocess.run([TESSERA, "opt", MODEL, "--passes=" + ",".join(passes), "--ranks", "2", "--zero", "3"], capture_output=True, text=True)
    return p.returncode, p.stderr.strip().split("\n")[-1]


def main():
    failures = []

    def expect(title, passes, code, said=""):
        got, error = opt(passes)
        if got != code or said not in error:
            failures.append(title)
            print("FAIL %s: exit %d, wanted %d with '%s': %s" % (title, got, code, said, error))

    listed = subprocess.run([TESSERA, "opt", "--list-passes"], capture_output=True, text=True).stdout.splitlines()
    names = [line.split()[0] for line in listed if line and line[0] != " "]       # what is indented tells more of it
    expect("the plan", PLAN, 0)
    for name in names:
        if name == "check_sharding" or name in AGAIN:
            expect("%s after all" % name, PLAN + [name], 0)
        else:
            expect("%s after all" % name, PLAN + [name], 2, "pass " + name)
    expect("lowering twice", PLAN[:-2] + ["insert_collectives"], 2, "insert_collectives has run already")
    expect("joining buckets that are lowered", PLAN[:-2] + ["bucket_collectives"], 2, "cannot run after pass insert_collectives")
    expect("lowering without placements", ["infer_types", "insert_collectives"], 2, "needs what pass partition provides")
    print("%d passes, %d failed" % (len(names), len(failures)))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
