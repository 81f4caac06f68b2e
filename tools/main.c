// tessera: finds the subcommand, parses its options, runs it, turns its Status into one line on stderr and the exit code.
#include <string.h>

#include "bus_guard.h"
#include "command.h"
#include "config_file.h"

typedef struct Command {
  const char *name;
  unsigned bit;
  Status (*run)(const Options *options);
  const char *usage, *help, *example;
} Command;

static const Command commands[] = {
  {"run", RUN, command_run, "MODEL|PLAN --data SOURCE [options]", "Compiles a training graph and trains it, or runs a compiled plan.",
   "tessera run model.onnx --data train.safetensors --ranks 2 --zero 3 --lr 3e-4 --steps 500 --save checkpoint"},
  {"compile", COMPILE, command_compile, "MODEL [options] -o PLAN.onnx", "Writes the plan of a training graph: steps, communication, memory.",
   "tessera compile model.onnx --ranks 4 --zero 3 -o model.plan.onnx"},
  {"show", SHOW, command_show, "MODEL|PLAN [options]", "Shows what a model holds, or what a plan does, sends and needs.", "tessera show model.plan.onnx"},
  {"verify", VERIFY, command_verify, "PLAN [--json] | --codes", "Proves a plan: agreement, lifetimes, ownership, bytes, order of queues.",
   "tessera verify model.plan.onnx"},
  {"diff", DIFF, command_diff, "OLD NEW [options]", "Shows what differs between two plans, models or texts; exit code 1 when anything does.",
   "tessera diff old.plan.onnx new.plan.onnx --max-bytes +1% --max-peak +2%"},
  {"export", EXPORT, command_export, "CHECKPOINT -o MODEL.onnx|WEIGHTS.safetensors [options]", "Writes trained weights back into the model, or as one file.",
   "tessera export checkpoint -o trained.onnx"},
  {"opt", OPT, command_opt, "MODEL|TEXT|- [options]", "Runs passes on a graph and prints it: text (.onnxtxt) and binary (.onnx), in and out.",
   "tessera opt model.onnx --batch 8 --passes=infer_types,fold_constants"},
  {"reduce", REDUCE, command_reduce, "MODEL|TEXT -o OUT [options] -- COMMAND ... {} ...",
   "Shrinks a graph while COMMAND, with its file in place of {}, still does what it did.",
   "tessera reduce model.onnx -o small.onnx --match 'the plan is broken' -- tessera run {} --data random --steps 1"},
  {"synth", SYNTH, command_synth, "gpt|llama|mlp|cnn [sizes] -o MODEL.onnx", "Writes a training graph from shapes alone, to compile, show and simulate.",
   "tessera synth gpt --layers 96 --d-model 12288 --heads 96 --vocab 50257 --seq 2048 -o gpt3.onnx"},
  {"simulate", SIMULATE | COMPILE, command_simulate, "PLAN|MODEL [options] [--cluster FILE.json]", "Predicts a training step on a cluster: time, overlap, memory.",
   "tessera simulate model.onnx --batch 8 --ranks 64 --zero 3 --cluster h100.json"},
  {"tune", TUNE | COMPILE, command_tune, "MODEL [options] [--memory SIZE] [--cluster FILE.json]",
   "Searches stage, micro-batch, recomputation, offload, buckets and prefetch for what fits and takes the least time, as predicted.",
   "tessera tune model.onnx --ranks 1024 --memory 80GiB --cluster h100.json"},
  {"bench", BENCH, command_bench, "io|comm [options]", "Measures what a run would use of this machine: files of tier NVME, collectives between ranks.",
   "tessera bench io --swap-dir DIR --io-depth 32"},
  {"config", RUN | COMPILE | CONFIG, command_config, "[MODEL] [options] [--config FILE.json] [--json]",
   "Prints the options that hold, each with who says so: default, file, command line, model.", "tessera config model.onnx --config ds_config.json --ranks 4"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *to) {
  fprintf(to, "Usage: tessera COMMAND ...\n\nCompiles ONNX training graphs into sharded plans and runs them.\n\nCommands:\n");
  for (int i = 0; i < N_COMMANDS; i++) fprintf(to, "  %-9s %s\n", commands[i].name, commands[i].help);
  fprintf(to, "\n'tessera COMMAND --help' lists the options of a command.\n");
  options_print_exit_codes(to);
}

static const Command *find_command(const char *name) {
  for (int i = 0; i < N_COMMANDS; i++)
    if (!strcmp(commands[i].name, name)) return &commands[i];
  return NULL;
}

static int unknown_command(const char *name) {
  const char *names[N_COMMANDS];
  for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
  const char *nearest = options_nearest(name, names, N_COMMANDS);
  fprintf(stderr, "tessera: error: unknown command '%s'", name);
  if (nearest) fprintf(stderr, "; did you mean '%s'?", nearest);
  fprintf(stderr, "; 'tessera --help' lists them\n");
  return STATUS_USAGE;
}

int main(int argc, char **argv) {
  bus_guard_install();
  if (argc < 2) {
    print_help(stderr);
    return STATUS_USAGE;
  }
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
    print_help(stdout);
    return STATUS_OK;
  }
  if (!strcmp(argv[1], "--version")) {
    printf("tessera %s\n", TESSERA_VERSION);
    return STATUS_OK;
  }
  const Command *command = find_command(argv[1]);
  if (!command) return unknown_command(argv[1]);
  Options options;
  Status status = options_parse(argc, argv, 2, command->bit, &options);
  if (!status && !options.help && options.config) status = config_file_apply(command->bit, &options);
  if (!status && options.help) options_print_help(stdout, command->name, command->bit, command->usage, command->help, command->example);
  else if (!status) status = command->run(&options);
  int code = command_print_error(status);
  options_finish(&options);
  return code;
}
