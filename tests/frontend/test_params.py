#!/usr/bin/env python3
"""The parameter rule: which initializers train. Small graphs made here, the models of tests/models, and every reference model that lies beside
the tree (../shared/models) as far as its operators are supported: `trainable` of reference.json must be what `tessera show` calls parameters.

    test_params.py build/tessera
"""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as e:
    print("skipped: %s (run tools/setup)" % e)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Models that must be read, whatever else is not: the operators of these are all supported.
MUST = ["linreg", "linreg_ts17", "mlp", "mlp_ts17", "mlp_meta", "cnn_ts17", "gpt_untied", "gpt_merged", "gpt_ts17", "hf_gpt2", "ext_one_file",
        "ext_gpt_dynamo"]
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"


def show(tessera, model, *options):
    """name -> (role, why), or None with the error."""
    p = subprocess.run([tessera, "show", str(model), "--json", *options], capture_output=True, text=True, timeout=120)
    try:
        answer = json.loads(p.stdout)
    except ValueError:
        return None, p.stderr.strip()
    if answer.get("problems"):
        return None, str(answer["problems"])[:300]
    return {i["name"]: (i["role"], i["why"]) for i in answer["initializers"]}, ""


def parameters(roles):
    return {n for n, (role, _) in roles.items() if role == "parameter"}


def check_reference(tessera, folder):
    reference = json.loads((folder / "reference.json").read_text())
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    symbols = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}
    options = [x for s in sorted(symbols) for x in ("--dim", "%s=8" % s)]
    roles, error = show(tessera, folder / "model.onnx", *options)
    if roles is None:
        return ("FAIL" if folder.name in MUST else "skip"), error
    wanted, got = set(reference["trainable"]), parameters(roles)
    return ("ok", "") if wanted == got else ("FAIL", "missing %s, too many %s" % ([(n, roles.get(n)) for n in wanted - got], [(n, roles[n]) for n in got - wanted]))


def model_with(nodes, arrays, marks=(), shape=(4, 6)):
    nodes = [helper.make_node(op, i.split(), o.split(), **a) for op, i, o, a in nodes] + [helper.make_node("ReduceMean", ["y"], ["loss"], keepdims=0)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
                              [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()])
    for name, kind in marks:
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        entry = info.metadata_props.add()
        entry.key, entry.value = KIND, kind
        graph.value_info.append(info)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def f(*shape, value=0.5):
    return np.full(shape, value, np.float32)


MATMUL = ("MatMul", "x w", "y", {})
# (title, nodes, initializers, marks, options, parameters)
CASES = [
    ("operand of MatMul", [MATMUL], {"w": f(6, 3)}, (), [], {"w"}),
    ("through Transpose and Reshape", [("Transpose", "w", "t", {"perm": [1, 0]}), ("Reshape", "t s", "r", {}), ("MatMul", "x r", "y", {})],
     {"w": f(3, 6), "s": np.array([6, 3])}, (), [], {"w"}),
    ("summand", [("Add", "x b", "y", {})], {"b": f(6)}, (), [], {"b"}),
    ("summand of one element", [("Add", "x b", "y", {})], {"b": f(1)}, (), [], set()),
    ("a mask is no bias", [("Add", "x b", "y", {})], {"b": f(6, value=-1e9)}, (), [], set()),
    ("an infinite mask is no bias", [("Add", "x b", "y", {})], {"b": f(6, value=-np.inf)}, (), [], set()),
    ("scale per channel", [("Mul", "x g", "y", {})], {"g": f(1, 6)}, (), [], {"g"}),
    ("a table is no scale", [("Mul", "x g", "y", {})], {"g": f(4, 6)}, (), [], set()),
    ("scale and bias of a norm", [("LayerNormalization", "x g b", "y", {})], {"g": f(6), "b": f(6)}, (), [], {"g", "b"}),
    ("a scalar", [("Mul", "x g", "y", {})], {"g": np.float32(2)}, (), [], set()),
    ("behind a comparison", [("Greater", "x b", "c", {}), ("Where", "c x z", "y", {})], {"b": f(6), "z": np.float32(0)}, (), [], set()),
    ("marked BUFFER", [MATMUL], {"w": f(6, 3)}, [("w", "BUFFER")], [], set()),
    ("marked PARAMETER where the rule says no", [("Mul", "x g", "y", {})], {"g": f(4, 6)}, [("g", "PARAMETER")], [], {"g"}),
    ("--params wins", [("Mul", "x g", "m", {}), ("Add", "m b", "y", {})], {"g": f(4, 6), "b": f(6)}, (), ["--params", "g"], {"g"}),
    ("--freeze wins", [("MatMul", "x w", "m", {}), ("Add", "m b", "y", {})], {"w": f(6, 3), "b": f(3)}, [("w", "PARAMETER")], ["--freeze", "w*"], {"b"}),
    ("--tie leaves one", [("MatMul", "x w", "m", {}), ("MatMul", "m v", "y", {})], {"w": f(6, 6), "v": f(6, 6)}, (), ["--tie", "w=v"], {"w"}),
]


def main(tessera):
    counts = {"ok": 0, "FAIL": 0, "skip": 0}

    def record(title, verdict, what):
        counts[verdict] += 1
        if verdict != "ok":
            print("%s %s: %s" % (verdict, title, what.replace("\n", " ")[:300]))

    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "m.onnx"
        for title, nodes, arrays, marks, options, wanted in CASES:
            onnx.save(model_with(nodes, arrays, marks), path)
            roles, error = show(tessera, path, *options)
            got = None if roles is None else parameters(roles)
            record(title, "ok" if got == wanted else "FAIL", "expected %s, got %s %s" % (wanted, roles, error))
    for root in [ROOT / "tests" / "models", ROOT.parent / "shared" / "models"]:
        for folder in sorted(root.iterdir()) if root.is_dir() else []:
            reference = folder / "reference.json"          # a model alone is only for the proofs
            if reference.exists() and (folder / "model.onnx").exists() and "trainable" in json.loads(reference.read_text()):
                record(folder.name, *check_reference(tessera, folder))
    print("%d passed, %d failed, %d skipped" % (counts["ok"], counts["FAIL"], counts["skip"]))
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main(str(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "tessera").resolve())))
