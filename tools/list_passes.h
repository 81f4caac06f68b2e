// opt --list-passes: what each pass needs, must not follow, leaves behind and does, with an example.
#ifndef TESSERA_LIST_PASSES_H
#define TESSERA_LIST_PASSES_H

void list_passes(void);      // to stdout: a line for each pass, what belongs to it indented below

#endif
