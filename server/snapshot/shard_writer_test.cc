#include "server/snapshot/shard_writer.h"

#include <optional>

#include "gtest/gtest.h"
#include "server/base/sim_compute_pool.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/snapshot/files/memory_file_system.h"
#include "server/snapshot/files/safetensors.h"
#include "server/snapshot/snapshot_rig.h"

namespace ballast::snapshot {
namespace {

using base::IsOk;
using base::StatusIs;

class ShardWriterTest : public testing::Test {
 protected:
  std::unique_ptr<ShardWriter> Make(uint64_t rate = 0,
                                    bool has_weights = true) {
    rig_.Fill(2);
    capture_.Begin(image_, 0);
    ShardWriter::Parts parts;
    parts.files = &files_;
    parts.io = &io_;
    parts.clock = &executor_;
    parts.executor = &executor_;
    parts.plan = &plan_;
    parts.capture = &capture_;
    parts.image = image_;
    if (has_weights) parts.weights = rig_.places();
    parts.max_bytes_per_second = rate;
    parts.slice_bytes = 5000;  // cuts sections
    return std::make_unique<ShardWriter>(
        parts, "job/.tmp-1", "shard", std::vector<Cursor>{{1, "here"}, {0, ""}},
        [this](absl::StatusOr<FileInfo> info) { result_ = std::move(info); });
  }

  base::SimExecutor executor_{1};
  base::SimComputePool pool_{&executor_, 1, 1};
  MemoryFileSystem files_;
  SnapshotRig rig_{1, 2, 0, &executor_};
  const ShardPlan plan_{rig_.layout(), rig_.node(), rig_.content()};
  Capture capture_{&plan_, rig_.state(), rig_.places()};
  std::vector<std::byte> image_ = std::vector<std::byte>(plan_.image_bytes());
  IoQueue io_{&pool_};
  std::optional<absl::StatusOr<FileInfo>> result_;
};

TEST_F(ShardWriterTest, WritesAFileWhoseChecksumsHold) {
  const auto writer = Make();
  writer->Start();
  executor_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  ASSERT_THAT(*result_, IsOk());
  const std::string bytes = *files_.Contents("job/.tmp-1/shard");
  EXPECT_EQ((*result_)->size_bytes, bytes.size());
  const auto header = ReadHeader(**files_.Open("job/.tmp-1/shard"));
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ((*result_)->header_checksum, header->checksum);
  EXPECT_EQ(header->sections.size(), plan_.sections().size() + 2);
  const std::string checksums = header->metadata.at("checksums");
  for (size_t i = 0; i < header->sections.size(); ++i) {
    const Section& section = header->sections[i];
    EXPECT_EQ(checksums.substr(16 * i, 16),
              ToHex16(Checksum(std::string_view(bytes).substr(
                  header->data_begin + section.begin, section.size_bytes()))))
        << section.name;
  }
  EXPECT_EQ(writer->bytes_written(), writer->bytes_total());
}

TEST_F(ShardWriterTest, KeepsToItsRate) {
  const auto writer = Make(/*rate=*/100'000);
  const absl::Time start = executor_.Now();
  writer->Start();
  executor_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value() && result_->ok());
  const double seconds = absl::ToDoubleSeconds(executor_.Now() - start);
  EXPECT_GE(seconds, static_cast<double>(writer->bytes_total()) / 100'000);
  EXPECT_LE(seconds, static_cast<double>(writer->bytes_total()) / 90'000);
}

TEST_F(ShardWriterTest, LeavesNothingWhereverItFails) {  // I28
  int64_t changes = 0;
  {
    const auto writer = Make();
    writer->Start();
    executor_.RunUntilIdle();
    changes = files_.changes();
    ASSERT_THAT(files_.RemoveAll("job"), IsOk());
  }
  for (int64_t at = 0; at < changes; ++at) {
    result_.reset();
    files_.FailAfter(at, /*failures=*/1);
    const auto writer = Make();
    writer->Start();
    executor_.RunUntilIdle();
    ASSERT_TRUE(result_.has_value()) << at;
    EXPECT_THAT(*result_, StatusIs(absl::StatusCode::kInternal)) << at;
    files_.FailAfter(INT64_MAX);
    EXPECT_EQ(files_.bytes(), 0u) << at;
    ASSERT_THAT(files_.RemoveAll("job"), IsOk());
  }
}

TEST_F(ShardWriterTest, StoresNothingWithoutItsFrozenTensors) {
  const auto writer = Make(/*rate=*/0, /*has_weights=*/false);
  writer->Start();
  executor_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_THAT(*result_,
              StatusIs(absl::StatusCode::kInternal, "bytes to store"));
  EXPECT_EQ(files_.bytes(), 0u);
}

TEST_F(ShardWriterTest, FindsADiskThatIsFullBeforeItWrites) {
  files_.set_capacity(1000);
  const auto writer = Make();
  writer->Start();
  executor_.RunUntilIdle();
  ASSERT_TRUE(result_.has_value());
  EXPECT_THAT(*result_,
              StatusIs(absl::StatusCode::kResourceExhausted, "No space left"));
  EXPECT_EQ(files_.Contents("job/.tmp-1/shard"), nullptr);
}

TEST_F(ShardWriterTest, MayBeGivenUpAtAnyTime) {
  for (int steps = 0; steps < 60; ++steps) {
    result_.reset();
    const auto writer = Make(/*rate=*/1'000'000);
    writer->Start();
    for (int i = 0; i < steps && executor_.Step(); ++i) {
    }
    const bool was_done = result_.has_value();
    if (!was_done) writer->Cancel();
    executor_.RunUntilIdle();
    ASSERT_TRUE(result_.has_value()) << steps;
    if (!result_->ok()) {
      EXPECT_THAT(*result_, StatusIs(absl::StatusCode::kCancelled));
      EXPECT_EQ(files_.Contents("job/.tmp-1/shard"), nullptr) << steps;
    }
    ASSERT_THAT(files_.RemoveAll("job"), IsOk());
  }
}

}  // namespace
}  // namespace ballast::snapshot
