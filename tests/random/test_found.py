#!/usr/bin/env python3
"""What random graphs have found, each as the smallest graph that shows it (found/*.txt), with the whole differential check: onnxruntime's losses, differences of the
loss, all ranks, stages and passes. Initializers called w... are what trains.

    test_found.py TESSERA
"""
import glob
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
from e2e import need

need("numpy", "onnx", "onnxruntime", "safetensors")
import numpy as np
import onnx.parser

from differential import Differential
from generate import BATCHES, Case


def draw(rng, info):
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    if info.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return rng.integers(0, 2, shape)                    # two classes, two rows
    return rng.standard_normal(shape).astype(np.float32)


def case_of(path):
    text = "".join(line for line in open(path) if not line.startswith("#"))
    model = onnx.parser.parse_model(text)
    case, rng = Case(), np.random.default_rng(1)
    case.seed, case.model, case.batch, case.loss = 1, model, 1, model.graph.output[0].name
    case.params = [t.name for t in model.graph.initializer if t.name.startswith("w")]
    case.used = [n.op_type for n in model.graph.node]
    case.random = "Dropout" in case.used
    case.discontinuous = bool({"Where", "TopK", "DynamicQuantizeLinear"} & set(case.used))
    case.without_ort = False
    case.batches = [{i.name: draw(rng, i) for i in model.graph.input} for _ in range(BATCHES)]
    return case


def main():
    d = Differential(sys.argv[1] if len(sys.argv) > 1 else "build/tessera")
    paths = sorted(glob.glob(os.path.join(HERE, "found", "*.txt")))
    for path in paths:
        d.run_case(case_of(path), thorough=False, name=os.path.basename(path))
    d.report()
    sys.exit(1 if d.findings or d.unsupported or d.graphs != len(paths) or not paths else 0)


if __name__ == "__main__":
    main()
