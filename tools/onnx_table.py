#!/usr/bin/env python3
"""Writes the table of standard operators that the importer checks models against: onnx_table.py OUT.inc

One line per operator and version, and one per attribute, from onnx.defs of the installed `onnx` package. Sorted, hence reproducible.
"""
import json
import sys

import onnx
from onnx import defs, helper

DOMAINS = ("", "ai.onnx.preview", "ai.onnx.preview.training")
INT32_MAX = 2**31 - 1


def default_text(attribute):
    """The default as text: numbers in shortest form, lists with commas; "" where there is none."""
    if not attribute.default_value.type:
        return ""
    value = helper.get_attribute_value(attribute.default_value)
    items = value if isinstance(value, (list, tuple)) else [value]
    return ",".join(i.decode() if isinstance(i, bytes) else repr(i) for i in items)


def main(path):
    schemas = sorted((s for s in defs.get_all_schemas_with_history() if s.domain in DOMAINS),
                     key=lambda s: (s.domain, s.name, s.since_version))
    ops, attrs = [], []
    for s in schemas:
        first = len(attrs)
        for name in sorted(s.attributes):
            a = s.attributes[name]
            attrs.append("ONNX_ATTR(%s, %s, %d, %s)" % (json.dumps(name), a.type.name, a.required, json.dumps(default_text(a))))
        arity = [min(n, INT32_MAX) for n in (s.min_input, s.max_input, s.min_output, s.max_output)]
        ops.append("ONNX_OP(%s, %s, %d, %d, %s, %d, %d)" % (json.dumps(s.domain), json.dumps(s.name), s.since_version, s.deprecated,
                                                           ", ".join(map(str, arity)), first, len(attrs) - first))
    with open(path, "w") as out:
        out.write("// Made by tools/onnx_table.py from onnx %s; not in version control.\n" % onnx.__version__)
        out.write("// ONNX_ATTR(name, type, required, default as text)\n#ifdef ONNX_ATTR\n%s\n#endif\n" % "\n".join(attrs))
        out.write("// ONNX_OP(domain, name, since, deprecated, min in, max in, min out, max out, first attribute, attributes)\n")
        out.write("// sorted by domain, name, since\n#ifdef ONNX_OP\n%s\n#endif\n" % "\n".join(ops))
        out.write("#ifdef ONNX_OPSET_NEWEST\nONNX_OPSET_NEWEST(%d)\n#endif\n" % defs.onnx_opset_version())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
