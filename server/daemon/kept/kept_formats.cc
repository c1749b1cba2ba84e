#include "server/daemon/kept/kept_formats.h"

#include <cstdint>
#include <string_view>

#include "proto/control_block.h"
#include "server/base/status_macros.h"
#include "server/collective/published_chunks.h"
#include "server/device/kept_version.h"
#include "server/optimizer/residuals.h"
#include "server/optimizer/shard_state.h"
#include "server/optimizer/undo_log.h"

namespace ballast::daemon {
namespace {

// Of daemons that did not record them.
constexpr uint32_t kFirstControlBlock = 6;
constexpr uint32_t kFirstPublishedChunks = 1;
constexpr uint32_t kFirstShardState = 2;
constexpr uint32_t kFirstUndoLog = 2;
constexpr uint32_t kFirstResiduals = 1;

absl::Status Check(std::string_view what, uint32_t found, uint32_t first,
                   uint32_t own) {
  return device::CheckKeptVersion(what, found == 0 ? first : found, own);
}

}  // namespace

v1::KeptFormats OwnFormats() {
  v1::KeptFormats formats;
  formats.set_control_block(proto::kControlBlockVersion);
  formats.set_published_chunks(collective::PublishedChunks::kVersion);
  formats.set_shard_state(optimizer::ShardState::kVersion);
  formats.set_undo_log(optimizer::UndoLog::kVersion);
  formats.set_residuals(optimizer::Residuals::kVersion);
  return formats;
}

absl::Status CheckFormats(const v1::KeptFormats& formats) {
  RETURN_IF_ERROR(Check("control blocks", formats.control_block(),
                        kFirstControlBlock, proto::kControlBlockVersion));
  RETURN_IF_ERROR(Check("published chunks", formats.published_chunks(),
                        kFirstPublishedChunks,
                        collective::PublishedChunks::kVersion));
  RETURN_IF_ERROR(Check(optimizer::ShardState::kWhat, formats.shard_state(),
                        kFirstShardState, optimizer::ShardState::kVersion));
  RETURN_IF_ERROR(Check(optimizer::UndoLog::kWhat, formats.undo_log(),
                        kFirstUndoLog, optimizer::UndoLog::kVersion));
  return Check(optimizer::Residuals::kWhat, formats.residuals(),
               kFirstResiduals, optimizer::Residuals::kVersion);
}

}  // namespace ballast::daemon
