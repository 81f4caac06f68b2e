#include "overwrites.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { N_OUTPUTS = 8 };
typedef struct Output { const char *option, *path; } Output;

static void list_outputs(const Options *o, Output out[N_OUTPUTS]) {
  const Output all[N_OUTPUTS] = {{"-o", o->output}, {"--report", o->report}, {"--log", o->log}, {"--dump-grads", o->dump_grads}, {"--reproducer", o->reproducer},
                                 {"--html", o->html}, {"--trace", o->trace}, {"--metrics", o->step_metrics}};
  memcpy(out, all, sizeof all);
}

static bool is_file(const char *path, struct stat *st) { return path && !stat(path, st) && S_ISREG(st->st_mode); }

bool overwrites_possible(const Options *options) {
  Output outputs[N_OUTPUTS];
  struct stat st;
  list_outputs(options, outputs);
  for (int i = 0; i < N_OUTPUTS; i++)
    if (is_file(outputs[i].path, &st)) return true;
  return false;
}

static Status check_file(const Options *options, const struct stat *input, const char *shown) {
  Output outputs[N_OUTPUTS];
  struct stat st;
  list_outputs(options, outputs);
  for (int i = 0; i < N_OUTPUTS; i++)
    if (is_file(outputs[i].path, &st) && st.st_dev == input->st_dev && st.st_ino == input->st_ino)
      FAIL(USAGE, NULL, "%s %s would overwrite '%s', which is read here; name another file", outputs[i].option, outputs[i].path, shown);
  return STATUS_OK;
}

static Status check_folder(const Options *options, const char *path) {
  DIR *dir = opendir(path);
  Status status = STATUS_OK;
  for (struct dirent *e; dir && !status && (e = readdir(dir));) {
    struct stat st;
    if (!fstatat(dirfd(dir), e->d_name, &st, 0) && S_ISREG(st.st_mode)) status = check_file(options, &st, e->d_name);
  }
  if (dir) closedir(dir);
  return status;
}

Status overwrites_check_input(const Options *options, const char *input) {
  struct stat st;
  if (!input || stat(input, &st)) return STATUS_OK;        // what is not there is named by whoever opens it
  if (S_ISDIR(st.st_mode)) return check_folder(options, input);
  return S_ISREG(st.st_mode) ? check_file(options, &st, input) : STATUS_OK;
}

Status overwrites_check_weights(const Options *options, const WeightSource *weights) {
  const char *last = NULL;
  for (size_t i = 0; i < weights->n_weights; i++) {
    const char *path = weights->weights[i].path;           // one string per file
    if (path && path != last) TRY(overwrites_check_input(options, path));
    last = path;
  }
  return STATUS_OK;
}

static Status check_sources(const Options *options, const TextList *sources) {
  for (int i = 0; i < sources->n; i++) {                   // "FILE" or "INPUT=FILE"
    const char *equals = strchr(sources->items[i], '=');
    TRY(overwrites_check_input(options, sources->items[i]));
    if (equals) TRY(overwrites_check_input(options, equals + 1));
  }
  return STATUS_OK;
}

Status overwrites_check(const Options *options) {
  if (!overwrites_possible(options)) return STATUS_OK;
  const char *const inputs[] = {options->input, options->weights, options->model, options->torch, options->resume, options->config};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) TRY(overwrites_check_input(options, inputs[i]));
  TRY(check_sources(options, &options->data));
  return check_sources(options, &options->eval_data);
}
