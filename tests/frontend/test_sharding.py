#!/usr/bin/env python3
"""Multi-device annotations (ONNX IR 11): shown, kept through opt in binary and text, and every defect named by its own code.

    test_sharding.py TESSERA
"""
import copy
import json
import os
import re
import subprocess
import sys
import tempfile

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.abspath("build/tessera")
try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    onnx.ShardingSpecProto
except (ImportError, AttributeError):
    print("needs numpy and an onnx package with IR 11 (tools/setup)")
    sys.exit(77)

failures, passes = [], 0


def check(ok, what):
    global passes
    passes += bool(ok)
    if not ok:
        failures.append(what)
        print("FAIL", what, flush=True)
    return ok


def tessera(*arguments):
    return subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True, timeout=60)


def sharding(tensor, devices, axes=(), groups=()):
    """axes: (axis, shards) or (axis, [(size or name, shards), ...]); groups: (key, devices)."""
    spec = onnx.ShardingSpecProto(tensor_name=tensor, device=devices)
    for key, members in groups:
        spec.index_to_device_group_map.add(key=key, value=members)
    for axis, parts in axes:
        dim = spec.sharded_dim.add(axis=axis)
        for size, shards in [(None, parts)] if isinstance(parts, int) else parts:
            part = dim.simple_sharding.add(num_shards=shards)
            if isinstance(size, int):
                part.dim_value = size
            elif size:
                part.dim_param = size
    return spec


def annotate(node, configuration, specs=(), stage=None):
    c = node.device_configurations.add(configuration_id=configuration, sharding_spec=specs)
    if stage is not None:
        c.pipeline_stage = stage


def plain_model():
    """x [8, 16] -> MatMul w1 [16, 12] -> Relu -> MatMul w2 [12, 4] -> mean; the types in between are for the reader to infer."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"), helper.make_node("Relu", ["a"], ["b"], name="relu"),
             helper.make_node("MatMul", ["b", "w2"], ["c"], name="second"), helper.make_node("ReduceMean", ["c"], ["loss"], name="mean", keepdims=0)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
                              [numpy_helper.from_array(rng.standard_normal(s, np.float32), n) for n, s in (("w1", (16, 12)), ("w2", (12, 4)))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    return model


def annotated_model():
    model = plain_model()
    model.configuration.add(name="tp", num_devices=4, device=["gpu0", "gpu1", "gpu2", "gpu3"])
    model.configuration.add(name="pp", num_devices=2)
    first, relu, second, mean = model.graph.node
    annotate(first, "tp", [sharding("x", [-1], groups=[(-1, [0, 1, 2, 3])]), sharding("w1", [0, 1, 2, 3], [(1, 4)]),
                           sharding("a", [0, 1, 2, 3], [(-1, 4)])])
    annotate(relu, "tp", [sharding("a", [-1, -2], [(0, [(8, 2)])], [(-1, [0, 1]), (-2, [2, 3])])])
    annotate(second, "tp", [sharding("w2", [3, 2, 1, 0], [(0, [(2, 2), (6, 1)]), (1, [("n", 2)])])])
    for node, stage in ((first, 0), (relu, 0), (second, 1), (mean, 1)):
        annotate(node, "pp", stage=stage)
    return model


def annotations(model):
    return ([c.SerializeToString() for c in model.configuration],
            {n.name: [c.SerializeToString() for c in n.device_configurations] for n in model.graph.node})


def check_kept(tmp):
    model, paths = annotated_model(), [os.path.join(tmp, n) for n in ("m.onnx", "a.onnx", "b.onnxtxt", "c.onnx", "d.onnxtxt")]
    onnx.save(model, paths[0])
    for i in range(4):
        p = tessera("opt", paths[i], "--passes=" + ("simplify" if i == 0 else "none"), "-o", paths[i + 1])
        if not check(p.returncode == 0, "opt to %s: %s" % (paths[i + 1], p.stderr)):
            return
    for path in (paths[1], paths[3]):
        back = onnx.load(path)
        check(back.ir_version >= 11, "ir_version %d" % back.ir_version)
        check(annotations(back) == annotations(model), "annotations of %s differ: %s" % (path, annotations(back)))
        onnx.checker.check_model(back)
    text = open(paths[2]).read()
    again = re.sub(r'"location".*?\]', "", open(paths[4]).read())
    check(re.sub(r'"location".*?\]', "", text) == again, "the text form changes on the way through a binary file")
    check('#@ configurations=[{"name":"tp","num_devices":4' in text and 'device_configurations=[{"configuration_id":"tp"' in text, text)
    onnx.parser.parse_model(text)
    p = tessera("compile", paths[0], "-o", os.path.join(tmp, "plan.onnx"))
    check(p.returncode == 0, "compile: " + p.stderr)
    shown = tessera("show", paths[0]).stdout
    for wanted in ("tp: 4 devices: gpu0, gpu1, gpu2, gpu3", "node 'first' tp:", "'w1' axis 1 in 4 over devices 0,1,2,3", "node 'second' pp: stage 1",
                   "'w2' axis 0 in 2x1 axis 1 in 2 over devices 3,2,1,0", "'x' whole on devices -1 (-1: 0,1,2,3)"):
        check(wanted in shown, "show does not say %r: %s" % (wanted, shown))
    seen = json.loads(tessera("show", paths[0], "--json").stdout)
    check([c["name"] for c in seen["configurations"]] == ["tp", "pp"] and seen["configurations"][0]["num_devices"] == 4, str(seen["configurations"]))
    check([d["node"] for d in seen["device_configurations"]] == ["first", "relu", "second", "mean"], str(seen["device_configurations"]))
    check(seen["problems"] == [], str(seen["problems"]))
    plain = os.path.join(tmp, "plain.onnx")
    onnx.save(plain_model(), plain)
    p = tessera("opt", plain, "-o", os.path.join(tmp, "p.onnx"))
    check(p.returncode == 0 and onnx.load(os.path.join(tmp, "p.onnx")).ir_version == 10, "a model without annotations needs no IR 11")


def spec_defect(spec):
    def change(model):
        annotate(model.graph.node[0], "tp", [spec])
        del model.graph.node[0].device_configurations[0]
    return change


def configuration_field(field, value):
    def change(model):
        if value is None:
            model.configuration[0].ClearField(field)
        else:
            setattr(model.configuration[0], field, value)
    return change


def drop(path):
    """Clears a field of the first axis of w1's spec."""
    def change(model):
        dim = model.graph.node[0].device_configurations[0].sharding_spec[1].sharded_dim[0]
        (dim if path == "axis" else dim.simple_sharding[0] if path == "num_shards" else dim).ClearField(path)
    return change


DEFECTS = [
    ("configuration-unnamed", lambda m: m.configuration.add(num_devices=2)),
    ("configuration-repeated", lambda m: m.configuration.add(name="pp", num_devices=2)),
    ("device-count", lambda m: m.configuration.add(name="x", num_devices=0)),
    ("device-count", lambda m: m.configuration.add(name="x")),
    ("device-count", lambda m: m.configuration.add(name="x", num_devices=-3)),
    ("device-names", lambda m: m.configuration[0].device.pop()),
    ("configuration-unknown", lambda m: annotate(m.graph.node[0], "nowhere")),
    ("configuration-unknown", lambda m: m.graph.node[0].device_configurations.add()),
    ("annotation-repeated", lambda m: annotate(m.graph.node[0], "pp", stage=0)),
    ("tensor-unknown", spec_defect(sharding("w2", [0, 1], [(0, 2)]))),
    ("tensor-unknown", spec_defect(sharding("", [0, 1], [(0, 2)]))),
    ("sharding-repeated", lambda m: m.graph.node[0].device_configurations[0].sharding_spec.append(sharding("w1", [0, 1, 2, 3], [(1, 4)]))),
    ("sharding-contradicts", lambda m: m.graph.node[0].device_configurations[0].sharding_spec.append(sharding("w1", [0, 1, 2, 3], [(0, 4)]))),
    ("devices-missing", spec_defect(sharding("w1", []))),
    ("device-range", spec_defect(sharding("w1", [0, 4], [(1, 2)]))),
    ("device-range", spec_defect(sharding("w1", [0, -1], [(1, 2)]))),
    ("device-range", spec_defect(sharding("w1", [-1], groups=[(-1, [0, 7])]))),
    ("device-repeated", spec_defect(sharding("w1", [1, 1], [(1, 2)]))),
    ("device-repeated", spec_defect(sharding("w1", [-1, 2], [(1, 2)], [(-1, [2, 3])]))),
    ("device-repeated", spec_defect(sharding("w1", [-1, -1], [(1, 2)], [(-1, [2, 3])]))),
    ("sharding-repeated", lambda m: m.graph.node[0].device_configurations[0].sharding_spec.extend([sharding("w1", [0])] * 1000)),
    ("group-repeated", spec_defect(sharding("w1", [-1], groups=[(-1, [0]), (-1, [1])]))),
    ("group-empty", spec_defect(sharding("w1", [-1], groups=[(-1, [])]))),
    ("group-unused", spec_defect(sharding("w1", [0], groups=[(-1, [1])]))),
    ("axis-missing", drop("axis")),
    ("axis-range", spec_defect(sharding("w1", [0, 1], [(2, 2)]))),
    ("axis-range", spec_defect(sharding("a", [0, 1], [(-3, 2)]))),
    ("axis-repeated", spec_defect(sharding("w1", [0, 1, 2, 3], [(1, 2), (-1, 2)]))),
    ("shards-missing", drop("simple_sharding")),
    ("shard-count", drop("num_shards")),
    ("shard-count", spec_defect(sharding("w1", [0], [(1, 0)]))),
    ("shards-devices", spec_defect(sharding("w1", [0, 1, 2], [(1, 2)]))),
    ("shards-devices", spec_defect(sharding("w1", [0, 1]))),
    ("dimension", spec_defect(sharding("w1", [0, 1], [(1, [(14, 2)])]))),
    ("dimension", spec_defect(sharding("a", [0, 1], [(1, [(2, 2), (5, 1)])]))),
    ("indivisible", spec_defect(sharding("x", [0, 1, 2], [(0, 3)]))),
    ("indivisible", spec_defect(sharding("a", [0, 1, 2], [(0, 3)]))),
    ("stage-range", lambda m: setattr(m.graph.node[0].device_configurations[1], "pipeline_stage", -1)),
    ("stage-order", lambda m: setattr(m.graph.node[1].device_configurations[1], "pipeline_stage", 3)),
]


def check_defects(tmp):
    path = os.path.join(tmp, "bad.onnx")
    for code, change in DEFECTS:
        model = copy.deepcopy(annotated_model())
        change(model)
        onnx.save(model, path)
        p = tessera("opt", path, "-o", os.path.join(tmp, "out.onnx"))
        found = re.findall(r"\[([a-z-]+)\] ", p.stderr)
        check(p.returncode == 3 and found == [code], "%s: exit %d, found %s: %s" % (code, p.returncode, found, p.stderr))
    # All of them in one report.
    model = annotated_model()
    annotate(model.graph.node[0], "nowhere")
    spec_defect(sharding("w1", [0, 9], [(5, 2)]))(model)
    onnx.save(model, path)
    p = tessera("show", path, "--json")
    problems = " ".join(json.loads(p.stdout)["problems"])
    check(p.returncode == 3 and all("[%s]" % c in problems for c in ("configuration-unknown", "device-range", "axis-range")), problems)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_kept(tmp)
        check_defects(tmp)
    print("%d checks passed, %d failed" % (passes, len(failures)))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
