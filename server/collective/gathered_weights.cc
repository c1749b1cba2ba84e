#include "server/collective/gathered_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::collective {
namespace {

constexpr uint64_t kPage = 4096;

struct Pages {
  uint64_t begin;
  uint64_t end;
};
Pages PagesOf(const layout::ByteRange& bytes) {
  return {bytes.begin / kPage, (bytes.end + kPage - 1) / kPage};
}

}  // namespace

struct GatheredWeights::Task final : base::Task {
  Task(GatheredWeights* owner, int unit, std::function<void(int)> run)
      : owner(owner), unit(unit), run(std::move(run)) {}
  void Run(int thread) override { run(thread); }
  void Done() override { owner->OnTaskDone(unit); }

  GatheredWeights* const owner;
  const int unit;
  const std::function<void(int)> run;
};

GatheredWeights::GatheredWeights(const Parts& parts)
    : parts_(parts),
      units_(parts.owned->units().size()),
      page_users_((parts.segment->size_bytes() + kPage - 1) / kPage),
      alive_(std::make_shared<int>(0)) {
  counts_.limit_bytes = parts.limit_bytes;
}

GatheredWeights::~GatheredWeights() { SetPulls(nullptr); }

void GatheredWeights::SetPulls(transport::Pulls* pulls) {
  if (pulls_ != nullptr) pulls_->SetSource(kGatherPull, nullptr);
  pulls_ = pulls;
  if (pulls_ != nullptr) pulls_->SetSource(kGatherPull, this);
}

std::string GatheredWeights::NameOf(int unit) const {
  return units().is_frozen(unit) ? absl::StrCat("frozen unit ", unit)
                                 : absl::StrCat("bucket ", unit, " of version ",
                                                units_[unit].version.value());
}

// ---- The workers. ----

void GatheredWeights::OnWanted(LocalRank rank, int unit, uint64_t request) {
  if (is_stopped_) return;
  if (request % 2 == 1) {
    Want(rank, unit, request);
  } else {
    GiveBack(rank, unit);
  }
}

void GatheredWeights::Want(LocalRank rank, int index, uint64_t request) {
  Unit& unit = units_[index];
  const auto holder = std::ranges::find(unit.holders, rank, &Holder::rank);
  if (holder != unit.holders.end()) {
    holder->request = request;
  } else {
    if (unit.holders.empty()) {
      const absl::Status room = TakePages(index);
      if (!room.ok() && HasGivenUpTasks()) {
        parked_.push_back({rank, index, request});
        return;
      }
      if (!room.ok()) {
        ++counts_.refusals;
        return parts_.observer->OnRefused(rank, index, request, room);
      }
    }
    unit.holders.push_back({rank, request});
    // Taken up again, it does not leave its pages.
    if (unit.num_tasks > 0) RetryParked();
  }
  if (unit.state == State::kHeld) {
    return parts_.observer->OnHeld(rank, index, request, unit.version);
  }
  TryGather(index);
}

// Whoever still finds no room is refused, unless given-up tasks still run.
void GatheredWeights::RetryParked() {
  for (const Parked& one : std::exchange(parked_, {})) {
    if (!is_stopped_) Want(one.rank, one.unit, one.request);
  }
}

bool GatheredWeights::HasGivenUpTasks() const {
  return std::ranges::any_of(units_, [](const Unit& unit) {
    return unit.num_tasks > 0 && unit.holders.empty();
  });
}

void GatheredWeights::GiveBack(LocalRank rank, int index) {
  std::erase_if(parked_, [&](const Parked& parked) {
    return parked.rank == rank && parked.unit == index;
  });
  Unit& unit = units_[index];
  const auto holder = std::ranges::find(unit.holders, rank, &Holder::rank);
  if (holder == unit.holders.end()) return;  // it was refused
  parts_.observer->OnNotHeld(rank, index, holder->request);
  unit.holders.erase(holder);
  if (!unit.holders.empty()) return;
  GiveUp(index);
  if (unit.num_tasks > 0) return;  // the last one gives its pages back
  GiveBackPages(index);
  RetryParked();
}

absl::Status GatheredWeights::TakePages(int index, bool are_there) {
  const layout::ByteRange& bytes = units().unit(index).bytes;
  // Tasks of a gather that was given up write to pages that are still taken.
  if (bytes.empty() || units_[index].num_tasks > 0) return absl::OkStatus();
  const Pages pages = PagesOf(bytes);
  uint64_t more = 0;
  for (uint64_t p = pages.begin; p < pages.end; ++p) {
    if (page_users_[p] == 0) more += kPage;
  }
  const uint64_t limit = counts_.limit_bytes;
  if (limit > 0 && counts_.resident_bytes + more > limit) {
    return absl::ResourceExhaustedError(absl::StrCat(
        NameOf(index), " needs ", more, " bytes on node ", parts_.owned->self(),
        ", where ", counts_.resident_bytes, " of the ", limit,
        " that the exchange policy's resident_bytes allows are in use; release "
        "what is not needed, or raise it"));
  }
  if (more > 0 && !are_there) {
    RETURN_IF_ERROR(parts_.segment->Reserve(bytes.begin, bytes.size()));
  }
  for (uint64_t p = pages.begin; p < pages.end; ++p) ++page_users_[p];
  counts_.resident_bytes += more;
  return absl::OkStatus();
}

void GatheredWeights::GiveBackPages(int index) {
  const layout::ByteRange& bytes = units().unit(index).bytes;
  if (bytes.empty()) return;
  const Pages pages = PagesOf(bytes);
  uint64_t run = pages.begin;  // of pages that nobody uses
  for (uint64_t p = pages.begin; p <= pages.end; ++p) {
    if (p < pages.end && --page_users_[p] == 0) {
      counts_.resident_bytes -= kPage;
      continue;
    }
    if (run < p) parts_.segment->Discard(run * kPage, (p - run) * kPage);
    run = p + 1;
  }
}

// ---- Gathering. ----

void GatheredWeights::TryGather(int index) {
  const Unit& unit = units_[index];
  if (is_stopped_ || is_suspended_ || unit.holders.empty() ||
      unit.state != State::kAbsent || !unit.is_ready || unit.is_stale ||
      unit.num_tasks > 0) {
    return;
  }
  StartGather(index);
}

void GatheredWeights::StartGather(int index) {
  Unit& unit = units_[index];
  unit.state = State::kGathering;
  unit.tasks.clear();
  const uint64_t attempt = ++unit.attempt;
  OwnedWeights& owned = *parts_.owned;
  const int num_owners = static_cast<int>(units().unit(index).parts.size());
  uint64_t window = 0;
  for (int n = 0; n < num_owners; ++n) {
    if (n != owned.self()) window += PadBytes(owned.PartBytes(index, n));
  }
  if (owned.is_coded(index)) unit.window.resize(window);
  std::span<std::byte> rest(unit.window);
  ++unit.num_pulls;  // until all are asked for
  for (int n = 0; n < num_owners && unit.attempt == attempt; ++n) {
    const uint64_t size = owned.PartBytes(index, n);
    if (size == 0) continue;
    if (n == owned.self()) {
      Place(index, n, owned.Served(index));
      continue;
    }
    std::span<std::byte> into;
    if (owned.is_coded(index)) {
      into = rest.first(size);
      rest = rest.subspan(PadBytes(size));
    } else {
      into = parts_.segment->bytes().subspan(units().unit(index).parts[n].begin,
                                             size);
    }
    const absl::Status asked = PullPart(index, n, into);
    if (!asked.ok()) return Fail(asked);
  }
  --unit.num_pulls;
  FinishIfComplete(index);
}

absl::Status GatheredWeights::PullPart(int index, int owner,
                                       std::span<std::byte> into) {
  Unit& unit = units_[index];
  if (pulls_ == nullptr) {
    return absl::InternalError("parts of other nodes, and no links to them");
  }
  const transport::PullKey key{.generation = generation_,
                               .version = unit.version,
                               .bucket = BucketId(index),
                               .owner = NodeRank(owner),
                               .kind = kGatherPull};
  ASSIGN_OR_RETURN(const transport::PullId id,
                   pulls_->Pull(parts_.owned->NodeOf(owner), key, into,
                                [this, index, owner, attempt = unit.attempt,
                                 into, alive = std::weak_ptr<int>(alive_)](
                                    const absl::Status& status) {
                                  if (alive.expired()) return;
                                  OnPulled(index, owner, attempt, into, status);
                                }));
  unit.pulls.emplace_back(parts_.owned->NodeOf(owner), id);
  ++unit.num_pulls;
  return absl::OkStatus();
}

void GatheredWeights::OnPulled(int index, int owner, uint64_t attempt,
                               std::span<const std::byte> part,
                               const absl::Status& status) {
  Unit& unit = units_[index];
  if (unit.attempt != attempt || unit.state != State::kGathering) return;
  std::erase_if(unit.pulls, [&](const auto& pull) {
    return pull.first == parts_.owned->NodeOf(owner);
  });
  --unit.num_pulls;
  if (absl::IsFailedPrecondition(status)) {
    // The owner has carried out a commit that is on its way to this node.
    GiveUp(index);
    unit.is_stale = true;
    return;
  }
  if (!status.ok()) {
    return Fail(absl::Status(
        status.code(),
        absl::StrCat("node ", parts_.owned->node().value(), " cannot gather ",
                     NameOf(index), ": ", status.message())));
  }
  counts_.payload_pulled += parts_.owned->PartPayload(index, owner);
  if (parts_.owned->is_coded(index)) Place(index, owner, part);
  FinishIfComplete(index);
}

// From a part as it travels to the segment.
void GatheredWeights::Place(int index, int owner,
                            std::span<const std::byte> part) {
  OwnedWeights* const owned = parts_.owned;
  std::byte* const segment = parts_.segment->bytes().data();
  if (!owned->is_coded(index)) {
    std::byte* const to = segment + units().unit(index).parts[owner].begin;
    return Submit(
        index, [part, to](int) { std::memcpy(to, part.data(), part.size()); });
  }
  const BucketId bucket(index);
  for (size_t c = 0; c < owned->num_chunks(bucket, owner); ++c) {
    Submit(index, [owned, bucket, owner, c, part, segment](int thread) {
      owned->DecodeChunk(thread, bucket, owner, c, part.data(), segment);
    });
  }
}

void GatheredWeights::Submit(int index, std::function<void(int)> run) {
  Unit& unit = units_[index];
  ++unit.num_tasks;
  ++num_tasks_;
  unit.tasks.push_back(std::make_unique<Task>(this, index, std::move(run)));
  parts_.pool->Submit(unit.tasks.back().get());
}

void GatheredWeights::OnTaskDone(int index) {
  Unit& unit = units_[index];
  --unit.num_tasks;
  --num_tasks_;
  if (unit.num_tasks == 0) {
    if (unit.state == State::kGathering) {
      FinishIfComplete(index);
    } else if (unit.holders.empty()) {
      GiveBackPages(index);
      RetryParked();
    } else {
      TryGather(index);
    }
  }
  if (num_tasks_ == 0 && when_idle_) std::exchange(when_idle_, nullptr)();
}

void GatheredWeights::FinishIfComplete(int index) {
  Unit& unit = units_[index];
  if (unit.state != State::kGathering || unit.num_pulls > 0 ||
      unit.num_tasks > 0) {
    return;
  }
  unit.state = State::kHeld;
  unit.window = {};
  unit.tasks.clear();
  ++counts_.gathers;
  for (const Holder& holder : unit.holders) {
    parts_.observer->OnHeld(holder.rank, index, holder.request, unit.version);
  }
}

// What lies in the segment is of no version from now on.
void GatheredWeights::GiveUp(int index) {
  Unit& unit = units_[index];
  for (const auto& [node, id] : unit.pulls) pulls_->Cancel(id);
  unit.pulls.clear();
  unit.num_pulls = 0;
  ++unit.attempt;
  unit.state = State::kAbsent;
}

void GatheredWeights::GiveUpGathers() {
  for (int u = 0; u < units().size(); ++u) {
    if (units_[u].state == State::kGathering) GiveUp(u);
  }
}

// ---- Versions. ----

void GatheredWeights::OnPublished(BucketId bucket, WeightVersion version) {
  if (is_stopped_) return;
  Unit& unit = units_[bucket.value()];
  unit.is_ready = true;
  unit.is_past = false;
  unit.version = version;
  Answer(bucket.value());
  TryGather(bucket.value());
}

void GatheredWeights::OnAllPublished(WeightVersion version) {
  for (int u = 0; u < units().size(); ++u) {
    OnPublished(BucketId(u), units().is_frozen(u) ? WeightVersion() : version);
  }
}

void GatheredWeights::EndVersion() {
  if (is_stopped_) return;
  if (pulls_ != nullptr) {
    pulls_->Withdraw(
        [this](const transport::PullKey& key) {
          return key.kind == kGatherPull &&
                 !units().is_frozen(key.bucket.value());
        },
        absl::FailedPreconditionError("a later version is on its way here"));
  }
  for (int u = 0; u < units().size() && !units().is_frozen(u); ++u) {
    Unit& unit = units_[u];
    unit.is_past = unit.is_ready;
    unit.is_ready = false;
    unit.is_stale = false;
    if (unit.state != State::kAbsent) Withhold(u);
  }
}

void GatheredWeights::Withhold(int index) {
  GiveUp(index);
  for (const Holder& holder : units_[index].holders) {
    parts_.observer->OnNotHeld(holder.rank, index, holder.request);
  }
}

// ---- Between two lives of the links, or of the daemon. ----

void GatheredWeights::Suspend() {
  if (is_stopped_) return;
  is_suspended_ = true;
  when_idle_ = nullptr;
  GiveUpGathers();
  for (Unit& unit : units_) {
    unit.is_ready = unit.is_past = unit.is_stale = false;
    unit.waiting.clear();
  }
  SetPulls(nullptr);
}

bool GatheredWeights::Adopt(LocalRank rank, int index, uint64_t request,
                            WeightVersion version) {
  Unit& unit = units_[index];
  // Its pages are there, however little memory is left for others.
  if (unit.holders.empty() && !TakePages(index, /*are_there=*/true).ok()) {
    return false;
  }
  unit.holders.push_back({rank, request});
  unit.state = State::kHeld;
  unit.version = version;
  parts_.observer->OnHeld(rank, index, request, version);
  return true;
}

void GatheredWeights::DiscardRest() {
  const uint64_t num_pages = page_users_.size();
  uint64_t run = 0;
  for (uint64_t p = 0; p <= num_pages; ++p) {
    if (p < num_pages && page_users_[p] == 0) continue;
    if (run < p) parts_.segment->Discard(run * kPage, (p - run) * kPage);
    run = p + 1;
  }
}

void GatheredWeights::Resume(WeightVersion version, bool is_published) {
  if (is_stopped_) return;
  is_suspended_ = false;
  for (int u = 0; u < units().size(); ++u) {
    const bool is_frozen = units().is_frozen(u);
    const WeightVersion now = is_frozen ? WeightVersion() : version;
    if (units_[u].state == State::kHeld && units_[u].version != now) {
      Withhold(u);
    }
    if (is_published || is_frozen) OnPublished(BucketId(u), now);
  }
}

void GatheredWeights::Stop() {
  if (is_stopped_) return;
  is_stopped_ = true;
  for (int u = 0; u < units().size(); ++u) {
    GiveUp(u);
    units_[u].waiting.clear();
  }
  if (pulls_ == nullptr) return;
  pulls_->Withdraw(
      [](const transport::PullKey& key) { return key.kind == kGatherPull; },
      absl::UnavailableError("the job ends here"));
  SetPulls(nullptr);
}

void GatheredWeights::WhenIdle(absl::AnyInvocable<void() &&> fn) {
  if (num_tasks_ == 0) return std::move(fn)();
  when_idle_ = std::move(fn);
}

void GatheredWeights::Fail(const absl::Status& why) {
  if (is_stopped_ || is_suspended_) return;
  if (absl::IsUnavailable(why)) {
    is_suspended_ = true;
    GiveUpGathers();
  } else {
    Stop();
  }
  parts_.observer->OnGatherFailed(why);
}

// ---- Serving. ----

// The key is hostile input (I27). Versions fence: a generation that begins with
// an abort has the weights of the one before, and nodes that have heard of it
// serve those that have not.
void GatheredWeights::OnPull(NodeRank from, const transport::PullKey& key,
                             transport::PullReply reply) {
  const int index = key.bucket.value();
  if (index < 0 || index >= units().size() ||
      key.owner.value() != parts_.owned->self() ||
      from.value() >= parts_.owned->num_nodes()) {
    return std::move(reply).Refuse(absl::InvalidArgumentError(
        absl::StrCat("unit ", index, " of owner ", key.owner.value(),
                     " for node ", from.value(), " is not served by node ",
                     parts_.owned->node().value())));
  }
  Unit& unit = units_[index];
  if (key.version < unit.version ||
      (key.version == unit.version && unit.is_past)) {
    return std::move(reply).Refuse(absl::FailedPreconditionError(
        absl::StrCat(NameOf(index), " is here, version ", key.version.value(),
                     " was asked for")));
  }
  if (key.version == unit.version && unit.is_ready) {
    return Serve(index, std::move(reply));
  }
  ++counts_.waits;
  std::erase_if(unit.waiting, [](const Waiting& waiting) {
    return !waiting.reply.is_wanted();
  });
  unit.waiting.push_back({from, key.version, std::move(reply)});
}

void GatheredWeights::Answer(int index) {
  std::vector<Waiting> waiting = std::exchange(units_[index].waiting, {});
  for (Waiting& one : waiting) {
    if (one.version == units_[index].version) {
      Serve(index, std::move(one.reply));
    } else if (one.version < units_[index].version) {
      std::move(one.reply).Refuse(absl::FailedPreconditionError(
          absl::StrCat(NameOf(index), " is here")));
    } else {
      units_[index].waiting.push_back(std::move(one));
    }
  }
}

void GatheredWeights::Serve(int index, transport::PullReply reply) {
  const uint64_t payload =
      parts_.owned->PartPayload(index, parts_.owned->self());
  std::move(reply).Send(parts_.owned->Served(index),
                        [this, payload, alive = std::weak_ptr<int>(alive_)](
                            const absl::Status& sent) {
                          if (alive.expired() || !sent.ok()) return;
                          counts_.payload_served += payload;
                        });
}

// ---- What can be asked. ----

GatheredWeights::Counts GatheredWeights::counts() const {
  Counts counts = counts_;
  for (const Unit& unit : units_) {
    counts.num_held += unit.state == State::kHeld && !unit.holders.empty();
    counts.num_gathering += unit.state == State::kGathering;
  }
  return counts;
}

transport::ByteCounters GatheredWeights::wire() const {
  return pulls_ == nullptr ? transport::ByteCounters()
                           : pulls_->counters().bytes;
}

std::string GatheredWeights::WaitingFor() const {
  std::string text;
  size_t more = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const auto& [node, id] : units_[u].pulls) {
      if (text.empty()) {
        text = absl::StrCat("part of node ", node.value(), " of ",
                            NameOf(static_cast<int>(u)));
      } else {
        ++more;
      }
    }
  }
  if (more > 0) absl::StrAppend(&text, ", and ", more, " more");
  return text;
}

}  // namespace ballast::collective
