// The recurrent walk in float: the same text as in double.
#define WIDE_FLOAT
#include "recurrent_walk.c"
