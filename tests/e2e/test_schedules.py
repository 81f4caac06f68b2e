#!/usr/bin/env python3
"""Learning rates of every schedule against PyTorch and transformers (recorded); schedules that go on after --resume; the moving average of the weights;
norms before and after clipping; where a value that is not finite comes from; what fine-tuning costs.

    test_schedules.py TESSERA
"""
import json
import os
import tempfile

from e2e import HERE, check, finish, need, tessera, train, weights

need("numpy", "safetensors", "onnx")
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from safetensors.numpy import load_file, save_file

from optimizer_case import PEAK, SCHEDULES, TOTAL, gradients, params

SGD = ["--optimizer", "sgd", "--lr", 1e-6]


def check_rates():
    references = json.load(open(os.path.join(HERE, "optimizer_references.json")))["schedules"]
    for name, (options, _) in SCHEDULES.items():
        r = train("linreg", "--optimizer", "sgd", "--lr", PEAK, "--clip-norm", 1e-9, *options, "--steps", TOTAL)
        far = max(abs(a - b) for a, b in zip(r["lr"], references[name]))
        check(len(r["lr"]) == TOTAL and far <= 1e-15, "%s: learning rates are off by %g: %s" % (name, far, r["lr"]))


def check_resume(tmp):
    """Ten steps are six, a checkpoint and four, also where the end of the schedule was that of the first run."""
    saved = os.path.join(tmp, "schedule")
    cosine = [*SGD[:2], "--lr", 0.01, "--schedule", "cosine", "--warmup", 2, "--total-steps", 10]
    whole = train("mlp", *cosine, "--steps", 10)
    train("mlp", *cosine, "--steps", 6, "--save", saved)
    rest = train("mlp", "--resume", saved, "--steps", 4)
    check(rest["lr"] == whole["lr"][6:] and rest["params_hash"] == whole["params_hash"], "after --resume: %s, wanted %s" % (rest["lr"], whole["lr"][6:]))
    train("mlp", *cosine[:-2], "--steps", 6, "--save", saved)
    rest = train("mlp", "--resume", saved, "--steps", 2)
    check(rest["lr"] == [0, 0], "a schedule of six steps goes on with %s" % rest["lr"])
    listed = train("mlp", *SGD, "--lr-list", "0.5,0.25", "--steps", 4)
    check(listed["lr"] == [0.5, 0.25, 0.25, 0.25], "--lr-list: %s" % listed["lr"])
    for options, says in ((["--schedule", "cosin"], "did you mean cosine"), (["--min-lr", "0.1"], "--min-lr means nothing"), (["--schedule", "step", "--power", 2], "--power"),
                          (["--schedule", "linear", "--warmup", 9, "--total-steps", 4], "longer than the 4 steps"), (["--schedule", "linear", "--lr-list", "1"], "--lr-list"),
                          (["--schedule", "linear", "--min-lr", "1"], "above the learning rate")):
        r = train("mlp", *options, "--steps", 4, expect=2)
        check(says in r["stderr"], "%s: %s" % (options, r["stderr"]))


def check_ema(tmp):
    """ema = 0.75 ema + 0.25 p after each step, from the start value on; the same on all ranks and stages, through a checkpoint, and in an export."""
    options = ["--optimizer", "sgd", "--lr", 0.5, "--ema", 0.75, "--micro-batches", 4]
    average = None
    for step in range(4):
        saved = os.path.join(tmp, "ema%d" % step)
        train("mlp", *options, "--steps", step, "--save", saved)
        p = weights(saved)
        average = p if average is None else {n: average[n] + np.float32(0.25) * (p[n] - average[n]) for n in p}
    exported = os.path.join(tmp, "ema.safetensors")
    p = tessera("export", saved, "--ema", "-o", exported)
    check(p.returncode == 0, p.stderr)
    have = load_file(exported)
    check(all(np.allclose(have[n], average[n], rtol=1e-6, atol=1e-7) for n in average), "the average is not that of the steps")
    check(any(not np.array_equal(have[n], weights(saved)[n]) for n in have), "the average is the parameters")
    onnx = os.path.join(tmp, "ema.onnx")
    check(tessera("export", saved, "--ema", "-o", onnx).returncode == 0, "export --ema into a model")
    for zero in range(4):
        sharded, half = os.path.join(tmp, "ema_sharded"), os.path.join(tmp, "ema_half")
        train("mlp", *options, "--ranks", 2, "--zero", zero, "--steps", 2, "--save", half)
        train("mlp", "--resume", half, "--ranks", 4, "--zero", zero, "--steps", 1, "--save", sharded)
        p = tessera("export", sharded, "--ema", "-o", exported)
        again = load_file(exported)
        check(p.returncode == 0 and all(np.array_equal(have[n], again[n]) for n in have), "stage %d: another average" % zero)
    plain = os.path.join(tmp, "plain")
    train("mlp", "--steps", 1, "--save", plain)
    p = tessera("export", plain, "--ema", "-o", exported)
    check(p.returncode == 2 and "--ema 0.999" in p.stderr, "export --ema of a run without: %s" % p.stderr)


def write(path, nodes, inputs, inits):
    value = lambda n, s: helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
    graph = helper.make_graph(nodes, "g", [value(n, s) for n, s in inputs.items()], [value("loss", [])], [numpy_helper.from_array(v, n) for n, v in inits.items()])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def run(tmp, path, data, *arguments, expect=0):
    file, report = os.path.join(tmp, "data.safetensors"), os.path.join(tmp, "report.json")
    save_file(data, file)
    p = tessera("run", path, "--data", file, "--no-shuffle", "--report", report, *arguments)
    check(p.returncode == expect, "%s: exit %d, wanted %d: %s" % (arguments, p.returncode, expect, p.stderr[-300:]))
    return dict(json.load(open(report)), stderr=p.stderr)


def check_norms(tmp):
    """Gradients whose shards have norms 3 and 4 have norm 5. Seventy parameters are clipped as one vector."""
    path, n = os.path.join(tmp, "shards.onnx"), 2048
    x = np.zeros((1, n), np.float32)
    x[0, 5], x[0, 1500] = 3, 4                      # elements of the first and of the second rank's shard
    write(path, [helper.make_node("Mul", ["x", "w"], ["m"], name="mul"), helper.make_node("ReduceSum", ["m"], ["loss"], keepdims=0, name="sum")], {"x": [1, n]},
          {"w": np.ones(n, np.float32)})
    for zero in range(4):
        r = run(tmp, path, {"x.0": x, "x.1": x}, "--optimizer", "sgd", "--lr", 1, "--clip-norm", 2.5, "--ranks", 2, "--zero", zero, "--steps", 1, "--save", os.path.join(tmp, "s"))
        scale = 2.5 / (5 + 1e-6)
        w = weights(os.path.join(tmp, "s"))["w"]
        check(r["grad_norms"] == [5.0], "stage %d: norm %s of shards of norms 3 and 4" % (zero, r["grad_norms"]))
        check(abs(r["clipped_grad_norms"][0] - 5 * scale) < 1e-12, "stage %d: clipped norm %s" % (zero, r["clipped_grad_norms"]))
        check(np.allclose(w[[5, 1500, 6]], [1 - 3 * scale, 1 - 4 * scale, 1], atol=1e-6), "stage %d: clipped step: %s" % (zero, w[[5, 1500, 6]]))
    for ranks, zero in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3)):      # 3 and 4 are cut to 3.5 each at most, then the norm to 2.3
        grads = os.path.join(tmp, "g.safetensors")
        r = run(tmp, path, {"x.0": x, "x.1": x}, "--optimizer", "sgd", "--lr", 1, "--clip-value", 3.5, "--clip-norm", 2.3, "--ranks", ranks, "--micro-batches", 2, "--zero", zero, "--steps", 1,
                "--save", os.path.join(tmp, "s"), "--dump-grads", grads)
        w, norm = weights(os.path.join(tmp, "s"))["w"], np.sqrt(9 + 3.5 ** 2)
        scale = 2.3 / (norm + 1e-6)
        check(r["grad_norms"] == [5.0] and abs(r["clipped_grad_norms"][0] - norm * scale) < 1e-6, "clipped by value: norms %s, %s" % (r["grad_norms"], r["clipped_grad_norms"]))
        check(np.allclose(w[[5, 1500, 6]], [1 - 3 * scale, 1 - 3.5 * scale, 1], atol=1e-6), "clipped by value: %s" % w[[5, 1500, 6]])
        check(load_file(grads)["w"][1500] == 4, "--dump-grads: gradients are those before clipping")
    names = ["w%02d" % i for i in range(70)]
    nodes = [helper.make_node("Mul", ["x", v], ["m" + v], name="mul" + v) for v in names] + [helper.make_node("Sum", ["m" + v for v in names], ["all"], name="all"),
                                                                                            helper.make_node("ReduceSum", ["all"], ["loss"], keepdims=0, name="sum")]
    path = os.path.join(tmp, "many.onnx")
    write(path, nodes, {"x": [1, 9]}, {v: np.full(9, 0.1 * i, np.float32) for i, v in enumerate(names)})
    x = np.arange(9, dtype=np.float32).reshape(1, 9)
    norm = np.sqrt(70 * float((x.astype(np.float64) ** 2).sum()))
    for ranks, more in ((1, []), (2, []), (2, ["--bucket-bytes", 4096]), (4, ["--skip-passes", "bucket_collectives"])):
        r = run(tmp, path, {"x.%d" % i: x for i in range(4)}, "--param-norms", "--optimizer", "sgd", "--lr", 1, "--clip-norm", 1, "--ranks", ranks, "--micro-batches", 4, "--zero", 2 if ranks > 1 else 0,
                *more, "--steps", 1, "--save", os.path.join(tmp, "m"))
        w = weights(os.path.join(tmp, "m"))
        check(abs(r["grad_norms"][0] - norm) < 1e-9 * norm, "70 parameters: norm %r, wanted %r" % (r["grad_norms"][0], norm))
        moved = max(np.abs(w[v] - (np.float32(0.1 * i) - x[0] / (norm + 1e-6))).max() for i, v in enumerate(names))
        each = r["param_grad_norms"]
        check(sorted(each) == names and all(abs(v[0] - norm / np.sqrt(70)) < 1e-9 * norm and len(v) == 1 for v in each.values()), "--param-norms: %s" % each)
        check(len(w) == 70 and moved < 1e-6, "70 parameters: a clipped step is off by %g" % moved)


def check_anomaly(tmp):
    path = os.path.join(tmp, "log.onnx")
    write(path, [helper.make_node("Mul", ["x", "w"], ["m"], name="mul"), helper.make_node("Log", ["m"], ["l"], name="the_log"),
                 helper.make_node("ReduceMean", ["l"], ["loss"], keepdims=0, name="mean")], {"x": [2, 3]}, {"w": np.ones(3, np.float32)})
    good, bad = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    bad[1, 2] = -1
    data = {"x.%d" % i: bad if i == 5 else good for i in range(8)}
    plain = ["--optimizer", "sgd", "--lr", 0, "--ranks", 2, "--micro-batches", 4, "--steps", 2]
    r = run(tmp, path, data, *plain, expect=1)
    check("--detect-anomaly" in r["stderr"] and len(r["losses"]) == 2, "a loss that is NaN: %s" % r["stderr"])
    r = run(tmp, path, data, *plain, "--detect-anomaly", expect=1)
    error = r["error"]
    # batch 5 is micro-batch 1 of step 1: of rank 0 with --reduce step
    check(error["node"] == "the_log" and error["rank"] == 0 and "'l'" in error["what"] and "element 5 is nan" in error["what"] and "micro-batch 1" in error["what"]
          and "step 1" in error["what"], "--detect-anomaly says %s" % error)
    nan = good.copy()
    nan[0, 1] = np.inf
    r = run(tmp, path, {"x.%d" % i: nan if i == 3 else good for i in range(4)}, *plain, "--detect-anomaly", expect=1)
    check(r["error"]["node"] == "x" and "batch 3" in r["error"]["what"], "data that are not finite: %s" % r["error"])
    w = np.ones(3, np.float32)
    w[1] = np.nan
    write(path, [helper.make_node("Mul", ["x", "w"], ["m"], name="mul"), helper.make_node("ReduceMean", ["m"], ["loss"], keepdims=0, name="mean")], {"x": [2, 3]}, {"w": w})
    r = run(tmp, path, {"x.%d" % i: good for i in range(4)}, *plain, "--detect-anomaly", expect=1)
    check("parameter 'w'" in r["error"]["what"] and "element 1 is nan" in r["error"]["what"], "a parameter that is not finite: %s" % r["error"])


def check_lora(tmp):
    """Low-rank branches beside frozen matrices: only they have gradients, states and reductions, and the frozen ones keep their bytes."""
    rng, wide, rank = np.random.default_rng(3), 64, 4
    inits = {"base": rng.standard_normal((wide, wide)), "lora_a": rng.standard_normal((wide, rank)) * 0.1, "lora_b": np.zeros((rank, wide)), "head": rng.standard_normal((wide, 3)) * 0.2}
    inits = {n: v.astype(np.float32) for n, v in inits.items()}
    nodes = [helper.make_node("MatMul", ["x", "base"], ["h0"], name="base_product"), helper.make_node("MatMul", ["x", "lora_a"], ["a"], name="down"),
             helper.make_node("MatMul", ["a", "lora_b"], ["b"], name="up"), helper.make_node("Add", ["h0", "b"], ["h"], name="join"), helper.make_node("Tanh", ["h"], ["t"], name="tanh"),
             helper.make_node("MatMul", ["t", "head"], ["o"], name="head_product"), helper.make_node("Sub", ["o", "y"], ["d"], name="sub"),
             helper.make_node("Mul", ["d", "d"], ["q"], name="square"), helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0, name="mean")]
    path = os.path.join(tmp, "lora.onnx")
    write(path, nodes, {"x": [8, wide], "y": [8, 3]}, inits)
    data = {"%s.%d" % (n, i): rng.standard_normal((8, w)).astype(np.float32) for i in range(4) for n, w in (("x", wide), ("y", 3))}
    one, first = ["--optimizer", "adamw", "--lr", 0.02, "--micro-batches", 4, "--steps", 12, "--params", "lora_*"], None
    chunks = lambda n: -(-n // 1024) * 1024
    for ranks, zero in ((1, 0), (2, 0), (2, 1), (2, 2), (4, 3)):
        saved = os.path.join(tmp, "lora")
        r = run(tmp, path, data, *one, "--ranks", ranks, "--zero", zero, "--save", saved)
        first = first or r
        check(r["losses"] == first["losses"] and r["losses"][-1] < 0.7 * r["losses"][0], "LoRA, %d ranks, stage %d: %s" % (ranks, zero, r["losses"]))
        w = weights(saved)
        check(np.array_equal(w["base"], inits["base"]) and np.array_equal(w["head"], inits["head"]) and not np.array_equal(w["lora_b"], inits["lora_b"]), "LoRA: what has moved")
        psi = -(-(chunks(wide * rank) * 2) // (1024 * ranks)) * 1024 * ranks * 4
        sent, held = r["sent_bytes_per_step"], r["peak_bytes"]["device"]["by_category"]
        check(r["padded_param_bytes"] == psi, "LoRA: psi is %d, wanted %d" % (r["padded_param_bytes"], psi))
        moved = sum(v for k, v in sent["by_collective"].items() if k not in ("control", "frozen", "optimizer"))
        check(moved + sent["saved"] == sent["formula"], "LoRA: sent %d and saved %d are not %d" % (moved, sent["saved"], sent["formula"]))
        check(held["state"] == 2 * psi * (1 if zero else ranks), "LoRA: states take %d bytes, psi is %d" % (held["state"], psi))
        check(zero < 3 or sent["by_collective"]["frozen"] > 0, "LoRA, stage 3: frozen parameters are gathered, and not counted")
    state = load_file(os.path.join(tmp, "lora", "state.safetensors"))
    check(sorted(state) == ["lora_%s.exp_avg%s" % (n, s) for n in "ab" for s in ("", "_sq")], "LoRA: states %s" % sorted(state))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_rates()
        check_resume(tmp)
        check_ema(tmp)
        check_norms(tmp)
        check_anomaly(tmp)
        check_lora(tmp)
    finish()


if __name__ == "__main__":
    main()
