#include "server/daemon/job_record.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/segment.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/host/host_device.h"

namespace ballast::daemon {
namespace {

v1::PeerFrame CommitOf(int64_t step) {
  v1::PeerFrame frame;
  frame.set_generation(1);
  frame.mutable_commit()->set_step(step);
  frame.mutable_commit()->add_scalars(std::string(64, 'x'));
  return frame;
}

// Hands out memory that the test keeps its own mapping of.
class JobRecordTest : public testing::Test {
 protected:
  JobRecordTest() {
    job_.mutable_request()->mutable_job()->set_name("gpt2");
    job_.set_uid(1000);
    job_.set_layout_digest("0123456789abcdef");
    record_ = *JobRecord::Create(&device_, job_);
  }

  // A later life of the memory `bytes`.
  absl::StatusOr<std::unique_ptr<JobRecord>> OpenOf(
      const std::vector<std::byte>& bytes) {
    auto buffer = device_.AllocateShared(bytes.size(), "copy");
    std::memcpy((*buffer)->bytes().data(), bytes.data(), bytes.size());
    return JobRecord::Open(*std::move(buffer));
  }
  std::vector<std::byte> Bytes() {
    const std::span<std::byte> bytes = device_memory();
    return {bytes.begin(), bytes.end()};
  }
  std::span<std::byte> device_memory() { return lent_.last; }

  // Remembers where the record is.
  class LendingDevice final : public device::Device {
   public:
    explicit LendingDevice(device::Device* device) : device_(device) {}
    const device::Capabilities& capabilities() const override {
      return device_->capabilities();
    }
    absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AllocateShared(
        uint64_t size, std::string_view name) override {
      auto buffer = device_->AllocateShared(size, name);
      if (buffer.ok()) last = (*buffer)->bytes();
      return buffer;
    }
    absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AllocateSparse(
        uint64_t, uint64_t, std::string_view) override {
      return absl::UnimplementedError("not asked for");
    }
    absl::StatusOr<std::unique_ptr<device::SharedBuffer>> AdoptShared(
        base::UniqueFd, uint64_t, uint64_t, std::string_view) override {
      return absl::UnimplementedError("not asked for");
    }
    absl::StatusOr<std::unique_ptr<device::PrivateBuffer>> AllocatePrivate(
        uint64_t, std::string_view) override {
      return absl::UnimplementedError("not asked for");
    }
    std::unique_ptr<device::Queue> CreateQueue() override {
      return device_->CreateQueue();
    }
    uint64_t shared_bytes_in_use() const override { return 0; }
    uint64_t private_bytes_in_use() const override { return 0; }

    std::span<std::byte> last;

   private:
    device::Device* const device_;
  };

  base::SimExecutor executor_{1};
  device::HostDevice device_{{}, &executor_};
  LendingDevice lent_{&device_};
  v1::KeptJob job_;
  std::unique_ptr<JobRecord> record_;

  // From now on in memory that the test sees.
  void Restart() { record_ = *JobRecord::Create(&lent_, job_); }
};

TEST_F(JobRecordTest, IsReadByTheNextLife) {
  Restart();
  record_->Begin(Step(41), 0);
  EXPECT_THAT(record_->Record(CommitOf(41), {}), base::IsOk());
  EXPECT_THAT(record_->Record(CommitOf(42), {}), base::IsOk());
  record_->SetFinished(Step(41));
  record_->SetLoaded(Step(40));
  record_->SetClosed(LocalRank(3));
  const auto next = OpenOf(Bytes());
  ASSERT_THAT(next, base::IsOk());
  EXPECT_EQ((*next)->job().request().job().name(), "gpt2");
  EXPECT_EQ((*next)->job().layout_digest(), "0123456789abcdef");
  EXPECT_EQ((*next)->finished(), Step(41));
  EXPECT_EQ((*next)->loaded(), Step(40));
  EXPECT_TRUE((*next)->is_closed(LocalRank(3)));
  EXPECT_FALSE((*next)->is_closed(LocalRank(2)));
  ASSERT_TRUE((*next)->last().has_value());
  EXPECT_EQ((*next)->last()->commit().step(), 42);
}

TEST_F(JobRecordTest, BudgetAndErrorsAreReadByTheNextLife) {
  Restart();
  record_->Begin(Step(1), 0);
  membership::BudgetState budget;
  budget[0] = {{.codec = layout::CodecId::kInt8, .calm = 7},
               {.codec = layout::CodecId::kNone, .calm = 0}};
  EXPECT_THAT(record_->Record(CommitOf(1), budget), base::IsOk());
  v1::StepNotes notes;
  notes.set_step(1);
  notes.mutable_weight_errors()->add_tensors()->set_sampled(5);
  EXPECT_TRUE(record_->SetNotes(notes));
  const auto next = OpenOf(Bytes());
  ASSERT_THAT(next, base::IsOk());
  EXPECT_EQ((*next)->budget(), budget);
  EXPECT_EQ((*next)->notes().step(), 1);
  EXPECT_EQ((*next)->notes().weight_errors().tensors(0).sampled(), 5u);
  notes.mutable_weight_errors()
      ->add_tensors()
      ->mutable_error2()
      ->mutable_limbs()
      ->Resize(1 << 14, 1);
  EXPECT_FALSE(record_->SetNotes(notes));
}

// As an older daemon wrote it: no notes, and outcomes of another form.
TEST_F(JobRecordTest, VersionOneIsRead) {
  Restart();
  record_->Begin(Step(41), 0);
  std::vector<std::byte> bytes = Bytes();
  constexpr size_t kNotes = 2 * (64 << 10);
  constexpr size_t kOutcomes = 2 * (128 << 10);
  bytes.erase(bytes.end() - kOutcomes - kNotes, bytes.end() - kOutcomes);
  bytes[8] = std::byte{1};
  TwoSlots(std::span(bytes).last(kOutcomes))
      .Write(CommitOf(42).SerializeAsString());
  const auto next = OpenOf(bytes);
  ASSERT_THAT(next, base::IsOk());
  EXPECT_EQ((*next)->job().request().job().name(), "gpt2");
  ASSERT_TRUE((*next)->last().has_value());
  EXPECT_EQ((*next)->last()->commit().step(), 42);
  EXPECT_FALSE((*next)->SetNotes(v1::StepNotes()));
  EXPECT_THAT((*next)->Record(CommitOf(43), {}), base::IsOk());
  EXPECT_EQ((*next)->last()->commit().step(), 43);
}

// A daemon that knows 2 ends such a job, and only such a job.
TEST_F(JobRecordTest, WeightsThatAreNotResidentAreVersionThree) {
  for (const bool gathers : {false, true}) {
    job_.set_gathers_weights(gathers);
    Restart();
    record_->Begin(Step(1), 0);
    std::vector<std::byte> bytes = Bytes();
    EXPECT_EQ(bytes[8], std::byte{gathers ? uint8_t{3} : uint8_t{2}});
    const auto next = OpenOf(bytes);
    ASSERT_THAT(next, base::IsOk());
    EXPECT_EQ((*next)->job().gathers_weights(), gathers);
    EXPECT_EQ((*next)->first_update(), 0);
    bytes[8] = std::byte{5};
    EXPECT_THAT(OpenOf(bytes).status().message(),
                testing::HasSubstr("format 5, this version knows 1 to 4"));
  }
}

// Nor one that knows 3 a job that began with what was stored of them.
TEST_F(JobRecordTest, WhatItBeganWithIsVersionFour) {
  for (const bool gathers : {false, true}) {
    job_.set_gathers_weights(gathers);
    Restart();
    record_->Begin(Step(8), 6);
    std::vector<std::byte> bytes = Bytes();
    EXPECT_EQ(bytes[8], std::byte{gathers ? uint8_t{4} : uint8_t{2}});
    const auto next = OpenOf(bytes);
    ASSERT_THAT(next, base::IsOk());
    EXPECT_EQ((*next)->first_update(), gathers ? 6 : 0);
    EXPECT_EQ((*next)->finished(), Step(7));
  }
}

TEST_F(JobRecordTest, AJobThatDidNotRunIsNone) {
  Restart();
  EXPECT_TRUE(absl::IsUnavailable(OpenOf(Bytes()).status()));
}

// I20: whatever the instant of death, the last outcome or the one before.
TEST_F(JobRecordTest, AWriteCutAnywhereLeavesOneOfTwoOutcomes) {
  Restart();
  record_->Begin(Step(1), 0);
  EXPECT_THAT(record_->Record(CommitOf(1), {}), base::IsOk());
  EXPECT_THAT(record_->Record(CommitOf(2), {}), base::IsOk());
  const std::vector<std::byte> before = Bytes();
  EXPECT_THAT(record_->Record(CommitOf(3), {}), base::IsOk());
  const std::vector<std::byte> after = Bytes();
  std::vector<std::byte> cut = before;
  int olds = 0;
  int news = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    if (cut[i] == after[i]) continue;
    const auto next = OpenOf(cut);
    ASSERT_THAT(next, base::IsOk());
    ASSERT_TRUE((*next)->last().has_value());
    olds += (*next)->last()->commit().step() == 2;
    cut[i] = after[i];
  }
  const auto next = OpenOf(cut);
  news += (*next)->last()->commit().step() == 3;
  EXPECT_GT(olds, 8);
  EXPECT_EQ(news, 1);
}

// I27: any bytes are safe to read, damage is told.
TEST_F(JobRecordTest, DamageIsFound) {
  Restart();
  record_->Begin(Step(1), 0);
  EXPECT_THAT(record_->Record(CommitOf(1), {}), base::IsOk());
  const std::vector<std::byte> good = Bytes();
  for (const size_t at :
       {size_t{0}, size_t{16}, size_t{24}, size_t{4096}, size_t{4100}}) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{0x40};
    EXPECT_TRUE(absl::IsDataLoss(OpenOf(bad).status())) << at;
  }
  EXPECT_TRUE(absl::IsDataLoss(OpenOf(std::vector<std::byte>(4096)).status()));
  // Another version's may be whole.
  std::vector<std::byte> other = good;
  other[8] ^= std::byte{0x40};
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenOf(other).status()));
  // A damaged outcome counts as none.
  std::vector<std::byte> bad = good;
  bad[bad.size() - (128 << 10) + 30] ^= std::byte{1};
  const auto next = OpenOf(bad);
  ASSERT_THAT(next, base::IsOk());
  EXPECT_FALSE((*next)->last().has_value());
}

TEST_F(JobRecordTest, AnOutcomeThatIsTooLongIsRefused) {
  v1::PeerFrame frame = CommitOf(1);
  frame.mutable_commit()->add_scalars(std::string(128 << 10, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(record_->Record(frame, {})));
  EXPECT_FALSE(record_->last().has_value());
}

}  // namespace
}  // namespace ballast::daemon
