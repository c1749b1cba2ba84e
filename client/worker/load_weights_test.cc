#include "client/worker/load_weights.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "client/worker/fake_daemon.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/control_block.h"
#include "server/base/status_matchers.h"

namespace ballast::worker {
namespace {

using base::IsOk;
using base::StatusIs;
using proto::SequenceWord;
using proto::StepOutcome;

// Two trainable tensors and a frozen one, of 16 floats.
class LoadWeightsTest : public ::testing::Test {
 protected:
  void Start(int rank = 0,
             FakeDaemon::Script script = FakeDaemon::DefaultScript()) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    Options options;
    options.address = daemon_->address();
    options.job.set_name("job");
    for (const char* name : {"a", "b", "frozen"}) {
      auto* tensor = options.job.add_tensors();
      tensor->set_name(name);
      tensor->add_shape(16);
      tensor->set_dtype(v1::DTYPE_FLOAT32);
      tensor->set_frozen(std::string(name) == "frozen");
    }
    options.job.mutable_optimizer()->add_groups()->set_lr(0.5);
    options.topology.set_rank(rank);
    options.topology.set_world_size(2);
    options.topology.set_local_world_size(2);
    auto worker = Worker::Open(std::move(options));
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
  }

  // What comes of it where the daemon commits the step of `word`.
  absl::StatusOr<StepResult> Load(uint64_t word, LoadRequest request,
                                  StepOutcome outcome = StepOutcome::kLoaded) {
    std::thread daemon([&] {
      daemon_->AwaitPushed(word);
      seen_ = {daemon_->gradients().begin(), daemon_->gradients().end()};
      load_ = daemon_->load();
      daemon_->Commit(word, /*open_next=*/true, outcome);
      daemon_->Publish(word);
    });
    auto result = LoadWeights(*worker_, request);
    daemon.join();
    return result;
  }

  std::vector<std::byte> a_ = std::vector<std::byte>(64, std::byte{7});
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Worker> worker_;
  std::vector<std::byte> seen_;
  double load_ = 0;
};

TEST_F(LoadWeightsTest, Rank0GivesValuesInPlaceOfGradients) {
  Start();
  std::ranges::fill(daemon_->weights(), std::byte{3});
  std::ranges::fill(worker_->grads(0), std::byte{9});
  const std::span<const std::byte> values[] = {a_, {}, {}};
  const auto result = Load(SequenceWord(1, 1), {.values = values});
  ASSERT_THAT(result, IsOk());
  EXPECT_TRUE(result->loaded);
  EXPECT_EQ(load_, 1);
  EXPECT_EQ(seen_[0], std::byte{7});
  EXPECT_EQ(seen_[64], std::byte{3}) << "what is not given stays";
  EXPECT_EQ(worker_->open_step(), 2);
  EXPECT_TRUE(std::ranges::all_of(
      worker_->grads(0), [](std::byte b) { return b == std::byte{}; }));
  // An ordinary step follows, with the cursor of the one before.
  ASSERT_THAT(Load(SequenceWord(1, 2),
                   {.values = values, .resets_state = true, .cursor = "two"}),
              IsOk());
  EXPECT_EQ(load_, 2);
  EXPECT_EQ(worker_->cursor(), "two");
  ASSERT_THAT(Load(SequenceWord(1, 3), {.values = values}), IsOk());
  EXPECT_EQ(daemon_->cursor(), "two");
  EXPECT_EQ(worker_->cursor(), "two");
}

TEST_F(LoadWeightsTest, OtherRanksGiveZeros) {
  Start(1);
  std::ranges::fill(worker_->grads(0), std::byte{9});
  ASSERT_THAT(Load(SequenceWord(1, 1), {}), IsOk());
  EXPECT_EQ(load_, 1);
  EXPECT_TRUE(
      std::ranges::all_of(seen_, [](std::byte b) { return b == std::byte{}; }));
}

TEST_F(LoadWeightsTest, RefusesWhatCannotBeLoaded) {
  Start();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(LoadWeights(*worker_, {}),
              StatusIs(kInvalid, "rank 0 gave 0 values for 3 tensors"));
  std::span<const std::byte> values[] = {a_, std::span(a_).first(60), {}};
  EXPECT_THAT(LoadWeights(*worker_, {.values = values}),
              StatusIs(kInvalid, "\"b\" has 60 bytes"));
  values[1] = {};
  values[2] = a_;
  EXPECT_THAT(LoadWeights(*worker_, {.values = values}),
              StatusIs(kFailed, "\"frozen\" is frozen"));
  EXPECT_FALSE(worker_->is_handed_over());
  // The value that it has is none.
  std::ranges::fill(daemon_->weights().subspan(128, 64), std::byte{7});
  EXPECT_THAT(Load(SequenceWord(1, 1), {.values = values}), IsOk());
  values[2] = {};
  ASSERT_THAT(worker_->Push(0), IsOk());
  EXPECT_THAT(LoadWeights(*worker_, {.values = values}),
              StatusIs(kFailed, "step 2 were pushed already"));
}

TEST_F(LoadWeightsTest, AFormerWorkersStepIsNotTakenForIt) {
  FakeDaemon::Script script = FakeDaemon::DefaultScript();
  script.begin.add_pushed_buckets(0);
  script.begin.add_pushed_buckets(1);
  script.begin.set_has_step_input(true);
  script.begin.set_step_cursor("of the former");
  for (const auto outcome : {StepOutcome::kCommitted, StepOutcome::kLoaded}) {
    worker_.reset();
    Start(0, script);
    daemon_->Commit(SequenceWord(1, 1), /*open_next=*/true, outcome);
    daemon_->Publish(SequenceWord(1, 1));
    const std::span<const std::byte> values[] = {a_, {}, {}};
    const auto result = LoadWeights(*worker_, {.values = values});
    EXPECT_EQ(result.ok(), outcome == StepOutcome::kLoaded);
    if (!result.ok()) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   "was an ordinary one"));
    }
    EXPECT_EQ(worker_->cursor(), "of the former");
    EXPECT_EQ(worker_->open_step(), 2);
  }
}

}  // namespace
}  // namespace ballast::worker
