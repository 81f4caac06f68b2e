// Which instruction sets there are, which this processor has, and the loops compiled for each.
#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "loops.h"

extern const Loops loops_scalar, loops_avx2, loops_avx512;

static const char *const isa_names[ISA_COUNT] = {"scalar", "avx2", "avx512", "amx"};

const char *isa_name(Isa isa) { return isa_names[isa]; }

bool isa_from_name(const char *name, Isa *out) {
  for (int i = 0; i < ISA_COUNT; i++)
    if (!strcmp(name, isa_names[i])) {
      *out = (Isa)i;
      return true;
    }
  return false;
}

// Tiles need the processor (leaf 7: AMX-TILE, AMX-BF16), the system's state saving (XCR0 bits 17 and 18) and its permission.
static bool amx_available(void) {
  enum { ARCH_GET_XCOMP_SUPP = 0x1021, XFEATURE_XTILEDATA = 18 };
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 24) || !(d & 1u << 22)) return false;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27)) return false;   // OSXSAVE: xgetbv may be used
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3) != 3) return false;
  uint64_t supported = 0;
  return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &supported) == 0 && (supported >> XFEATURE_XTILEDATA & 1);
}

bool isa_available(Isa isa) {
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vl");
  switch (isa) {
  case ISA_SCALAR: return true;
  case ISA_AVX2: return avx2;
  case ISA_AVX512: return avx512;
  case ISA_AMX: return avx512 && amx_available();
  default: return false;
  }
}

Isa isa_best(void) {
  Isa isa = ISA_AMX;
  while (!isa_available(isa)) isa--;
  return isa;
}

const Loops *loops_for(Isa isa) {
  switch (isa) {
  case ISA_AVX2: return &loops_avx2;
  case ISA_AVX512:
  case ISA_AMX: return &loops_avx512;
  default: return &loops_scalar;
  }
}
