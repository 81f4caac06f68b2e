#!/usr/bin/env python3
"""tessera bench io: figures that add up, as text and JSON, with every engine; what cannot be had is named; nothing is left behind.

    test_bench_io.py TESSERA
"""
import json
import os
import tempfile

from e2e import check, finish, tessera

SMALL = ["--io-size", "4MiB", "--io-request", "1MiB", "--io-block", "64KiB", "--io-depth", "4"]


def bench(folder, *options):
    p = tessera("bench", "io", "--swap-dir", folder, *SMALL, *options)
    check(os.listdir(folder) == [], "%s: leaves %s" % (options, os.listdir(folder)))
    return p


def measured(folder, *options):
    p = bench(folder, "--json", *options)
    if not check(p.returncode == 0, "%s: %s" % (options, p.stderr)):
        return {}
    found = json.loads(p.stdout)
    for kind, bytes_ in (("write", 4 << 20), ("read", 4 << 20), ("mixed", 8 << 20)):
        k = found[kind]
        check(k["bytes"] == bytes_ and k["seconds"] > 0 and abs(k["bytes_per_s"] * k["seconds"] / bytes_ - 1) < 1e-9, "%s: %s is %s" % (options, kind, k))
    check(found["depth"] == 4 and found["block_bytes"] == 65536 and found["bytes"] == 4 << 20, "%s: %s" % (options, found))
    return found


def main():
    with tempfile.TemporaryDirectory() as folder:
        found = measured(folder, "--io-engine", "threads")
        check(found["engine"] == "threads" and found["engine_note"] == "asked for", "threads: %s" % found)
        found = measured(folder, "--ranks", "2", "--io-direct", "off")
        check(found["engine"] in ("uring", "threads") and (found["engine"] == "uring") == (found["engine_note"] is None), "auto: %s" % found)
        check(not found["direct"] and found["direct_note"] == "asked for", "page cache: %s" % found)
        text = bench(folder).stdout
        check(text.startswith("swap file in %s: 4.0 MiB, " % folder) and [x.split()[0] for x in text.split("\n")[1:4]] == ["write", "read", "mixed"], "text: " + text)
        for options, code, says in ((["--io-block", "5000"], 2, "multiple of 4096"), (["--io-request", "5000"], 2, "multiple of 4096"), (["--io-engine", "aio"], 2, "uring"),
                                    (["--io-size", "8192", "--ranks", "3"], 2, "3 ranks"), (["--io-depth", "0"], 2, "io-depth"),
                                    (["--io-size", "512TiB"], 5, "are free"), (["--swap-dir", os.path.join(folder, "absent")], 5, "No such file")):
            p = bench(folder, *options)
            check(p.returncode == code and says in p.stderr, "%s: exit %d, %s" % (options, p.returncode, p.stderr))
        check(tessera("bench").returncode == 2 and tessera("bench", "cpu").returncode == 2, "bench of something else")
    finish()


if __name__ == "__main__":
    main()
