// Machines and clusters as JSON files (docs/simulate.md): what `simulate --cluster` reads and `--calibrate` writes.
#ifndef TESSERA_MACHINE_JSON_H
#define TESSERA_MACHINE_JSON_H

#include "../passes/estimate.h"

typedef struct Cluster {
  Machine machine;
  int64_t ranks;             // of the whole cluster; 0: not said
} Cluster;

// What the file does not say is as in machine_default. MALFORMED names the key: unknown ones, numbers that are no positive ones, lists of another length.
MUST_USE Status machine_json_read(const char *path, Cluster *out);
// `ranks` 0: not written.
MUST_USE Status machine_json_write(const char *path, const Cluster *cluster);

#endif
