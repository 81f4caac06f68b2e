#!/usr/bin/env python3
"""Data in several files: they are as one file, in every form; headers of llm.c, element types, epochs, the place in the data after --resume, hostile files.

    test_data_files.py TESSERA
"""
import json
import os
import struct
import tempfile

from e2e import HERE, check, finish, model, need, tessera

need("numpy", "safetensors", "onnx")
import numpy as np
from safetensors.numpy import save_file

EXAMPLES = os.path.join(HERE, "..", "..", "examples")
GPT = os.path.join(EXAMPLES, "gpt.onnx")


def run(tmp, source, *arguments, expect=0, says=()):
    path = os.path.join(tmp, "report.json")
    if os.path.exists(path):
        os.remove(path)
    p = tessera("run", source, "--report", path, *arguments)
    check(p.returncode == expect, "%s: exit %d, wanted %d: %s" % (arguments, p.returncode, expect, p.stderr[-400:]))
    for word in says:
        check(word in p.stderr, "%s: does not say '%s': %s" % (arguments, word, p.stderr[-400:]))
    return json.load(open(path)) if os.path.exists(path) else {}


def tokens():
    return np.frombuffer(open(os.path.join(EXAMPLES, "text.txt"), "rb").read()[:6000], np.uint8).astype(np.uint16)


def llm_c(tokens, magic=20240520, version=1, count=None):
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(tokens) if count is None else count
    return header.tobytes() + tokens.tobytes()


def write(path, data):
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.tobytes())
    return path


def check_forms(tmp):
    """The same tokens in every form train to the same bits."""
    t, name = tokens(), lambda n: os.path.join(tmp, n)
    cuts = [t[:1001], t[1001:1002], t[1002:1002], t[1002:4000], t[4000:]]
    parts = [write(name("part%d.bin" % i), c) for i, c in enumerate(cuts)]
    os.mkdir(name("folder"))
    for i, c in enumerate(cuts):
        write(name("folder/x%02d.bin" % i), llm_c(c))
    write(name("folder/README.md"), b"no data")
    write(name("folder/.hidden.bin"), b"no data")
    np.save(name("t.npy"), t.astype(np.int64))
    forms = [
        ["--data", write(name("whole.bin"), t)],
        ["--data", write(name("text"), t.astype(np.uint8))],
        [a for p in parts for a in ("--data", p)],
        ["--data", name("part?.bin")],
        ["--data", name("folder")],
        ["--data", write(name("llm.bin"), llm_c(t))],
        ["--data", write(name("llama.bin"), llm_c(t.astype(np.uint32), 20240801, 7))],
        ["--data", write(name("wide.u32.bin"), t.astype(np.uint32))],
        ["--data", write(name("wide.raw"), t.astype(np.uint32)), "--token-dtype", "uint32"],
        ["--data", write(name("long.bin"), t.astype(np.int64)), "--token-dtype", "int64"],
        ["--data", name("t.npy")],
    ]
    for more in (["--no-shuffle"], ["--seed", 3, "--ranks", 2, "--zero", 3]):
        first = None
        for form in forms:
            r = run(tmp, GPT, *form, "--micro-batches", 4, "--steps", 3, *more)
            first = first or r
            check(r.get("losses") == first["losses"] and r.get("params_hash") == first["params_hash"], "%s %s: other bits" % (form, more))


def check_resume(tmp):
    """Four steps of which the epoch ends within the third, shuffled, over several files: 4 = 1 + 2 + 1, on other ranks each time; epochs count."""
    t = tokens()
    for i, c in enumerate((t[:700], t[700:1100], t[1100:1300])):
        write(os.path.join(tmp, "e%d.bin" % i), c)
    data = ["--data", os.path.join(tmp, "e?.bin")]
    options = [*data, "--micro-batches", 4, "--seed", 5]
    saved = os.path.join(tmp, "saved")
    whole = run(tmp, GPT, *options, "--steps", 4)
    losses = []
    for i, (steps, ranks) in enumerate(((1, 1), (2, 4), (1, 2))):
        more = ["--resume", saved, *data] if i else options
        r = run(tmp, GPT, *more, "--steps", steps, "--ranks", ranks, "--zero", 3, "--save", saved)
        losses += r["losses"]
    check(losses == whole["losses"] and r["params_hash"] == whole["params_hash"], "continued: %s, in one: %s" % (losses, whole["losses"]))
    one, three = (run(tmp, GPT, *data, "--epochs", n, "--micro-batches", 1)["steps"] for n in (1, 3))
    check(one > 1 and three == 3 * one, "epochs: %d and %d steps" % (one, three))
    run(tmp, GPT, *data, "--epochs", 2, "--steps", 3, expect=2, says=["--epochs 2"])


def check_other_data(tmp):
    """A checkpoint goes on with its own data, wherever they lie; others are refused by name, or begun with --new-data."""
    t, name = tokens(), lambda n: os.path.join(tmp, n)
    first, second = write(name("first.bin"), t[:1500]), write(name("second.bin"), t[1500:3000])
    saved, again = name("of first"), name("again")
    run(tmp, GPT, "--data", first, "--data", second, "--steps", 2, "--save", saved, "--no-shuffle")
    rest = run(tmp, GPT, "--data", first, "--data", second, "--steps", 1, "--resume", saved)
    os.mkdir(name("moved"))
    moved = [write(name("moved/" + n), open(p, "rb").read()) for n, p in (("a b.bin", first), ("c.bin", second))]
    r = run(tmp, GPT, "--data", moved[0], "--data", moved[1], "--steps", 1, "--resume", saved)
    check((r["losses"], r["params_hash"]) == (rest["losses"], rest["params_hash"]), "moved files go on otherwise")
    changed = t[:1500].copy()
    changed[700] ^= 1
    cases = [([second, first], ["had '%s' (3000 bytes" % first, "comes '%s' (3000 bytes" % second]), ([first], ["had '%s'" % second, "they end before it"]),
             ([first, second, moved[0]], ["they ended there, and now comes '%s'" % moved[0]]),
             ([write(name("changed.bin"), changed), second], ["had '%s'" % first, "comes '%s'" % name("changed.bin")]), (["random"], ["comes 'random'"])]
    for files, says in cases:
        run(tmp, GPT, *(x for f in files for x in ("--data", f)), "--steps", 1, "--resume", saved, expect=2, says=[*says, "--new-data"])
    r = run(tmp, GPT, "--data", second, "--steps", 2, "--resume", saved, "--new-data", "--save", again)
    fresh = run(tmp, GPT, "--data", second, "--steps", 2, "--no-shuffle", "--lr", 0)
    step0 = run(tmp, GPT, "--data", second, "--steps", 1, "--resume", saved, "--new-data", "--lr", 0)
    check(r["losses"][0] == step0["losses"][0] and r["losses"][0] != rest["losses"][0] and r["losses"] != fresh["losses"], "--new-data: %s" % r["losses"])
    whole = run(tmp, GPT, "--data", second, "--steps", 3, "--resume", saved, "--new-data")
    part = run(tmp, GPT, "--data", second, "--steps", 1, "--resume", again)
    check(part["losses"] == whole["losses"][2:] and part["params_hash"] == whole["params_hash"], "after --new-data: %s, in one: %s" % (part["losses"], whole["losses"]))
    run(tmp, GPT, "--data", second, "--steps", 1, "--new-data", expect=2, says=["about --resume"])
    large = np.arange(400000, dtype=np.uint16) % 250          # of which pieces are hashed: its first, middle and last tokens are among them
    path = write(name("large.bin"), large)
    run(tmp, GPT, "--data", path, "--steps", 1, "--save", saved)
    run(tmp, GPT, "--data", path, "--steps", 1, "--resume", saved)
    for at in (0, 32768, -1):
        other = large.copy()
        other[at] ^= 1
        run(tmp, GPT, "--data", write(path, other), "--steps", 1, "--resume", saved, expect=2, says=["--new-data"])


def check_rows(tmp):
    """Rows of several .npy and .safetensors files, by input; each sample once in an epoch."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((160, 64)).astype(np.float32), rng.integers(0, 10, 160)
    name = lambda n: os.path.join(tmp, n)
    save_file({"x": x, "y": y}, name("rows.safetensors"))
    for i, (a, b) in enumerate(((0, 50), (50, 51), (51, 160))):
        np.save(name("x%d.npy" % i), x[a:b])
        np.save(name("y%d.npy" % i), y[a:b])
        save_file({"x": x[a:b].copy(), "y": y[a:b].copy()}, name("part%d.safetensors" % i))
    first = run(tmp, model("mlp"), "--data", name("rows.safetensors"), "--steps", 5)
    for form in (["--data", name("part*.safetensors")], ["--data", "x=" + name("x?.npy"), "--data", "y=" + name("y?.npy")],
                 [a for i in range(3) for s in ("x", "y") for a in ("--data", "%s=%s" % (s, name("%s%d.npy" % (s, i))))]):
        r = run(tmp, model("mlp"), *form, "--steps", 5)
        check(r.get("losses") == first["losses"], "%s: other losses" % form)
    np.save(name("narrow.npy"), x[:, :5].copy())
    run(tmp, model("mlp"), "--data", "x=" + name("x0.npy"), "--data", "x=" + name("narrow.npy"), "--data", "y=" + name("y?.npy"), expect=3, says=["narrow.npy", "first axis only"])
    run(tmp, model("mlp"), "--data", "x=" + name("x0.npy"), "--data", "y=" + name("y?.npy"), expect=3, says=["160 samples", "50"])
    run(tmp, model("mlp"), "--data", name("part0.safetensors"), "--data", name("part0.safetensors"), expect=2, says=["feed it"])


def packed(tokens, eos, seq):
    """Inputs and labels as --eos packs them: its rules, written down once more."""
    documents, begin = [], 0
    for i, token in enumerate(tokens):
        if token == eos or i + 1 == len(tokens):
            documents.append(tokens[begin:i + 1])
            begin = i + 1
    rows, open_row = [], []
    for d in documents:                              # of pairs: token, label
        pairs = [(a, b) for a, b in zip(d, list(d[1:]) + [-100])]
        if len(open_row) + len(pairs) > seq and open_row:
            rows.append(open_row)
            open_row = []
        open_row = open_row + pairs
        while len(open_row) > seq:
            rows.append(open_row[:seq])
            open_row = open_row[seq:]
    rows.append(open_row)
    full = [r + [(eos, -100)] * (seq - len(r)) for r in rows]
    a = np.array(full, np.int64)
    return a[:, :, 0].copy(), a[:, :, 1].copy()


def check_packing(tmp):
    """--eos trains to the bits of rows that were packed by hand; on any number of ranks, over files; a graph that ignores no label says so."""
    import onnx
    m = onnx.load(GPT)
    for n in m.graph.node:
        if n.op_type == "SoftmaxCrossEntropyLoss":
            n.attribute.append(onnx.helper.make_attribute("ignore_index", -100))
    gpt, rows, t = os.path.join(tmp, "ignores.onnx"), os.path.join(tmp, "packed.safetensors"), tokens()
    onnx.save(m, gpt)
    x, y = packed(t, 10, 64)
    save_file({"tokens": x, "labels": y}, rows)
    files = [write(os.path.join(tmp, "d%d.bin" % i), c) for i, c in enumerate((t[:2500], t[2500:]))]
    data = [a for f in files for a in ("--data", f)]
    options = ["--micro-batches", 2, "--steps", 6, "--seed", 2]
    want = run(tmp, gpt, "--data", rows, *options)
    for more in ([], ["--ranks", 2, "--zero", 3]):
        r = run(tmp, gpt, *data, "--eos", 10, *options, *more, says=["documents are packed into %d samples" % len(x)])
        check(r.get("losses") == want["losses"] and r.get("params_hash") == want["params_hash"], "packed %s: %s, by hand %s" % (more, r.get("losses"), want["losses"]))
    run(tmp, gpt, *data, "--eos", 300, "--steps", 1, expect=3, says=["--eos", "300"])
    run(tmp, gpt, "--data", rows, "--eos", 10, "--steps", 1, expect=2, says=["--eos packs"])
    run(tmp, GPT, *data, "--eos", 10, "--steps", 1, expect=4, says=["ignore_index=-100"])


def check_hostile(tmp):
    t, name = tokens(), lambda n: os.path.join(tmp, "bad" + n)
    bad = t.copy()
    bad[1234] = 999
    os.mkdir(name("mixed"))
    write(name("mixed/a.bin"), t)
    write(name("mixed/b.txt"), t)
    os.mkdir(name("empty"))
    cases = [
        (llm_c(t, count=len(t) + 1), "a.bin", 3, ["its header says 6001"], []), (llm_c(t, count=-1), "b.bin", 3, ["its header says -1"], []),
        (llm_c(t)[:-1], "c.bin", 3, ["it has 13023"], []), (llm_c(t)[:1000], "d.bin", 3, ["has 1000"], []), (llm_c(t, version=2), "e.bin", 4, ["version 2"], []),
        (t.tobytes()[:-1], "f.bin", 3, ["no whole number of uint16"], []), (t.tobytes(), "g", 3, ["is no text", "--token-dtype"], []),
        (llm_c(t), "h.bin", 2, ["--token-dtype uint32"], ["--token-dtype", "uint32"]), (b"", "i.bin", 3, ["0 tokens"], []), (struct.pack("<H", 7) * 10, "j.bin", 3, ["10 tokens"], []),
        (t.tobytes(), "k.bin", 3, ["no whole number of int64"], ["--token-dtype", "int64"]) if len(t) % 4 else (b"x" * 9, "k.bin", 3, ["no whole"], []),
    ]
    for data, file, code, says, more in cases:
        run(tmp, GPT, "--data", write(name(file), data), "--steps", 1, *more, expect=code, says=says)
    good = write(name("good.bin"), t)
    r = run(tmp, GPT, "--data", good, "--data", write(name("token.bin"), bad), "--no-shuffle", "--steps", 1000, expect=3,
            says=["token.bin: token 1234 of it is 999", "batch"])
    check(len(r["losses"]) > 1, "a bad token ends the run before it comes: %s" % r["losses"])
    for source, code, says in ((name("mixed"), 2, "both .bin and .txt"), (name("empty"), 5, "no file of data"), (name("*.none"), 5, "no file matches"),
                               (name("none.bin"), 5, "cannot open"), (good + "=x", 5, "cannot open")):
        p = tessera("run", GPT, "--data", source, "--steps", 1)
        check(p.returncode == code and says in p.stderr or (says.startswith("both") and "holds files of both" in p.stderr and p.returncode == code),
              "%s: exit %d %s" % (source, p.returncode, p.stderr))
    run(tmp, GPT, "--data", good, "--data", good, "--steps", 1, expect=2, says=["named twice"])
    run(tmp, GPT, "--data", good, "--data", os.path.join(EXAMPLES, "text.txt"), "--steps", 1, expect=3, says=["of one type"])


def check_large(tmp):
    """A sparse file of 64 GiB trains at once in little memory: nothing but the samples is read."""
    large = os.path.join(tmp, "large.bin")
    with open(large, "wb") as f:
        f.truncate(64 << 30)
    r = run(tmp, GPT, "--data", large, "--steps", 2)
    check(r["rss_peak_bytes"][0] < 1 << 30 and len(r["losses"]) == 2, "64 GiB: %s" % r.get("rss_peak_bytes"))


with tempfile.TemporaryDirectory() as folder:
    check_forms(folder)
    check_rows(folder)
    check_resume(folder)
    check_other_data(folder)
    check_packing(folder)
    check_hostile(folder)
    check_large(folder)
finish()
