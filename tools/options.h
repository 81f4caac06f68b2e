// The command line: one table (options.def) gives the struct, the parser and --help.
//
// Ownership: strings point into argv, or belong to `file`; lists are heap, ended by options_finish. Threads: one at a time.
#ifndef TESSERA_OPTIONS_H
#define TESSERA_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../ir/status.h"

enum { RUN = 1, COMPILE = 2, SHOW = 4, VERIFY = 8, EXPORT = 16, OPT = 32, SYNTH = 64, SIMULATE = 128,
       DIFF = 256, REDUCE = 512, CONFIG = 1024, TUNE = 2048, BENCH = 4096 };   // bits of `commands`
// Further bits: what a plan has decided already; what decides results; what `show` takes without a value, too (then "").
enum { FIXED = 1 << 16, RESULT = 1 << 17, BARE = 1 << 18 };

typedef struct TextList { const char **items; int n; } TextList;
typedef struct RealList { double *items; int n; } RealList;

typedef bool OptionFLAG;
typedef bool OptionOFF;
typedef int64_t OptionINT;
typedef int64_t OptionBYTES;
typedef double OptionREAL;
typedef const char *OptionTEXT;
typedef const char *OptionCHOICE;
typedef TextList OptionLIST;
typedef RealList OptionREALS;

typedef struct Options {
  const char *input;            // the one positional argument: MODEL, PLAN, CHECKPOINT; NULL: none
  const char *other;            // DIFF: the second one
  const char *const *command;   // `reduce`: what follows --
  int n_command;
  bool help;
#define OPTION(name, short_name, kind, field, fallback, min, max, commands, argument, help_line) Option##kind field;
#include "options.def"
#undef OPTION
  struct {                      // was it on the command line, or in --config FILE?
#define OPTION(name, short_name, kind, field, fallback, min, max, commands, argument, help_line) bool field;
#include "options.def"
#undef OPTION
  } given;
  struct {                      // what of --config FILE says so; NULL: the command line, or nobody
#define OPTION(name, short_name, kind, field, fallback, min, max, commands, argument, help_line) const char *field;
#include "options.def"
#undef OPTION
  } origin;
  struct ConfigFile *file;      // owner of strings from --config (config_file.h); NULL: none
} Options;

typedef enum OptionKind { KIND_FLAG, KIND_OFF, KIND_INT, KIND_BYTES, KIND_REAL, KIND_TEXT, KIND_CHOICE, KIND_LIST, KIND_REALS } OptionKind;

typedef struct OptionRow {
  const char *name;
  char short_name;
  OptionKind kind;
  size_t offset, given_offset, origin_offset;   // in Options
  const char *fallback;
  double min, max;
  unsigned commands;
  const char *argument, *help;
} OptionRow;

// All rows of options.def, *out_n of them; a heading is a row of no command, its title is `help`. Constant.
const OptionRow *options_rows(int *out_n);
const OptionRow *options_find_row(const char *name, unsigned commands);       // "zero"; NULL: none of these commands has it

// Gives an option a value from elsewhere than the command line, as it would be typed there (NULL: a flag), and counts it as given. `text` and `origin`
// are kept as they are. A LIST is appended to.
MUST_USE Status options_set(const OptionRow *row, const char *text, const char *origin, Options *out);
bool options_is_given(const OptionRow *row, const Options *options);
const char *options_origin(const OptionRow *row, const Options *options);

// The value of an option, one "--NAME=VALUE" each (flags: "--NAME"); none where it has none. Heap: options_free_texts.
MUST_USE Status options_values(const OptionRow *row, const Options *options, TextList *out);

// Parses argv[first..argc) for one command (one of the bits above). USAGE errors name the option and what would work. `out` is to be
// ended with options_finish, also after an error.
MUST_USE Status options_parse(int argc, char **argv, int first, unsigned command, Options *out);
void options_finish(Options *options);

// A copy with lists of its own; texts are borrowed, and --config FILE stays the base's.
MUST_USE Status options_copy(const Options *base, Options *out);

// What was given of the options of these commands, as on a command line: "--ranks=4 --labels='a b'". *out: heap.
MUST_USE Status options_command_line(const Options *options, unsigned commands, char **out);

// --help of a command: usage line, one sentence, an example, its options under their headings, the exit codes (status.def).
void options_print_help(FILE *to, const char *command_name, unsigned command, const char *usage, const char *sentence, const char *example);
void options_print_exit_codes(FILE *to);

// The options that decide results, one "--NAME=VALUE" each (flags: "--NAME"), without those that have one of the bits `except`: those on the command
// line, or (given false) the others at their defaults. Strings are heap: options_free_texts.
MUST_USE Status options_record(const Options *options, bool given, unsigned except, TextList *out);
void options_free_texts(TextList *texts);

// The options on the command line that passes read, as `opt` takes them, quoted for a shell: "--ranks=4 --labels='a b'"; "" for none. *out: heap.
MUST_USE Status options_of_passes(const Options *options, char **out);

// A copy of `base` in which what the command line does not say is as it was recorded: `recorded` counts as given then, `defaults` does not. *taken:
// what was taken up and differs from the defaults of now; *changed: what the command line says otherwise, as "--lr=0.1 (was --lr=0.001)". Both are
// lists joined by blanks, NULL: none; heap. `out` borrows the strings of all three and is to be ended with options_finish.
typedef struct RecordedOptions { const char *const *recorded, *const *defaults; size_t n_recorded, n_defaults; } RecordedOptions;
MUST_USE Status options_resume(const Options *base, const RecordedOptions *from, unsigned except, Options *out, char **taken, char **changed);

// The first option on the command line whose commands column has one of `bits`, "name" without dashes; NULL: none.
const char *options_first_given(const Options *options, unsigned bits);

// The nearest of `n` names by edit distance, or NULL when none is close enough to be what was meant.
const char *options_nearest(const char *word, const char *const *names, int n);

// Bytes of the unit "KiB", "MB", ...; 1 of "" and "B". false: unknown.
bool options_byte_unit(const char *name, double *out_bytes);

// "8MiB", "1.5GB", "65536": a whole number of bytes within [min, max]; errors (USAGE) name `option`.
MUST_USE Status options_read_size(const char *option, const char *text, double min, double max, int64_t *out);

#endif
