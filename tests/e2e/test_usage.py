#!/usr/bin/env python3
"""What a newcomer types: open dimensions by --dim or --batch, a model that ends in logits, files that are no models, labels out of range.

    test_usage.py TESSERA
"""
import os
import re
import tempfile
import zipfile

from e2e import check, finish, inputs, model, need, tessera

need("numpy", "safetensors", "onnx")
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

LOSS = ["--loss", "cross_entropy", "--labels", "y"]
LONG = "a.rather.long.name.of.a.parameter.as.exporters.make.them"


def logits(path, batch):
    rng = np.random.default_rng(0)
    graph = helper.make_graph([helper.make_node("Gather", [LONG, "ids"], ["e"], name="Gather"), helper.make_node("MatMul", ["e", "w"], ["logits"], name="MatMul")], "g",
                              [helper.make_tensor_value_info("ids", TensorProto.INT64, [batch, 8])],
                              [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 8, 256])],
                              [numpy_helper.from_array(rng.standard_normal((256, 4), np.float32), LONG),
                               numpy_helper.from_array(rng.standard_normal((4, 256), np.float32), "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        dynamic, fixed, text, ids, labels, pt, pickle, plan, saved = (os.path.join(tmp, n) for n in (
            "dynamic.onnx", "fixed.onnx", "text.txt", "ids.safetensors", "labels.safetensors", "model.pt", "old.pt", "plan.onnx", "saved"))
        logits(dynamic, "batch")
        logits(fixed, 4)
        open(text, "w").write("the quick brown fox jumps over the lazy dog. " * 20)
        good, zero = np.zeros((8, 8), np.int64), np.zeros((8, 8), np.int64)
        save_file({"ids": good + 999, "y": zero}, ids)
        save_file({"ids": good, "y": zero + 777}, labels)
        with zipfile.ZipFile(pt, "w") as z:
            z.writestr("archive/data.pkl", "x")
        open(pickle, "wb").write(b"\x80\x02}q\x00.")
        steps = ["--steps", "1"]
        cases = [
            (["run", dynamic], 2, ["--loss cross_entropy", "--labels"]),
            (["run", dynamic, "--data", text, *LOSS, *steps], 2, ["dimension 0", "open; give --batch INT"]),
            (["run", dynamic, "--data", "random", *LOSS, *steps], 2, ["dimension 0 ('batch') open; give --batch INT or --dim batch=INT"]),
            (["run", dynamic, "--data", text, *LOSS, "--dim", "batch=4", *steps, "--save", saved], 0, []),
            (["run", dynamic, "--data", text, "--resume", saved, *steps], 0, ["--dim=batch=4", "--loss=cross_entropy"]),
            (["run", dynamic, "--data", "random", *LOSS, "--dim", "batch=4", *steps], 0, []),
            (["run", dynamic, "--data", text, *LOSS, "--batch", "4", *steps], 0, []),
            (["run", fixed, "--data", text, *LOSS, *steps], 0, []),
            (["run", fixed, "--data", ids, *LOSS, *steps], 3, ["Gather: element", "999"]),
            (["run", fixed, "--data", labels, *LOSS, *steps], 3, ["label 777"]),
            (["run", dynamic, "--data", text, *LOSS, "--batch", "1000", *steps], 0, ["warning", "1000 samples", "more than once"]),
            (["show", dynamic, "--batch", "4"], 0, []),
            (["opt", dynamic], 2, ["open; give --batch INT"]),
            (["opt", dynamic, "--batch", "4"], 0, []),
            (["show", pt], 3, ["zip archive", "torch.onnx.export"]),
            (["show", pickle], 3, ["pickle", "torch.onnx.export"]),
            (["run", ids, "--data", "random"], 3, ["safetensors", "--data"]),
            (["run", model("mlp"), "--data", inputs("mlp"), "--optimizer", "sdg"], 2, ["did you mean sgd?"]),
            (["run", model("mlp"), "--data", inputs("mlp"), "--steps", "-3"], 2, ["0 or more"]),
            (["run", model("mlp"), "--data", inputs("mlp"), "--batch", "0"], 2, ["1 or more"]),
            (["run", model("mlp"), "--data", inputs("mlp"), "--ranks", "5000"], 2, ["5000 ranks", "4096"]),
            (["run", model("mlp"), "--data", inputs("mlp"), "--steps", "40", "--optimizer", "sgd", "--lr", "1e30"], 1, ["is nan"]),
            (["run", model("mlp"), "--data", inputs("mlp"), "--keep-f32", "Gemm"], 2, ["--precision f32 nothing computes in 16 bits"]),
            (["run", model("mlp"), "--data", inputs("mlp"), "--precision", "bf16", "--keep-f32", "Gemm,Gem"], 2, ["--keep-f32 Gem matches no node"]),
            (["run", model("mlp"), "--data", inputs("mlp"), "--precision", "bf16", "--keep-f32", "Gemm", "--steps", "1"], 0, []),
            (["compile", fixed, *LOSS, "-o", plan], 0, []),
        ]
        for arguments, code, words in cases:
            p = tessera(*arguments)
            check(p.returncode == code, "tessera %s: exit %d, wanted %d: %s" % (" ".join(arguments), p.returncode, code, p.stderr))
            for w in words:
                check(w in p.stderr, "tessera %s: does not say '%s': %s" % (" ".join(arguments), w, p.stderr))
            check("Gather: Gather" not in p.stderr and "-nan" not in p.stdout + p.stderr, "tessera %s: %s" % (" ".join(arguments), p.stderr))
        lines = [x for x in tessera("show", fixed).stdout.split("\n") if "parameter " in x]
        check(len({x.index("float[") for x in lines}) == 1, "columns are not aligned: %s" % lines)
        check("once per micro-batch" in tessera("show", plan).stdout, "show PLAN has no legend")
        empty = [n.name for n in onnx.load(plan).graph.node for p in n.metadata_props if not p.value]
        check(not empty, "empty metadata in the plan: %s" % empty)
        check("Loss and optimizer:" in tessera("run", "--help").stdout and "Example" in tessera("run", "--help").stdout, "run --help")
        choices = re.search(r"is none of ([a-z0-9|]+)", tessera("run", "x.onnx", "--optimizer", "?").stderr)
        check(choices and "--optimizer %s " % choices[1] in tessera("run", "--help").stdout, "run --help: the optimizers: %s" % choices)
    finish()


if __name__ == "__main__":
    main()
