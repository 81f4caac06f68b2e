// libFuzzer: any bytes as an .npy file. What its header is taken for must lie inside the file: every element is read.
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/data_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
  int fd = memfd_create("fuzz.npy", MFD_CLOEXEC);
  if (fd < 0 || write(fd, bytes, n_bytes) != (ssize_t)n_bytes) abort();
  NpyFile npy;
  Status status = npy_read_header(fd, "fuzz.npy", &npy);
  if (!status) {
    Type type = type_make(npy.dtype, npy.rank, npy.dims);
    DataPart part = {.path = "fuzz.npy", .fd = fd};
    double block[64];
    for (int64_t at = 0, n = type_elems(&type); !status && at < n; at += 64)
      status = data_file_read(&part, npy.dtype, npy.offset_bytes + at * dtype_bytes(npy.dtype), block, DTYPE_F64, n - at < 64 ? n - at : 64);
    if (status) abort();
  }
  status_free(status);
  close(fd);
  return 0;
}
