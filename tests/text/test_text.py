#!/usr/bin/env python3
"""The text form over every model of tests/models: print, parse, print is the identity; onnx.parser reads it and sees the same graph; plans too,
through the plan file and back. Argument: the program."""
import pathlib
import subprocess
import sys
import tempfile

try:
    import onnx
    import onnx.checker
    import onnx.parser
except ImportError as e:
    print(f"skipped: {e}; tools/setup installs what the tests need")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TESSERA = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build" / "tessera")
failures = []


def tessera(*args):
    p = subprocess.run([TESSERA, *map(str, args)], capture_output=True, text=True, timeout=120)
    if p.returncode:
        raise AssertionError(f"tessera {' '.join(map(str, args))}: exit {p.returncode}: {p.stderr.strip()}")
    return p.stdout


def check(condition, text):
    if not condition:
        raise AssertionError(text)


def round_trip(text, scratch):
    file = scratch / "again.onnxtxt"
    file.write_text(text)
    check(tessera("opt", file, "--passes=none") == text, "print, parse, print is not the identity")


def node_key(n):
    return n.op_type, n.domain, list(n.input), [o for o in n.output]


def check_model(model, scratch):
    text = tessera("opt", model, "--passes=none")
    round_trip(text, scratch)
    parsed = onnx.parser.parse_model(text)
    check(parsed.graph.node, "onnx.parser sees no nodes")
    simple = tessera("opt", model)
    round_trip(simple, scratch)
    typed = onnx.parser.parse_model(simple).graph
    names = {v.name for v in [*typed.input, *typed.output, *typed.value_info]} | {t.name for t in typed.initializer}
    produced = {o for n in typed.node for o in n.output if o}
    check(produced <= names, f"values without type after simplify: {sorted(produced - names)[:5]}")


def check_plan(model, options, scratch):
    plan = scratch / "model.plan.onnx"
    tessera("compile", model, *options, "-o", plan)
    text = tessera("opt", plan, "--passes=none")
    round_trip(text, scratch)
    binary = onnx.load(plan)
    onnx.checker.check_model(binary)
    parsed = onnx.parser.parse_model(text)
    check([node_key(n) for n in parsed.graph.node] == [node_key(n) for n in binary.graph.node], "text and plan file have other nodes")
    check([v.name for v in parsed.graph.input] == [v.name for v in binary.graph.input], "text and plan file have other inputs")
    for got, want in zip(parsed.graph.node, binary.graph.node):
        a = {x.name: onnx.helper.get_attribute_value(x) for x in got.attribute}
        b = {x.name: onnx.helper.get_attribute_value(x) for x in want.attribute}
        check(a == b, f"{got.op_type}: attributes differ: {a} and {b}")
    again = scratch / "again.plan.onnx"
    tessera("opt", plan, "--passes=none", "-o", again)
    check(again.read_bytes() == plan.read_bytes(), "a plan file read and written differs")


def check_lossless(model, scratch):
    """Binary -> text -> binary, also after a pipeline that makes constants: the same bytes, whether data lies in a file or in memory only."""
    for passes in ("none", "simplify", "train"):
        direct, text, through = scratch / "direct.onnx", scratch / "model.onnxtxt", scratch / "through.onnx"
        tessera("opt", model, f"--passes={passes}", "-o", direct)
        tessera("opt", model, f"--passes={passes}", "-o", text)
        tessera("opt", text, "--passes=none", f"--data-folder={model.parent}", "-o", through)
        check(direct.read_bytes() == through.read_bytes(), f"--passes={passes}: text on the way changes the binary file")


def check_deterministic(model, scratch):
    args = ("opt", model, "--passes=train", "--ranks", "2", "--zero", "3")
    check(tessera(*args) == tessera(*args), "compiling twice gives different graphs")


def main():
    models = sorted((ROOT / "tests" / "models").glob("*/model.onnx"))
    if not models:
        raise SystemExit("no tests/models/*/model.onnx: nothing was tested")
    plans = [("--ranks", str(n), "--zero", str(z), "--isa", "scalar") for n, z in ((1, 0), (2, 0), (2, 1), (2, 2), (4, 3))]
    n_checks = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            jobs = [lambda m=model, s=pathlib.Path(folder): check_model(m, s), lambda m=model, s=pathlib.Path(folder): check_deterministic(m, s)]
            jobs.append(lambda m=model, s=pathlib.Path(folder): check_lossless(m, s))
            jobs += [lambda m=model, o=o, s=pathlib.Path(folder): check_plan(m, o, s) for o in plans]
            for job in jobs:
                n_checks += 1
                try:
                    job()
                except AssertionError as e:
                    failures.append(f"{model.parent.name}: {e}")
                except Exception as e:   # of onnx: its text says what it does not accept
                    failures.append(f"{model.parent.name}: {type(e).__name__}: {str(e)[:300]}")
    print("\n".join(failures + [f"{n_checks} checks over {len(models)} models, {len(failures)} failed"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
