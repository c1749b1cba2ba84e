#include "server/daemon/kept/kept_formats.h"

#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "proto/control_block.h"
#include "server/base/status_macros.h"
#include "server/collective/published_chunks.h"

namespace ballast::daemon {
namespace {

// Of daemons that did not record them.
constexpr uint32_t kFirstControlBlock = 6;
constexpr uint32_t kFirstPublishedChunks = 1;

absl::Status Check(std::string_view what, uint32_t found, uint32_t first,
                   uint32_t own) {
  if (found == 0) found = first;
  if (found == own) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("its ", absl::string_view(what.data(), what.size()),
                   " are kept in format ", found, ", this version knows ", own,
                   ": start the version of ballastd that wrote them"));
}

}  // namespace

v1::KeptFormats OwnFormats() {
  v1::KeptFormats formats;
  formats.set_control_block(proto::kControlBlockVersion);
  formats.set_published_chunks(collective::PublishedChunks::kVersion);
  return formats;
}

absl::Status CheckFormats(const v1::KeptFormats& formats) {
  RETURN_IF_ERROR(Check("control blocks", formats.control_block(),
                        kFirstControlBlock, proto::kControlBlockVersion));
  return Check("published chunks", formats.published_chunks(),
               kFirstPublishedChunks, collective::PublishedChunks::kVersion);
}

}  // namespace ballast::daemon
