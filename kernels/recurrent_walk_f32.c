// The recurrent walk in float: the same text as in double.
#define RECURRENT_FLOAT
#include "recurrent_walk.c"
