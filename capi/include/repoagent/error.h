/* Errors. Every function of this interface but the *_create ones returns one; nothing is printed, thrown or aborted. */
#ifndef REPOAGENT_ERROR_H
#define REPOAGENT_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define REPOAGENT_API __attribute__((__visibility__("default")))

typedef enum repoagent_error {
  REPOAGENT_NO_ERROR = 0,
  REPOAGENT_UNKNOWN = 1,
  REPOAGENT_INTERNAL = 2,
  REPOAGENT_NOT_FOUND = 3,
  REPOAGENT_INVALID_ARGUMENT = 4,
  REPOAGENT_UNAVAILABLE = 5,
  REPOAGENT_UNSUPPORTED = 6,
  REPOAGENT_ALREADY_EXISTS = 7,
  REPOAGENT_CANCELLED = 8
} repoagent_error;

/* What an error is called: "Not found". The text belongs to the library. */
REPOAGENT_API repoagent_error repoagent_error_get_name(repoagent_error error, const char** name);

/* Why the last function on this thread that failed did so, *_create functions included; empty if none did. The text is
   valid until the next function of this thread fails. */
REPOAGENT_API repoagent_error repoagent_error_get_message(const char** message);

#ifdef __cplusplus
}
#endif
#endif
