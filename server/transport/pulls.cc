#include "server/transport/pulls.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::transport {
namespace {

PullKey KeyOf(const v1::PullRequest& request) {
  return {.generation = Generation(request.generation()),
          .version = WeightVersion(request.version()),
          .bucket = BucketId(request.bucket()),
          .owner = NodeRank(request.owner()),
          .kind = request.kind(),
          .chunk = request.chunk()};
}

// A code that a peer sent.
absl::StatusCode SafeCode(int32_t code) {
  constexpr auto kLast = absl::StatusCode::kUnauthenticated;
  return code >= 1 && code <= static_cast<int32_t>(kLast)
             ? static_cast<absl::StatusCode>(code)
             : absl::StatusCode::kUnknown;
}

void Add(const ByteCounters& more, ByteCounters* sum) {
  sum->payload_sent += more.payload_sent;
  sum->payload_received += more.payload_received;
  sum->wire_sent += more.wire_sent;
  sum->wire_received += more.wire_received;
}

}  // namespace

struct Pulls::Asking final : ExchangeObserver {
  Asking(Pulls* pulls, PullId id, NodeRank from, const PullKey& key, Done done)
      : pulls(pulls), id(id), from(from), key(key), done(std::move(done)) {}
  void OnExchangeDone(Exchange*, Step, const absl::Status& status) override {
    pulls->EndAsking(id, status);
  }

  Pulls* const pulls;
  const PullId id;
  const NodeRank from;
  const PullKey key;
  Done done;
  std::unique_ptr<Exchange> exchange;
  // Turns of the timer since the request, and when to repeat it.
  uint32_t turns = 0;
  uint32_t repeat_at = 1;
};

struct Pulls::Answer final : ExchangeObserver {
  Answer(Pulls* pulls, NodeRank asker, PullId id, const PullKey& key)
      : pulls(pulls), asker(asker), id(id), key(key) {}
  void OnExchangeDone(Exchange*, Step, const absl::Status& status) override {
    pulls->EndAnswer(this, status);
  }

  Pulls* const pulls;
  const NodeRank asker;
  const PullId id;
  const PullKey key;
  bool is_with_source = true;          // the reply has not been used
  absl::Status refusal;                // said, and said again if asked again
  std::unique_ptr<Exchange> exchange;  // while it is being sent
  PullReply::Sent sent;
  // A later request of the slot that came meanwhile.
  PullId next_id;
  v1::PullRequest next;
};

PullReply& PullReply::operator=(PullReply&& other) noexcept {
  if (this == &other) return *this;
  Drop();
  pulls_ = std::exchange(other.pulls_, {});
  asker_ = other.asker_;
  id_ = other.id_;
  return *this;
}

Pulls* PullReply::Take() {
  const std::shared_ptr<Pulls*> pulls = std::exchange(pulls_, {}).lock();
  return pulls == nullptr ? nullptr : *pulls;
}

bool PullReply::is_wanted() const {
  const std::shared_ptr<Pulls*> pulls = pulls_.lock();
  return pulls != nullptr && (*pulls)->FindAnswer(asker_, id_) != nullptr;
}

void PullReply::Send(std::span<const std::byte> bytes, Sent sent) && {
  if (Pulls* const pulls = Take(); pulls != nullptr) {
    pulls->StartSending(asker_, id_, bytes, std::move(sent));
  }
}

void PullReply::Refuse(const absl::Status& why) && {
  if (Pulls* const pulls = Take(); pulls != nullptr) {
    pulls->Refuse(asker_, id_, why);
  }
}

void PullReply::Drop() {
  if (Pulls* const pulls = Take(); pulls != nullptr) {
    pulls->Refuse(asker_, id_, absl::UnavailableError("gave no answer"));
  }
}

Pulls::Pulls(const Parts& parts)
    : parts_(parts),
      self_(parts.transport->self()),
      alive_(std::make_shared<Pulls*>(this)) {}

Pulls::~Pulls() {
  alive_.reset();
  parts_.executor->Cancel(timer_);
}

ExchangeSpec Pulls::SpecOf(NodeRank asker, PullId id,
                           Generation generation) const {
  ExchangeSpec spec;
  spec.job = parts_.job_key;
  spec.generation = generation;
  spec.phase = kPullPhase | static_cast<uint32_t>(asker.value()) << 8;
  spec.bucket = BucketId(SlotOf(id));
  return spec;
}

// ---- Asking. ----

absl::StatusOr<PullId> Pulls::Pull(NodeRank from, const PullKey& key,
                                   std::span<std::byte> into, Done done) {
  const auto free = std::ranges::find_if(
      asking_, [](const auto& asking) { return asking == nullptr; });
  if (free == asking_.end() && asking_.size() == kMaxPulls) {
    return absl::ResourceExhaustedError(absl::StrCat(
        kMaxPulls, " pulls wait for their bytes, no more are possible"));
  }
  const uint64_t slot = free - asking_.begin();
  const PullId id(next_life_++ * kMaxPulls + slot);
  auto asking = std::make_unique<Asking>(this, id, from, key, std::move(done));
  ExchangeSpec spec = SpecOf(self_, id, key.generation);
  spec.receives = {{from, into}};
  ASSIGN_OR_RETURN(asking->exchange,
                   parts_.transport->Prepare(spec, asking.get()));
  RETURN_IF_ERROR(
      asking->exchange->Post(Step(static_cast<int64_t>(id.value()))));
  RETURN_IF_ERROR(Request(*asking));
  if (free == asking_.end()) {
    asking_.push_back(std::move(asking));
  } else {
    *free = std::move(asking);
  }
  ++num_asking_;
  ++counters_.asked;
  ArmTimer();
  return id;
}

absl::Status Pulls::Request(const Asking& asking) {
  v1::Pull frame;
  frame.set_id(asking.id.value());
  frame.set_asker(self_.value());
  v1::PullRequest* const request = frame.mutable_request();
  request->set_generation(asking.key.generation.value());
  request->set_version(asking.key.version.value());
  request->set_bucket(asking.key.bucket.value());
  request->set_owner(asking.key.owner.value());
  request->set_kind(asking.key.kind);
  request->set_chunk(asking.key.chunk);
  return parts_.frames->SendPull(asking.from, frame);
}

Pulls::Asking* Pulls::FindAsking(PullId id) {
  const size_t slot = SlotOf(id);
  if (slot >= asking_.size() || asking_[slot] == nullptr ||
      asking_[slot]->id != id) {
    return nullptr;
  }
  return asking_[slot].get();
}

void Pulls::EndAsking(PullId id, absl::Status status) {
  if (FindAsking(id) == nullptr) return;
  const std::unique_ptr<Asking> asking = std::move(asking_[SlotOf(id)]);
  --num_asking_;
  Count(*asking->exchange);
  asking->exchange.reset();  // before `done`: the memory is the caller's again
  std::move(asking->done)(status);
}

void Pulls::Cancel(PullId id) {
  if (FindAsking(id) == nullptr) return;
  const std::unique_ptr<Asking> asking = std::move(asking_[SlotOf(id)]);
  --num_asking_;
  Count(*asking->exchange);
  v1::Pull frame;
  frame.set_id(id.value());
  frame.set_asker(self_.value());
  frame.set_cancel(true);
  // Best effort: the next request of this slot says it too.
  parts_.frames->SendPull(asking->from, frame).IgnoreError();
}

void Pulls::ArmTimer() {
  if (timer_ != 0 || num_asking_ == 0) return;
  timer_ = parts_.executor->PostAfter(parts_.repeat_after, [this] {
    timer_ = 0;
    Repeat();
  });
}

void Pulls::Repeat() {
  std::vector<std::pair<PullId, absl::Status>> ended;
  for (const auto& asking : asking_) {
    if (asking == nullptr || ++asking->turns < asking->repeat_at) continue;
    asking->repeat_at = asking->turns * 2;
    ++counters_.repeats;
    const absl::Status sent = Request(*asking);
    if (absl::IsUnavailable(sent)) ended.emplace_back(asking->id, sent);
  }
  for (const auto& [id, status] : ended) EndAsking(id, status);
  ArmTimer();
}

void Pulls::OnRefusal(NodeRank from, PullId id,
                      const v1::PullRefusal& refusal) {
  const Asking* const asking = FindAsking(id);
  if (asking == nullptr || asking->from != from) {
    ++counters_.strays;
    return;
  }
  EndAsking(id, absl::Status(
                    SafeCode(refusal.code()),
                    absl::StrCat("node ", from.value(), ": ",
                                 refusal.text().substr(0, kMaxRefusalBytes))));
}

// ---- Answering. ----

void Pulls::SetSource(uint32_t kind, PullSource* source) {
  sources_[kind] = source;
}

Pulls::Answer* Pulls::FindAnswer(NodeRank asker, PullId id) {
  const auto it = answers_.find({asker, SlotOf(id)});
  return it == answers_.end() || it->second->id != id ? nullptr
                                                      : it->second.get();
}

void Pulls::OnFrame(NodeRank from, const v1::Pull& frame) {
  const PullId id(frame.id());
  const NodeRank asker(frame.asker());
  const bool is_answer = frame.has_refusal();
  // A slot's exchange has the asker's rank in 24 bits of its phase.
  if (asker != (is_answer ? self_ : from) || from == self_ ||
      from.value() < 0 || from.value() >= 1 << 24) {
    ++counters_.strays;
    return;
  }
  if (is_answer) return OnRefusal(from, id, frame.refusal());
  if (frame.has_request()) return OnRequest(from, id, frame.request());
  if (frame.body_case() == v1::Pull::kCancel) return OnCancel(from, id);
  ++counters_.strays;
}

void Pulls::OnCancel(NodeRank from, PullId id) {
  const auto last = answers_.find({from, SlotOf(id)});
  if (last != answers_.end() && last->second->next_id == id) {
    last->second->next_id = {};
    return;
  }
  Answer* const answer = FindAnswer(from, id);
  if (answer == nullptr) {
    ++counters_.strays;
    return;
  }
  // It stays as the slot's last one: a late request of it is void.
  answer->is_with_source = false;
  EndAnswer(answer, absl::CancelledError("the asker cancelled"));
}

void Pulls::OnRequest(NodeRank from, PullId id,
                      const v1::PullRequest& request) {
  std::unique_ptr<Answer>& answer = answers_[{from, SlotOf(id)}];
  if (answer != nullptr && answer->id >= id) {
    // Again, or late. A refusal may have been lost; all else is under way.
    if (answer->id == id && !answer->refusal.ok()) SendRefusal(*answer);
    return;
  }
  if (answer != nullptr && answer->exchange != nullptr) {
    // The asker has all of it, and word of that is behind this frame; or it
    // has cancelled, and that frame was lost: then it asks a second time.
    if (answer->next_id != id) {
      answer->next_id = id;
      answer->next = request;
      return;
    }
    EndAnswer(answer.get(), absl::CancelledError("the asker asks anew"));
  }
  const PullKey key = KeyOf(request);
  answer = std::make_unique<Answer>(this, from, id, key);
  PullReply reply(alive_, from, id);
  const auto source = sources_.find(key.kind);
  if (source == sources_.end() || source->second == nullptr) {
    return std::move(reply).Refuse(absl::UnimplementedError(
        absl::StrCat("nothing serves pulls of kind ", key.kind)));
  }
  source->second->OnPull(from, key, std::move(reply));
}

void Pulls::StartSending(NodeRank asker, PullId id,
                         std::span<const std::byte> bytes,
                         PullReply::Sent sent) {
  Answer* const answer = FindAnswer(asker, id);
  if (answer == nullptr || !answer->is_with_source) {
    return Post([sent = std::move(sent)]() mutable {
      std::move(sent)(absl::CancelledError("the asker cancelled"));
    });
  }
  answer->is_with_source = false;
  ExchangeSpec spec = SpecOf(asker, id, answer->key.generation);
  spec.sends = {{asker, bytes}};
  absl::StatusOr<std::unique_ptr<Exchange>> exchange =
      parts_.transport->Prepare(spec, answer);
  absl::Status status = exchange.status();
  if (status.ok()) {
    status = (*exchange)->Post(Step(static_cast<int64_t>(id.value())));
  }
  if (!status.ok()) {
    Refuse(asker, id, status);
    return Post([sent = std::move(sent), status]() mutable {
      std::move(sent)(status);
    });
  }
  answer->exchange = *std::move(exchange);
  answer->sent = std::move(sent);
}

void Pulls::Refuse(NodeRank asker, PullId id, const absl::Status& why) {
  Answer* const answer = FindAnswer(asker, id);
  if (answer == nullptr || !answer->refusal.ok()) return;
  answer->is_with_source = false;
  answer->refusal =
      why.ok() ? absl::InternalError("refused without a reason") : why;
  ++counters_.refused;
  SendRefusal(*answer);
}

void Pulls::SendRefusal(const Answer& answer) {
  v1::Pull frame;
  frame.set_id(answer.id.value());
  frame.set_asker(answer.asker.value());
  frame.mutable_refusal()->set_code(static_cast<int>(answer.refusal.code()));
  frame.mutable_refusal()->set_text(
      std::string(answer.refusal.message()).substr(0, kMaxRefusalBytes));
  // A lost one is asked for again.
  parts_.frames->SendPull(answer.asker, frame).IgnoreError();
}

void Pulls::EndAnswer(Answer* answer, absl::Status status) {
  if (answer->exchange == nullptr) return;
  if (status.ok()) ++counters_.answered;
  Count(*answer->exchange);
  answer->exchange.reset();
  Post([sent = std::exchange(answer->sent, nullptr), status]() mutable {
    std::move(sent)(status);
  });
  if (answer->next_id == PullId()) return;
  Post([this, asker = answer->asker, id = std::exchange(answer->next_id, {}),
        next = std::move(answer->next)] { OnRequest(asker, id, next); });
}

void Pulls::Withdraw(absl::AnyInvocable<bool(const PullKey&)> is_stale,
                     const absl::Status& why) {
  for (auto& [asker, answer] : answers_) {
    if (answer->exchange == nullptr || !is_stale(answer->key)) continue;
    EndAnswer(answer.get(), why);
    Refuse(answer->asker, answer->id, why);
  }
}

size_t Pulls::num_sending() const {
  return std::ranges::count_if(answers_, [](const auto& entry) {
    return entry.second->exchange != nullptr;
  });
}

void Pulls::Count(const Exchange& exchange) {
  Add(exchange.counters(), &counters_.bytes);
}

Pulls::Counters Pulls::counters() const {
  Counters counters = counters_;
  const auto add = [&](const auto& of) {
    if (of != nullptr && of->exchange != nullptr) {
      Add(of->exchange->counters(), &counters.bytes);
    }
  };
  for (const auto& asking : asking_) add(asking);
  for (const auto& [asker, answer] : answers_) add(answer);
  return counters;
}

void Pulls::Post(absl::AnyInvocable<void() &&> fn) {
  parts_.executor->Post(
      [alive = std::weak_ptr<Pulls*>(alive_), fn = std::move(fn)]() mutable {
        if (!alive.expired()) std::move(fn)();
      });
}

}  // namespace ballast::transport
