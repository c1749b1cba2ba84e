#include "server/snapshot/shard_courier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::snapshot {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(2);

}  // namespace

ShardCourier::ShardCourier(Parts parts)
    : parts_(std::move(parts)), alive_(std::make_shared<int>(0)) {}

ShardCourier::~ShardCourier() { SetPulls(nullptr); }

void ShardCourier::SetPulls(transport::Pulls* pulls) {
  if (pulls_ != nullptr) pulls_->SetSource(kReplicaPull, nullptr);
  if (order_.has_value()) {
    End(absl::UnavailableError("the links to the other nodes were lost"));
  }
  pulls_ = pulls;
  if (pulls_ != nullptr) pulls_->SetSource(kReplicaPull, this);
}

// ---- What this node holds. ----

void ShardCourier::OnPull(NodeRank, const transport::PullKey& key,
                          transport::PullReply reply) {
  const std::shared_ptr<HeldFile> file =
      parts_.find(key.version.value(), key.owner.value());
  if (file == nullptr) {
    return std::move(reply).Refuse(absl::NotFoundError(
        absl::StrCat("it holds no shard ", key.owner.value(),
                     " of the replica of step ", key.version.value())));
  }
  const uint64_t begin = key.chunk * kCourierSliceBytes;
  if (begin >= file->size_bytes()) {
    return std::move(reply).Refuse(absl::InvalidArgumentError(absl::StrCat(
        "a shard of ", file->size_bytes(), " bytes has no slice ", key.chunk)));
  }
  const uint64_t size =
      std::min(kCourierSliceBytes, file->size_bytes() - begin);
  std::move(reply).Send(file->bytes().subspan(begin, size),
                        [this, file, size, alive = std::weak_ptr<int>(alive_)](
                            const absl::Status& status) {
                          if (status.ok() && !alive.expired())
                            bytes_sent_ += size;
                        });
}

// ---- What another node holds. ----

void ShardCourier::Fetch(Order order, Done done) {
  order_ = std::move(order);
  done_ = std::move(done);
  next_ = order_->begin / kCourierSliceBytes * kCourierSliceBytes;
  busy_since_ = absl::InfiniteFuture();
  timer_ = parts_.executor->PostAfter(absl::ZeroDuration(), [this] {
    timer_ = 0;
    Pump();
  });
}

absl::Duration ShardCourier::Wait() {
  const absl::Time now = parts_.clock->Now();
  if (due_ > now) return due_ - now;
  if (parts_.is_busy == nullptr || !parts_.is_busy()) {
    busy_since_ = absl::InfiniteFuture();
    return absl::ZeroDuration();
  }
  busy_since_ = std::min(busy_since_, now);
  if (now - busy_since_ < kPatience) return kLookAgain;
  busy_since_ = absl::InfiniteFuture();
  return absl::ZeroDuration();
}

void ShardCourier::Pump() {
  if (pulls_ == nullptr) {
    return End(absl::UnavailableError("there is no link to the other nodes"));
  }
  while (next_ < order_->end &&
         static_cast<int>(pulling_.size()) < parts_.window) {
    const absl::Duration wait = Wait();
    if (wait > absl::ZeroDuration()) {
      if (timer_ != 0) return;
      timer_ = parts_.executor->PostAfter(wait, [this] {
        timer_ = 0;
        Pump();
      });
      return;
    }
    if (const absl::Status status = PullNext(); !status.ok()) {
      return End(status);
    }
  }
  if (next_ >= order_->end && pulling_.empty()) End(absl::OkStatus());
}

absl::Status ShardCourier::PullNext() {
  const uint64_t size =
      std::min(kCourierSliceBytes, order_->file->size_bytes() - next_);
  transport::PullKey key;
  key.version = WeightVersion(order_->version);
  key.owner = NodeRank(order_->shard);
  key.kind = kReplicaPull;
  key.chunk = static_cast<uint32_t>(next_ / kCourierSliceBytes);
  // Known only once the pull is on its way.
  auto id = std::make_shared<transport::PullId>();
  ASSIGN_OR_RETURN(*id,
                   pulls_->Pull(order_->from, key,
                                order_->file->bytes().subspan(next_, size),
                                [this, id, size](const absl::Status& status) {
                                  OnSlice(*id, size, status);
                                }));
  pulling_.push_back(*id);
  next_ += size;
  if (parts_.max_bytes_per_second > 0) {
    due_ = std::max(due_, parts_.clock->Now()) +
           absl::Seconds(static_cast<double>(size) /
                         static_cast<double>(parts_.max_bytes_per_second));
  }
  return absl::OkStatus();
}

void ShardCourier::OnSlice(transport::PullId id, uint64_t size,
                           const absl::Status& status) {
  std::erase(pulling_, id);
  if (!status.ok()) return End(status);
  bytes_received_ += size;
  Pump();
}

void ShardCourier::Stop() {
  parts_.executor->Cancel(std::exchange(timer_, 0));
  for (const transport::PullId id : std::exchange(pulling_, {})) {
    if (pulls_ != nullptr) pulls_->Cancel(id);
  }
  order_.reset();
}

void ShardCourier::End(const absl::Status& status) {
  Stop();
  parts_.executor->Post(
      [this, status, fetch = ++fetch_, alive = std::weak_ptr<int>(alive_)] {
        if (alive.expired() || fetch != fetch_) return;
        std::exchange(done_, nullptr)(status);
      });
}

void ShardCourier::Cancel() {
  Stop();
  ++fetch_;
  done_ = nullptr;
}

}  // namespace ballast::snapshot
