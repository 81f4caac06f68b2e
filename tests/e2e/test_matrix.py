#!/usr/bin/env python3
"""Models with their optimizers, clipping and schedules at 1, 2 and 4 ranks, every stage, 1, 2 and 4 micro-batches a rank: one hash for each number of micro-batches of a
step, whoever computes them; losses, gradient norms and parameters within bounds of PyTorch's float64 results, where there are any (1, 2 and 4 micro-batches).

    test_matrix.py TESSERA [FOLDER...]        folders: model.onnx, inputs.safetensors, reference.json; without, a small part: mlp, and some of gpt_merged
"""
import json
import os
import sys
import tempfile

from e2e import MODELS, check, finish, need, tessera, weights

need("numpy", "safetensors")
import numpy as np
from safetensors.numpy import load_file
from test_reference import optimizer, relative

RANKS, PER_RANK, STAGES = (1, 2, 4), (1, 2, 4), (0, 1, 2, 3)


def run(folder, ref, ranks, per_rank, stage, reduce, steps, tmp):
    report, saved = os.path.join(tmp, "report.json"), os.path.join(tmp, "saved")
    if os.path.exists(report):
        os.remove(report)
    p = tessera("run", os.path.join(folder, "model.onnx"), "--data", os.path.join(folder, "inputs.safetensors"), "--no-shuffle", "--steps", steps, "--ranks", ranks,
                "--zero", stage, "--micro-batches", ranks * per_rank, *(["--reduce", reduce] if reduce else []), "--report", report, "--save", saved, *optimizer(ref))
    if p.returncode or not os.path.exists(report):
        return None, "exit %d: %s" % (p.returncode, p.stderr.strip()[-200:])
    r = json.load(open(report))
    return r, (tuple(r["losses"]), tuple(r["grad_norms"]), r["params_hash"])


def kept(ref, name, tensor):
    """Without the elements whose gradient is zero but for rounding, which Adam makes steps of."""
    mask = np.ones(tensor.size, bool)
    for low, high in ref.get("analytically_zero_gradient", {}).get("flat_index_ranges", {}).get(name, []):
        mask[low:high] = False
    return tensor.astype(np.float64).ravel()[mask]


def distance(ref, got, want):
    worst = 0.0
    for n in ref["trainable"]:
        a, b = kept(ref, n, got[n]), kept(ref, n, want[n])
        worst = max(worst, float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-12)) if b.size else 0)
    return worst


def compare(tag, ref, folder, total, r, tmp):
    """Errors of losses, norms and parameters; bounds are those of a float32 engine, or ten times what PyTorch's own float32 run differs."""
    own = ref.get("f32_vs_f64", {})
    bounds = [max(1e-5, 10 * own.get("loss_max_rel", 0)), 1e-4, max(1e-4, 10 * own.get("params10_max_rel_l2", 0))]
    got = weights(os.path.join(tmp, "saved"))
    if total == 1:
        errors = [relative(r["losses"], ref["losses_f64"]), relative(r["grad_norms"], ref["grad_norms_f64"]),
                  distance(ref, got, load_file(os.path.join(folder, "params_10.safetensors")))]
    else:
        want = ref.get("data_parallel_weighted", {}).get(str(total)) or ref.get("data_parallel", {}).get(str(total))
        if not want:
            return None
        zero = ref.get("analytically_zero_gradient", {}).get("flat_index_ranges", {})
        lengths = [abs(np.linalg.norm(got[n].astype(np.float64)) - v[0]) / max(abs(v[0]), 1e-12) for n, v in want.get("params_5_l2_and_sum", {}).items() if n not in zero]
        errors = [relative(r["losses"], want["losses_f64"]), relative(r["grad_norms"], want["grad_norms_f64"]), max(lengths, default=0)]
    for what, error, bound in zip(("loss", "gradient norm", "parameters"), errors, bounds):
        check(error <= bound, "%s: %s off by %.2e, bound %.1e" % (tag, what, error, bound))
    return errors


def check_model(folder, per_rank=PER_RANK, ranks=RANKS, stages=STAGES, totals=None):
    name = os.path.basename(os.path.abspath(folder))
    ref = json.load(open(os.path.join(folder, "reference.json")))
    if "losses_f64" not in ref or not isinstance(ref.get("optimizer"), dict) or "name" not in ref["optimizer"]:
        print("%-20s has no plain reference" % name)
        return
    seen, errors = {}, {}
    with tempfile.TemporaryDirectory() as tmp:
        for total in sorted({n * k for n in ranks for k in per_rank} & set(totals or range(17))):
            for n, k, z in ((n, total // n, z) for n in ranks for z in stages if total % n == 0 and total // n in per_rank):
                for reduce in ("micro", "step") if k > 1 and z < 2 else (None,):
                    tag = "%s: %d ranks x %d micro-batches, stage %d%s" % (name, n, k, z, ", reduce " + reduce if reduce else "")
                    r, bits = run(folder, ref, n, k, z, reduce, 10 if total == 1 else 5, tmp)
                    if not check(r is not None, "%s: %s" % (tag, bits)):
                        continue
                    if total not in seen:
                        seen[total] = (bits, tag)
                        errors[total] = compare(tag, ref, folder, total, r, tmp)
                    check(bits == seen[total][0], "%s has other bits than %s" % (tag, seen[total][1]))
    worst = ["%s %.0e" % (what, max(e[i] for e in errors.values() if e)) for i, what in enumerate(("loss", "norm", "params")) if any(errors.values())]
    print("%-20s %-8s %s  hashes: %s" % (name, ref["optimizer"]["name"], " ".join(worst), " ".join("%d:%s" % (t, b[2][:8]) for t, (b, _) in sorted(seen.items()))), flush=True)


def main():
    if len(sys.argv) > 2:
        for folder in sys.argv[2:]:
            check_model(folder)
    else:
        check_model(os.path.join(MODELS, "mlp"), ranks=(1, 2, 4), per_rank=(1, 2, 4), totals=(1, 2, 4))
        check_model(os.path.join(MODELS, "gpt_merged"), ranks=(1, 2), per_rank=(1, 2), stages=(0, 2, 3), totals=(2,))
    finish()


if __name__ == "__main__":
    main()
