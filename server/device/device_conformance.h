// What every device backend must do. A backend's test instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance, Values(factory));
#ifndef SERVER_DEVICE_DEVICE_CONFORMANCE_H_
#define SERVER_DEVICE_DEVICE_CONFORMANCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/executor.h"
#include "server/base/segment.h"
#include "server/base/sim_executor.h"
#include "server/base/status_matchers.h"
#include "server/device/device.h"

namespace ballast::device {

class TestDevice {
 public:
  virtual ~TestDevice() = default;
  virtual Device* device() = 0;
};

using TestDeviceFactory = std::unique_ptr<TestDevice> (*)(
    base::Executor* executor, uint64_t limit_bytes);

class DeviceConformance : public ::testing::TestWithParam<TestDeviceFactory> {
 protected:
  static constexpr uint64_t kLimit = 1 << 20;

  // The bytes, through a queue: the only way that every backend offers.
  std::vector<std::byte> Read(std::span<const std::byte> bytes) {
    std::vector<std::byte> copy(bytes.size());
    auto queue = device().CreateQueue();
    queue->Copy(copy, bytes);
    Finish(queue.get());
    return copy;
  }
  void Write(std::span<std::byte> bytes, std::byte value) {
    auto queue = device().CreateQueue();
    queue->Fill(bytes, value);
    Finish(queue.get());
  }
  void Finish(Queue* queue) {
    int calls = 0;
    queue->OnDone([&](absl::Status status) {
      EXPECT_THAT(status, base::IsOk());
      ++calls;
    });
    EXPECT_EQ(calls, 0) << "completion comes on the control thread";
    EXPECT_TRUE(world_.RunUntilIdle());
    EXPECT_EQ(calls, 1);
  }
  static bool IsAll(const std::vector<std::byte>& bytes, std::byte value) {
    return std::ranges::all_of(bytes, [&](std::byte b) { return b == value; });
  }
  Device& device() { return *device_->device(); }

  base::SimExecutor world_{1};
  std::unique_ptr<TestDevice> device_ = GetParam()(&world_, kLimit);
};

// I13: also when the same bytes were used before.
TEST_P(DeviceConformance, BuffersAreZeroed) {
  for (int round = 0; round < 3; ++round) {
    auto shared = device().AllocateShared(10'000, "shared");
    auto own = device().AllocatePrivate(10'000, "private");
    ASSERT_THAT(shared, base::IsOk());
    ASSERT_THAT(own, base::IsOk());
    EXPECT_TRUE(IsAll(Read((*shared)->bytes()), std::byte{0}));
    EXPECT_TRUE(IsAll(Read((*own)->bytes()), std::byte{0}));
    Write((*shared)->bytes(), std::byte{0xab});
    Write((*own)->bytes(), std::byte{0xcd});
    EXPECT_TRUE(IsAll(Read((*shared)->bytes()), std::byte{0xab}));
    EXPECT_TRUE(IsAll(Read((*own)->bytes()), std::byte{0xcd}));
  }
}

TEST_P(DeviceConformance, CountsWhatIsInUseAndKeepsTheLimit) {
  auto shared = device().AllocateShared(1000, "a");
  ASSERT_THAT(shared, base::IsOk());
  auto own = device().AllocatePrivate(2000, "b");
  ASSERT_THAT(own, base::IsOk());
  EXPECT_GE(device().shared_bytes_in_use(), 1000u);
  EXPECT_GE(device().private_bytes_in_use(), 2000u);
  EXPECT_THAT(device().AllocateShared(kLimit, "too much"),
              base::StatusIs(absl::StatusCode::kResourceExhausted, "too much"));
  EXPECT_THAT(device().AllocatePrivate(kLimit, "too much"),
              base::StatusIs(absl::StatusCode::kResourceExhausted, "in use"));
  EXPECT_THAT(device().AllocateShared(0, "nothing"),
              base::StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(device().AllocatePrivate(UINT64_MAX, "overflow"),
              base::StatusIs(absl::StatusCode::kInvalidArgument));
  shared->reset();
  own->reset();
  EXPECT_EQ(device().shared_bytes_in_use(), 0u);
  EXPECT_EQ(device().private_bytes_in_use(), 0u);
  EXPECT_THAT(device().AllocatePrivate(kLimit, "fits now"), base::IsOk());
}

TEST_P(DeviceConformance, SparseBuffersTakeWhatIsCharged) {
  auto sparse = device().AllocateSparse(10 * kLimit, 1000, "sparse");
  ASSERT_THAT(sparse, base::IsOk());
  EXPECT_EQ((*sparse)->size_bytes(), 10 * kLimit);
  EXPECT_GE(device().shared_bytes_in_use(), 1000u);
  EXPECT_LT(device().shared_bytes_in_use(), kLimit);
  EXPECT_THAT(device().AllocateSparse(1000, kLimit, "too much"),
              base::StatusIs(absl::StatusCode::kResourceExhausted, "too much"));
  constexpr uint64_t kRange = 3 << 16;  // whole pages of any size
  ASSERT_THAT((*sparse)->Reserve(kRange, kRange), base::IsOk());
  const std::span<std::byte> range = (*sparse)->bytes().subspan(kRange, kRange);
  EXPECT_TRUE(IsAll(Read(range), std::byte{0}));
  Write(range, std::byte{0xab});
  (*sparse)->Discard(kRange, kRange);
  EXPECT_TRUE(IsAll(Read(range), std::byte{0}));  // I13
}

TEST_P(DeviceConformance, QueuesKeepTheirOrder) {
  auto a = device().AllocatePrivate(64, "a");
  auto b = device().AllocatePrivate(64, "b");
  ASSERT_THAT(a, base::IsOk());
  ASSERT_THAT(b, base::IsOk());
  auto queue = device().CreateQueue();
  queue->Fill((*a)->bytes(), std::byte{1});
  queue->Copy((*b)->bytes(), (*a)->bytes());
  queue->Fill((*a)->bytes(), std::byte{2});
  Finish(queue.get());
  EXPECT_TRUE(IsAll(Read((*a)->bytes()), std::byte{2}));
  EXPECT_TRUE(IsAll(Read((*b)->bytes()), std::byte{1}));
}

TEST_P(DeviceConformance, ABadCopyIsReportedOnce) {
  auto a = device().AllocatePrivate(64, "a");
  ASSERT_THAT(a, base::IsOk());
  auto queue = device().CreateQueue();
  queue->Copy((*a)->bytes().first(3), (*a)->bytes().last(4));
  absl::Status status;
  queue->OnDone([&](absl::Status result) { status = std::move(result); });
  world_.RunUntilIdle();
  EXPECT_THAT(status, base::StatusIs(absl::StatusCode::kInternal));
  Finish(queue.get());
}

TEST_P(DeviceConformance, ExportedMemoryIsTheSameMemory) {
  if (!device().capabilities().is_host_addressable) GTEST_SKIP();
  auto buffer = device().AllocateShared(4096, "shared");
  ASSERT_THAT(buffer, base::IsOk());
  auto fd = (*buffer)->Export(base::Access::kReadWrite);
  ASSERT_THAT(fd, base::IsOk());
  auto mapped =
      base::Segment::Map(*std::move(fd), 4096, base::Access::kReadWrite);
  ASSERT_THAT(mapped, base::IsOk());
  mapped->bytes()[5] = std::byte{7};
  EXPECT_EQ((*buffer)->bytes()[5], std::byte{7});
}

TEST_P(DeviceConformance, AReadOnlyExportCannotBeWritten) {
  if (!device().capabilities().can_export_read_only) GTEST_SKIP();
  auto buffer = device().AllocateShared(4096, "shared");
  ASSERT_THAT(buffer, base::IsOk());
  for (const auto access :
       {base::Access::kReadWrite, base::Access::kReadOnly}) {
    auto fd = (*buffer)->Export(base::Access::kReadOnly);
    ASSERT_THAT(fd, base::IsOk());
    EXPECT_EQ(base::Segment::Map(*std::move(fd), 4096, access).ok(),
              access == base::Access::kReadOnly);
  }
}

}  // namespace ballast::device

#endif  // SERVER_DEVICE_DEVICE_CONFORMANCE_H_
