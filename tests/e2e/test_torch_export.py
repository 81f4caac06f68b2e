#!/usr/bin/env python3
"""export --torch: trained weights under the names, layouts and element types of a PyTorch state_dict.

    test_torch_export.py TESSERA [FOLDER...]

Each folder holds model.onnx, inputs.safetensors, reference.json, torch_state.safetensors (the state_dict that was exported) and what PyTorch has
after 10 steps: torch_state_10.safetensors, or else params_10.safetensors under ONNX names (reference.json: param_map). Without folders: those of
tests/models, and variations of their state_dicts.
"""
import json
import os
import shutil
import sys
import tempfile

from e2e import MODELS, check, finish, need, tessera

need("numpy", "safetensors", "ml_dtypes")
import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
          "I64": np.int64, "I32": np.int32, "U8": np.uint8, "BOOL": np.bool_}


def load(path):
    """load_file, but bfloat16 too."""
    data = open(path, "rb").read()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    body = data[8 + n:]
    return {k: np.frombuffer(body[slice(*v["data_offsets"])], DTYPES[v["dtype"]]).reshape(v["shape"]) for k, v in header.items()}


def optimizer_arguments(ref):
    o = ref["optimizer"]
    flags = {"momentum": "--momentum", "eps": "--eps", "weight_decay": "--weight-decay", "alpha": "--alpha", "lr_decay": "--lr-decay",
             "initial_accumulator_value": "--initial-accumulator", "clip_grad_norm": "--clip-norm"}
    a = ["--optimizer", o["name"], "--lr-list", ",".join(map(repr, ref["lr_per_step"]))]
    for key, flag in flags.items():
        a += [flag, repr(o[key])] if key in o else []
    a += ["--nesterov"] if o.get("nesterov") else []
    return a + (["--betas", ",".join(map(repr, o["betas"]))] if "betas" in o else [])


def train(folder, ref, saved, steps=10):
    p = tessera("run", os.path.join(folder, "model.onnx"), "--data", os.path.join(folder, "inputs.safetensors"), "--no-shuffle", "--steps", steps,
                "--save", saved, *optimizer_arguments(ref))
    return p


def export(saved, state, out, code=0):
    p = tessera("export", saved, "--torch", state, "-o", out)
    check(p.returncode == code, "export --torch %s: exit %d, wanted %d: %s" % (state, p.returncode, code, p.stderr))
    return p


def wanted_state(folder, ref, state):
    """What the state_dict should be: {key: (values, flat indices that do not count)}; keys that reference.json cannot tell are left out."""
    ten = os.path.join(folder, "torch_state_10.safetensors")
    skip = ref.get("analytically_zero_gradient", {}).get("flat_index_ranges", {})
    if os.path.exists(ten):
        # ONNX's running variance is that of the population; PyTorch's divides by one less.
        onnx_buffers = os.path.join(folder, "buffers_10_onnx.safetensors")
        return {**load(ten), **(load(onnx_buffers) if os.path.exists(onnx_buffers) else {})}, skip
    params, wanted = load(os.path.join(folder, "params_10.safetensors")), {}
    for name, values in params.items():
        entry = ref["param_map"].get(name, {"torch": name, "layout": "same"})
        if isinstance(entry["torch"], str):
            wanted[entry["torch"]] = values.T if entry["layout"] == "transposed" else values.reshape(state[entry["torch"]].shape)
    return wanted, skip


def distance(got, want, ranges):
    keep = np.ones(got.size, bool)
    for low, high in ranges:
        keep[low:high] = False
    a, b = got.astype(np.float64).ravel()[keep], want.astype(np.float64).ravel()[keep]
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-12)) if b.size else 0.0


def check_folder(folder, tmp):
    name = os.path.basename(folder.rstrip("/"))
    ref = json.load(open(os.path.join(folder, "reference.json")))
    saved, out, state_path = os.path.join(tmp, "saved"), os.path.join(tmp, "out.safetensors"), os.path.join(folder, "torch_state.safetensors")
    if os.path.exists(saved):
        shutil.rmtree(saved)
    if not isinstance(ref.get("optimizer"), dict) or "losses_f64" not in ref:
        # No reference after training: untrained weights come back as they were.
        p = tessera("run", os.path.join(folder, "model.onnx"), "--data", os.path.join(folder, "inputs.safetensors"), "--steps", 0, "--save", saved)
        if not check(p.returncode == 0, "%s: %s" % (name, p.stderr)):
            return
        export(saved, state_path, out)
        a, b = load(state_path), load(out)
        same = sorted(a) == sorted(b) and all(a[k].tobytes() == b[k].tobytes() and a[k].shape == b[k].shape for k in a)
        check(same, name + ": untrained weights differ")
        print("%-20s %3d entries, as they were" % (name, len(a)))
        return
    p = train(folder, ref, saved)
    if p.returncode == 4:
        print("%-20s does not run yet: %s" % (name, p.stderr.strip().splitlines()[-1].strip()[:100]))
        return
    check(p.returncode == 0, "%s: training: %s" % (name, p.stderr))
    p = export(saved, state_path, out)
    state, got = load(state_path), load(out)
    check(list(state) == list(got) or sorted(state) == sorted(got), "%s: entries %s" % (name, sorted(set(state) ^ set(got))))
    for key in state:
        good = got[key].shape == state[key].shape and got[key].dtype == state[key].dtype
        check(good, "%s: '%s' is %s %s" % (name, key, got[key].dtype, got[key].shape))
    wanted, skip = wanted_state(folder, ref, state)
    bound = max(1e-4, 10 * ref.get("f32_vs_f64", {}).get("params10_max_rel_l2", 0))
    worst, who, compared = 0.0, "", 0
    for key, values in wanted.items():
        eps = {np.dtype(np.float16): 2 ** -11, np.dtype(ml_dtypes.bfloat16): 2 ** -8}.get(state[key].dtype, 0)
        e = distance(got[key], values, skip.get(key, []))
        compared += 1
        check(e <= bound + eps, "%s: '%s' is off by %.2e" % (name, key, e))
        if e > worst:
            worst, who = e, key
    moved = sum(got[k].tobytes() != state[k].tobytes() for k in state)
    check(moved > 0, name + ": nothing has moved")
    how = p.stderr.strip().split("state_dict: ")[-1]
    print("%-20s %3d entries, %3d moved, %3d compared, worst %.1e %s (%s)" % (name, len(state), moved, compared, worst, who, how))


def check_variations(tmp):
    folder = os.path.join(MODELS, "mlp")
    ref = json.load(open(os.path.join(folder, "reference.json")))
    saved, out, path = os.path.join(tmp, "mlp"), os.path.join(tmp, "v.safetensors"), os.path.join(tmp, "state.safetensors")
    p = train(folder, ref, saved, 3)
    check(p.returncode == 0, p.stderr)
    state = load_file(os.path.join(folder, "torch_state.safetensors"))
    export(saved, os.path.join(folder, "torch_state.safetensors"), out)
    plain = load_file(out)
    a, b = sorted(k for k in state if state[k].ndim == 2)[:2]
    biases = sorted(k for k in state if state[k].ndim == 1)
    # Other names; transposed; reshaped; wider; twice; a counter: contents tell.
    varied = {"x.first": state[a].T.copy(), "x.second": state[b].reshape(1, -1), "x.again": state[b].astype(np.float64),
              "steps": np.array(7, np.int64)}
    varied.update({k: state[k] for k in biases})
    save_file(varied, path)
    export(saved, path, out)
    got = load_file(out)
    check(np.array_equal(got["x.first"], plain[a].T), "a transposed entry")
    check(np.array_equal(got["x.second"], plain[b].reshape(1, -1)), "a reshaped entry")
    check(got["x.again"].dtype == np.float64 and np.array_equal(got["x.again"], plain[b].astype(np.float64)), "a wider entry")
    check(got["steps"] == 7 and all(np.array_equal(got[k], plain[k]) for k in biases), "biases and counter")
    # What matches nothing is listed and left out; the rest is written.
    save_file({**state, "extra": np.full((3, 5), 0.5, np.float32)}, path)
    p = export(saved, path, out, code=1)
    check("'extra'" in p.stderr and "1 tensor has no counterpart" in p.stderr, p.stderr)
    check(sorted(load_file(out)) == sorted(state), "the rest is not written")
    save_file({k: v for k, v in state.items() if k != a}, path)
    p = export(saved, path, out, code=1)
    check("parameter '%s'" % a in p.stderr, "a parameter without entry: " + p.stderr)
    # Same names and shapes, other contents: names decide.
    save_file({k: v + 1 for k, v in state.items()}, path)
    export(saved, path, out)
    check(all(np.array_equal(load_file(out)[k], plain[k]) for k in state), "names decide")
    # Half precision rounds once.
    save_file({k: v.astype(np.float16) for k, v in state.items()}, path)
    export(saved, path, out)
    check(all(np.array_equal(load_file(out)[k], plain[k].astype(np.float16)) for k in state), "float16")
    open(path, "wb").write(b"nonsense")
    export(saved, path, out, code=3)
    export(saved, os.path.join(tmp, "none.safetensors"), out, code=5)
    p = tessera("export", saved, "--torch", path, "-o", os.path.join(tmp, "x.onnx"))
    check(p.returncode == 2, "-o x.onnx with --torch: exit %d" % p.returncode)


def check_gone(tmp):
    """The checkpoint says enough: the model is not needed."""
    folder, copy = os.path.join(MODELS, "gpt_merged"), os.path.join(tmp, "copy")
    shutil.copytree(folder, copy)
    ref = json.load(open(os.path.join(copy, "reference.json")))
    saved, plan = os.path.join(tmp, "gone"), os.path.join(copy, "plan.onnx")
    p = tessera("compile", os.path.join(copy, "model.onnx"), "-o", plan, "--ranks", 2, "--zero", 3)
    p = tessera("run", plan, "--data", os.path.join(copy, "inputs.safetensors"), "--no-shuffle", "--steps", 2, "--save", saved)
    check(p.returncode == 0, p.stderr)
    shutil.rmtree(copy)
    export(saved, os.path.join(folder, "torch_state.safetensors"), os.path.join(tmp, "g.safetensors"))


def main():
    folders = sys.argv[2:]
    with tempfile.TemporaryDirectory() as tmp:
        for folder in folders or [os.path.join(MODELS, n) for n in sorted(os.listdir(MODELS))]:
            if os.path.exists(os.path.join(folder, "torch_state.safetensors")):
                check_folder(folder, tmp)
        if not folders:
            check_variations(tmp)
            check_gone(tmp)
    finish()


if __name__ == "__main__":
    main()
