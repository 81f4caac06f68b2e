// What a transport in a shared library shares with the program that loads it: nothing of the program is linked into it.
#ifndef TESSERA_TRANSPORT_PLUGIN_H
#define TESSERA_TRANSPORT_PLUGIN_H

#include "transport.h"

enum { TRANSPORT_PLUGIN_VERSION = 1 };          // of this file and transport.h: raised when either changes

typedef struct TransportHost {
  int version;
  Status (*fail)(StatusCode code, const char *node, const char *format, ...) __attribute__((format(printf, 3, 4)));
} TransportHost;

// The one symbol of the library. Fails with USAGE for another version.
typedef Status (*TransportPluginOpen)(const TransportHost *host, Transport **out);
#define TRANSPORT_PLUGIN_SYMBOL "tessera_transport_open"

#endif
