#!/usr/bin/env python3
"""`tessera show PLAN`: sections, layers, colour, the JSON against docs/show.md, the account against the ledger and a run, the graph for Graphviz.

    test_show.py TESSERA
"""
import json
import os
import re
import shutil
import subprocess
import tempfile

from e2e import HERE, TESSERA, check, finish, model, need, tessera, train

need("onnx", "numpy")
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

DOCS = os.path.join(HERE, "..", "..", "docs", "show.md")


def paths_of(value, path=""):
    """The paths of a JSON value as docs/show.md writes them: keys joined by dots, [] for the items of a list; below a map of numbers, *."""
    if isinstance(value, dict):
        open_map = path.endswith(("by_collective", "by_category", "live_at_peak"))
        for key, item in value.items():
            yield from paths_of(item, (path + "." if path else "") + ("*" if open_map else key))
    elif isinstance(value, list):
        for item in value:
            yield from paths_of(item, path + "[]") if isinstance(item, dict) else [path]
    else:
        yield path


def check_schema(shown):
    documented = set(re.findall(r"^\| `([^`]+)` \|", open(DOCS).read().split("## The object")[1].split("\n## ")[0], re.M))
    there = set(paths_of(shown))
    check(not there - documented, "docs/show.md lacks %s" % sorted(there - documented))
    missing = {p for p in documented - there if not p.endswith("*") and p != "steps[].waits"}     # may be empty everywhere
    check(not missing, "show --json lacks what docs/show.md has: %s" % sorted(missing))


def check_numbers(name, plan, shown, arguments):
    """ledger sum = formula - saved (+ what psi does not count) = measured by a run; every partition of the bytes sums to them."""
    total = sum(e["bytes"] * e["times"] for e in shown["ledger"])
    account = shown["account"]
    amount = {k: sum(a["bytes"] for a in account if a["kind"] == k) for k in ("least", "more", "formula", "saved", "sent")}
    at = [a["kind"] for a in account].index("formula")
    check(account[0]["kind"] == "least" and account[-1]["kind"] == "sent", "%s: account begins or ends wrongly: %s" % (name, account))
    check(sum(a["bytes"] for a in account[:at]) == amount["formula"], "%s: least and more do not make the formula: %s" % (name, account))
    beyond = sum(a["bytes"] for a in account[at + 1:-1] if a["kind"] == "more")
    check(amount["formula"] - amount["saved"] + beyond == amount["sent"] == total, "%s: the account does not close: %s, ledger %d" % (name, account, total))
    check(sum(c["bytes"] for c in shown["causes"]) == total, "%s: causes sum to %d of %d" % (name, sum(c["bytes"] for c in shown["causes"]), total))
    check(sum(x["sent_bytes"] for x in shown["layers"]) == total, "%s: layers sum to %d of %d" % (name, sum(x["sent_bytes"] for x in shown["layers"]), total))
    check(all(x["sent_bytes"] == x["gathered_bytes"] + x["reduced_bytes"] for x in shown["layers"]), name + ": a layer's parts do not sum")
    check(sum(x["elems"] for x in shown["layers"]) == sum(int(np.prod(p["shape"])) for b in shown["buckets"] for p in b["params"]), name + ": elements of layers")
    check(sum(a["bytes"] for a in account if a["kind"] == "saved") == sum(s["bytes"] for s in shown["savings"]), name + ": savings")
    peak, memory = shown["peak_bytes"]["device"], [m for m in shown["memory"] if m["tier"] == "device"][0]
    check(memory["arena_bytes"] == peak["planned"], name + ": arenas of the curve and the peak differ")
    check(memory["live_bytes"][memory["peak_step"]] == memory["peak_live_bytes"] == max(memory["live_bytes"]), name + ": the peak step is not the peak")
    check(sum(memory["live_at_peak"].values()) == memory["peak_live_bytes"], name + ": categories do not sum to the peak")
    report = train(name, "--steps", 2, source=plan, *arguments)
    check(report["sent_bytes_per_step"]["measured"] == total, "%s: ledger %d, measured %s" % (name, total, report["sent_bytes_per_step"]["measured"]))
    check(peak["planned"] == report["peak_bytes"]["device"]["measured"], name + ": peak planned and measured differ")


def check_json(tmp):
    for name, options in (("mlp", ["--ranks", 2, "--zero", 1]), ("gpt_merged", ["--ranks", 8, "--zero", 3, "--bucket-bytes", 16384]),
                          ("gpt_merged", ["--ranks", 4, "--zero", 2, "--micro-batches", 8]), ("gpt_merged", ["--ranks", 1]),
                          ("gpt_merged", ["--ranks", 3, "--zero", 3, "--freeze", "blocks.0.*", "--clip-norm", "1"])):
        plan = os.path.join(tmp, "plan.onnx")
        p = tessera("compile", model(name), "-o", plan, *options)
        check(p.returncode == 0, "compile %s: %s" % (name, p.stderr))
        shown = json.loads(tessera("show", plan, "--json").stdout)
        check_numbers(name, plan, shown, [])
        if "--bucket-bytes" in options:
            check_schema(shown)
        text = tessera("show", plan).stdout
        for step in shown["steps"]:
            check(step["layer"] is None or any(x["name"] == step["layer"] for x in shown["layers"]), "step of an unknown layer: %s" % step)
        check("= sent" in text or "one rank" in text, "no account in the text of " + name)


def deep_model(path, layers, style):
    """A residual tower, its names as `style` writes them: hf (dotted parameters, nodes without a layer), script (scopes), export (p_..._3_...)."""
    width, nodes, weights = 8, [], []
    forms = {"hf": ("net.h.%d.fc.weight", "node_linear_%d"), "script": ("layers.%d.fc.weight", "/layers/layers.%d/fc/MatMul"),
             "export": ("p_net_h_%d_fc_weight", "node_linear_%d"), "lost": ("net.h.%d.fc.bias", "node_linear_%d")}
    param, node = forms[style]
    x = "x"
    for i in range(layers):
        fresh = np.random.default_rng(i).normal(0, 0.1, (width, width)).astype(np.float32)
        weight = "val_%d" % (1000 + i) if style == "lost" else param % i
        weights.append(numpy_helper.from_array(fresh, weight))
        if style == "lost":        # the matrix has lost its name, the bias in front of it has not
            weights.append(numpy_helper.from_array(np.full(width, 0.01 * (i + 1), np.float32), param % i))
            nodes.append(helper.make_node("Add", [x, param % i], ["b%d" % i], name="node_add_%d" % i))
            x = "b%d" % i
        nodes.append(helper.make_node("MatMul", [x, weight], ["m%d" % i], name=node % i))
        nodes.append(helper.make_node("Tanh", ["m%d" % i], ["h%d" % i], name="node_tanh_%d" % i if style != "script" else "/layers/layers.%d/act/Tanh" % i))
        x = "h%d" % i
    weights.append(numpy_helper.from_array(np.ones((width, 3), np.float32), "head.weight"))
    nodes.append(helper.make_node("MatMul", [x, "head.weight"], ["logits"], name="/head/MatMul"))
    nodes.append(helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "y"], ["loss"], name="loss_node"))
    graph = helper.make_graph(nodes, "deep", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width]), helper.make_tensor_value_info("y", TensorProto.INT64, [4])],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def check_layers(tmp):
    source, plan = os.path.join(tmp, "deep.onnx"), os.path.join(tmp, "deep.plan.onnx")
    for style, prefix in (("hf", "net.h."), ("script", "layers."), ("export", "net.h."), ("lost", "net.h.")):
        deep_model(source, 12, style)
        p = tessera("compile", source, "-o", plan, "--ranks", 2, "--zero", 3, "--bucket-bytes", 4096)
        check(p.returncode == 0, "compile %s: %s" % (style, p.stderr))
        shown = json.loads(tessera("show", plan, "--json").stdout)
        names = [x["name"] for x in shown["layers"] if x["params"]]
        check(names == [prefix + str(i) for i in range(12)] + ["head"], "%s: layers are %s" % (style, names))
        products = [s for s in shown["steps"] if s["op"] in ("MatMul", "FusedMatMul") and s["origin"] != "/head/MatMul"]
        check(len(products) >= 24 and all(s["layer"] == prefix + re.search(r"(\d+)", s["origin"])[1] for s in products), "%s: a product is in the wrong layer" % style)
        check(len({(x["params"], x["elems"], x["sent_bytes"]) for x in shown["layers"] if x["family"] and x["name"] != prefix + "0"}) == 1, style + ": equal layers have unequal figures")       # nothing needs 0 for backward
        text = tessera("show", plan).stdout
        check(prefix + "1-11" in text or prefix + "0-11" in text, "%s: alike layers are not folded: %s" % (style, text[:2000]))
        one = tessera("show", plan, "--schedule", "--layer", prefix.rstrip(".").split(".")[-1] + ".3").stdout
        steps = [x for x in one.split("\n") if re.match(r" +\d+ (init|micro|update)", x)]
        check(steps and all(".3" in x or "_3" in x for x in steps), "%s: --layer shows others: %s" % (style, steps[:3]))


def check_large(tmp):
    """A thousand layers stay a page or two; --schedule has them all."""
    source, plan = os.path.join(tmp, "large.onnx"), os.path.join(tmp, "large.plan.onnx")
    deep_model(source, 1000, "script")
    check(tessera("compile", source, "-o", plan, "--ranks", 8, "--zero", 3, "--bucket-bytes", 4096).returncode == 0, "compile of 1,000 layers")
    of_model = tessera("show", source).stdout.split("\n")
    check(len(of_model) < 40 and any("layers.1 to layers.999 the same, 999 initializers" in x for x in of_model), "show MODEL of 1,000 layers has %d lines" % len(of_model))
    text = tessera("show", plan).stdout.split("\n")
    check(len(text) < 250, "1,000 layers take %d lines" % len(text))
    check(any("layers.1-999" in x for x in text), "1,000 layers are not told as one line")
    full = tessera("show", plan, "--schedule").stdout.split("\n")
    shown = json.loads(tessera("show", plan, "--json").stdout)
    lines = [x for x in full if re.match(r" *\d+ (init|micro|update)", x)]
    check(len(lines) == len(shown["steps"]), "--schedule has %d lines of %d steps" % (len(lines), len(shown["steps"])))
    dot = tessera("show", plan, "--dot").stdout
    check(dot.count("layer") < 200, "the graph of 1,000 alike layers has not been folded")


def check_text(tmp):
    plan = os.path.join(tmp, "text.plan.onnx")
    tessera("compile", model("gpt_merged"), "-o", plan, "--ranks", 4, "--zero", 3, "--bucket-bytes", 16384)
    heads = {"--comm": "communication", "--memory": "memory", "--params": "parameters", "--schedule": "schedule"}
    for option, head in heads.items():
        out = tessera("show", plan, option).stdout
        check(("\n%s " % head) in out, "%s has no section '%s'" % (option, head))
        check(not any(("\n%s " % other) in out for other in heads.values() if other != head), option + " shows other sections")
    both = tessera("show", plan, "--comm", "--memory").stdout
    check("\ncommunication " in both and "\nmemory " in both and "\nschedule " not in both, "sections do not combine")
    plain = tessera("show", plan)
    check("\033" not in plain.stdout, "colour goes into a pipe")
    check("\033[" in tessera("show", plan, "--color", "always").stdout, "--color always has no colour")
    check(tessera("show", plan, "--color", "sometimes").returncode == 2, "--color sometimes")
    env = dict(os.environ, TERM="xterm")
    env.pop("NO_COLOR", None)
    if shutil.which("script"):     # a terminal of its own
        on = subprocess.run(["script", "-qec", "%s show %s" % (TESSERA, plan), "/dev/null"], capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL)
        off = subprocess.run(["script", "-qec", "%s show %s" % (TESSERA, plan), "/dev/null"], capture_output=True, text=True, env=dict(env, NO_COLOR="1"), stdin=subprocess.DEVNULL)
        check("\033[" in on.stdout, "no colour on a terminal")
        check("\033[" not in off.stdout, "NO_COLOR is not respected")
    listed = tessera("show", plan, "--params", "blocks.0.ln1*").stdout
    check("blocks.0.ln1.weight" in listed.split("each parameter")[1] and "attn" not in listed.split("each parameter")[1], "--params PATTERN lists others")
    for option in (["--comm"], ["--layer", "h.3"], ["--html", os.path.join(tmp, "no.html")]):
        p = tessera("show", model("mlp"), *option)
        check(p.returncode == 2 and "about plans" in p.stderr, "show MODEL %s: %d %s" % (option, p.returncode, p.stderr))
    p = tessera("show", model("mlp"), "--params")
    check(p.returncode == 2 and "pattern" in p.stderr.lower(), "show MODEL --params without a pattern: %s" % p.stderr)


def check_dot(tmp):
    plan = os.path.join(tmp, "text.plan.onnx")
    p = tessera("show", plan, "--dot")
    check(p.returncode == 0 and p.stdout.startswith("digraph plan {") and p.stdout.rstrip().endswith("}"), "--dot: " + p.stderr)
    for quote in re.findall(r'"((?:[^"\\]|\\.)*)"', p.stdout):
        check("\n" not in quote, "a label with a line break")
    if shutil.which("dot"):
        drawn = subprocess.run(["dot", "-Tsvg"], input=p.stdout, capture_output=True, text=True)
        check(drawn.returncode == 0 and "</svg>" in drawn.stdout and not drawn.stderr.strip(), "Graphviz does not take it: " + drawn.stderr)


def check_html(tmp):
    """Whole, self-contained, and with the figures of the JSON. Names that would end the script do not."""
    plan, page = os.path.join(tmp, "text.plan.onnx"), os.path.join(tmp, "page.html")
    p = tessera("show", plan, "--html", page)
    check(p.returncode == 0 and not p.stdout, "--html: " + p.stderr + p.stdout[:100])
    text = open(page).read()
    check(text.startswith("<!doctype html>") and text.rstrip().endswith("</html>") and "{{" not in text, "the page is not whole")
    check(not re.search(r"""(src|href)=["']?(https?:|//)|@import|url\((?!#|["']?#)|fetch\(|XMLHttpRequest""", text), "the page needs something else")
    shown, data = json.loads(tessera("show", plan, "--json").stdout), json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    ledger = [dict(zip(data["ledger_columns"], r)) for r in data["ledger"]]
    check(sum(r["bytes"] * r["times"] for r in ledger) == shown["sent_bytes_per_step"]["planned"], "the page's ledger sums to something else")
    check(all(len(data["steps"][k]) == len(shown["steps"]) for k in ("op", "layer", "phase", "queue", "node", "start_ns", "end_ns")), "the page lacks steps")
    tier = data["memory"][0]
    live = [0] * len(shown["steps"])
    for c in tier["categories"]:
        for i, start in enumerate(c["at"]):
            end = c["at"][i + 1] if i + 1 < len(c["at"]) else len(live)
            for k in range(start, end):
                live[k] += c["bytes"][i]
    check(live == shown["memory"][0]["live_bytes"], "the page's curve is another one")
    hostile, source = os.path.join(tmp, "hostile.plan.onnx"), os.path.join(tmp, "hostile.onnx")
    deep_model(source, 2, "hf")
    import onnx
    m = onnx.load(source)
    for n in m.graph.node:
        n.name = "</script><script>alert(1)</script>" + n.name
    onnx.save(m, source)
    tessera("compile", source, "-o", hostile, "--ranks", 2, "--zero", 3)
    check(tessera("show", hostile, "--html", page).returncode == 0, "--html of hostile names")
    text = open(page).read()
    check(text.count("</script>") == 2 and "alert(1)" in text, "a name ends the script of the page: %d" % text.count("</script>"))
    before = open(page, "rb").read()
    p = tessera("show", plan, "--html", plan)
    check(p.returncode == 2 and "overwrite" in p.stderr, "--html over the plan: %d %s" % (p.returncode, p.stderr))
    p = tessera("show", plan, "--html", os.path.join(tmp, "no", "page.html"))
    check(p.returncode == 5, "--html into no folder: %d %s" % (p.returncode, p.stderr))
    check(open(page, "rb").read() == before, "a failed --html has changed something")


def check_names(tmp):
    """Control characters in names neither forge a line nor reach the terminal; long names are not cut inside of a character."""
    import onnx
    source, plan, text = (os.path.join(tmp, n) for n in ("control.onnx", "control.plan.onnx", "control.onnxtxt"))
    m = onnx.load(model("mlp"))
    weight = m.graph.initializer[0].name
    odd = "w\x1b[2J\n    99 micro   AllReduce\r\x7f" + "\u00fc" * 120
    for n in m.graph.node:
        n.name = "\x1b[31m" + n.name
        for i, name in enumerate(n.input):
            if name == weight:
                n.input[i] = odd
    m.graph.initializer[0].name = odd
    onnx.save(m, source)
    check(tessera("compile", source, "-o", plan, "--ranks", 2, "--zero", 3).returncode == 0, "compile of odd names")
    check(tessera("opt", plan, "--passes=none", "-o", text).returncode == 0, "text of odd names")
    broken = os.path.join(tmp, "broken.onnxtxt")
    with open(text) as f, open(broken, "w") as to:
        to.write(f.read().replace('"trainable": true', '"trainable": false').replace('"persistent": true', '"persistent": false', 1))
    for p in (tessera("show", source), tessera("show", plan, "--params", "--comm", "--memory", "--schedule"), tessera("verify", broken),
              tessera("diff", text, broken), tessera("simulate", plan), tessera("show", plan, "--layer", "\x1b[2J"), tessera("run", plan, "--data", "random", "--steps", 1, "--profile")):
        shown = p.stdout + p.stderr
        control = sorted({c for c in shown if (ord(c) < 32 or ord(c) == 127) and c != "\n"})
        check(not control, "control characters are printed: %s of %s" % (control, p.args))
        check(not re.search(r"^ +99 micro", shown, re.M), "a name forges a line")
    listed = tessera("show", plan, "--params").stdout
    check("w\\x1b[2J\\n    99 micro" in listed and "\ufffd" not in listed, "the name is not listed: " + listed)
    shown = json.loads(tessera("show", plan, "--json").stdout)
    check(odd in [p["name"] for b in shown["buckets"] for p in b["params"]], "--json has the name as it is")


def check_usage(tmp):
    """What would be ignored is an error; plans are read as text, too."""
    source, plan, text = model("mlp"), os.path.join(tmp, "usage.plan.onnx"), os.path.join(tmp, "usage.onnxtxt")
    tessera("compile", source, "-o", plan, "--ranks", 2, "--zero", 3)
    tessera("opt", plan, "--passes=none", "-o", text)
    for options, said in ((["--layer", "zz*"], "--layer zz* matches no"), (["--params", "zz*"], "--params zz* matches no"), (["--json", "--dot"], "--json and --dot")):
        p = tessera("show", plan, *options)
        check(p.returncode == 2 and said in p.stderr and not p.stdout, "show %s: %d %s" % (options, p.returncode, p.stderr))
    check(tessera("show", text).stdout == tessera("show", plan).stdout, "a plan as text is shown otherwise")
    a, b = (tessera("verify", f, "--json").stdout for f in (text, plan))
    check(a == b and json.loads(a)["ok"], "a plan as text is proved otherwise: %s %s" % (a, b))
    graph = os.path.join(tmp, "graph.onnxtxt")
    tessera("opt", source, "--passes=infer_types", "-o", graph)
    for command in ("show", "verify"):
        p = tessera(command, graph)
        check(p.returncode == 2 and "is a graph and no plan" in p.stderr, "%s of text without a plan: %d %s" % (command, p.returncode, p.stderr))
    p = tessera("run", graph, "--data", "random")
    check(p.returncode == 3 and "a graph as text: 'tessera opt' makes a plan file" in p.stderr, "run of text: %d %s" % (p.returncode, p.stderr))


def main():
    with tempfile.TemporaryDirectory() as tmp:
        check_json(tmp)
        check_layers(tmp)
        check_large(tmp)
        check_text(tmp)
        check_dot(tmp)
        check_html(tmp)
        check_names(tmp)
        check_usage(tmp)
    finish()


if __name__ == "__main__":
    main()
