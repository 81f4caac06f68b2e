#!/usr/bin/env python3
"""Graphs that contain their training: TrainingInfoProto, ONNX Runtime artifacts, adjoint graphs (onnx-ad), joint graphs. Losses, gradients and
parameters against the references in the models' folders: tests/training_graphs, and the shared collection where it lies beside the tree.

    test_training_graphs.py build/tessera [NAME...]
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from safetensors.numpy import load_file
except ImportError as e:
    print("skipped: %s (run tools/setup)" % e)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLACES = [ROOT / "tests" / "training_graphs", ROOT.parent / "shared" / "models", ROOT / "shared" / "models"]
NAMES = ["ti_linreg_momentum", "ti_mlp_adam", "ort_mlp_adamw", "ort_cnn_adamw", "ort_lstm_adamw", "ort_gpt_adamw", "ad_linreg", "ad_mlp", "ad_gpt", "ad_cnn",
         "joint_mlp", "joint_gpt"]
LOSS, GRAD, PARAM = 1e-5, 1e-4, 1e-4        # relative


def find(name):
    for place in PLACES:
        if (place / name / "reference.json").exists():
            return place / name
    return None


def run(tessera, args, folder):
    report = os.path.join(folder, "report.json")
    p = subprocess.run([tessera, "run"] + args + ["--no-shuffle", "--report", report], capture_output=True, text=True, timeout=300)
    if p.returncode:
        raise RuntimeError("exit %d: %s" % (p.returncode, p.stderr.strip()[-400:]))
    return json.load(open(report))


def worst(got, want, ref):
    error, who = 0.0, ""
    for name, w in want.items():
        if name not in got:
            return float("inf"), name + " missing"
        keep = np.ones(w.size, bool)
        for low, high in ref.get("analytically_zero_gradient", {}).get("flat_index_ranges", {}).get(name, []):
            keep[low:high] = False
        a, b = got[name].astype(np.float64).ravel()[keep], w.astype(np.float64).ravel()[keep]
        e = np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-12) if b.size else 0.0
        if not e <= error:
            error, who = float(e), name
    return error, who


def losses_error(got, want):
    return max(abs(g - w) / max(abs(w), 1e-12) for g, w in zip(got, want)) if len(got) == len(want) else float("inf")


def check(tessera, name, model, folder):
    ref = json.load(open(model / "reference.json"))
    kind = name.split("_")[0]
    path = str(model) if kind == "ort" else str(model / "model.onnx")
    args = [path, "--data", str(model / "inputs.safetensors")]
    if kind in ("ad", "joint"):
        args += ["--weights", str(model / "params_0.safetensors")]
    steps = 1 if kind == "ad" else 10
    grads, save, out = (os.path.join(folder, f) for f in ("g.safetensors", "ckpt", "w.safetensors"))
    report = run(tessera, args + ["--steps", str(steps), "--dump-grads", grads, "--save", save], folder)
    found = []
    if kind != "ad":
        found.append(("loss", losses_error(report["losses"], ref.get("losses_f64", ref.get("losses_torch_f64"))), LOSS, ""))
    found.append(("grad",) + (lambda e: (e[0], GRAD, e[1]))(worst(load_file(grads), load_file(model / "grads.safetensors"), ref)))
    if (model / "params_10.safetensors").exists():
        subprocess.run([tessera, "export", save, "-o", out], check=True, capture_output=True, timeout=300)
        found.append(("params",) + (lambda e: (e[0], PARAM, e[1]))(worst(load_file(out), load_file(model / "params_10.safetensors"), ref)))
    if kind == "ad":
        return found
    # Two ranks: one set of losses at every stage. A plan: the losses of the model.
    runs = [run(tessera, args + ["--steps", "3", "--ranks", "2", "--zero", str(zero)], folder)["losses"] for zero in (0, 1, 2, 3)]
    found.append(("stages", 0.0 if all(r == runs[0] for r in runs) and np.all(np.isfinite(runs[0])) else float("inf"), 0.0, str(runs)))
    plan = os.path.join(folder, "p.plan.onnx")
    weights = args[3:]
    subprocess.run([tessera, "compile"] + args + ["-o", plan], check=True, capture_output=True, timeout=300)
    planned = run(tessera, [plan] + args[1:3] + weights + ["--steps", "10"], folder)["losses"]
    found.append(("plan", 0.0 if planned == report["losses"] else float("inf"), 0.0, str(planned)))
    return found


def main():
    tessera, bad, ran = os.path.abspath(sys.argv[1]), 0, 0
    for name in sys.argv[2:] or NAMES:
        model = find(name)
        if model is None:
            print("skip %s: not here" % name)
            continue
        ran += 1
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = check(tessera, name, model, folder)
                wrong = [f for f in found if not f[1] <= f[2]]
                text = " ".join("%s %.1e%s" % (what, error, " (%s)" % who if error > bound else "") for what, error, bound, who in found)
            except Exception as e:
                wrong, text = [e], str(e)
        bad += bool(wrong)
        print("%-4s %-20s %s" % ("FAIL" if wrong else "ok", name, text))
    if not ran:
        sys.exit(77)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
