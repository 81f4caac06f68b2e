// Measures this machine as passes/estimate.h describes one: the project's own kernels and collectives, all ranks of a node at the same time.
//
// Each number is the best of some repetitions, since whatever else the machine does only adds. Threads: starts one per rank, all ended on return.
#ifndef TESSERA_CALIBRATE_H
#define TESSERA_CALIBRATE_H

#include <stdio.h>

#include "../passes/estimate.h"

// `progress`: one line a group of measurements; NULL: none. Takes some seconds on a quiet machine. Links between nodes stay those of
// machine_default; those within, too, where there is one rank.
// swap_dir: folder whose disk is measured; NULL: tier NVME stays that of machine_default.
MUST_USE Status calibrate_machine(int ranks, const char *swap_dir, FILE *progress, Machine *out);

#endif
