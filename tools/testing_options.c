#include "testing_options.h"

#include <stdio.h>

static Status read_fault(const Options *o, int ranks, ExecutorOptions *out) {
  out->fault_rank = -1;
  if (!o->fault) return STATUS_OK;
  int used = 0;
  long long step;
  if (sscanf(o->fault, "%d:%lld%n", &out->fault_rank, &step, &used) != 2 || o->fault[used] || out->fault_rank < 0 || out->fault_rank >= ranks || step < 0)
    FAIL(USAGE, NULL, "--fault: '%s' is not RANK:STEP with a rank below %d", o->fault, ranks);
  out->fault_step = step;
  return STATUS_OK;
}

static Status read_link_delay(const Options *o, ExecutorOptions *out) {
  enum { NS_MAX = 1000000000 };
  long long latency, per_mib = 0;
  int used = 0;
  if (!o->link_delay) return STATUS_OK;
  int n = sscanf(o->link_delay, "%lld%n:%lld%n", &latency, &used, &per_mib, &used);
  if (n < 1 || o->link_delay[used] || latency < 0 || latency > NS_MAX || per_mib < 0 || per_mib > NS_MAX)
    FAIL(USAGE, NULL, "--link-delay: '%s' is not NS or NS:NS_PER_MIB with numbers from 0 to %d", o->link_delay, NS_MAX);
  out->link_latency_ns = latency;
  out->link_ns_per_mib = per_mib;
  return STATUS_OK;
}

Status testing_options_read(const Options *o, int ranks, ExecutorOptions *out) {
  TRY(read_fault(o, ranks, out));
  return read_link_delay(o, out);
}
