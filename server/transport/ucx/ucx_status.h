// The one translation of UCX's codes into Status.
#ifndef SERVER_TRANSPORT_UCX_UCX_STATUS_H_
#define SERVER_TRANSPORT_UCX_UCX_STATUS_H_

#include <ucs/type/status.h>

#include <string_view>

#include "absl/status/status.h"

namespace ballast::transport {

// "CONTEXT: Connection reset by remote peer"; OK for UCS_OK.
absl::Status UcxStatus(ucs_status_t status, std::string_view context);

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_UCX_STATUS_H_
