// The walk over deformable columns in float: the same text as in double.
#define WIDE_FLOAT
#include "deform_walk.c"
