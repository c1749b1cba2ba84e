// Replies of the daemon as tables for people.
//
// Threading: pure functions.
#ifndef CLIENT_CTL_RENDER_H_
#define CLIENT_CTL_RENDER_H_

#include <cstdint>
#include <string>

#include "proto/admin.pb.h"

namespace ballast::ctl {

std::string FormatBytes(uint64_t size_bytes);  // 1.5 GiB
std::string FormatSeconds(double seconds);     // 2h 3m, 4.2 s

std::string Render(const v1::StatusReply& status);
std::string Render(const v1::ListJobsReply& jobs);
std::string Render(const v1::GetJobReply& job);
std::string Render(const v1::VersionReply& version);

}  // namespace ballast::ctl

#endif  // CLIENT_CTL_RENDER_H_
