#!/usr/bin/env python3
"""Golden tests: exact text of tiny inputs.

Every tests/passes/*.txt and tests/tools/*.txt holds cases:

    === title of the case
    $ tessera opt - --passes=infer_types          (arguments; `- ` or no path: the graph below is standard input)
    <graph in text form>
    --- output                                     (or: --- error N, with the exit code)
    <what is expected on standard output; after an error: on standard error>
    --- stderr                                     (after an error: --- stdout; only where there is something on it)
    <what is expected there>

Code blocks of docs/*.md marked ```console run their `$ tessera ...` lines and compare what follows; blocks marked ```onnxtxt must be read by
`tessera opt` and come back unchanged, and blocks marked ```sh run must succeed in a scratch folder.

    tests/run.py [FILE...]           all files, or those
    tests/run.py --bless [FILE...]   writes what came out into the files; read the git diff
"""
import argparse
import difflib
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIMEOUT_S = 120
MASKED = re.compile(r'(recipe\.numerics_key=)"[^"]*"')   # names the version of the matrix library


class Case:
    def __init__(self, title, command, stdin, kind, expected):
        self.title, self.command, self.stdin, self.kind, self.expected = title, command, stdin, kind, expected


def read_cases(path):
    """The cases of a golden file, and the lines before the first."""
    parts = re.split(r"^=== (.*)\n", path.read_text(), flags=re.M)
    cases = []
    for title, body in zip(parts[1::2], parts[2::2]):
        m = re.match(r"\$ tessera ([^\n]*)\n(.*?)^--- (output|error \d+)\n(.*)\Z", body, flags=re.M | re.S)
        if not m:
            raise SystemExit(f"{path}: case '{title}' is not of the form '$ tessera ...', input, '--- output', expected")
        cases.append(Case(title, m[1], m[2], m[3], m[4].rstrip("\n") + "\n" if m[4].strip() else ""))
    return parts[0], cases


def run(tessera, command, stdin, cwd):
    p = subprocess.run([tessera, *shlex.split(command)], input=stdin.encode(), capture_output=True, cwd=cwd, timeout=TIMEOUT_S)
    return p.returncode, p.stdout.decode(errors="replace"), p.stderr.decode(errors="replace")


def outcome(tessera, case, cwd=ROOT):
    """(kind, text) as they stand in a golden: what is expected on one stream, then the other's, if there is anything on it.

    With --print-ir-* what that prints; the graph on standard output is long then, and only must be text that reads back."""
    rc, out, err = run(tessera, case.command, case.stdin, cwd)
    out, err = MASKED.sub(r'\1"(masked)"', out), MASKED.sub(r'\1"(masked)"', err)
    if rc:
        return f"error {rc}", err + (f"--- stdout\n{out}" if out else "")
    if "--print-ir" in case.command:
        again = run(tessera, "opt - --passes=none", out, cwd)[1] if out else ""
        return "output", err if MASKED.sub(r'\1"(masked)"', again) == out else f"--- standard output does not come back from 'opt - --passes=none':\n{out}"
    return "output", out + (f"--- stderr\n{err}" if err else "")


def difference(title, expected, got):
    lines = difflib.unified_diff(expected.splitlines(), got.splitlines(), "expected", "got", lineterm="", n=2)
    print(f"FAIL {title}\n  " + "\n  ".join(lines))


def golden_file(tessera, path, bless):
    head, cases = read_cases(path)
    failed, text = 0, head
    if not cases:
        raise SystemExit(f"{path}: no case in it")
    for case in cases:
        kind, got = outcome(tessera, case)
        if (kind, got) != (case.kind, case.expected):
            if not bless:
                difference(f"{path.relative_to(ROOT)}: {case.title}", f"--- {case.kind}\n{case.expected}", f"--- {kind}\n{got}")
            failed += 1
        text += f"=== {case.title}\n$ tessera {case.command}\n{case.stdin}--- {kind}\n{got}\n"
    if bless:
        path.write_text(text.rstrip("\n") + "\n")
    return len(cases), 0 if bless else failed


def console_block(tessera, block, cwd):
    """`$ tessera ...` lines, each followed by its output. Returns the block as it came out."""
    text = ""
    for command in re.findall(r"^\$ tessera (.*)$", block, flags=re.M):
        rc, out, err = run(tessera, command, "", cwd)
        text += f"$ tessera {command}\n" + out + (err if rc else "")
    return text


def text_block(tessera, block, cwd):
    rc, out, err = run(tessera, "opt - --passes=none", block, cwd)
    return err if rc else out


def shell_block(tessera, block, cwd):
    env_path = f"{pathlib.Path(tessera).parent}:{ROOT / 'tools'}:/usr/bin:/bin"
    if re.search(r"^\s*! ", block, flags=re.M):
        return "a line that starts with '!' never fails under bash -e; write: COMMAND && exit 1\n"
    p = subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=cwd, env={"PATH": env_path, "HOME": str(cwd)}, capture_output=True,
                       timeout=TIMEOUT_S)
    return block if p.returncode == 0 else f"exit code {p.returncode}: {p.stderr.decode(errors='replace')}"


BLOCKS = {"console": console_block, "onnxtxt": text_block, "sh run": shell_block}


def doc_file(tessera, path, bless):
    """Runs the blocks of one page in order, in one scratch folder."""
    total = failed = 0
    pieces = re.split(r"^(```[^\n]*\n.*?^```\n)", path.read_text(), flags=re.M | re.S)
    with tempfile.TemporaryDirectory() as scratch:
        for i, piece in enumerate(pieces):
            m = re.match(r"```([^\n]*)\n(.*?)```\n\Z", piece, flags=re.S)
            if not m or m[1].strip() not in BLOCKS:
                continue
            total += 1
            got = BLOCKS[m[1].strip()](tessera, m[2], scratch)
            if got != m[2] and bless and m[1].strip() != "sh run":
                pieces[i] = f"```{m[1]}\n{got}```\n"
            elif got != m[2]:
                failed += 1
                difference(f"{path.relative_to(ROOT)}: block {total}", m[2], got)
    if bless:
        path.write_text("".join(pieces))
    return total, failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--bless", action="store_true", help="write what came out into the files")
    parser.add_argument("--tessera", default=str(ROOT / "build" / "tessera"))
    args = parser.parse_args()
    files = [f.resolve() for f in args.files] or sorted(
        f for folder in ("tests/passes", "tests/tools", "docs") for f in (ROOT / folder).glob("*") if f.suffix in (".txt", ".md"))
    if not pathlib.Path(args.tessera).exists():
        raise SystemExit(f"{args.tessera} is missing: build it, or name it with --tessera")
    total = failed = 0
    for path in files:
        n, bad = (doc_file if path.suffix == ".md" else golden_file)(str(pathlib.Path(args.tessera).resolve()), path, args.bless)
        total, failed = total + n, failed + bad
    print(f"{total} cases in {len(files)} files, {failed} failed" + (" (blessed)" if args.bless else ""))
    if not total:
        raise SystemExit("no case was found: that is no success")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
