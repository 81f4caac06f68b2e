// Errors as values. A Status is NULL on success, else an owned heap record that says what went wrong and where.
//
// Ownership: the caller that receives a Status owns it; it passes it on (TRY) or ends it with status_free.
// Threads: a Status is plain data; one thread at a time. Failure to allocate one yields a static out-of-memory record.
// Use: the first place that knows says FAIL with the node and the numbers; the others TRY. Outputs are set only on success.
#ifndef TESSERA_STATUS_H
#define TESSERA_STATUS_H

#include <stdarg.h>
#include <stddef.h>

typedef enum StatusCode {
#define STATUS(name, code, meaning) STATUS_##name = code,
#include "status.def"
#undef STATUS
} StatusCode;

typedef struct StatusError {
  StatusCode code;
  int rank;            // the rank on which it happened, -1 when no rank is concerned
  char *node;          // the ONNX node or operator concerned, NULL when none is
  char *what;          // one or more sentences for a person, without the node's name
} StatusError;

// clang warns where a Status is dropped; gcc at -Wunused-result.
typedef StatusError *Status;
#define MUST_USE __attribute__((warn_unused_result))

// Makes an error. `node` may be NULL; both strings are copied.
MUST_USE Status status_fail(StatusCode code, const char *node, const char *format, ...) __attribute__((format(printf, 3, 4), returns_nonnull));
MUST_USE Status status_vfail(StatusCode code, const char *node, const char *format, va_list args) __attribute__((returns_nonnull));

// Prefixes the text of an error with "CONTEXT: "; NULL stays NULL. Takes ownership, returns the same error.
MUST_USE Status status_context(Status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

StatusCode status_code(const StatusError *status);   // STATUS_OK for NULL
void status_free(Status status);                     // NULL is fine

// One line for a person: "node 'NAME': WHAT" or "WHAT". Always terminated. Returns `out`.
const char *status_text(const StatusError *status, char *out, size_t out_bytes);

#define FAIL(code, node, ...) return status_fail(STATUS_##code, node, __VA_ARGS__)
#define TRY(expression)                    \
  do {                                     \
    Status try_status_ = (expression);     \
    if (try_status_) return try_status_;   \
  } while (0)

#endif
