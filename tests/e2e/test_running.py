#!/usr/bin/env python3
"""--accumulate running: one partial sum a bucket instead of the tree's, results that repeat and are near the tree's, and that say they hold for these ranks.

    test_running.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, model, tessera, train

ONLY = "each only: results repeat, but other numbers of ranks give other last bits"


def partial_bytes(tmp, *options):
    plan = os.path.join(tmp, "plan.onnx")
    p = tessera("compile", model("gpt_merged"), "-o", plan, *options)
    check(p.returncode == 0, "compile %s: %s" % (options, p.stderr))
    check(tessera("verify", plan).returncode == 0, "%s: the plan is not proved" % (options,))
    shown = json.loads(tessera("show", plan, "--json").stdout)
    return sum(b["bytes"] for b in shown["buffers"] if b["category"] == "partial"), shown["bits"]


def memory(tmp):
    for k, levels in ((2, 1), (3, 2), (4, 2), (8, 3)):
        for zero, precision in ((0, "f32"), (1, "bf16"), (2, "fp16"), (3, "f32")):
            options = ["--ranks", 2, "--zero", zero, "--precision", precision, "--micro-batches", 2 * k]
            tree, shared = partial_bytes(tmp, *options)
            running, only = partial_bytes(tmp, *options, "--accumulate", "running")
            check(tree == levels * running > 0, "k = %d, stage %d, %s: %d bytes of partial sums, the tree's are %d" % (k, zero, precision, running, tree))
            check(only.endswith(ONLY) and (k == 3 or not shared.endswith(ONLY)), "k = %d: bits are '%s', the tree's '%s'" % (k, only, shared))


def results():
    differ = False
    for precision, tolerance in (("f32", 1e-6), ("bf16", 1e-3)):
        for ranks, stages in ((1, [0]), (2, [2, 3])):
            first = None
            for zero in stages:
                options = ["--ranks", ranks, "--zero", zero, "--micro-batches", 8, "--steps", 4, "--precision", precision]
                tree, running, again = (train("mlp", *options, *more) for more in ([], ["--accumulate", "running"], ["--accumulate", "running"]))
                tag = "%s, %d ranks, stage %d: " % (precision, ranks, zero)
                check(all(abs(a - b) <= tolerance * abs(b) for a, b in zip(running["losses"], tree["losses"])), tag + "%s, tree %s" % (running["losses"], tree["losses"]))
                check(running["params_hash"] == again["params_hash"], tag + "does not repeat")
                check(running["bits"].endswith(ONLY) and ONLY in running["stderr"], tag + "does not say that bits hold for these ranks: " + running["bits"])
                differ |= running["params_hash"] != tree["params_hash"]
                first = first or running["params_hash"]
                check(running["params_hash"] == first, tag + "other bits than in another stage that reduces alike")
    check(differ, "the running sum is the tree")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        memory(tmp)
    results()
    finish()


if __name__ == "__main__":
    main()
