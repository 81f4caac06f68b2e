// Layout of buckets; shared by partition and bucket_collectives.
#ifndef TESSERA_PARTITION_H
#define TESSERA_PARTITION_H

#include "../ir/graph.h"

int64_t chunks_round(int64_t elems);              // up to whole chunks

// Fills starts, elems and shard_elems from the parameters' types: each starts on a chunk, shards are whole chunks and equal.
void bucket_layout(Bucket *bucket, int ranks);

#endif
