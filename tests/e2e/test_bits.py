#!/usr/bin/env python3
"""One list of losses and one parameter hash over ranks x stages x --reduce x bucket sizes x what is fused x what overlaps, for the same
micro-batches; and over an interruption: n + m steps are n steps, a checkpoint and m steps.

    test_bits.py TESSERA
"""
import os
import tempfile

from e2e import check, finish, train


def settings(quick):
    for ranks in (1, 2, 4, 8):
        for zero in range(4):
            for reduce in ("micro", "step") if zero < 2 else ("micro",):
                for bucket in (4096, 65536, 1 << 24) if not quick else (16384,):
                    yield ["--ranks", ranks, "--zero", zero, "--reduce", reduce, "--bucket-bytes", bucket]


# Collectives on a queue of their own: every depth, stage and reduction, and the pass left out.
def overlaps():
    for ranks in (1, 2, 4):
        for zero in range(4):
            for depth in (0, 1, 2, 4):
                yield ["--ranks", ranks, "--zero", zero, "--prefetch", depth, "--bucket-bytes", 16384]
    for depth in (1, 4):
        yield ["--ranks", 4, "--zero", depth % 2, "--reduce", "micro", "--prefetch", depth, "--bucket-bytes", 16384]
    for ranks, depth in ((1, 0), (2, 0), (2, 2), (4, 1)):
        yield ["--ranks", ranks, "--zero", 3, "--prefetch", depth, "--bucket-bytes", 16384, "--keep", "backward"]
    yield ["--ranks", 2, "--zero", 3, "--prefetch", 2, "--skip-passes", "prefetch"]
    yield ["--ranks", 2, "--zero", 3, "--prefetch", 2, "--link-delay", "100000:1000000"]


def same(name, common, runs):
    first = None
    for extra in runs:
        r = train(name, *common, *extra)
        result = (r.get("losses"), r.get("grad_norms"), r.get("params_hash"))
        first = first or result
        check(result == first and r.get("params_hash"), "%s %s differs from the first: %s" % (name, extra, result[2]))
    return first


def main():
    adamw = ["--steps", 10, "--micro-batches", 8, "--optimizer", "adamw", "--lr", "0.003", "--clip-norm", "0.5"]
    for name, quick in (("mlp", False), ("gpt_merged", True)):
        same(name, adamw, settings(quick))
        same(name, adamw, [[], ["--skip-passes", "bucket_collectives"], ["--skip-passes", "fuse_elementwise"], ["--skip-passes", "order_memory"]])
        same(name, adamw, overlaps())
    for precision in ("bf16", "fp16"):
        half = [*adamw, "--precision", precision, "--bucket-bytes", 16384]
        same("gpt_merged", half, [["--ranks", n, "--zero", z, "--reduce", r] for n, z, r in
                                  ((1, 0, "step"), (2, 0, "step"), (4, 0, "micro"), (4, 1, "step"), (2, 1, "micro"), (8, 1, "step"), (4, 2, "micro"), (2, 3, "micro"), (8, 3, "micro"))])
    momentum = ["--steps", 4, "--micro-batches", 4, "--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9"]
    same("linreg", momentum, [["--ranks", n, "--zero", z] for n in (1, 2, 4) for z in range(4)])

    with tempfile.TemporaryDirectory() as tmp:
        saved = os.path.join(tmp, "saved")
        part = ["--micro-batches", 4, "--optimizer", "adamw", "--lr", "0.003"]
        whole = train("mlp", *part, "--steps", 6, "--ranks", 2, "--zero", 3)
        train("mlp", *part, "--steps", 4, "--ranks", 4, "--zero", 2, "--save", saved)
        rest = train("mlp", *part, "--steps", 2, "--ranks", 1, "--zero", 0, "--resume", saved)
        check(rest["losses"] == whole["losses"][4:], "losses after --resume are %s, wanted %s" % (rest["losses"], whole["losses"][4:]))
        check(rest["params_hash"] == whole["params_hash"], "parameters differ after --resume")

    for ranks, micro, only in ((3, 6, True), (2, 6, True), (2, 8, False), (1, 1, False)):
        r = train("mlp", "--steps", 1, "--ranks", ranks, "--micro-batches", micro)
        check(("only" in r["bits"]) == only, "%d ranks, %d micro-batches: the report says of bits: %s" % (ranks, micro, r["bits"]))
        check(("tessera: bits: " in r["stderr"]) == only, "%d ranks, %d micro-batches: stderr: %s" % (ranks, micro, r["stderr"]))
    finish()


if __name__ == "__main__":
    main()
