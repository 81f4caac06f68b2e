// The attention walk in float: the same text as in double.
#define ATTENTION_FLOAT
#include "attention_walk.c"
