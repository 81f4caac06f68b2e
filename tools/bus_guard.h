// Models are mapped, and whoever shortens such a file while it is read takes its pages away: the kernel then sends SIGBUS. There is nothing left
// to return an error from, so this says what happened and exits with the code of I/O errors. Threads: once, at start.
#ifndef TESSERA_BUS_GUARD_H
#define TESSERA_BUS_GUARD_H

void bus_guard_install(void);

#endif
