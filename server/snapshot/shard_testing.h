// Writes one node's shard in a test, as JobSnapshots does on a daemon.
#ifndef SERVER_SNAPSHOT_SHARD_TESTING_H_
#define SERVER_SNAPSHOT_SHARD_TESTING_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/optimizer/residuals.h"
#include "server/snapshot/capture.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/file_system.h"
#include "server/snapshot/files/manifest.h"
#include "server/snapshot/io_queue.h"
#include "server/snapshot/shard_plan.h"
#include "server/snapshot/shard_writer.h"
#include "server/snapshot/snapshot_rig.h"

namespace ballast::snapshot {

// Of the state that the rig holds at the manifest's step; nodes in ascending
// order. `residuals`: where the content has them.
inline void SaveShard(SnapshotRig& rig, const ShardContent& content,
                      optimizer::Residuals* residuals,
                      std::vector<Cursor> cursors, FileSystem& files,
                      Manifest* manifest) {
  base::SimExecutor executor(1);
  base::SimComputePool pool(&executor, 1, 1);
  const ShardPlan plan(rig.layout(), rig.node(), content);
  Capture capture(&plan, rig.state(), rig.places(), residuals);
  std::vector<std::byte> image(plan.image_bytes());
  capture.Begin(image, manifest->optimizer_step);
  IoQueue io(&pool);
  ShardWriter::Parts parts;
  parts.files = &files;
  parts.io = &io;
  parts.clock = &executor;
  parts.executor = &executor;
  parts.plan = &plan;
  parts.capture = &capture;
  parts.image = image;
  parts.weights = rig.places();
  ShardWriter writer(parts, TemporaryPath("job", manifest->id),
                     ShardName(rig.node().value(), manifest->num_nodes),
                     std::move(cursors), [&](absl::StatusOr<FileInfo> info) {
                       ASSERT_THAT(info, base::IsOk());
                       manifest->files.push_back(*info);
                     });
  writer.Start();
  executor.RunUntilIdle();
}

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_SHARD_TESTING_H_
