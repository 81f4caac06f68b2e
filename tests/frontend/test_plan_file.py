#!/usr/bin/env python3
"""Plan files: onnx.checker accepts them; reading and writing one again gives the same bytes; a plan that lost a piece is refused, not believed.

    test_plan_file.py build/tessera
"""
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import onnx
except ImportError as e:
    print("skipped: %s (run tools/setup)" % e)
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OPTIONS = [["--ranks", "1"], ["--ranks", "2", "--zero", "0"], ["--ranks", "2", "--zero", "1", "--micro-batches", "8"], ["--ranks", "4", "--zero", "2"],
           ["--ranks", "4", "--zero", "3", "--optimizer", "sgd", "--lr", "0.1"]]


def run(tessera, *args):
    return subprocess.run([tessera, *map(str, args)], capture_output=True, text=True, errors="replace", timeout=60)


def check_plan(tessera, model, options, folder):
    plan, again = folder / "a.plan.onnx", folder / "b.plan.onnx"
    p = run(tessera, "compile", model, *options, "-o", plan)
    if p.returncode:
        return "compile: %s" % p.stderr.strip()
    proto = onnx.load(plan)
    onnx.checker.check_model(proto)
    if proto.ir_version != 10 or {o.domain for o in proto.opset_import} != {"", "tessera"}:
        return "ir_version %d, opsets %s" % (proto.ir_version, proto.opset_import)
    p = run(tessera, "opt", plan, "--passes=none", "-o", again)
    if p.returncode:
        return "opt: %s" % p.stderr.strip()
    return "" if plan.read_bytes() == again.read_bytes() else "written again, the plan differs"


def check_damage(tessera, plan, folder):
    """Removes or garbles one thing at a time through onnx's own classes; returns what crashed."""
    random.seed(3)
    proto, crashed = onnx.load(plan), []
    for i in range(40):
        damaged = onnx.ModelProto()
        damaged.CopyFrom(proto)
        graph = damaged.graph
        items = random.choice([graph.node, graph.input, graph.value_info, graph.output, damaged.metadata_props,
                               random.choice(graph.node).metadata_props, random.choice(graph.node).attribute])
        if not len(items):
            continue
        k = random.randrange(len(items))
        if i % 2:
            del items[k]
        elif hasattr(items[k], "value"):
            items[k].value = random.choice(["", "-1", "99999999999999999999", "nonsense", "{", "[1", items[k].value + "9"])
        elif hasattr(items[k], "name"):
            items[k].name = "other"
        path = folder / "damaged.plan.onnx"
        path.write_bytes(damaged.SerializeToString())
        p = run(tessera, "verify", path)
        if p.returncode not in (0, 1, 2, 3, 4, 5, 7):
            crashed.append((i, p.returncode, p.stderr[-200:]))
    return crashed


def main(tessera):
    passed = failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for model in sorted((ROOT / "tests" / "models").glob("*/model.onnx")):
            for options in OPTIONS:
                wrong = check_plan(tessera, model, options, folder)
                passed, failed = passed + (not wrong), failed + bool(wrong)
                if wrong:
                    print("FAIL %s %s: %s" % (model.parent.name, " ".join(options), wrong))
            crashed = check_damage(tessera, folder / "a.plan.onnx", folder)
            passed, failed = passed + (not crashed), failed + bool(crashed)
            if crashed:
                print("FAIL damaged plans of %s: %s" % (model.parent.name, crashed))
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(str(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "tessera").resolve())))
