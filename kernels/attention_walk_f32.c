// The attention walk in float: the same text as in double.
#define WIDE_FLOAT
#include "attention_walk.c"
