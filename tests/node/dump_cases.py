#!/usr/bin/env python3
"""ONNX's own node tests, as the installed onnx package brings them, in one file that node_runner reads.

usage: dump_cases.py FOLDER      writes FOLDER/cases.txt (one line a case) and FOLDER/cases.bin
Line: NAME RTOL ATOL INPUTS OUTPUTS MODEL_OFFSET MODEL_BYTES DATA_OFFSET DATA_BYTES. The data is a ModelProto without nodes whose initializers
are in.0 ... and out.0 ...; a value that is no tensor (a sequence, an optional) has none. Absent optionals have none either.
"""
import os
import sys
import warnings

warnings.filterwarnings("ignore")

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests


def to_tensor(value, info, name):
    if info.type.WhichOneof("value") != "tensor_type" or value is None or isinstance(value, (list, dict)):
        return None
    tensor = TensorProto()
    if isinstance(value, TensorProto):
        tensor.CopyFrom(value)
    else:
        tensor = numpy_helper.from_array(np.asarray(value))
    tensor.name = name
    return tensor


def data_model(case, inputs, outputs):
    tensors = [to_tensor(v, case.model.graph.input[i], f"in.{i}") for i, v in enumerate(inputs)]
    tensors += [to_tensor(v, case.model.graph.output[i], f"out.{i}") for i, v in enumerate(outputs)]
    graph = helper.make_graph([], "data", [], [], [t for t in tensors if t is not None])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def main(folder):
    os.makedirs(folder, exist_ok=True)
    lines, at = [], 0
    with open(os.path.join(folder, "cases.bin"), "wb") as file:
        for case in load_model_tests(kind="node"):
            model = case.model.SerializeToString()
            for k, (inputs, outputs) in enumerate(case.data_sets):
                data = data_model(case, inputs, outputs).SerializeToString()
                file.write(model + data)
                name = case.name if len(case.data_sets) == 1 else f"{case.name}.{k}"
                lines.append(f"{name} {case.rtol} {case.atol} {len(inputs)} {len(outputs)} {at} {len(model)} {at + len(model)} {len(data)}\n")
                at += len(model) + len(data)
    with open(os.path.join(folder, "cases.txt"), "w") as file:      # last: it says that all is there
        file.writelines(lines)
    print(f"{len(lines)} cases of onnx {onnx.__version__}")


if __name__ == "__main__":
    main(sys.argv[1])
