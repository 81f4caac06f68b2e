#!/usr/bin/env python3
"""Standard operators against ONNX's own reference evaluator, on every case of tests/ops/*.txt.

usage: test_onnx.py TESSERA      (the test program test_ops lies in tests/ beside it)
Exit code 77 where the onnx package is missing.
"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

OPSET = 23
NUMBERS = {"float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "double": 11,
           "uint32": 12, "uint64": 13, "bfloat16": 16}
NEWEST = {"Attention": 25}   # rows that mean more than at OPSET
# Sums of products in f32 on their side; ours are in f64 and rounded once.
SUMS = {"LinearAttention": 1e-5, "MatMul": 2e-5, "Gemm": 2e-5, "Conv": 2e-5, "LayerNormalization": 5e-4, "GRU": 1e-5, "LSTM": 1e-5}
TOLERANCE = {"float": 2e-6, "double": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}

# Cases about which the evaluator is not asked: its numpy cannot, or does something else than ONNX's text (ONNX Runtime agrees with ours).
SKIP = {
    "Dropout": lambda c: len(c["inputs"]) > 2 and c["inputs"][2] and c["inputs"][2]["data"][0],   # random: other numbers by right
    # The evaluator converts through numpy, which leaves out-of-range floats undefined; ours saturate (docs/operators.md).
    "Cast": lambda c: c["outputs"][0]["dtype"] not in TOLERANCE and c["inputs"][0]["dtype"] in TOLERANCE and c["outputs"][0]["dtype"] != "bool",
    "CastLike": lambda c: c["outputs"][0]["dtype"] not in TOLERANCE and c["inputs"][0]["dtype"] in TOLERANCE and c["outputs"][0]["dtype"] != "bool",
    **{op: lambda c: c["inputs"][1]["dims"] == [1] for op in ("CumSum", "CumProd")},   # it wants an axis of rank 0
    "GatherElements": lambda c: c["inputs"][0]["dims"] != c["inputs"][1]["dims"] and len(c["inputs"][0]["dims"]) > 1,   # numpy's narrower rule
    "ReduceLogSumExp": lambda c: "-inf" in c["inputs"][0]["data"],   # it has -inf minus -inf
    "TopK": lambda c: None in c["outputs"],                          # the checker wants both
    **{op: lambda c: True for op in ("RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Multinomial")},
    "Bernoulli": lambda c: set(floats(c["inputs"][0])) - {0, 1},
    "MaxRoiPool": lambda c: True,                                    # the evaluator has none
    "QLinearMatMul": lambda c: len(c["inputs"][0]["dims"]) > 2,      # it rounds behind the zero point, ONNX's text before
    "MatMulInteger": lambda c: len(c["inputs"]) > 2 and c["inputs"][2] and c["inputs"][2]["dims"],   # scalar zero points only
    # A range of nothing; scales in f32.
    "DynamicQuantizeLinear": lambda c: not any(floats(c["inputs"][0])) or c["inputs"][0]["dtype"] == "double",
    "NonMaxSuppression": lambda c: True,                             # it wants limits of rank 1, and takes no attribute
    "LinearAttention": lambda c: c["inputs"][0]["dtype"] == "double" or None in c["outputs"],   # computes in f32; the checker wants both
    "HannWindow": lambda c: c["outputs"][0]["dims"] == [1],
    "OneHot": lambda c: c["inputs"][1]["dims"] == [1],
    "SpaceToDepth": lambda c: "mode" in c["attributes"],             # newer than the opset asked
    # numpy clamps a start beyond the end to "nothing" for negative steps where ONNX's text says [0, dim-1]; it overflows on INT64_MIN steps.
    "Slice": lambda c: len(c["inputs"]) > 4 and any(int(s) < 0 for s in c["inputs"][4]["data"]),
    "Pow": lambda c: any(int(v) < 0 for v in c["inputs"][1]["data"]) if c["inputs"][1]["dtype"].startswith("int")
    else "-inf" in c["inputs"][0]["data"],                           # numpy takes square roots where C's pow says infinity
    "Div": lambda c: c["inputs"][0]["dtype"] not in TOLERANCE,       # numpy floors; ONNX truncates
    "ReduceMean": lambda c: c["inputs"][0]["dtype"] not in TOLERANCE,
    "ReduceMax": lambda c: 0 in c["inputs"][0]["dims"],              # numpy has no greatest of nothing
    **{op: lambda c: c["inputs"][0]["dtype"] == "double" for op in ("Gelu", "HardSwish")},   # constants in f32
    "LayerNormalization": lambda c: c["inputs"][0]["dtype"] == "double" or c["outputs"][0] is None,   # statistics in double whatever stash_type says
    # Its mode 0 is softened, too; it has no greatest of no keys.
    "Attention": lambda c: ("softcap" in c["attributes"] and len(c["outputs"]) > 3 and not c["attributes"].get("qk_matmul_output_mode"))
    or any(0 in t["dims"] for t in c["inputs"] if t),
    "BatchNormalization": lambda c: max(map(abs, floats(c["inputs"][0])), default=0) > 100,   # its variance is a sum in f32
    "ConvTranspose": lambda c: c["attributes"].get("group", 1) > 1 or 0 in c["inputs"][0]["dims"] or c["attributes"].get("output_padding", [0])[0] > 1,
    "GroupNormalization": lambda c: c["inputs"][0]["dtype"] == "double" or 0 in c["inputs"][0]["dims"],
    "GlobalLpPool": lambda c: True,                                  # it has none
    "GlobalMaxPool": lambda c: len(c["inputs"][0]["dims"]) != 4,
    "LRN": lambda c: True,                                           # it runs over samples where it should over channels
    "LogSoftmax": lambda c: max(map(abs, floats(c["inputs"][0])), default=0) > 100,
    "LpNormalization": lambda c: c["attributes"].get("p") == 1,          # the sum of the elements, not of their sizes
    "MeanVarianceNormalization": lambda c: c["inputs"][0]["dtype"] == "double",
    "NegativeLogLikelihoodLoss": lambda c: any(v != v for v in floats(c["outputs"][0])),
    # Recurrent layers: no lengths, functions, clipping, coupled gates; one direction where the batch comes first.
    **{op: lambda c: len(c["inputs"]) > 4 and c["inputs"][4] is not None or 0 in c["inputs"][0]["dims"]
       or set(c["attributes"]) & {"activations", "clip", "input_forget", "layout"} for op in ("RNN", "GRU", "LSTM")},
    "Resize": lambda c: c["inputs"][0]["dtype"] == "double" or any(a < 0 for a in c["attributes"].get("axes", [])),
    **{op: lambda c: c["inputs"][0]["dtype"] == "double" for op in ("AffineGrid", "GridSample")},
    "Softsign": lambda c: not c["inputs"][0]["dims"],
    "Erf": lambda c: c["inputs"][0]["dtype"] == "double",            # it computes in f32
    "Pad": lambda c: any(int(p) < 0 for p in c["inputs"][1]["data"]),   # numpy.pad cannot cut
    "MaxPool": lambda c: len(c["outputs"]) > 1 or "nan" in c["inputs"][0]["data"],   # its Indices count within a channel; NaN is lost
    "SoftmaxCrossEntropyLoss": lambda c: c["outputs"][0] is None or 0 in c["inputs"][0]["dims"] or max(map(abs, floats(c["inputs"][0]))) > 100,
    "Trilu": lambda c: len(c["inputs"]) > 1 and abs(int(c["inputs"][1]["data"][0])) > 2**31,   # nor has numpy such a diagonal
}


def floats(tensor):
    return [float.fromhex(v) if v.lstrip("-")[:2] == "0x" else float(v) for v in tensor["data"]]


def to_proto(name, tensor):
    is_float = tensor["dtype"] in TOLERANCE
    values = floats(tensor) if is_float else tensor["data"]
    if tensor["dtype"] == "uint64":
        values = [v & (2**64 - 1) for v in values]
    dtype = helper.tensor_dtype_to_np_dtype(NUMBERS[tensor["dtype"]])
    with np.errstate(all="ignore"):
        array = np.array(values, dtype=np.float64 if is_float else dtype).astype(dtype).reshape(tensor["dims"])
    proto = numpy_helper.from_array(array, name)
    proto.data_type = NUMBERS[tensor["dtype"]]
    return proto, array


def evaluate(case):
    names, feeds, infos = [], {}, []
    for i, tensor in enumerate(case["inputs"]):
        if tensor is None:
            names.append("")
            continue
        names.append(f"x{i}")
        feeds[f"x{i}"] = to_proto(f"x{i}", tensor)[1]
        infos.append(helper.make_tensor_value_info(f"x{i}", NUMBERS[tensor["dtype"]], tensor["dims"]))
    attributes = {k: to_proto(k, v)[0] if isinstance(v, dict) else v for k, v in case["attributes"].items()}
    outputs = [f"y{i}" if t else "" for i, t in enumerate(case["outputs"])]
    node = helper.make_node(case["op"], names, outputs, **attributes)
    made = [helper.make_tensor_value_info(f"y{i}", NUMBERS[t["dtype"]], t["dims"]) for i, t in enumerate(case["outputs"]) if t]
    opset = NEWEST.get(case["op"], OPSET)
    opset = max(opset, min(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == case["op"] and not s.domain))
    model = helper.make_model(helper.make_graph([node], "case", infos, made), opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model)
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feeds)


def compare(tensor, got, op):
    got = np.asarray(got)
    if list(got.shape) != tensor["dims"]:
        return f"shape {tensor['dims']}, ONNX says {list(got.shape)}"
    ours = to_proto("ours", tensor)[1]
    if got.dtype != ours.dtype:
        return f"type {ours.dtype}, ONNX says {got.dtype}"
    if tensor["dtype"] not in TOLERANCE:
        return None if np.array_equal(ours, got) else f"{ours.tolist()}, ONNX says {got.tolist()}"
    ours, got = ours.astype(np.float64), got.astype(np.float64)
    tolerance = max(TOLERANCE[tensor["dtype"]], SUMS.get(op, 0) if tensor["dtype"] == "float" else 0)
    if np.allclose(ours, got, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    return f"{ours.ravel()[:8].tolist()}, ONNX says {got.ravel()[:8].tolist()}"


def main():
    warnings.simplefilter("ignore")   # numpy about empty means
    program = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "tests", "test_ops")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cases.json")
        subprocess.run([program, "--json", path], check=True)
        with open(path) as file:
            cases = json.load(file)
    problems = compared = skipped = 0
    for case in cases:
        if case["domain"] or not case["outputs"]:
            continue
        narrow = any(t and t["dtype"] not in NUMBERS for t in case["inputs"] + case["outputs"])
        if narrow or (case["op"] in SKIP and SKIP[case["op"]](case)):
            skipped += 1
            continue
        try:
            results = evaluate(case)
            complaints = [compare(t, r, case["op"]) for t, r in zip([t for t in case["outputs"] if t], results)]
        except Exception as error:  # whatever the evaluator raises is a finding about the case
            complaints = [f"ONNX refuses it: {type(error).__name__}: {str(error)[:300]}"]
        compared += 1
        for complaint in filter(None, complaints):
            print(f"{case['file']}:{case['line']}: {case['op']}: {complaint}")
            problems += 1
    print(f"{compared} cases compared with onnx {onnx.__version__}, {skipped} skipped, {problems} differ")
    return 1 if problems or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
