#!/usr/bin/env python3
"""Every optimizer against PyTorch (float64, recorded) or against its paper's formula, over 12 steps; the same bits over ranks, stages and bucket sizes;
groups of parameters.

    test_optimizers.py TESSERA
"""
import json
import os
import tempfile

from e2e import HERE, check, finish, need, tessera, weights

need("numpy", "safetensors", "onnx")
import numpy as np
from safetensors.numpy import save_file

from optimizer_case import BATCH, CASES, LOOSE, STEPS, batches, digest, gradients, params, write_model

LAMB = dict(lr=0.02, beta1=0.8, beta2=0.95, eps=1e-6, decay=0.1)
MUON = dict(lr=0.02, mu=0.9, decay=0.05, match=True)
ADAM8 = dict(lr=0.01, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.02)
LION = dict(lr=0.003, beta1=0.9, beta2=0.99, decay=0.1)


def lion(p, g, state, t):
    """Chen et al., 2023, algorithm 2."""
    s = LION
    m = state.setdefault("m", np.zeros_like(p))
    direction = np.sign(s["beta1"] * m + (1 - s["beta1"]) * g)
    state["m"] = s["beta2"] * m + (1 - s["beta2"]) * g
    return p - s["lr"] * (direction + s["decay"] * p)


def lamb(p, g, state, t):
    """You et al., 2020, algorithm 2."""
    s = LAMB
    m, v = (state.setdefault(k, np.zeros_like(p)) for k in "mv")
    state["m"], state["v"] = m, v = s["beta1"] * m + (1 - s["beta1"]) * g, s["beta2"] * v + (1 - s["beta2"]) * g * g
    u = m / (1 - s["beta1"] ** t) / (np.sqrt(v / (1 - s["beta2"] ** t)) + s["eps"]) + s["decay"] * p
    norm, length = np.sqrt((p * p).sum()), np.sqrt((u * u).sum())
    return p - s["lr"] * (norm / length if norm and length else 1) * u


def muon(p, g, state, t):
    """torch.optim.Muon without its bfloat16; vectors by gradient descent with momentum."""
    s = MUON
    if p.ndim < 2:
        state["b"] = s["mu"] * state.get("b", 0) + g
        return p - s["lr"] * state["b"]
    b = state.setdefault("b", np.zeros_like(p))
    state["b"] = b = s["mu"] * b + (1 - s["mu"]) * g
    x = (1 - s["mu"]) * g + s["mu"] * b
    x = x.T if p.shape[0] > p.shape[1] else x
    x = x / np.sqrt((x * x).sum())
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.T if p.shape[0] > p.shape[1] else x
    ratio = 0.2 * np.sqrt(max(p.shape)) if s["match"] else np.sqrt(max(1, p.shape[0] / p.shape[1]))
    return p * (1 - s["lr"] * s["decay"]) - s["lr"] * ratio * x


def code_book(signed):
    """create_dynamic_map of bitsandbytes.functional with 7 exponent bits and 8 in all."""
    data = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        means = 10.0 ** (i - 6) * (edges[:-1] + edges[1:]) / 2
        data += [*means, *(-means if signed else [])]
    assert len(data) == 256
    return np.sort(np.array(data, np.float32))


def rounded(x, signed):
    """What 8 bits keep of it, block by block."""
    flat, book = x.reshape(-1), code_book(signed)
    out = np.empty_like(flat)
    for at in range(0, flat.size, 256):
        block = flat[at:at + 256]
        scale = np.float32(np.abs(block).max())
        normed = (block / np.float64(scale) if scale else block * 0).astype(np.float32)
        out[at:at + 256] = book[np.abs(normed[:, None] - book[None, :]).argmin(1)].astype(np.float64) * scale
    return out.reshape(x.shape)


def adamw8(p, g, state, t):
    s = ADAM8
    m, v = (state.setdefault(k, np.zeros_like(p)) for k in "mv")
    m, v = m + (1 - s["beta1"]) * (g - m), s["beta2"] * v + (1 - s["beta2"]) * g * g
    state["m"], state["v"] = rounded(m, True), rounded(v, False)
    return p * (1 - s["lr"] * s["decay"]) - s["lr"] / (1 - s["beta1"] ** t) * m / (np.sqrt(v) / np.sqrt(1 - s["beta2"] ** t) + s["eps"])


FORMULAS = {   # name: (our options, step of one parameter in float64)
    "lamb": (["--optimizer", "lamb", "--lr", LAMB["lr"], "--betas", "0.8,0.95", "--weight-decay", LAMB["decay"]], lamb),
    "muon_formula": (["--optimizer", "muon", "--lr", MUON["lr"], "--momentum", MUON["mu"], "--weight-decay", MUON["decay"], "--muon-adjust", "match-rms-adamw",
                      "--group", "@vectors:optimizer=sgd,weight-decay=0"], muon),
    "adamw8": (["--optimizer", "adamw8", "--lr", ADAM8["lr"], "--weight-decay", ADAM8["decay"]], adamw8),
    "lion": (["--optimizer", "lion", "--lr", LION["lr"], "--weight-decay", LION["decay"]], lion),
}


def by_formula(step):
    p, states, losses = {n: v.astype(np.float64) for n, v in params().items()}, {n: {} for n in params()}, []
    for t, (x, y) in enumerate(zip(*batches()), 1):
        loss, g = gradients(p, x.astype(np.float64), y.astype(np.float64))
        p = {n: step(p[n], g[n], states[n], t) for n in p}
        losses.append(float(loss))
    return {"losses": losses, "digest": digest(p)}


class Runner:
    def __init__(self, tmp):
        self.tmp, self.model, self.data = tmp, os.path.join(tmp, "model.onnx"), os.path.join(tmp, "data.safetensors")
        write_model(self.model)
        x, y = batches()
        save_file({"x": x.reshape(STEPS * BATCH, -1), "y": y.reshape(STEPS * BATCH, -1)}, self.data)

    def run(self, *arguments, batch=BATCH, micro=1, steps=STEPS, expect=0, save=None):
        report = os.path.join(self.tmp, "report.json")
        more = ["--save", save] if save else []
        p = tessera("run", self.model, "--data", self.data, "--no-shuffle", "--batch", batch, "--micro-batches", micro, "--steps", steps, "--report", report,
                    *arguments, *more)
        check(p.returncode == expect, "%s: exit %d: %s" % (arguments, p.returncode, p.stderr[-400:]))
        return dict(json.load(open(report)), stderr=p.stderr)


def compare(name, have, final, want, tolerance):
    e = max(abs(a - b) / abs(b) for a, b in zip(have["losses"], want["losses"]))
    far = max(abs(a - b) / max(abs(v[0]), 1e-30) for n, v in want["digest"].items() for a, b in zip(digest(final)[n], v))
    check(len(have["losses"]) == STEPS and e <= tolerance, "%s: losses are off by %.3g: %s, wanted %s" % (name, e, have["losses"], want["losses"]))
    check(far <= 100 * tolerance, "%s: parameters are off by %.3g" % (name, far))
    return e, far


def check_references(r):
    references = json.load(open(os.path.join(HERE, "optimizer_references.json")))["cases"]
    wanted = {n: (options, references[n]) for n, (options, reference) in CASES.items() if reference}
    wanted.update({n: (options, by_formula(step)) for n, (options, step) in FORMULAS.items()})
    for name, (options, want) in wanted.items():
        saved = os.path.join(r.tmp, name)
        loose = LOOSE.get(name)
        wide = compare(name + " fp64", r.run(*options, "--precision", "fp64", save=saved), weights(saved), want, loose or 1e-9)
        narrow = compare(name + " f32", r.run(*options, save=saved), weights(saved), want, loose or 2e-5)
        print("%-14s losses to %.1e in fp64, %.1e in f32; parameters to %.1e, %.1e" % (name, wide[0], narrow[0], wide[1], narrow[1]))


def check_bits(r):
    """Batches of 2, four micro-batches a step: 1, 2, 4 ranks, all stages."""
    for name, options in {**{n: c[0] for n, c in CASES.items()}, **{n: f[0] for n, f in FORMULAS.items()}}.items():
        first = None
        for ranks in (1, 2, 4):
            for zero in range(4):
                for more in ([], ["--bucket-bytes", 8192]) if ranks > 1 else ([],):
                    one = r.run(*options, "--clip-norm", "0.5", "--ranks", ranks, "--zero", zero, *more, batch=2, micro=4, steps=6)
                    result = (one["losses"], one["grad_norms"], one["params_hash"])
                    first = first or result
                    check(result == first, "%s: %d ranks, stage %d %s: other bits" % (name, ranks, zero, more))


def check_groups(r):
    plan = os.path.join(r.tmp, "plan.onnx")
    p = tessera("compile", r.model, "--batch", BATCH, "-o", plan, *CASES["adamw_groups"][0])
    check(p.returncode == 0, p.stderr)
    text = tessera("show", plan, "--params").stdout
    check("w2:lr-scale=0.1,weight-decay=0.5" in text and "@vectors:weight-decay=0" in text, "show does not name the groups:\n" + text[:3000])
    for group, says in (("w3:weight-decay=0", "has no parameter"), ("w2", "is not PATTERN:SETTING"), ("w2:lr=1", "none of weight-decay=F"),
                        ("w2:weight-decay=-1", "none of weight-decay=F"), ("w2:optimizer=adan", "unknown")):
        p = tessera("compile", r.model, "--batch", BATCH, "-o", plan, "--group", group)
        check(p.returncode == 2 and says in p.stderr, "--group %s: exit %d, %s" % (group, p.returncode, p.stderr))
    for name, says in (("adamw", ", adamw, f32"), ("lamb", "lamb (norms of whole parameters)"), ("muon", "muon (whole matrices)")):
        check(says in r.run("--optimizer", name, steps=1)["stderr"], "the run does not say what %s needs" % name)
    two = r.run("--optimizer", "adamw", "--lr", "0.01", "--group", "w2:optimizer=sgd,lr-scale=5", "--ranks", 2, "--zero", 3, batch=4, micro=2)
    check(two["losses"][-1] < two["losses"][0], "two optimizers: %s" % two["losses"])


def check_eight_bits(r):
    """Within a few percent of Adam in f32, with a little more than a quarter of its state: a byte and 1 / 64 an element and moment."""
    data, saved = ["--lr", 0.01, "--weight-decay", 0.02], os.path.join(r.tmp, "eight")
    full, eight = r.run("--optimizer", "adamw", *data), r.run("--optimizer", "adamw8", *data, save=saved)
    far = max(abs(a - b) / b for a, b in zip(eight["losses"], full["losses"]))
    check(0 < far < 0.03, "8-bit state: losses are off by %g from those of 32 bits" % far)
    state = [x["peak_bytes"]["device"]["by_category"]["state"] for x in (full, eight)]
    check(state[1] == state[0] // 4 + state[0] // 256, "8-bit state takes %d bytes, 32-bit state %d" % (state[1], state[0]))
    rest = r.run("--resume", saved, "--ranks", 2, "--zero", 2, "--batch", 4, "--micro-batches", 2, steps=2)
    check(rest["losses"][-1] < full["losses"][0], "8-bit state after --resume: %s" % rest["losses"])
    print("8-bit state: losses within %.2g of 32 bits" % far)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        r = Runner(tmp)
        check_references(r)
        check_bits(r)
        check_groups(r)
        check_eight_bits(r)
    finish()


if __name__ == "__main__":
    main()
