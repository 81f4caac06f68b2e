#!/usr/bin/env python3
"""tessera synth: graphs that onnx.checker accepts, that ONNX Runtime and Tessera compute alike, and that without weights compile for any size.

    test_synth.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, need, tessera

need("numpy", "safetensors", "onnx", "onnxruntime")
import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file

SMALL = {
    "gpt": ["--layers", "2", "--d-model", "32", "--heads", "4", "--vocab", "67", "--seq", "9"],
    "llama": ["--layers", "2", "--d-model", "48", "--heads", "6", "--kv-heads", "2", "--vocab", "67", "--seq", "9"],
    "mlp": ["--layers", "3", "--d-model", "24", "--vocab", "11"],
    "cnn": ["--layers", "5", "--d-model", "4", "--image", "13", "--vocab", "11"],
}
BATCH = 3


def values(session, vocab):
    rng = np.random.default_rng(1)
    made = {}
    for i in session.get_inputs():
        shape = [BATCH if isinstance(d, str) else d for d in i.shape]
        made[i.name] = rng.integers(0, vocab, shape) if "int64" in i.type else rng.standard_normal(shape, np.float32)
    return made


def small_models(tmp):
    for kind, sizes in SMALL.items():
        path, absent, data, report = (os.path.join(tmp, kind + n) for n in (".onnx", ".absent.onnx", ".safetensors", ".json"))
        check(tessera("synth", kind, *sizes, "--init", "random", "-o", path).returncode == 0, kind + ": synth")
        check(tessera("synth", kind, *sizes, "-o", absent).returncode == 0, kind + ": synth without weights")
        for p in (path, absent):
            onnx.checker.check_model(p, full_check=True)
        plain = onnxruntime.SessionOptions()       # its optimizer folds a BatchNormalization that trains into the convolution, with the wrong statistics
        plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(path, plain)
        feed = values(session, int(sizes[sizes.index("--vocab") + 1]))
        save_file(feed, data)
        want = float(session.run(None, feed)[0])
        p = tessera("run", path, "--data", data, "--batch", BATCH, "--steps", "1", "--no-shuffle", "--shift", "0", "--report", report)
        if check(p.returncode == 0, "%s: run: %s" % (kind, p.stderr[-300:])):
            got = json.load(open(report))["losses"][0]
            check(abs(got - want) < 1e-5 * abs(want), "%s: the loss is %r, ONNX Runtime says %r" % (kind, got, want))
        p = tessera("run", absent, "--data", data, "--batch", BATCH, "--steps", "1")
        check(p.returncode == 2 and "absent" in p.stderr and "--init random" in p.stderr, "%s: run without weights: %s" % (kind, p.stderr))
        plans = []
        for source in (path, absent):      # weights decide nothing that compiling decides
            plan = source + ".plan.onnx"
            p = tessera("compile", source, "--batch", BATCH, "--ranks", 4, "--zero", 3, "-o", plan)
            check(p.returncode == 0 and tessera("verify", plan).returncode == 0, "%s: compile: %s" % (kind, p.stderr))
            plans.append(json.loads(tessera("show", plan, "--json").stdout))
        check(plans[0]["ledger"] == plans[1]["ledger"] and plans[0]["peak_bytes"] == plans[1]["peak_bytes"], kind + ": the plans differ without weights")


def names(tmp):
    path = os.path.join(tmp, "llama.onnx")
    model = onnx.load(path, load_external_data=False)
    initializers = {i.name: list(i.dims) for i in model.graph.initializer}
    check(initializers.get("model.layers.1.self_attn.k_proj.weight") == [48, 16], "llama: k_proj of 2 heads of 8")
    check("model.layers.0.mlp.down_proj.weight" in initializers and "lm_head.weight" in initializers, "llama: names of weights")


def same_seed_same_bytes(tmp):
    a, b, c = (os.path.join(tmp, n) for n in ("a.onnx", "b.onnx", "c.onnx"))
    for path, seed in ((a, 1), (b, 1), (c, 2)):
        tessera("synth", "mlp", "--init", "random", "--seed", seed, "-o", path)
    data = [open(p + ".data", "rb").read() for p in (a, b, c)]
    check(data[0] == data[1] != data[2], "the seed decides the weights")
    w = np.frombuffer(data[0], np.float32)[:64 * 64]
    check(abs(w.mean()) < 0.02 and abs(w.std() - (2 / 64) ** 0.5) < 0.01, "weights of a layer: mean %g, deviation %g" % (w.mean(), w.std()))


def a_trillion(tmp):
    """2 or 1,024 ranks: plans of one size, each proved."""
    path = os.path.join(tmp, "t.onnx")
    p = tessera("synth", "gpt", "--layers", 128, "--d-model", 25600, "--heads", 160, "--vocab", 51200, "--seq", 2048, "-o", path)
    params = 51200 * 25600 + 2048 * 25600 + 128 * (12 * 25600 ** 2 + 13 * 25600) + 2 * 25600
    check(str(params) in p.stdout, "a gpt of %d parameters: %s" % (params, p.stdout))
    sizes = []
    for ranks in (2, 1024):
        plan = os.path.join(tmp, "t.%d.plan.onnx" % ranks)
        p = tessera("compile", path, "--batch", 1, "--ranks", ranks, "--zero", 3, "-o", plan)
        check(p.returncode == 0, "%d ranks: %s" % (ranks, p.stderr[-300:]))
        check(tessera("verify", plan).returncode == 0, "%d ranks: verify" % ranks)
        sizes.append(os.path.getsize(plan))
    check(abs(sizes[0] - sizes[1]) < 0.01 * sizes[0], "plans of %s bytes" % sizes)


def large_tensors(tmp):
    """Activations of more than 2^31 elements, arenas of more than 64 TiB; and what is too large is named."""
    path, plan = os.path.join(tmp, "l.onnx"), os.path.join(tmp, "l.plan.onnx")
    tessera("synth", "llama", "--layers", 126, "--d-model", 16384, "--heads", 128, "--kv-heads", 8, "--d-ff", 53248, "--vocab", 128256, "--seq", 8192, "-o", path)
    p = tessera("compile", path, "--batch", 16, "--ranks", 16384, "--zero", 3, "-o", plan)
    check(p.returncode == 0 and tessera("verify", plan).returncode == 0, "16 x 8192 tokens a rank: " + p.stderr)
    p = tessera("compile", path, "--batch", 1 << 20, "--ranks", 2, "-o", plan)
    check(p.returncode == 7 and "2^40 bytes" in p.stderr, "2^33 tokens a rank: %d %s" % (p.returncode, p.stderr))


def refusals(tmp):
    out = os.path.join(tmp, "r.onnx")
    for arguments, words in ((["gpt", "--heads", 5], "--heads 5 must divide"), (["bert"], "'bert': gpt, llama"), ([], "say which model"),
                             (["mlp", "--heads", 2], "--heads means nothing"), (["llama", "--heads", 4, "--kv-heads", 3], "--kv-heads 3 must divide"),
                             (["gpt", "--kv-heads", 2], "--kv-heads is for llama")):
        p = tessera("synth", *arguments, "-o", out)
        check(p.returncode == 2 and words in p.stderr and not os.path.exists(out), "synth %s: %d %s" % (arguments, p.returncode, p.stderr))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        small_models(tmp)
        names(tmp)
        same_seed_same_bytes(tmp)
        a_trillion(tmp)
        large_tensors(tmp)
        refusals(tmp)
    finish()


main()
