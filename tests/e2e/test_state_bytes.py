#!/usr/bin/env python3
"""Bytes of model state per parameter (parameters, narrow copies, gradients, states of Adam) at one micro-batch a rank: ZeRO's formulas for each precision
and stage, read off plans of graphs without weights; what the published example of 7.5 billion parameters on 64 ranks says.

    test_state_bytes.py TESSERA
"""
import json
import os
import re
import tempfile
from collections import Counter

from e2e import check, finish, tessera

WIDE = [lambda n: 16, lambda n: 8 + 8 / n, lambda n: 4 + 12 / n, lambda n: 16 / n]
MIXED = [lambda n: 16, lambda n: 4 + 12 / n, lambda n: 2 + 14 / n, lambda n: 16 / n]
PUBLISHED_GB = [120, 31.4, 16.6, 1.9]


def synth(tmp, *sizes):
    path = os.path.join(tmp, "m.onnx")
    p = tessera("synth", "gpt", *sizes, "-o", path)
    check(p.returncode == 0, "synth: %s" % p.stderr)
    return path, int(re.search(r"(\d+) parameters", p.stdout).group(1))


def state_bytes(tmp, path, ranks, zero, precision):
    """Of one rank: all buffers of parameters, gradients and states, which `update` needs side by side."""
    plan = os.path.join(tmp, "plan.onnx")
    p = tessera("compile", path, "--batch", 1, "--ranks", ranks, "--zero", zero, "--precision", precision, "--optimizer", "adam", "-o", plan)
    check(p.returncode == 0, "compile: %s" % p.stderr)
    shown = json.loads(tessera("show", plan, "--json").stdout)
    held = Counter()
    for b in shown["buffers"]:
        held[b["category"]] += b["bytes"] / (ranks if b["scope"] == "process" else 1)
    return held["params"] + held["grads"] + held["state"]


def main():
    with tempfile.TemporaryDirectory() as tmp:
        path, params = synth(tmp, "--layers", 2, "--d-model", 512, "--heads", 8, "--vocab", 4096, "--seq", 8)
        for precision, formulas in (("f32", WIDE), ("bf16", MIXED), ("fp16", MIXED)):
            for ranks in (2, 8):
                for zero, formula in enumerate(formulas):
                    got = state_bytes(tmp, path, ranks, zero, precision) / params
                    want = formula(ranks)      # more by the padding of buckets and, in stages 1 and 2, by the norms' parameters, which stay f32
                    check(want <= got < 1.01 * want, "%s, %d ranks, stage %d: %.4f bytes per parameter, wanted %.4f" % (precision, ranks, zero, got, want))
        path, params = synth(tmp, "--layers", 36, "--d-model", 4096, "--heads", 32, "--vocab", 60089, "--seq", 1024)
        check(abs(params / 7.5e9 - 1) < 1e-3, "%d parameters" % params)
        for zero, want in enumerate(PUBLISHED_GB):
            got = state_bytes(tmp, path, 64, zero, "fp16") / 1e9
            check(abs(got - want) < max(0.05, 0.005 * want), "7.5 billion parameters on 64 ranks, stage %d: %.2f GB, published are %.1f" % (zero, got, want))
    finish()


if __name__ == "__main__":
    main()
