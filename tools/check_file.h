// CHECK lines: what a text must hold, written in the comments of a file, with the meaning that LLVM's FileCheck gives them (version 14, its default
// options). `opt --check` reads them; docs/ci.md describes them for people.
//
//   CHECK: CHECK-NEXT: CHECK-SAME: CHECK-NOT: CHECK-DAG: CHECK-LABEL: CHECK-EMPTY: CHECK-COUNT-n:    {LITERAL} before the colon: no patterns in it
//   {{regex}}  [[NAME:regex]]  [[NAME]]  [[#NAME:]]  [[#NAME+1]]  [[#@LINE-1]]
// Runs of blanks are one blank, in both texts. Regular expressions are POSIX extended ones. Lines after RUN: or COM: hold no CHECK.
// Forms of FileCheck that are not there are refused by name: other numeric expressions and formats.
#ifndef TESSERA_CHECK_FILE_H
#define TESSERA_CHECK_FILE_H

#include <regex.h>
#include <stdbool.h>

#include "../ir/arena.h"

typedef enum CheckKind { CHECK_PLAIN, CHECK_NEXT, CHECK_SAME, CHECK_NOT, CHECK_DAG, CHECK_LABEL, CHECK_EMPTY, CHECK_END } CheckKind;

typedef struct CheckVariable { const char *name; int group; bool number; } CheckVariable;      // what a group of the expression defines

// A value to be put into the expression before it is compiled.
typedef struct CheckUse {
  size_t at;                   // in `regex`
  const char *name;            // NULL: `number` itself
  bool is_number;
  int64_t number;              // added to the variable
} CheckUse;

typedef struct CheckLine {
  CheckKind kind;
  int count;                   // CHECK-COUNT-n; else 1
  int line;                    // in the check file, from 1
  const char *directive;       // "CHECK-NEXT"
  const char *pattern;         // as it is written, for messages
  const char *fixed;           // no pattern in it; NULL: regex
  const char *regex;
  CheckVariable *defines;
  size_t n_defines, defines_capacity;
  CheckUse *uses;
  size_t n_uses, uses_capacity;
} CheckLine;

typedef struct CheckFile {
  const char *name;            // for messages
  CheckLine *lines;
  size_t n_lines, capacity;
} CheckFile;

// `prefixes`: comma-separated; NULL: "CHECK". Errors: USAGE when no line has a prefix, or a prefix is none; MALFORMED with "FILE:LINE:" where a line
// breaks the rules; UNSUPPORTED where it says what is refused. All of *out lies in `arena`, under the caller's guard.
MUST_USE Status check_file_parse(const char *name, const char *text, size_t bytes, const char *prefixes, Arena *arena, CheckFile **out);

// Does `text` hold all of it? CHECK with what was looked for, from where, and what may have been meant; one error per CHECK-LABEL block. `shown`: what
// the text is called in messages.
MUST_USE Status check_file_match(const CheckFile *file, const char *shown, const char *text, size_t bytes, Arena *arena);     // check_match.c

// Runs of blanks and tabs are one blank; no carriage return in front of a line's end. In `arena`, terminated.
char *check_canonical(const char *text, size_t bytes, Arena *arena, size_t *out_bytes);

#endif
