// The MPI library's own collectives over the sizes of `tessera bench comm`, and a bare copy: one JSON object by process 0. mpi_peer FROM_BYTES TO_BYTES ROUNDS.
// tests/bench/comm_against_mpi.py runs it.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static float *whole, *other, *shard;

static void call(int kind, int elems) {
  if (kind == 0) MPI_Allgather(shard, elems / ranks, MPI_FLOAT, other, elems / ranks, MPI_FLOAT, MPI_COMM_WORLD);
  else if (kind == 1) MPI_Reduce_scatter_block(whole, shard, elems / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else if (kind == 2) MPI_Allreduce(MPI_IN_PLACE, whole, elems, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  else memcpy(other, whole, (size_t)elems * 4);
}

static double measure(int kind, long bytes, int rounds) {
  long times = (128l << 20) / bytes;
  double best = 0;
  times = times < 3 ? 3 : times > 500 ? 500 : times;
  for (int round = -1; round < rounds; round++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (long i = 0; i < (round < 0 ? 2 : times); i++) call(kind, (int)(bytes / 4));
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = (MPI_Wtime() - start) / (double)times;
    if (round == 0 || (round > 0 && seconds < best)) best = seconds;
  }
  return best;
}

int main(int argc, char **argv) {
  static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce", "copy"};
  if (argc != 4) return fprintf(stderr, "usage: mpi_peer FROM_BYTES TO_BYTES ROUNDS\n"), 2;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  long from = atol(argv[1]), to = atol(argv[2]);
  whole = calloc((size_t)to, 1), other = calloc((size_t)to, 1), shard = calloc((size_t)to, 1);
  memset(other, 1, (size_t)to), memset(shard, 0, (size_t)to), memset(whole, 0, (size_t)to);
  if (rank == 0) printf("{\"sizes\": [");
  for (long bytes = from; bytes <= to; bytes *= 4) {
    long cut = bytes / (64 * ranks) * 64 * ranks;
    if (rank == 0) printf("%s{\"bytes\": %ld", bytes > from ? ", " : "", cut);
    for (int kind = 0; kind < 4; kind++) {
      double seconds = measure(kind, cut, atoi(argv[3]));
      if (rank == 0) printf(", \"%s\": %.9g", names[kind], seconds);
    }
    if (rank == 0) printf("}");
  }
  if (rank == 0) printf("]}\n");
  MPI_Finalize();
  return 0;
}
