#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/session/session.h"
#include "tests/sim/gradients.h"

namespace ballast::sim {
namespace {

constexpr absl::Duration kThinking = absl::Microseconds(300);
// As the client's, without its jitter.
constexpr absl::Duration kOpenTimeout = absl::Minutes(10);
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

// The daemon's end of the connection.
class SimLink final : public session::WorkerLink {
 public:
  SimLink(SimWorld* world, WorkerId id,
          std::shared_ptr<SimWorker::Memory> memory)
      : world_(world),
        id_(id),
        memory_(std::move(memory)),
        identity_{.pid = 1000 + id.rank * 100 + id.life,
                  .uid = 1000,
                  .incarnation = Incarnation(id.rank * 1000 + id.life + 1)} {}

  const session::WorkerIdentity& identity() const override { return identity_; }
  absl::Status SendSegment(proto::SegmentKind kind,
                           const device::SharedBuffer& buffer) override {
    const base::Access access = kind == proto::SegmentKind::kWeights
                                    ? base::Access::kReadOnly
                                    : base::Access::kReadWrite;
    auto fd = buffer.Export(access);
    if (!fd.ok()) return fd.status();
    auto segment =
        base::Segment::Map(*std::move(fd), buffer.size_bytes(), access);
    if (!segment.ok()) return segment.status();
    memory_->segments[kind] = *std::move(segment);
    return absl::OkStatus();
  }
  void OnWake() override {
    world_->CallWorker(id_, [](SimWorker& worker) { worker.OnWake(); });
  }
  absl::Status Keep(base::Vault* vault, std::string_view name) const override {
    const int fd = memory_->segments.at(proto::SegmentKind::kControlBlock).fd();
    return vault->Put(name, SimWorkerNote{id_}.ToText(), std::span(&fd, 1));
  }
  ipc::ProcessState process_state() const override { return memory_->process; }
  void Close(const absl::Status& why) override {
    world_->CallWorker(id_,
                       [why](SimWorker& worker) { worker.OnLinkClosed(why); });
  }

 private:
  SimWorld* const world_;
  const WorkerId id_;
  const std::shared_ptr<SimWorker::Memory> memory_;
  const session::WorkerIdentity identity_;
};

// Values that the optimizer does not have are zero (proto/control_block.h).
proto::GroupValues ToValues(kernels::OptimizerKind kind,
                            const kernels::HyperParameters& group) {
  proto::GroupValues values{};
  values.lr = group.lr;
  values.weight_decay = group.weight_decay;
  if (kind == kernels::OptimizerKind::kSgd) {
    values.momentum = group.momentum;
    values.dampening = group.dampening;
    values.nesterov = group.nesterov ? 1 : 0;
  } else if (kind == kernels::OptimizerKind::kAdagrad) {
    values.eps = group.eps;
    values.lr_decay = group.lr_decay;
    values.initial_accumulator_value = group.initial_accumulator_value;
  } else {
    values.beta1 = group.beta1;
    values.beta2 = group.beta2;
    if (kind != kernels::OptimizerKind::kLion) values.eps = group.eps;
  }
  return values;
}

}  // namespace

std::string SimWorkerNote::key() const {
  return absl::StrCat("rank-", id.rank, "-life-", id.life);
}

std::string SimWorkerNote::ToText() const {
  return absl::StrCat(id.rank, " ", id.life);
}

SimWorkerNote SimWorkerNote::FromText(const std::string& text) {
  SimWorkerNote note;
  std::istringstream(text) >> note.id.rank >> note.id.life;
  return note;
}

std::unique_ptr<session::WorkerLink> AdoptSimLink(SimWorld* world,
                                                  const SimWorkerNote& note) {
  return std::make_unique<SimLink>(world, note.id,
                                   std::make_shared<SimWorker::Memory>());
}

SimWorker::SimWorker(SimWorld* world, WorkerId id, uint64_t seed)
    : world_(world),
      id_(id),
      key_(SimWorkerNote{id}.key()),
      node_(id.rank / world->scenario().workers),
      process_(&world->clock(), key_),
      random_(seed),
      memory_(std::make_shared<Memory>()),
      is_call_taken_(std::make_shared<bool>(false)) {
  memory_->process = ipc::ProcessState::kRunning;
}

void SimWorker::StopUntil(absl::Time end) {
  process_.Pause();
  memory_->process = ipc::ProcessState::kStopped;
  stopped_until_ = std::max(stopped_until_, end);
}

void SimWorker::GoOnIfDue() {
  if (world_->clock().Now() < stopped_until_) return;
  process_.Resume();
  memory_->process = ipc::ProcessState::kRunning;
}

// ---- Calls. ----

void SimWorker::Ask(Call call, absl::AnyInvocable<void(daemon::Node&)> fn) {
  call_ = call;
  ++num_asked_;
  is_call_taken_ = std::make_shared<bool>(false);
  if (world_->LosesCall(id_, Name(call), /*is_reply=*/false)) return AskAgain();
  world_->CallNode(node_, [taken = is_call_taken_,
                           fn = std::move(fn)](daemon::Node& node) mutable {
    *taken = true;
    fn(node);
  });
}

void SimWorker::AskAgain() {
  ++attempt_;  // an answer that comes nevertheless is nobody's
  process_.PostAfter(kFirstPause, [this, asked = num_asked_] {
    if (asked == num_asked_) OnDaemonBack();
  });
}

bool SimWorker::LosesReply(Call call) {
  if (!world_->LosesCall(id_, Name(call), /*is_reply=*/true)) return false;
  AskAgain();
  return true;
}

std::string_view SimWorker::Name(Call call) {
  switch (call) {
    case Call::kNone:
      return "";
    case Call::kAttach:
      return "attach";
    case Call::kBegin:
      return "begin";
    case Call::kClose:
      return "close";
  }
  return "";
}

void SimWorker::OnDaemonBack() {
  switch (call_) {
    case Call::kNone:
      return;
    case Call::kAttach:
      return Start();
    case Call::kBegin:
      return CallBegin();
    case Call::kClose:
      return CallClose();
  }
}

session::AttachRequest SimWorker::MakeRequest() const {
  const Scenario& scenario = world_->scenario();
  session::AttachRequest request;
  request.job.name = kJobName;
  request.job.tensors = scenario.tensors;
  request.job.optimizer = scenario.optimizer;
  request.job.groups = scenario.groups;
  request.job.gradient_clipping = scenario.clip;
  request.job.bucket_bytes = scenario.bucket_bytes;
  request.job.exchange = scenario.exchange;
  request.job.hold = scenario.hold;
  request.placement = {.rank = Rank(id_.rank),
                       .world_size = scenario.world_size(),
                       .local_rank = LocalRank(id_.rank % scenario.workers),
                       .local_world_size = scenario.workers,
                       .node_rank = NodeRank(node_)};
  request.has_initial_values = id_.rank == 0 && scenario.first_version == 0;
  return request;
}

void SimWorker::Start() {
  opened_ = std::min(opened_, world_->clock().Now());
  const int attempt = ++attempt_;
  Ask(Call::kAttach,
      [world = world_, id = id_, key = key_, attempt, request = MakeRequest(),
       memory = memory_](daemon::Node& node) {
        // If it came before, and was told to try again.
        node.sessions().OnDisconnected(key, absl::UnavailableError("again"));
        node.sessions().OnConnected(
            key, std::make_unique<SimLink>(world, id, memory));
        node.sessions().AttachWhenKnown(
            key, request,
            [world, id, attempt](absl::StatusOr<session::AttachReply> reply) {
              std::shared_ptr<layout::Layout> layout;
              std::shared_ptr<layout::GatherUnits> units;
              if (reply.ok()) {
                layout = std::make_shared<layout::Layout>(*reply->layout);
                if (reply->units != nullptr) {
                  units = std::make_shared<layout::GatherUnits>(*reply->units);
                }
              }
              world->CallWorker(
                  id, [attempt, reply, layout, units](SimWorker& worker) {
                    worker.OnAttached(attempt, reply, layout, units);
                  });
            });
      });
}

void SimWorker::Reopen(const absl::Status& why) {
  const bool is_passing = absl::IsUnavailable(why) ||
                          absl::EndsWith(why.message(), "try again") ||
                          absl::EndsWith(why.message(), "connect again");
  if (!is_passing || world_->clock().Now() - opened_ > kOpenTimeout) {
    return End(why);
  }
  call_ = Call::kNone;
  const int attempt = ++attempt_;
  process_.PostAfter(std::min(attempt * kFirstPause, kLongestPause),
                     [this, attempt] {
                       if (attempt == attempt_ && !is_done_) Start();
                     });
}

void SimWorker::OnAttached(int attempt,
                           absl::StatusOr<session::AttachReply> reply,
                           std::shared_ptr<layout::Layout> layout,
                           std::shared_ptr<layout::GatherUnits> units) {
  if (attempt != attempt_ || is_done_) return;
  if (LosesReply(Call::kAttach)) return;
  call_ = Call::kNone;
  if (!reply.ok()) return Reopen(reply.status());
  layout_ = std::move(layout);
  units_ = std::move(units);
  if (reply->initial_bytes > 0) WriteInitialValues();
  CallBegin();
}

void SimWorker::CallBegin() {
  Ask(Call::kBegin, [world = world_, id = id_, key = key_,
                     attempt = attempt_](daemon::Node& node) {
    node.sessions().Begin(
        key, absl::InfiniteDuration(),
        [world, id, attempt](absl::StatusOr<session::BeginReply> begun) {
          world->CallWorker(id, [attempt, begun](SimWorker& worker) {
            worker.OnBegun(attempt, begun);
          });
        });
  });
}

void SimWorker::WriteInitialValues() {
  const auto bytes = memory_->segments[proto::SegmentKind::kInitial].bytes();
  for (size_t t = 0; t < layout_->tensors().size(); ++t) {
    const layout::TensorPlace& place = layout_->places()[t];
    const std::vector<std::byte> values =
        InitialWeights(layout_->tensors()[t], place.num_elements);
    if (values.empty()) continue;
    std::memcpy(bytes.data() + place.weight_offset, values.data(),
                values.size());
  }
}

void SimWorker::OnBegun(int attempt,
                        absl::StatusOr<session::BeginReply> reply) {
  if (attempt != attempt_ || is_done_) return;
  if (LosesReply(Call::kBegin)) return;
  call_ = Call::kNone;
  if (!reply.ok()) return Reopen(reply.status());
  const Scenario& scenario = world_->scenario();
  const int num_buckets = static_cast<int>(layout_->buckets().size());
  auto view = worker::ControlView::Create(
      memory_->segments[proto::SegmentKind::kControlBlock].bytes(), num_buckets,
      static_cast<int>(scenario.groups.size()),
      units_ != nullptr ? units_->size() : 0);
  if (!view.ok()) return End(view.status());
  view_ = *std::move(view);
  if (units_ != nullptr) {
    gather_.emplace(*units_, scenario.units_at_once, &*view_);
    seen_.resize(layout_->weights_bytes());
  }
  step_ = reply->open_step.value();
  word_ = proto::SequenceWord(reply->generation.value(), step_);
  // Cursors of another number of ranks are nobody's.
  const bool is_lost =
      !scenario.earlier.empty() && step_ - 1 == scenario.first_version &&
      scenario.earlier.back().world_size() != scenario.world_size();
  const std::string cursor =
      step_ == 1 || is_lost ? "" : CursorOf(id_.rank, step_ - 1);
  if (reply->cursor != cursor) {
    world_->OnViolation(absl::StrCat("rank ", id_.rank, " got cursor \"",
                                     reply->cursor, "\" at step ", step_));
  }
  CheckRank0Cursor(reply->rank0_cursor, step_ - 1);
  is_scheduled_.assign(num_buckets, false);
  // One that comes back while the last step is being published is told of
  // older versions too, which are being overwritten.
  read_version_.assign(num_buckets, step_ - 2);
  num_pushed_ = 0;
  for (const int32_t bucket : reply->pushed_buckets) {
    is_scheduled_[bucket] = true;
    // By an earlier life: may be written from now on.
    read_version_[bucket] = step_ - 1;
    ++num_pushed_;
  }
  Poll();
}

void SimWorker::Close() {
  is_done_ = true;
  CallClose();
}

void SimWorker::CallClose() {
  const bool is_again = std::exchange(has_asked_to_close_, true);
  Ask(Call::kClose,
      [world = world_, id = id_, key = key_, is_again](daemon::Node& node) {
        const absl::Status closed = node.sessions().Close(key);
        // Heard by one daemon, and the next one has died as well, with all that
        // knew of the job.
        const bool is_forgotten =
            is_again && absl::StrContains(closed.message(), "no lease");
        if (!closed.ok() && !is_forgotten) {
          world->OnViolation(absl::StrCat(
              "rank ", id.rank, " cannot close: ", closed.ToString()));
        }
        world->CallWorker(id, [](SimWorker& worker) { worker.OnClosed(); });
      });
}

// The process ends.
void SimWorker::OnClosed() {
  if (call_ == Call::kNone || LosesReply(Call::kClose)) return;
  call_ = Call::kNone;
  world_->CallNode(node_, [key = key_](daemon::Node& node) {
    node.sessions().OnDisconnected(key, absl::OkStatus());
  });
}

void SimWorker::End(const absl::Status& outcome) {
  if (is_done_) return;
  is_done_ = true;
  outcome_ = outcome;
  world_->CallNode(node_, [key = key_, outcome](daemon::Node& node) {
    node.sessions().OnDisconnected(key, outcome);
  });
}

void SimWorker::OnLinkClosed(const absl::Status& why) {
  const absl::Status told =
      why.ok() ? absl::UnavailableError("the daemon closed the connection")
               : why;
  if (is_done_) return;
  return view_.has_value() ? End(told) : Reopen(told);
}

// ---- Steps. ----

void SimWorker::Poll() {
  if (is_done_ || !view_.has_value()) return;
  if (HandleFailure()) return;
  if (view_->committed() == word_) Advance();
  if (gather_.has_value()) {
    PollGathered();
  } else {
    PollResident();
  }
}

void SimWorker::PollResident() {
  ReadPublished();
  if (reported_version_ < step_ - 1 && IsPublished(step_ - 1)) {
    ReportVersion();
    if (step_ > world_->scenario().steps) return Close();
  }
  if (step_ > world_->scenario().steps) return;
  const bool may_push = world_->scenario().overlap
                            ? view_->open() == word_
                            : reported_version_ == step_ - 1;
  if (!may_push) return;
  if (!has_begun_step_) BeginStep();
  SchedulePushes();
}

// Forward over what was published, then backward, bucket by bucket pushed.
void SimWorker::PollGathered() {
  if (!IsPublished(step_ - 1)) return;
  if (reported_version_ < step_ - 1) {
    if (gathering_version_ != step_ - 1) {
      gathering_version_ = step_ - 1;
      gather_->Begin(/*is_backward=*/false, step_ - 1);
    }
    std::vector<int> held;
    while (LookForUnits(&held)) {
      for (const int unit : held) UseForward(unit);
      held.clear();
    }
    if (is_done_ || !gather_->is_done()) return;
    ReportVersion();
    if (step_ > world_->scenario().steps) return Close();
  }
  if (!has_begun_step_) {
    BeginStep();
    gather_->Begin(/*is_backward=*/true, step_ - 1);
  }
  std::vector<int> held;
  while (!is_done_ && LookForUnits(&held)) {
    for (const int unit : held) UseBackward(unit);
    held.clear();
  }
}

// False if there is nothing (more) to do now.
bool SimWorker::LookForUnits(std::vector<int>* held) {
  if (gather_->Look(held)) RingDoorbell();
  if (gather_->is_refused()) End(view_->Refusal());
  return !is_done_ && !held->empty();
}

void SimWorker::UseForward(int unit) {
  ReadUnit(unit);
  const layout::ByteRange& range = units_->unit(unit).bytes;
  const auto weights = memory_->segments[proto::SegmentKind::kWeights].bytes();
  std::copy_n(weights.begin() + range.begin, range.size(),
              seen_.begin() + range.begin);
  GiveBack(unit);
}

void SimWorker::UseBackward(int unit) {
  if (units_->is_frozen(unit) || is_scheduled_[unit]) {
    ReadUnit(unit);
    return GiveBack(unit);
  }
  is_scheduled_[unit] = true;
  absl::Duration at;
  if (const Fault* slow =
          world_->TakeFault(Fault::Kind::kSlow, id_.rank, step_)) {
    at = slow->back_after.value_or(absl::Seconds(2));
  }
  at += absl::Nanoseconds(random_.Below(absl::ToInt64Nanoseconds(kThinking)));
  process_.PostAfter(at, [this, word = word_, unit] {
    if (!is_done_ && word == word_ && !gather_->IsHeld(unit)) {
      world_->OnViolation(absl::StrCat("I1: rank ", id_.rank, " uses unit ",
                                       unit, ", which is not held any more"));
    }
    // Whatever has become of the daemon, what is held has its bits.
    if (!is_done_ && word == word_) ReadUnit(unit);
    PushOne(word, unit);
    if (is_done_ || word != word_) return;
    GiveBack(unit);
    Poll();
  });
}

void SimWorker::GiveBack(int unit) {
  gather_->GiveBack(unit);
  RingDoorbell();
}

void SimWorker::RingDoorbell() {
  world_->CallNode(node_, [key = key_](daemon::Node& node) {
    node.sessions().OnDoorbell(key);
  });
}

void SimWorker::ReadUnit(int unit) {
  if (!units_->is_frozen(unit)) return ReadBucket(unit, step_ - 1);
  const auto weights = memory_->segments[proto::SegmentKind::kWeights].bytes();
  const layout::ByteRange& range = units_->unit(unit).bytes;
  for (size_t t = 0; t < layout_->tensors().size(); ++t) {
    const layout::TensorPlace& place = layout_->places()[t];
    if (layout_->tensors()[t].trainable || place.num_elements == 0) continue;
    const uint64_t size = kernels::SizeOf(layout_->tensors()[t].dtype);
    const uint64_t end = place.weight_offset + place.num_elements * size;
    const uint64_t from = std::max(range.begin, place.weight_offset);
    const uint64_t to = std::min(range.end, end);
    if (from >= to) continue;
    layout::Piece piece;
    piece.tensor = TensorId(static_cast<int32_t>(t));
    piece.begin = static_cast<int64_t>((from - place.weight_offset) / size);
    piece.end = static_cast<int64_t>((to - place.weight_offset) / size);
    world_->OnRead(id_, step_ - 1, piece, weights.subspan(from, to - from));
  }
}

bool SimWorker::HandleFailure() {
  const auto failure = view_->FailureAfter(failure_seen_);
  if (!failure.has_value()) return false;
  failure_seen_ = failure->count;
  if (failure->is_fatal) {
    End(absl::Status(failure->code, failure->text));
    return true;
  }
  const uint64_t open = view_->open();
  if (failure->word != word_ || proto::StepOf(open) != step_ ||
      proto::GenerationOf(open) <= proto::GenerationOf(word_)) {
    world_->OnViolation(absl::StrCat("rank ", id_.rank,
                                     " is told of a step that it does not "
                                     "compute: ",
                                     failure->text));
    return true;
  }
  // The step starts again, with the value that was asked for.
  ++aborts_;
  word_ = open;
  has_begun_step_ = false;
  wrong_lr_.reset();
  is_scheduled_.assign(is_scheduled_.size(), false);
  num_pushed_ = 0;
  return false;
}

// Of the same step on all ranks of all nodes.
void SimWorker::CheckRank0Cursor(const std::string& cursor, int64_t step) {
  if (cursor == (step == 0 ? "" : CursorOf(0, step))) return;
  world_->OnViolation(absl::StrCat("rank ", id_.rank, " got rank 0's cursor \"",
                                   cursor, "\" with step ", step));
}

void SimWorker::Advance() {
  std::string cursor;
  if (!view_->ReadRank0Cursor(word_, &cursor)) cursor = "none";
  CheckRank0Cursor(cursor, step_);
  ++step_;
  bad_value_ = nullptr;  // still there if an earlier life gave the gradient
  word_ = view_->open();
  if (proto::StepOf(word_) != step_) {
    world_->OnViolation(absl::StrCat("rank ", id_.rank, ": step ",
                                     proto::StepOf(word_), " is open after ",
                                     step_ - 1));
  }
  has_begun_step_ = false;
  is_scheduled_.assign(is_scheduled_.size(), false);
  num_pushed_ = 0;
}

bool SimWorker::IsPublished(int64_t version) const {
  for (size_t b = 0; b < is_scheduled_.size(); ++b) {
    if (proto::StepOf(view_->published(static_cast<int>(b))) < version) {
      return false;
    }
  }
  return true;
}

// As soon as it is told of them, as a forward pass would; nothing writes them
// before this rank pushes again.
void SimWorker::ReadPublished() {
  for (size_t b = 0; b < read_version_.size(); ++b) {
    const int bucket = static_cast<int>(b);
    const int64_t version = proto::StepOf(view_->published(bucket));
    if (version <= read_version_[b]) continue;
    read_version_[b] = version;
    ReadBucket(bucket, version);
  }
}

void SimWorker::ReadBucket(int bucket, int64_t version) {
  const auto weights = memory_->segments[proto::SegmentKind::kWeights].bytes();
  for (const layout::Shard& shard : layout_->bucket(BucketId(bucket)).shards) {
    for (const layout::Piece& piece : shard.pieces) {
      const int size = kernels::SizeOf(layout_->tensor(piece.tensor).dtype);
      world_->OnRead(
          id_, version, piece,
          weights.subspan(
              layout_->place(piece.tensor).weight_offset + piece.begin * size,
              piece.size() * size));
    }
  }
}

void SimWorker::ReportVersion() {
  const std::span<const std::byte> weights =
      gather_.has_value()
          ? std::span<const std::byte>(seen_)
          : memory_->segments[proto::SegmentKind::kWeights].bytes();
  uint64_t hash = 0;
  for (size_t t = 0; t < layout_->tensors().size(); ++t) {
    const layout::TensorPlace& place = layout_->places()[t];
    hash =
        Hash(weights.data() + place.weight_offset,
             place.num_elements * kernels::SizeOf(layout_->tensors()[t].dtype),
             hash);
  }
  const bool is_first = reported_version_ < 0;
  reported_version_ = step_ - 1;
  std::optional<worker::StepResult> record;
  if (!is_first) {
    record = view_->Record(
        proto::SequenceWord(proto::GenerationOf(word_), reported_version_));
    if (!record.has_value()) {
      world_->OnViolation(absl::StrCat("rank ", id_.rank, " has no record of ",
                                       reported_version_));
    }
  }
  world_->OnVersion(id_, reported_version_, hash,
                    record.has_value() ? &*record : nullptr);
}

void SimWorker::BeginStep() {
  has_begun_step_ = true;
  const auto fault = [&](Fault::Kind kind) {
    return world_->TakeFault(kind, id_.rank, step_);
  };
  if (const Fault* wrong = fault(Fault::Kind::kValue)) {
    wrong_lr_ = wrong->value;
  }
  if (const Fault* bad = fault(Fault::Kind::kNan)) bad_value_ = bad;
  if (const Fault* bad = fault(Fault::Kind::kInfinity)) bad_value_ = bad;
  if (const Fault* crash = fault(Fault::Kind::kCrash)) {
    crash_ = crash;
    crash_after_ = static_cast<int>(random_.Below(is_scheduled_.size() + 1));
  }
  StoreInput();
}

void SimWorker::StoreInput() {
  const Scenario& scenario = world_->scenario();
  std::vector<proto::GroupValues> groups;
  for (const kernels::HyperParameters& group : scenario.groups) {
    groups.push_back(ToValues(scenario.optimizer, group));
  }
  if (wrong_lr_.has_value()) groups[0].lr = *wrong_lr_;
  if (const auto load = scenario.loads.find(step_);
      load != scenario.loads.end()) {
    for (proto::GroupValues& group : groups) {
      group.load = static_cast<double>(load->second ? proto::Load::kResetState
                                                    : proto::Load::kKeepState);
    }
  }
  view_->StoreInput(word_, groups, CursorOf(id_.rank, step_));
  RingDoorbell();
}

void SimWorker::SchedulePushes() {
  std::vector<int> ready;
  for (size_t b = 0; b < is_scheduled_.size(); ++b) {
    const int bucket = static_cast<int>(b);
    if (is_scheduled_[b] ||
        proto::StepOf(view_->published(bucket)) < step_ - 1) {
      continue;
    }
    is_scheduled_[b] = true;
    ready.push_back(bucket);
  }
  if (ready.empty()) return;
  if (world_->scenario().push_order == PushOrder::kReverse) {
    std::reverse(ready.begin(), ready.end());
  }
  if (world_->scenario().push_order == PushOrder::kRandom) {
    for (size_t i = ready.size(); i > 1; --i) {
      std::swap(ready[i - 1], ready[random_.Below(i)]);
    }
  }
  absl::Duration at;
  if (const Fault* slow =
          world_->TakeFault(Fault::Kind::kSlow, id_.rank, step_)) {
    at = slow->back_after.value_or(absl::Seconds(2));
  }
  for (const int bucket : ready) {
    at += absl::Nanoseconds(random_.Below(absl::ToInt64Nanoseconds(kThinking)));
    process_.PostAfter(at,
                       [this, word = word_, bucket] { PushOne(word, bucket); });
  }
}

void SimWorker::PushOne(uint64_t word, int bucket) {
  if (is_done_ || word != word_) return;  // the step was aborted meanwhile
  if (crash_ != nullptr && num_pushed_ >= crash_after_) return Crash();
  ReadBucket(bucket, step_ - 1);  // until now it must not have changed
  WriteGradients(bucket);
  view_->StorePushed(bucket, word_);
  ++num_pushed_;
  RingDoorbell();
  const bool is_last = num_pushed_ == static_cast<int>(is_scheduled_.size());
  if (is_last) bad_value_ = nullptr;
  if (is_last && crash_ != nullptr) return Crash();
  if (is_last) world_->OnAllPushed(id_, step_);
}

void SimWorker::Crash() {
  is_done_ = true;
  world_->Crash(id_, *crash_);
}

void SimWorker::WriteGradients(int bucket) {
  const auto weights = memory_->segments[proto::SegmentKind::kWeights].bytes();
  const auto gradients =
      memory_->segments[proto::SegmentKind::kGradients].bytes();
  bool is_first = bad_value_ != nullptr;
  for (const layout::Shard& shard : layout_->bucket(BucketId(bucket)).shards) {
    for (const layout::Piece& piece : shard.pieces) {
      const layout::TensorSpec& tensor = layout_->tensor(piece.tensor);
      const layout::TensorPlace& place = layout_->place(piece.tensor);
      const int64_t offset = piece.begin * kernels::SizeOf(tensor.dtype);
      std::byte* const out = gradients.data() + place.gradient_offset + offset;
      if (id_.rank == 0 && world_->scenario().loads.contains(step_)) {
        LoadedWeights(tensor, step_, piece.begin, piece.end, out);
      } else {
        ComputeGradient(tensor, id_.rank, step_, piece.begin, piece.end,
                        weights.data() + place.weight_offset + offset, out);
      }
      if (is_first) Poison(out, tensor.dtype);
      is_first = false;
    }
  }
}

void SimWorker::Poison(std::byte* element, kernels::DType dtype) {
  const bool is_nan = bad_value_->kind == Fault::Kind::kNan;
  uint32_t bits = is_nan ? 0x7fc00000 : 0x7f800000;
  if (dtype == kernels::DType::kBFloat16) bits >>= 16;
  if (dtype == kernels::DType::kFloat16) bits = is_nan ? 0x7e00 : 0x7c00;
  std::memcpy(element, &bits, kernels::SizeOf(dtype));
}

}  // namespace ballast::sim
