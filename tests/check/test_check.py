#!/usr/bin/env python3
"""opt --check: verdicts equal those of LLVM's FileCheck on check_cases.txt, which records them; where FileCheck is installed it is asked again. Then the
option itself: RUN lines, messages, exit codes.

    test_check.py TESSERA      (the program check_runner lies in tests/ beside it)
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

TESSERA = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/tessera"
RUNNER = os.path.join(os.path.dirname(TESSERA), "tests", "check_runner")
HERE = os.path.dirname(os.path.abspath(__file__))
FILECHECK = shutil.which("FileCheck-14")      # the version that recorded the verdicts
failures = []
n_cases = 0

# Refused by name, where FileCheck reads something: POSIX has no meaning for it, or it is a numeric form that is not there.
REFUSED = [("CHECK: a{{\\w+}}b", "a\n"), ("CHECK: {{\\d}}", "1\n"), ("CHECK: [[#%x,N:]]", "ff\n"), ("CHECK: [[#N:]] [[#M:]]\nCHECK: [[#N+M]]", "1 2\n3\n"),
           ("CHECK: [[#N:4]]", "4\n"), ("CHECK: [[#==4]]", "4\n"), ("CHECK: [[#mul(2,3)]]", "6\n"),
           ("CHECK: {{((((a{1,200}){1,200}){1,200}){1,200})}}", "a\n"), ("CHECK: {{" + "(" * 20000 + "a" + ")" * 20000 + "}}", "a\n")]


def fail(title, why):
    failures.append(title)
    print(f"FAIL {title}: {why}")


def decode(text):
    text = text[:-3] if text.endswith("\\z\n") else text
    return re.sub(r"\\([\\rt])", lambda m: {"\\": "\\", "r": "\r", "t": "\t"}[m[1]], text)


def read_cases():
    parts = re.split(r"^=== (.*)\n", open(os.path.join(HERE, "check_cases.txt")).read(), flags=re.M)
    for title, body in zip(parts[1::2], parts[2::2]):
        m = re.match(r"verdict: (pass|fail|error)\n(?:prefix: (.*)\n)?--- check\n(.*?)--- text\n(.*)\Z", body, flags=re.S)
        if not m:
            raise SystemExit(f"check_cases.txt: '{title}' is no case")
        yield title, m[1], m[2], decode(m[3]), decode(m[4])


def verdict(code):
    return {0: "pass", 1: "fail"}.get(code, "error")


def compare_with_filecheck(tmp):
    global n_cases
    check, text = os.path.join(tmp, "check"), os.path.join(tmp, "text")
    for title, wanted, prefix, check_text, input_text in read_cases():
        n_cases += 1
        open(check, "w", newline="").write(check_text)
        open(text, "w", newline="").write(input_text)
        p = subprocess.run([RUNNER, check, text, *([prefix] if prefix else [])], capture_output=True, text=True)
        if verdict(p.returncode) != wanted or p.returncode not in (0, 1, 2, 3):
            fail(title, f"{verdict(p.returncode)} ({p.returncode}), wanted {wanted}: {p.stdout[:400]}")
        if FILECHECK:
            p = subprocess.run([FILECHECK, check, "--input-file", text, *(["--check-prefixes=" + prefix] if prefix else [])], capture_output=True, text=True)
            if verdict(p.returncode) != wanted:
                fail(title, f"FileCheck says {verdict(p.returncode)}, recorded is {wanted}: {p.stderr[:400]}")
    if not FILECHECK:
        print("FileCheck-14 (Debian: llvm-14-tools) is not installed: its recorded verdicts are compared")
    for check_text, input_text in REFUSED:
        n_cases += 1
        open(check, "w").write(check_text + "\n")
        open(text, "w").write(input_text)
        p = subprocess.run([RUNNER, check, text], capture_output=True, text=True)
        if p.returncode != 4 or f"{check}:" not in p.stdout:
            fail("refused: " + check_text, f"exit {p.returncode}: {p.stdout[:300]}")


GRAPH = """# RUN: tessera opt %s --passes=infer_types,merge_common,dead_code --check %s
# RUN: tessera opt %s --passes=infer_types --check %s --check-prefix=BEFORE
chain (float[4] x) => (y) {
  a = Exp (x)
  b = Exp (x)
  y = Add (a, b)
}
# CHECK-LABEL: chain
# CHECK: [[A:[a-z]+]] = Exp (x)
# CHECK-NEXT: y = Add ([[A]], [[A]])
# CHECK-NOT: Exp

# BEFORE-COUNT-2: Exp (x)
# BEFORE: Add (a, b)
"""


def tessera(args, cwd):
    p = subprocess.run([TESSERA, *args], capture_output=True, text=True, cwd=cwd)
    return p.returncode, p.stdout, p.stderr


def expect(title, args, cwd, code, *said, out=None):
    global n_cases
    n_cases += 1
    rc, stdout, err = tessera(args, cwd)
    missing = [s for s in said if s not in err]
    if rc != code or missing or (out is not None and (out in stdout if out else stdout) != (True if out else "")):
        fail(title, f"exit {rc}, wanted {code}; not said: {missing}; {err[:600]} {stdout[:100]}")


def option(tmp):
    path = os.path.join(tmp, "graph.onnxtxt")
    open(path, "w").write(GRAPH)
    runs = re.findall(r"^# RUN: (.*)$", GRAPH, flags=re.M)
    for command in runs:
        expect(command, shlex.split(command.replace("%s", path))[1:], tmp, 0, out="")
    passes = ["opt", path, "--passes=infer_types"]
    expect("a failing check", [*passes, "--check", path], tmp, 1, f"{path}:10: CHECK-NEXT: not found", "looked for: y = Add ([[A]], [[A]])", "from the output, line ", "with A = a",
           "maybe meant, line ", "y = Add (a, b)", out="")
    open(os.path.join(tmp, "next"), "w").write("CHECK: chain\nCHECK-NEXT: y =\n")
    expect("not the next line", [*passes, "--check", "next"], tmp, 1, "next:2: CHECK-NEXT: found, but not on the line after the match before", "found in line ")
    open(os.path.join(tmp, "not"), "w").write("CHECK-NOT: Exp\n")
    expect("what must not be there", [*passes, "--check", "not"], tmp, 1, "not:1: CHECK-NOT: found, and must not be there", "a = Exp (x)")
    expect("with -o the graph is written, too", [*passes, "--check", "next", "-o", "out.onnxtxt"], tmp, 1)
    if not os.path.exists(os.path.join(tmp, "out.onnxtxt")):
        fail("-o", "no file")
    expect("with -o - it is printed, too", [*passes, "--check", path, "--check-prefix=BEFORE", "-o", "-"], tmp, 0, out="y = Add (a, b)")
    expect("lines and numbers", [*passes, "--check", "next", "--expect", "Exp==7"], tmp, 1, "next:2:", "Exp==7: Exp is 2")
    expect("lines hold, numbers do not", [*passes, "--check", path, "--check-prefix=BEFORE", "--expect", "Exp==7"], tmp, 1, "Exp==7: Exp is 2")
    expect("no lines", [*passes, "--check", path, "--check-prefix=AFTER"], tmp, 2, "holds no line 'AFTER: ...'")
    expect("no prefix", [*passes, "--check", path, "--check-prefix=1"], tmp, 2, "is none")
    expect("an empty prefix", [*passes, "--check", path, "--check-prefix="], tmp, 2, "empty")
    expect("a prefix alone", [*passes, "--check-prefix=A"], tmp, 2, "there is no --check")
    expect("no file", [*passes, "--check", "nowhere"], tmp, 5, "cannot open 'nowhere'")
    expect("standard input", [*passes, "--check", "-"], tmp, 2, "read from a file")
    open(os.path.join(tmp, "bad"), "w").write("CHECK: {{(}}\n")
    expect("a broken line", ["opt", "nothing.onnxtxt", "--check", "bad"], tmp, 3, "bad:1: CHECK: invalid regular expression '('")
    open(os.path.join(tmp, "binary"), "wb").write(bytes(range(256)) * 40)
    expect("no text at all", [*passes, "--check", "binary"], tmp, 2, "holds no line")
    if FILECHECK:
        for command in runs:
            text = tessera(shlex.split(command.split(" --check ")[0].replace("%s", path))[1:], tmp)[1]
            prefix = ["--check-prefix=BEFORE"] if "BEFORE" in command else []
            p = subprocess.run([FILECHECK, path, *prefix], input=text, capture_output=True, text=True)
            if p.returncode:
                fail("FileCheck on the same file", p.stderr)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        compare_with_filecheck(tmp)
        option(tmp)
    print(f"{n_cases} cases, {len(failures)} failed")
    sys.exit(1 if failures or not n_cases else 0)


if __name__ == "__main__":
    main()
