// Numbers that all nodes give to UCX.
#ifndef SERVER_TRANSPORT_UCX_UCX_IDS_H_
#define SERVER_TRANSPORT_UCX_UCX_IDS_H_

namespace ballast::transport {

inline constexpr unsigned kActiveMessageId = 1;

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_UCX_IDS_H_
