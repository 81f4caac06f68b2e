#!/usr/bin/env python3
"""Broken and hostile model files: exit code 3, 4, 5 or 7 and a message that names what is wrong, within 10 s, never a signal. Reading one takes at
most 32 times its bytes and 16 MiB on top of what the good model takes.
Files made here, every prefix of a good one, and the shared collection where it lies beside the tree (../shared/models/bad).

    test_hostile.py build/tessera
"""
import os
import pathlib
import random
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


def base():
    nodes = [helper.make_node("MatMul", ["x", "W"], ["p"], name="mm"), helper.make_node("Add", ["p", "b"], ["z"], name="add"),
             helper.make_node("ReduceMean", ["z"], ["loss"], name="mean", keepdims=0)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 3))],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
                              [numpy_helper.from_array(np.ones((3, 2), np.float32), "W"), numpy_helper.from_array(np.ones(2, np.float32), "b")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def changed(change):
    model = base()
    change(model)
    return model.SerializeToString()


def endless_loop(trips):
    """Its body says to go on for ever, through two Identity nodes."""
    model = base()
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["same"]), helper.make_node("Identity", ["same"], ["on"]),
                              helper.make_node("Add", ["h", "h"], ["twice"])], "body",
                             [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, []),
                              helper.make_tensor_value_info("h", TensorProto.FLOAT, (4, 2))],
                             [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("twice", TensorProto.FLOAT, (4, 2))])
    model.graph.node[1].output[0] = "start"
    model.graph.node.insert(2, helper.make_node("Loop", ["trips" if trips else "", "yes", "start"], ["z"], name="loop", body=body))
    model.graph.initializer.extend([numpy_helper.from_array(np.array(True), "yes")])
    if trips:
        model.graph.initializer.extend([numpy_helper.from_array(np.array(trips, np.int64), "trips")])
    return model.SerializeToString()


def set_attr(target, name, value):
    setattr(target, name, value)


def add_node(model, *args, **attributes):
    model.graph.node.insert(0, helper.make_node(*args, **attributes))


def empty_nodes(count):
    graph, length = b"\x0a\x00" * count, b""
    n = len(graph)
    while n > 0x7f:
        length, n = length + bytes([n & 0x7f | 0x80]), n >> 7
    return b"\x08\x0a\x42\x02\x10\x12\x3a" + length + bytes([n]) + graph


def nested_if(levels):
    model = base()
    add_node(model, "Identity", ["x"], ["deep"], name="inner")
    # Lengths of nested messages grow outwards, so the nesting is written inside out: node { attribute { g { node ... } } }
    def field(number, payload):
        n, out = len(payload), bytes([number << 3 | 2])
        while n > 0x7f:
            out, n = out + bytes([n & 0x7f | 0x80]), n >> 7
        return out + bytes([n]) + payload
    graph = b""
    for _ in range(levels):
        graph = field(1, field(4, b"If") + field(5, field(1, b"then_branch") + field(6, graph)))
    return field(7, graph) + bytes([8, 10])


CASES = [
    ("no bytes", b"", 3, "empty"),
    ("a zip archive", b"PK\x03\x04" + bytes(100), 3, "zip archive"),
    ("not ONNX", b"\x08\x0a\xff\xff" + bytes(100), 3, "no valid ONNX file: byte"),
    ("a negative dimension", changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, -3)), 3, "'W'"),
    ("a huge dimension", changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, 1 << 62)), 7, "'W'"),
    ("short data", changed(lambda m: set_attr(m.graph.initializer[0], "raw_data", b"1234")), 3, "raw_data has 4 bytes"),
    ("unknown element type", changed(lambda m: set_attr(m.graph.initializer[0], "data_type", 99)), 3, "element type 99"),
    ("a type without arithmetic", changed(lambda m: set_attr(m.graph.initializer[0], "data_type", TensorProto.COMPLEX64)), 4, "COMPLEX64"),
    ("an undefined value", changed(lambda m: m.graph.node[0].input.__setitem__(1, "Wq")), 3, "node 'mm': MatMul: input 'Wq' is defined nowhere"),
    ("a value defined twice", changed(lambda m: m.graph.node[1].output.__setitem__(0, "p")), 3, "every value is defined once"),
    ("a cycle", changed(lambda m: m.graph.node[0].input.__setitem__(0, "z")), 3, "cycle"),
    ("unknown operator", changed(lambda m: set_attr(m.graph.node[1], "op_type", "Ad")), 3, "Ad is no operator"),
    ("operator of the future", changed(lambda m: set_attr(m.graph.node[2], "op_type", "Gelu")), 3, "does not exist at opset 18"),
    ("domain not imported", changed(lambda m: set_attr(m.graph.node[1], "domain", "com.acme")), 3, "com.acme"),
    ("attribute of the wrong type", changed(lambda m: m.graph.node[2].attribute[0].CopyFrom(helper.make_attribute("keepdims", "no"))), 3, "keepdims"),
    ("attribute twice", changed(lambda m: m.graph.node[2].attribute.extend([helper.make_attribute("keepdims", 0)])), 3, "there twice"),
    ("unknown attribute", changed(lambda m: m.graph.node[0].attribute.extend([helper.make_attribute("wibble", 1)])), 3, "wibble"),
    ("no opset", changed(lambda m: m.ClearField("opset_import")), 3, "opset"),
    ("opset of the future", changed(lambda m: set_attr(m.opset_import[0], "version", 99)), 4, "99"),
    ("opset too old", changed(lambda m: set_attr(m.opset_import[0], "version", 3)), 4, "older"),
    ("input without shape", changed(lambda m: m.graph.input[0].type.tensor_type.ClearField("shape")), 4, "'x'"),
    ("external data elsewhere", changed(lambda m: (m.graph.initializer[0].ClearField("raw_data"), set_attr(m.graph.initializer[0], "data_location", 1),
                                                   m.graph.initializer[0].external_data.add(key="location", value="../../etc/passwd"))), 3, "'..'"),
    ("two problems at once", changed(lambda m: (m.graph.node[0].input.__setitem__(1, "Wq"), set_attr(m.graph.node[1], "op_type", "Ad"))), 3, "2 problems"),
    ("subgraphs 5,000 deep", nested_if(5000), 3, "nested deeper"),
    ("5 million empty nodes", empty_nodes(5000000), 7, "limit"),
    ("a loop without end", endless_loop(0), 7, "node 'loop': functions, loops and branches expand to more than"),
    ("a loop of 2^62 iterations", endless_loop(1 << 62), 7, "node 'loop': functions, loops and branches expand to more than"),
    ("a loop of three iterations", endless_loop(3), 0, ""),
    ("subgraphs 60 deep, no graph around them", nested_if(60), 3, ""),
]


# Peak memory is asked of a parent that is small itself: a child's counts from the fork on. An alarm outlives exec.
LAUNCHER = """
import os, resource, signal, sys
seconds, limit_bytes = int(sys.argv[1]), int(sys.argv[2])
pid = os.fork()
if not pid:
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    signal.alarm(seconds)
    os.execv(sys.argv[3], sys.argv[3:])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status) % 256)
"""
LIMIT_BYTES = 4 << 30


def can_be_limited(tessera):
    """The sanitizers reserve terabytes of addresses: their programs run without the limit on memory."""
    return launch(LIMIT_BYTES, tessera, "--help")[0] == 0


def launch(limit_bytes, *command):
    """Exit code (above 128: a signal), stderr, peak memory in KiB."""
    p = subprocess.run([sys.executable, "-I", "-S", "-c", LAUNCHER, "10" if limit_bytes else "60", str(limit_bytes), *command],
                       capture_output=True, text=True, errors="replace")
    return p.returncode, p.stderr, int(p.stdout.split()[-1])


def main(tessera):
    passed = failed = 0
    limit = LIMIT_BYTES if can_be_limited(tessera) else 0

    def record(title, wrong):
        nonlocal passed, failed
        passed, failed = passed + (not wrong), failed + bool(wrong)
        if wrong:
            print("FAIL %s: %s" % (title, wrong))

    with tempfile.TemporaryDirectory() as folder:
        path, out = os.path.join(folder, "m.onnx"), os.path.join(folder, "o.onnx")

        def attempt(content):
            with open(path, "wb") as f:
                f.write(content)
            return launch(limit, tessera, "compile", path, "--ranks", "2", "--zero", "3", "-o", out)

        good = base().SerializeToString()
        got, _, usual_kib = attempt(good)
        record("the good model", "" if got == 0 else "refused")
        for title, content, code, part in CASES:
            got, said, kib = attempt(content)
            record(title, "" if got == code and part in said else "exit %d (expected %d): %s" % (got, code, said.strip()[:200]))
            room = usual_kib + 16384 + 32 * len(content) // 1024
            record(title + ": memory", "%d KiB, more than %d" % (kib, room) if limit and kib > room else "")
        bad = [n for n in range(0, len(good), 7) if attempt(good[:n])[0] not in (0, 3, 4, 5, 7)]
        record("prefixes", "exit code is wrong for lengths %s" % bad if bad else "")
        random.seed(1)
        for i in range(60):
            mutated = bytearray(good)
            for _ in range(random.randint(1, 4)):
                mutated[random.randrange(len(mutated))] = random.randrange(256)
            got, said, _ = attempt(bytes(mutated))
            if got not in (0, 2, 3, 4, 5, 7):
                record("mutation %d" % i, "exit %d: %s" % (got, said[-300:]))
        record("mutations", "")
    shared = ROOT.parent / "shared"
    if limit and (shared / "models" / "bad" / "index.json").exists():
        p = subprocess.run([sys.executable, str(shared / "tools" / "check_bad.py"), "--tessera", tessera, str(shared / "models" / "bad")],
                           capture_output=True, text=True)
        print(p.stdout.strip())
        record("the shared collection", "" if p.returncode == 0 else "see above")
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build" / "tessera"))))
