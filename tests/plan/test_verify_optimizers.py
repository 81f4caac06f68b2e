#!/usr/bin/env python3
"""`tessera verify` on plans whose optimizers take several steps: right ones are proved, and every mutation of their steps must be caught.

    test_verify_optimizers.py TESSERA
"""
import sys
import tempfile

from test_verify import alike, attribute, by_name, check, compile_plan, counts, drop, expect, failures, nodes, set_attribute, skip, take, verify

LAST = {"lamb": "LambApply", "muon": "MuonApply", "adafactor": "AdafactorApply"}


def check_valid(tmp):
    for optimizer in LAST:
        for ranks in (1, 2, 4):
            for zero in range(4):
                plan = compile_plan(tmp, "mlp", "--optimizer", optimizer, "--ranks", str(ranks), "--zero", str(zero), "--bucket-bytes", "8192", "--no-decay", "@vectors")
                code, result = verify(tmp, plan)
                check(code == 0 and result["ok"], "%s, %d ranks, stage %d: %s" % (optimizer, ranks, zero, result["defects"][:2]))
                counts["valid plans"] = counts.get("valid plans", 0) + 1


def check_pieces(tmp, plan, n):
    """Where the single parameters lie."""
    for name, other in (("sizes", lambda v: v[:-1] + [v[-1] - 1]), ("starts", lambda v: [x + 1024 for x in v]), ("parts", lambda v: 2 if v == 1 else 1)):
        value = attribute(n, name)
        if value is not None:
            expect(tmp, "%s: other %s" % (n.name, name), plan, lambda p: set_attribute(by_name(p, n), name, other(value)), ["wrong_parameter", "graph"])


def check_steps(tmp, plan, optimizer):
    for n in nodes(plan, "AllReduce") + nodes(plan, "AllGather"):
        if attribute(n, "kind") == b"optimizer":
            expect(tmp, "%s taken out" % n.name, plan, lambda p: skip(p, n), ["never_reduced", "graph", "wrong_input"])
            expect(tmp, "%s counted as gradients" % n.name, plan, lambda p: set_attribute(by_name(p, n), "kind", b"grad"), ["agreement"])
    for n in nodes(plan, "TensorNorms"):
        check_pieces(tmp, plan, n)
        expect(tmp, "%s: operands exchanged" % n.name, plan, lambda p: by_name(p, n).input.__setitem__(slice(0, 2), [n.input[1], n.input[0]]), ["wrong_input"])
        expect(tmp, "%s: norm of parameters twice" % n.name, plan, lambda p: take(p, n, 1, n.input[0]), ["wrong_input"])
    for n in nodes(plan, "FactoredSums") + nodes(plan, "AdafactorDirection"):
        if attribute(n, "rows") != attribute(n, "columns"):
            expect(tmp, "%s transposed" % n.name, plan, lambda p: (set_attribute(by_name(p, n), "rows", attribute(n, "columns")),
                                                                  set_attribute(by_name(p, n), "columns", attribute(n, "rows"))), ["wrong_parameter", "graph"])
    last = nodes(plan, LAST[optimizer])
    check(len(last) > 1, "%s: %d buckets" % (optimizer, len(last)))
    for n in last:
        check_pieces(tmp, plan, n)
        expect(tmp, "%s dropped" % n.name, plan, lambda p: drop(p, n), ["never_updated", "graph"], or_malformed=True)
        expect(tmp, "%s at the rate of nothing" % n.name, plan, lambda p: take(p, n, 2, "tessera.grad_scale"), ["wrong_input"])
        for i in range(1, len(n.input)):
            others = [x.input[i] for x in last if x.name != n.name]
            other = alike(plan, n.input[i], others, n)
            if other:
                expect(tmp, "%s: input %d of another bucket" % (n.name, i), plan, lambda p: take(p, n, i, other), ["wrong_input"])
        if attribute(n, "rows") != attribute(n, "columns"):
            expect(tmp, "%s transposed" % n.name, plan, lambda p: (set_attribute(by_name(p, n), "rows", attribute(n, "columns")),
                                                                  set_attribute(by_name(p, n), "columns", attribute(n, "rows"))), ["wrong_parameter"])


def check_around(tmp, plan):
    """Clipping by value, the average, states of 8 bits."""
    for n in nodes(plan, "ClipValue"):
        expect(tmp, "%s at the rate of nothing" % n.name, plan, lambda p: take(p, n, 1, "tessera.lr"), ["wrong_input"])
        for reader in nodes(plan, "Adam8"):
            if reader.input[1] == n.output[0]:
                expect(tmp, "%s takes gradients that are not clipped" % reader.name, plan, lambda p: take(p, reader, 1, n.input[0]), ["wrong_input", "label"])
                expect(tmp, "%s takes the factor of gradients that are not clipped" % reader.name, plan, lambda p: take(p, reader, 2, "tessera.grad_scale"), ["wrong_input"])
                expect(tmp, "%s: scales exchanged" % reader.name, plan, lambda p: by_name(p, reader).input.__setitem__(slice(6, 9), [reader.input[8], reader.input[7], reader.input[6]]),
                       ["wrong_state"])
    for n in nodes(plan, "TensorNorms"):
        expect(tmp, "%s at the rate of nothing" % n.name, plan, lambda p: take(p, n, 1, "tessera.lr"), ["wrong_input"])
        check_pieces(tmp, plan, n)
    for n in nodes(plan, "AllReduce"):
        if attribute(n, "kind") == b"optimizer":
            expect(tmp, "%s in another bucket's place" % n.name, plan, lambda p: take(p, n, 0, next(x.output[0] for x in nodes(p, "TensorNorms") if x.output[0] != n.input[0])), ["report", "graph"], or_malformed=True)
    for n in nodes(plan, "SquaredNorm"):
        expect(tmp, "%s multiplies by another factor" % n.name, plan, lambda p: take(p, n, 0, "tessera.lr"), ["wrong_input"])
    for n in nodes(plan, "Ema"):
        old = alike(plan, n.input[0], [x.output[0] for x in nodes(plan, "Load")], n)
        if old:
            expect(tmp, "%s towards the old parameters" % n.name, plan, lambda p: take(p, n, 0, old), ["wrong_input"])
        other = alike(plan, n.input[0], [x.input[0] for x in nodes(plan, "Ema") if x.name != n.name], n)
        if other:
            expect(tmp, "%s towards another bucket" % n.name, plan, lambda p: take(p, n, 0, other), ["wrong_input"])


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_valid(tmp)
        for optimizer in LAST:
            for zero in ("1", "3"):
                check_steps(tmp, compile_plan(tmp, "gpt_merged", "--optimizer", optimizer, "--ranks", "2", "--zero", zero, "--bucket-bytes", "16384"), optimizer)
        for zero in ("0", "2"):
            plan = compile_plan(tmp, "gpt_merged", "--optimizer", "adamw8", "--clip-value", "0.1", "--clip-norm", "1", "--ema", "0.9", "--param-norms", "--ranks", "2", "--zero", zero,
                                "--bucket-bytes", "16384")
            code, result = verify(tmp, plan)
            check(code == 0 and result["ok"], "clipped by value, stage %s: %s" % (zero, result["defects"][:2]))
            check_around(tmp, plan)
    print(", ".join("%d %s" % (n, what) for what, n in counts.items()), "- %d failed" % len(failures))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
