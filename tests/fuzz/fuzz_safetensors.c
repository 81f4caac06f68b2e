// libFuzzer: any bytes as a safetensors file, and as a stream of them. What is accepted must lie inside the bytes: every element is read.
#include <stdint.h>
#include <stdlib.h>

#include "runtime/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
  Safetensors *file;
  int64_t header_bytes, data_bytes;
  Status status = n_bytes >= SAFETENSORS_PREFIX_BYTES ? safetensors_header_bytes(bytes, "fuzz", &header_bytes) : status_fail(STATUS_MALFORMED, NULL, "short");
  if (!status && header_bytes <= (int64_t)n_bytes - SAFETENSORS_PREFIX_BYTES)
    status = safetensors_data_bytes(bytes + SAFETENSORS_PREFIX_BYTES, header_bytes, "fuzz", &data_bytes);
  status_free(status);
  status = safetensors_open_bytes(bytes, n_bytes, "fuzz", &file);
  if (status) {
    status_free(status);
    return 0;
  }
  volatile double sum = 0;
  for (size_t t = 0; t < safetensors_count(file); t++) {
    const Weight *w = &safetensors_tensors(file)[t];
    if (safetensors_find(file, w->name) != w) abort();
    for (int64_t e = 0; e < type_elems(&w->type); e++) sum += element_read(w->bytes, w->type.dtype, e);
  }
  safetensors_close(file);
  return 0;
}
