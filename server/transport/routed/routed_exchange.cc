#include "server/transport/routed/routed_exchange.h"

#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::transport {

// Where every block lies on this node, as far as the rounds have brought it.
class RoutedExchange::Planner {
 public:
  Planner(const ExchangeSpec& spec, NodeRank self, TurnMemory* memory,
          RoutedExchange* exchange)
      : spec_(spec), self_(self), memory_(*memory), exchange_(*exchange) {
    for (const SendPart& part : spec_.sends) {
      here_[KeyOf(SentTo(part.to))] = part.bytes;
    }
    for (const ReceivePart& part : spec_.receives) {
      final_[part.from.value()] = part.bytes;
    }
  }

  absl::Status Add(Transport* transport, const Round& round, uint32_t phase) {
    Stage stage;
    ExchangeSpec inner = Empty(phase);
    for (const Hop& hop : round.sends) {
      const std::span<const std::byte> bytes = Packed(hop, &stage);
      if (!bytes.empty()) inner.sends.push_back({hop.peer, bytes});
    }
    for (const Hop& hop : round.receives) {
      const std::span<std::byte> bytes = Unpacked(hop, &stage);
      if (!bytes.empty()) inner.receives.push_back({hop.peer, bytes});
    }
    if (inner.sends.empty() && inner.receives.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(stage.exchange, transport->Prepare(inner, &exchange_));
    exchange_.stages_.push_back(std::move(stage));
    return absl::OkStatus();
  }

  absl::Status AddEmpty(Transport* transport) {
    Stage stage;
    ASSIGN_OR_RETURN(stage.exchange,
                     transport->Prepare(Empty(spec_.phase), &exchange_));
    exchange_.stages_.push_back(std::move(stage));
    return absl::OkStatus();
  }

 private:
  ExchangeSpec Empty(uint32_t phase) const {
    ExchangeSpec spec;
    spec.job = spec_.job;
    spec.generation = spec_.generation;
    spec.phase = phase;
    spec.bucket = spec_.bucket;
    return spec;
  }
  static uint64_t KeyOf(const Block& block) {
    return static_cast<uint64_t>(block.origin.value()) << 32 |
           static_cast<uint32_t>(block.target.value());
  }
  bool is_gather() const { return spec_.pattern == Pattern::kGather; }

  // All sends of a gather are the same block.
  Block SentTo(NodeRank to) const { return {self_, is_gather() ? self_ : to}; }

  uint64_t SizeOf(const Block& block) const {
    if (block.origin == self_) {
      const auto found = here_.find(KeyOf(block));
      return found == here_.end() ? 0 : found->second.size();
    }
    if (is_gather() || block.target == self_) {
      const auto found = final_.find(block.origin.value());
      return found == final_.end() ? 0 : found->second.size();
    }
    return spec_.part_bytes(block.origin, block.target);
  }

  std::span<std::byte> Take(uint64_t bytes) {
    exchange_.memory_.push_back(memory_.Take(exchange_.memory_.size(), bytes));
    return {exchange_.memory_.back().get(), bytes};
  }

  // The blocks of a hop that have bytes, and how many bytes.
  std::vector<Block> Filled(const Hop& hop, uint64_t* bytes) const {
    std::vector<Block> filled;
    *bytes = 0;
    for (const Block& block : hop.blocks) {
      const uint64_t size = SizeOf(block);
      if (size == 0) continue;
      filled.push_back(block);
      *bytes += size;
    }
    return filled;
  }

  std::span<const std::byte> Packed(const Hop& hop, Stage* stage) {
    uint64_t bytes;
    const std::vector<Block> blocks = Filled(hop, &bytes);
    if (blocks.empty()) return {};
    if (blocks.size() == 1) return here_[KeyOf(blocks.front())];
    const std::span<std::byte> message = Take(bytes);
    std::span<std::byte> rest = message;
    for (const Block& block : blocks) {
      const std::span<const std::byte> from = here_[KeyOf(block)];
      stage->pack.push_back({from, rest.first(from.size())});
      rest = rest.subspan(from.size());
    }
    return message;
  }

  // What this node keeps goes to its place; what it hands on stays where it
  // landed.
  std::span<std::byte> Unpacked(const Hop& hop, Stage* stage) {
    uint64_t bytes;
    const std::vector<Block> blocks = Filled(hop, &bytes);
    if (blocks.empty()) return {};
    const auto is_kept = [&](const Block& block) {
      return is_gather() || block.target == self_;
    };
    if (blocks.size() == 1 && is_kept(blocks.front())) {
      const std::span<std::byte> place = final_[blocks.front().origin.value()];
      here_[KeyOf(blocks.front())] = place;
      return place;
    }
    const std::span<std::byte> message = Take(bytes);
    std::span<std::byte> rest = message;
    for (const Block& block : blocks) {
      const std::span<std::byte> landed = rest.first(SizeOf(block));
      rest = rest.subspan(landed.size());
      std::span<std::byte> place = landed;
      if (is_kept(block)) {
        place = final_[block.origin.value()];
        stage->unpack.push_back({landed, place});
      }
      here_[KeyOf(block)] = place;
    }
    return message;
  }

  const ExchangeSpec& spec_;
  const NodeRank self_;
  TurnMemory& memory_;
  RoutedExchange& exchange_;
  absl::flat_hash_map<uint64_t, std::span<const std::byte>> here_;
  absl::flat_hash_map<int, std::span<std::byte>> final_;  // by origin
};

absl::StatusOr<std::unique_ptr<RoutedExchange>> RoutedExchange::Create(
    Transport* transport, const std::vector<Round>& rounds,
    const ExchangeSpec& spec, TurnMemory* memory, ExchangeObserver* observer) {
  auto exchange = std::unique_ptr<RoutedExchange>(new RoutedExchange(observer));
  Planner planner(spec, transport->self(), memory, exchange.get());
  const auto phase_of = [&](size_t round) {
    return spec.phase | static_cast<uint32_t>(round) << kRoundShift;
  };
  if (rounds.size() >> (32 - kRoundShift) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(rounds.size(), " rounds do not fit into a phase"));
  }
  for (size_t i = 0; i < rounds.size(); ++i) {
    RETURN_IF_ERROR(planner.Add(transport, rounds[i], phase_of(i)));
  }
  // Nothing to move is done at once, by the transport's own executor.
  if (exchange->stages_.empty()) {
    RETURN_IF_ERROR(planner.AddEmpty(transport));
  }
  return exchange;
}

absl::Status RoutedExchange::Post(Step step) {
  if (is_posted_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", step_.value(), " is posted, cannot post step ", step.value()));
  }
  next_ = 0;
  step_ = step;
  RETURN_IF_ERROR(PostStage());
  is_posted_ = true;
  return absl::OkStatus();
}

absl::Status RoutedExchange::PostStage() {
  Stage& stage = stages_[next_];
  for (const Copy& copy : stage.pack) {
    std::memcpy(copy.to.data(), copy.from.data(), copy.from.size());
  }
  return stage.exchange->Post(step_);
}

void RoutedExchange::Cancel() {
  if (is_posted_) stages_[next_].exchange->Cancel();
  is_posted_ = false;
}

void RoutedExchange::OnExchangeDone(Exchange*, Step, const absl::Status& why) {
  absl::Status status = why;
  if (status.ok()) {
    for (const Copy& copy : stages_[next_].unpack) {
      std::memcpy(copy.to.data(), copy.from.data(), copy.from.size());
    }
    if (++next_ < stages_.size()) {
      status = PostStage();
      if (status.ok()) return;
    }
  }
  is_posted_ = false;
  observer_->OnExchangeDone(this, step_, status);  // may release this
}

const ByteCounters& RoutedExchange::counters() const {
  counters_ = {};
  for (const Stage& stage : stages_) {
    const ByteCounters& of_stage = stage.exchange->counters();
    counters_.payload_sent += of_stage.payload_sent;
    counters_.payload_received += of_stage.payload_received;
    counters_.wire_sent += of_stage.wire_sent;
    counters_.wire_received += of_stage.wire_received;
  }
  return counters_;
}

}  // namespace ballast::transport
