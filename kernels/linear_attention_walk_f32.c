// The linear attention walk in float: the same text as in double.
#define WIDE_FLOAT
#include "linear_attention_walk.c"
