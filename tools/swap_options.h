// The options of the swap file (tier NVME), as the runtime takes them. Threads: any.
#ifndef TESSERA_SWAP_OPTIONS_H
#define TESSERA_SWAP_OPTIONS_H

#include "../runtime/swap.h"
#include "json_write.h"
#include "options.h"

// USAGE where --io-block is no multiple of a page.
MUST_USE Status swap_options_read(const Options *options, SwapOptions *out);

// "uring", "direct", ...: what was chosen and why, as fields of the object under way.
void swap_info_write(JsonWriter *w, const SwapInfo *info);
void swap_info_print(FILE *to, const SwapInfo *info, const char *dir);       // one line

#endif
