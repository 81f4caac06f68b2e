#!/usr/bin/env python3
"""No command writes over what it reads: an output that is an input, by its name, another name or a link, is refused and nothing changes.

    test_overwrites.py TESSERA
"""
import hashlib
import os
import shutil
import tempfile

from e2e import check, finish, inputs, model, need, tessera

need("onnx")
import onnx


def digests(folder):
    out = {}
    for root, _, names in os.walk(folder):
        for n in names:
            path = os.path.join(root, n)
            out[os.path.relpath(path, folder)] = hashlib.sha256(open(path, "rb").read()).hexdigest()
    return out


def main():
    with tempfile.TemporaryDirectory() as tmp:
        m, data, external, text, npy = (os.path.join(tmp, n) for n in ("m.onnx", "d.safetensors", "ext.onnx", "t.onnxtxt", "d.onnx"))
        shutil.copy(model("mlp"), m)
        shutil.copy(inputs("mlp"), data)
        onnx.save(onnx.load(m), external, save_as_external_data=True, location="ext.bin.onnx", size_threshold=0)
        plan, outer_plan, saved = os.path.join(tmp, "plan.onnx"), os.path.join(tmp, "outer.onnx"), os.path.join(tmp, "ck")
        for command in (["compile", m, "-o", plan], ["compile", external, "-o", outer_plan], ["run", external, "--data", data, "--steps", 1, "--save", saved],
                        ["opt", m, "--passes", "none", "-o", text]):
            p = tessera(*command)
            check(p.returncode == 0, p.stderr)
        links = {}
        for name, target in (("m", m), ("data", data), ("params", os.path.join(saved, "params.safetensors"))):
            links[name] = os.path.join(tmp, "link_" + name + os.path.splitext(target)[1])
            os.link(target, links[name])
        config = os.path.join(tmp, "config.json")
        with open(config, "w") as f:
            f.write('{"ranks": 1}')
        os.symlink("m.onnx", os.path.join(tmp, "soft.onnx"))
        before = digests(tmp)
        outside = os.path.join(tmp, "ext.bin.onnx")
        run = ["run", m, "--data", data, "--steps", 1]
        for command, code in (
            (["compile", m, "-o", m], 2), (["compile", m, "-o", os.path.join(tmp, ".", "m.onnx")], 2), (["compile", m, "-o", links["m"]], 2),
            (["compile", m, "-o", os.path.join(tmp, "soft.onnx")], 2), (["compile", external, "-o", outside], 2),
            (["compile", external, "--zero", 3, "--reduce", "step", "-o", os.path.join(tmp, "x.onnx"), "--reproducer", outside], 2),
            ([*run, "--dump-grads", m], 2), ([*run, "--dump-grads", data], 2), ([*run, "--report", data], 2), ([*run, "--report", links["data"]], 2),
            ([*run, "--config", config, "--report", config], 2), ([*run, "--log", m], 2), ([*run, "--report", m, "--zero", 3, "--reduce", "step"], 2),
            (["run", m, "--data", "x=" + data, "--report", data], 2), (["run", m, "--data", data, "--resume", saved, "--report", os.path.join(saved, "meta.json")], 2),
            (["run", m, "--data", data, "--resume", saved, "--dump-grads", links["params"]], 2),
            (["run", external, "--data", data, "--steps", 1, "--report", outside], 2), (["run", external, "--data", data, "--zero", 3, "--reduce", "step", "--report", outside], 2),
            (["run", outer_plan, "--data", data, "--steps", 1, "--report", outside], 2), (["run", outer_plan, "--data", data, "--steps", 1, "--log", external], 2),
            (["run", plan, "--weights", m, "--data", data, "--steps", 1, "--log", m], 2),
            (["opt", m, "--passes", "none", "-o", m], 2), (["opt", text, "--passes", "none", "-o", text], 2),
            (["export", saved, "-o", links["params"]], 2), (["export", saved, "-o", external], 2), (["export", saved, "-o", os.path.join(saved, "state.safetensors")], 2),
            (["export", saved, "--torch", data, "-o", data], 2),
        ):
            p = tessera(*command)
            shown = " ".join(os.path.basename(str(c)) for c in command)
            check(p.returncode == code and "overwrite" in p.stderr, "%s: exit %d %s" % (shown, p.returncode, p.stderr[-300:]))
            check(digests(tmp) == before, "%s: changed %s" % (shown, set(digests(tmp).items()) ^ set(before.items())))
        for command in ([*run, "--report", os.path.join(tmp, "r.json")], [*run, "--report", os.path.join(tmp, "r.json")], [*run, "--report", "/dev/null", "--log", "/dev/null"]):
            p = tessera(*command)
            check(p.returncode == 0, "another file is none of them: %s" % p.stderr)
    finish()


if __name__ == "__main__":
    main()
