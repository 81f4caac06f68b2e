#!/usr/bin/env python3
"""ONNX's own node tests against expected_failures.txt, both ways: a case that fails and is not listed is an error, a listed one that passes, too.

usage: test_nodes.py TESSERA [--bless]      (the program node_runner lies in tests/ beside it); --bless rewrites the list
Exit code 77 where the onnx package is missing.
"""
import collections
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "expected_failures.txt")
LEGEND = """# ONNX node tests that do not pass, and why. CASE REASON; rewritten by test_nodes.py --bless.
# The cases come with the onnx package; another version of it may bring other cases.
"""


def dump_cases(folder):
    """The cases of the installed package in `folder`, written once for each version of the package and of the writer."""
    import onnx
    writer = os.path.join(HERE, "dump_cases.py")
    stamp = f"{onnx.__version__} {os.path.getmtime(writer)}"
    path = os.path.join(folder, "stamp")
    if not os.path.exists(path) or open(path).read() != stamp:
        subprocess.run([sys.executable, writer, folder], check=True)
        with open(path, "w") as file:
            file.write(stamp)


def run(build):
    folder = os.path.join(build, "node_cases")
    dump_cases(folder)
    done = subprocess.run([os.path.join(build, "tests", "node_runner"), folder], stdout=subprocess.PIPE, text=True)
    results = {}
    for line in done.stdout.splitlines():
        verdict, rest = line.split(" ", 1)
        name, _, why = rest.partition(": ")
        results[name] = (verdict, why)
    with open(os.path.join(folder, "cases.txt")) as file:
        names = [line.split()[0] for line in file]
    missing = [n for n in names if n not in results]
    if done.returncode or missing:
        print(f"node_runner ended with {done.returncode} at case {missing[0] if missing else '(none)'}")
        sys.exit(1)
    return results


def reason(verdict, why):
    """A short reason that stays the same for all cases alike."""
    if verdict == "wrong":
        return "WRONG " + why
    why = re.sub(r"^\d+ problems?:;\s*", "", why).split(";")[0]
    why = re.sub(r"node '[^']*': ", "", why)
    return re.sub(r"(tensor|input|output) '[^']*'", r"\1", why)


def read_list():
    with open(LIST) as file:
        return dict(line.rstrip("\n").split(" ", 1) for line in file if line.strip() and not line.startswith("#"))


def summarise(results):
    passed = sum(v == "pass" for v, _ in results.values())
    reasons = collections.Counter(reason(v, w) for v, w in results.values() if v != "pass")
    for text, n in reasons.most_common():
        print(f"{n:5} {text}")
    print(f"{passed} of {len(results)} cases pass, {len(results) - passed} do not")


def main():
    build = os.path.dirname(os.path.abspath(sys.argv[1]))
    results = run(build)
    summarise(results)
    failures = {n: reason(v, w) for n, (v, w) in results.items() if v != "pass"}
    expected = read_list()
    if "--bless" in sys.argv:
        wrong = [n for n, (v, _) in results.items() if v == "wrong"]
        failures.update({n: expected[n] for n in wrong if n in expected})      # a reason that somebody wrote
        with open(LIST, "w") as file:
            file.write(LEGEND + "".join(f"{n} {failures[n]}\n" for n in sorted(failures)))
        return 0
    problems = [f"needs a reason why another result is right: {n}: {expected[n]}" for n in sorted(expected) if expected[n].startswith("WRONG")]
    problems += [f"fails unexpectedly: {n}: {failures[n]}" for n in sorted(set(failures) - set(expected))]
    problems += [f"passes, remove it from the list: {n}" for n in sorted(set(expected) - set(failures)) if n in results]
    problems += [f"is listed and does not exist: {n}" for n in sorted(set(expected) - set(results))]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    try:
        import onnx  # noqa: F401
    except ImportError as missing_package:
        print(f"skipped: {missing_package}")
        sys.exit(77)
    sys.exit(main())
