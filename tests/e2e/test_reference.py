#!/usr/bin/env python3
"""Losses, gradients, gradient norms and parameters against PyTorch's float64 results, at 1, 2 and 4 ranks and every stage.

    test_reference.py TESSERA
"""
import json
import os
import tempfile

from e2e import MODELS, check, finish, need, train, weights

need("numpy", "safetensors")
import numpy as np
from safetensors.numpy import load_file


def optimizer(ref):
    o = ref["optimizer"]
    args = ["--optimizer", o["name"], "--lr-list", ",".join(map(repr, ref["lr_per_step"]))]
    for key, flag in (("momentum", "--momentum"), ("eps", "--eps"), ("weight_decay", "--weight-decay"), ("clip_grad_norm", "--clip-norm"),
                      ("alpha", "--alpha"), ("lr_decay", "--lr-decay"), ("initial_accumulator_value", "--initial-accumulator")):
        if key in o:
            args += [flag, repr(o[key])]
    if o.get("nesterov"):
        args.append("--nesterov")
    return args + (["--betas", ",".join(map(repr, o["betas"]))] if "betas" in o else [])


def worst(got, want, names):
    return max(float(np.linalg.norm(got[n].astype(np.float64) - want[n]) / max(np.linalg.norm(want[n]), 1e-12)) for n in names)


def relative(got, want):
    return max(abs(g - w) / abs(w) for g, w in zip(got, want)) if len(got) >= len(want) else float("inf")


def main():
    for name in ("mlp", "linreg", "gpt_merged"):
        folder = os.path.join(MODELS, name)
        ref = json.load(open(os.path.join(folder, "reference.json")))
        args = optimizer(ref)
        with tempfile.TemporaryDirectory() as tmp:
            grads, saved = os.path.join(tmp, "g.safetensors"), os.path.join(tmp, "saved")
            for precision, loss_bound, bound in (("f32", 1e-5, 1e-4), ("fp64", 1e-8, 1e-6)):
                r = train(name, "--steps", 10, "--precision", precision, "--dump-grads", grads, "--save", saved, *args)
                e = relative(r["losses"], ref["losses_f64"])
                check(e <= loss_bound, "%s %s: loss off by %g" % (name, precision, e))
                e = worst(load_file(grads), load_file(os.path.join(folder, "grads.safetensors")), ref["trainable"])
                check(e <= bound, "%s %s: gradients off by %g" % (name, precision, e))
                want = load_file(os.path.join(folder, "params_10.safetensors"))
                e = worst(weights(saved), want, ref["trainable"])
                check(e <= max(bound, 1e-6), "%s %s: parameters off by %g" % (name, precision, e))
        for ranks in (2, 4):
            want = ref["data_parallel"][str(ranks)]
            for zero in range(4):
                r = train(name, "--steps", 5, "--ranks", ranks, "--zero", zero, *args)
                e = relative(r["losses"], want["losses_f64"])
                check(e <= 1e-5, "%s ranks %d stage %d: loss off by %g" % (name, ranks, zero, e))
                e = relative(r["grad_norms"], want["grad_norms_f64"])
                check(e <= 1e-4, "%s ranks %d stage %d: gradient norm off by %g" % (name, ranks, zero, e))
    finish()


if __name__ == "__main__":
    main()
