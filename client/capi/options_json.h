// The options of ballast_open: JSON text to worker::Options, strictly.
//
// Threading: a pure function.
#ifndef CLIENT_CAPI_OPTIONS_JSON_H_
#define CLIENT_CAPI_OPTIONS_JSON_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "client/worker/options.h"

namespace ballast::capi {

// Everything but tensors. InvalidArgument names the key, the value and what
// is allowed; an unknown key also the nearest known one.
absl::StatusOr<worker::Options> ParseOptions(std::string_view json);

}  // namespace ballast::capi

#endif  // CLIENT_CAPI_OPTIONS_JSON_H_
