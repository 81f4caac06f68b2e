#!/usr/bin/env python3
"""A fixed budget of random training graphs (differential.py), the same ones each time. differential.py alone runs as long as it is let.

    test_random.py TESSERA
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "e2e")]
from e2e import need, sanitized

need("numpy", "onnx", "onnxruntime", "safetensors")
from differential import Differential
from generate import generate

GRAPHS, OPERATORS_LEAST = 26, 60


def main():
    d = Differential(sys.argv[1] if len(sys.argv) > 1 else "build/tessera")
    graphs = GRAPHS // 5 if sanitized() else GRAPHS
    for seed in range(graphs):
        d.run_case(generate(seed), thorough=False, name="seed %d" % seed)
    d.report()
    wide = len(d.operators) >= OPERATORS_LEAST or graphs < GRAPHS          # the generator still does what it is for
    sys.exit(1 if d.findings or not wide or d.graphs + sum(d.unsupported.values()) != graphs else 0)


if __name__ == "__main__":
    main()
