"""Shared by the end-to-end tests: runs the program, reads reports, counts failures. Not a test itself."""
import json
import os
import subprocess
import sys
import tempfile

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.abspath("build/tessera")
HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "..", "models")
failures, passes = [], 0


def sanitized():
    """Is the program built with a sanitizer, whose own memory is not planned?"""
    program = open(TESSERA, "rb").read()
    return b"__asan_" in program or b"__tsan_" in program


def need(*modules):
    for m in modules:
        try:
            __import__(m)
        except ImportError:
            print("needs the Python package %s (tools/setup)" % m)
            sys.exit(77)


def check(ok, what):
    global passes
    if ok:
        passes += 1
    else:
        failures.append(what)
        print("FAIL", what, flush=True)
    return ok


def finish():
    print("%d checks passed, %d failed" % (passes, len(failures)))
    sys.exit(1 if failures else 0)


def model(name):
    return os.path.join(MODELS, name, "model.onnx")


def inputs(name):
    return os.path.join(MODELS, name, "inputs.safetensors")


def tessera(*arguments, **more):
    return subprocess.run([TESSERA, *map(str, arguments)], capture_output=True, text=True, timeout=300, **more)


def train(name, *arguments, source=None, expect=0, **more):
    """Runs on the model's own inputs, in order; returns the report (with 'exit', 'stdout', 'stderr')."""
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "report.json")
        p = tessera("run", source or model(name), "--data", inputs(name), "--no-shuffle", "--report", path, *arguments, **more)
        report = json.load(open(path)) if os.path.exists(path) else {}
    report.update(exit=p.returncode, stdout=p.stdout, stderr=p.stderr)
    check(p.returncode == expect, "run %s %s: exit %d, wanted %d: %s" % (name, arguments, p.returncode, expect, p.stderr.strip()[-300:]))
    return report


def weights(checkpoint):
    from safetensors.numpy import load_file
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "w.safetensors")
        p = tessera("export", checkpoint, "-o", path)
        check(p.returncode == 0, "export %s: %s" % (checkpoint, p.stderr))
        return load_file(path)
