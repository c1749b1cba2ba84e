/* The header compiles as C99, and every function checks its pointers. */
#include <stdio.h>
#include <string.h>

#include "client/capi/ballast.h"

#define CHECK(condition)                           \
  if (!(condition)) {                              \
    printf("line %d: %s\n", __LINE__, #condition); \
    return 1;                                      \
  }

/* Of the ABI version that the header names: a struct that changes gets
 * another version (ballast.h says when), here and in _library.py. */
static int check_structs(void) {
  CHECK(BALLAST_ABI_MAJOR == 0 && BALLAST_ABI_MINOR == 9);
  CHECK(sizeof(ballast_error) == 2064);
  CHECK(sizeof(ballast_tensor) == 48);
  CHECK(sizeof(ballast_group) == 88);
  CHECK(sizeof(ballast_info) == 56);
  CHECK(sizeof(ballast_path_quality) == 40);
  CHECK(sizeof(ballast_step_result) == 232);
  return 0;
}

static int check_versions(void) {
  const uint32_t own = BALLAST_ABI_MAJOR << 16 | BALLAST_ABI_MINOR;
  CHECK(BALLAST_ABI_FITS(ballast_abi_version()));
  CHECK(BALLAST_ABI_FITS(own));
  CHECK(!BALLAST_ABI_FITS(own + 1));
  CHECK(!BALLAST_ABI_FITS(own - 1));
  CHECK(!BALLAST_ABI_FITS(own + (1u << 16)));
  return 0;
}

int main(void) {
  ballast_session* session = NULL;
  ballast_error error;
  uint64_t bytes = 1;
  const char* options =
      "{\"job\": \"j\", \"address\": \"/nonexistent/b.sock\", "
      "\"connect_timeout\": 0.01, "
      "\"optimizer\": {\"name\": \"sgd\", \"groups\": [{\"lr\": 1}]}}";
  CHECK(check_structs() == 0);
  CHECK(check_versions() == 0);
  CHECK(strlen(ballast_version()) > 0);
  CHECK(ballast_open("{", NULL, 0, NULL, NULL, &session, &error) ==
        BALLAST_INVALID_ARGUMENT);
  CHECK(error.code == BALLAST_INVALID_ARGUMENT && error.resume_step == -1);
  CHECK(ballast_open(options, NULL, 1, NULL, NULL, &session, NULL) ==
        BALLAST_INVALID_ARGUMENT);
  CHECK(ballast_open(options, NULL, 0, NULL, NULL, &session, &error) ==
        BALLAST_UNAVAILABLE);
  CHECK(strstr(error.message, "no daemon at /nonexistent/b.sock") != NULL);
  CHECK(session == NULL);
  CHECK(ballast_push(NULL, 0, &error) == BALLAST_INVALID_ARGUMENT);
  CHECK(ballast_params(NULL, 0, &bytes) == NULL && bytes == 0);
  CHECK(ballast_weights(NULL, 0, NULL, NULL, NULL, &error) ==
        BALLAST_INVALID_ARGUMENT);
  CHECK(ballast_load_weights(NULL, NULL, 0, 0, NULL, 0, 1, NULL, &error) ==
        BALLAST_INVALID_ARGUMENT);
  ballast_release(NULL);
  ballast_free(NULL);
  return 0;
}
