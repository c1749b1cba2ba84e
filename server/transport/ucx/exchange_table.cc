#include "server/transport/ucx/exchange_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"

namespace ballast::transport {
namespace {

// More are owed only to a peer that asks and takes nothing.
constexpr size_t kMaxReplies = 4096;
constexpr int kMaxNamedPeers = 4;

}  // namespace

std::string Describe(const PreparedExchange& exchange) {
  return absl::StrCat("job ", exchange.spec.job, ", generation ",
                      exchange.spec.generation.value(), ", phase ",
                      exchange.spec.phase, ", bucket ",
                      exchange.spec.bucket.value(), ", step ",
                      exchange.step.value());
}

ExchangeTable::ExchangeTable(const Options& options, NodeRank self,
                             Peers* peers, ProtocolStats* stats)
    : options_(options), self_(self), peers_(peers), stats_(stats) {}

ExchangeTable::~ExchangeTable() {
  for (auto& [key, exchange] : exchanges_) LeaveQueues(exchange.get());
}

absl::Status ExchangeTable::Check(const ExchangeSpec& spec) const {
  const uint64_t max_bytes = MaxPartBytes(options_);
  std::vector<NodeRank> to;
  std::vector<NodeRank> from;
  const auto check = [&](NodeRank peer, size_t size,
                         std::vector<NodeRank>* seen) {
    if (peer == self_) {
      return absl::InvalidArgumentError("an exchange with oneself");
    }
    if (std::ranges::find(*seen, peer) != seen->end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("two parts for node ", peer.value()));
    }
    if (size > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a part of ", size, " bytes for node ", peer.value(),
                       ", at most ", max_bytes, " are possible"));
    }
    seen->push_back(peer);
    return absl::OkStatus();
  };
  for (const SendPart& part : spec.sends) {
    RETURN_IF_ERROR(check(part.to, part.bytes.size(), &to));
  }
  for (const ReceivePart& part : spec.receives) {
    RETURN_IF_ERROR(check(part.from, part.bytes.size(), &from));
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedExchange*> ExchangeTable::Prepare(
    const ExchangeSpec& spec) {
  RETURN_IF_ERROR(Check(spec));
  auto& slot = exchanges_[Key{spec.job, spec.generation.value(), spec.phase,
                              spec.bucket.value()}];
  if (slot != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat(
        "an exchange of phase ", spec.phase, ", bucket ", spec.bucket.value(),
        ", generation ", spec.generation.value(),
        " is already prepared on node ", self_.value()));
  }
  slot = std::make_unique<PreparedExchange>();
  slot->id = next_id_++;
  slot->spec = spec;
  slot->parts.reserve(spec.sends.size() + spec.receives.size());
  const auto add = [&](NodeRank peer, bool is_send, size_t size) -> Part& {
    return slot->parts.emplace_back(
        slot.get(), peer, is_send,
        static_cast<uint32_t>(NumChunks(size, options_.chunk_bytes)));
  };
  for (const SendPart& part : spec.sends) {
    add(part.to, true, part.bytes.size()).source = part.bytes;
  }
  for (const ReceivePart& part : spec.receives) {
    add(part.from, false, part.bytes.size()).target = part.bytes;
  }
  return slot.get();
}

void ExchangeTable::Release(PreparedExchange* exchange) {
  Cancel(exchange);
  const ExchangeSpec& spec = exchange->spec;
  exchanges_.erase(
      Key{spec.job, spec.generation.value(), spec.phase, spec.bucket.value()});
}

absl::Status ExchangeTable::Post(PreparedExchange* exchange, Step step,
                                 absl::Time now) {
  if (exchange->is_posted) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", exchange->step.value(),
                     " is posted, cannot post step ", step.value()));
  }
  exchange->is_posted = true;
  exchange->post = next_post_++;
  exchange->step = step;
  exchange->num_open = exchange->parts.size();
  exchange->deadline = now + options_.deadline;
  for (Part& part : exchange->parts) {
    part.is_done = false;
    part.peer_post = 0;
    part.next_chunk = 0;
    part.received.Clear();
    part.repeats.Clear();
  }
  if (exchange->num_open == 0) Finish(exchange, absl::OkStatus());
  for (Part& part : exchange->parts) {
    if (!exchange->is_posted) break;  // an earlier part failed
    Peer* const peer = FindPeer(part.peer);
    if (peer == nullptr) {
      Finish(exchange, absl::UnavailableError(absl::StrCat(
                           "node ", part.peer.value(), " is not connected")));
    } else if (peer->state == Peer::State::kFailed) {
      Finish(exchange, peer->failure);
    } else if (!part.is_send || !TryStart(&part)) {
      peer->control.Push(&part);
    }
  }
  return absl::OkStatus();
}

void ExchangeTable::Cancel(PreparedExchange* exchange) {
  exchange->is_posted = false;
  LeaveQueues(exchange);
}

Peer* ExchangeTable::FindPeer(NodeRank node) const {
  const auto it = peers_->find(node);
  return it == peers_->end() ? nullptr : it->second.get();
}

Part* ExchangeTable::FindPart(const Peer& peer, const MessageHeader& header,
                              bool is_send) {
  const auto it = exchanges_.find(
      Key{header.job, header.generation, header.phase, header.bucket});
  if (it != exchanges_.end()) {
    for (Part& part : it->second->parts) {
      if (part.is_send != is_send || part.peer != peer.node) continue;
      part.owner->counters.wire_received += kHeaderBytes + header.payload_bytes;
      return &part;
    }
  }
  ++stats_->unmatched;
  return nullptr;
}

Part* ExchangeTable::FindPosted(const Peer& peer, const MessageHeader& header,
                                bool is_send) {
  Part* const part = FindPart(peer, header, is_send);
  if (part == nullptr) return nullptr;
  const PreparedExchange& exchange = *part->owner;
  const bool fits = is_send ? header.sender_post == exchange.post &&
                                  header.receiver_post == part->peer_post
                            : header.receiver_post == exchange.post;
  if (!exchange.is_posted || part->is_done || !fits ||
      header.step != exchange.step.value()) {
    ++stats_->fenced;
    return nullptr;
  }
  return part;
}

MessageHeader ExchangeTable::HeaderOf(const Part& part,
                                      MessageKind kind) const {
  const PreparedExchange& exchange = *part.owner;
  MessageHeader header;
  header.kind = static_cast<uint16_t>(kind);
  header.job = exchange.spec.job;
  header.generation = exchange.spec.generation.value();
  header.step = exchange.step.value();
  header.bucket = exchange.spec.bucket.value();
  header.phase = exchange.spec.phase;
  header.sender_post = part.is_send ? exchange.post : part.peer_post;
  header.receiver_post = part.is_send ? part.peer_post : exchange.post;
  header.part_bytes = part.size();
  header.chunk_bytes = options_.chunk_bytes;
  return header;
}

void ExchangeTable::Reply(Peer* to, const Part& part, MessageKind kind,
                          uint32_t argument) {
  if (to->replies.size() >= kMaxReplies) {
    ++stats_->replies_dropped;
    return;
  }
  MessageHeader header = HeaderOf(part, kind);
  header.argument = argument;
  to->replies.push_back(header);
  part.owner->counters.wire_sent += kHeaderBytes;
}

// True if the part needs no offer.
bool ExchangeTable::TryStart(Part* send) {
  PreparedExchange* const exchange = send->owner;
  if (!exchange->is_posted || send->is_done || send->credit_post == 0 ||
      send->credit_step != exchange->step.value()) {
    return false;
  }
  if (send->credit_post == send->peer_post) return true;  // repeated
  Peer* const peer = FindPeer(send->peer);
  send->peer_post = send->credit_post;
  send->next_chunk = 0;
  send->repeats.Clear();
  peer->control.Remove(send);
  if (send->credit_bytes == send->size()) {
    peer->data.Push(send);
    return true;
  }
  // A chunk that says the true size, so that the receiver sees it too.
  Reply(peer, *send, MessageKind::kChunk, 0);
  Finish(exchange, absl::DataLossError(absl::StrCat(
                       "node ", send->peer.value(), " expects ",
                       send->credit_bytes, " bytes of ", Describe(*exchange),
                       "; node ", self_.value(), " has ", send->size())));
  return true;
}

void ExchangeTable::OnCredit(Peer* from, const MessageHeader& header) {
  Part* const part = FindPart(*from, header, /*is_send=*/true);
  if (part == nullptr) return;
  if (header.receiver_post < part->credit_post) {
    ++stats_->fenced;
    return;
  }
  part->credit_post = header.receiver_post;
  part->credit_step = header.step;
  part->credit_bytes = header.part_bytes;
  TryStart(part);
}

void ExchangeTable::OnOffer(Peer* from, const MessageHeader& header) {
  Part* const part = FindPart(*from, header, /*is_send=*/false);
  if (part == nullptr) return;
  // Otherwise the credit comes when the step is posted here.
  if (part->owner->is_posted && !part->is_done &&
      part->owner->step.value() == header.step) {
    from->control.Push(part);
  }
}

void ExchangeTable::OnChunk(Peer* from, const MessageHeader& header,
                            std::span<const std::byte> payload,
                            bool is_intact) {
  Part* const part = FindPosted(*from, header, /*is_send=*/false);
  if (part == nullptr) return;
  const auto fail = [&](std::string what) {
    FailReceive(
        from, part,
        absl::DataLossError(absl::StrCat("node ", from->node.value(), ", ",
                                         Describe(*part->owner), ": ", what)));
  };
  if (header.sender_post < part->peer_post) {
    ++stats_->fenced;
    return;
  }
  if (header.sender_post > part->peer_post) {  // the sender started again
    part->peer_post = header.sender_post;
    part->received.Clear();
    part->repeats.Clear();
  }
  if (header.part_bytes != part->size()) {
    return fail(absl::StrCat("sends ", header.part_bytes, " bytes, ",
                             part->size(), " are expected"));
  }
  const uint32_t chunk = header.argument;
  if (header.chunk_bytes != options_.chunk_bytes || chunk >= part->num_chunks) {
    return fail(absl::StrCat("sends chunk ", chunk, " of ", header.chunk_bytes,
                             " bytes, expected ", part->num_chunks, " of ",
                             options_.chunk_bytes));
  }
  const ChunkRange range =
      RangeOfChunk(part->size(), options_.chunk_bytes, chunk);
  if (payload.size() != range.size) {
    return fail(absl::StrCat("chunk ", chunk, " has ", payload.size(),
                             " bytes, expected ", range.size));
  }
  if (part->received.Contains(chunk)) {
    ++stats_->duplicates;
    return;
  }
  if (!is_intact) {
    ++stats_->bad_payloads;
    if (!part->repeats.Insert(chunk)) {
      return fail(absl::StrCat("chunk ", chunk, " fails its checksum twice"));
    }
    return Reply(from, *part, MessageKind::kResend, chunk);
  }
  if (!payload.empty()) {
    std::memcpy(part->target.data() + range.offset, payload.data(),
                payload.size());
  }
  part->received.Insert(chunk);
  if (!part->received.is_full()) return;
  Reply(from, *part, MessageKind::kDone, 0);
  part->owner->counters.payload_received += part->size();
  from->counters.payload_received += part->size();
  FinishPart(part);
}

void ExchangeTable::FailReceive(Peer* from, Part* part, absl::Status status) {
  Reply(from, *part, MessageKind::kDone, static_cast<uint32_t>(status.code()));
  Finish(part->owner, std::move(status));
}

void ExchangeTable::OnResend(Peer* from, const MessageHeader& header) {
  Part* const part = FindPosted(*from, header, /*is_send=*/true);
  if (part == nullptr) return;
  if (header.argument >= part->next_chunk) {
    ++stats_->fenced;
    return;
  }
  if (part->repeats.Insert(header.argument)) ++stats_->resends;
  from->data.Push(part);
}

void ExchangeTable::OnDone(Peer* from, const MessageHeader& header) {
  Part* const part = FindPosted(*from, header, /*is_send=*/true);
  if (part == nullptr) return;
  PreparedExchange* const exchange = part->owner;
  if (header.argument != 0) {
    return Finish(exchange,
                  absl::DataLossError(absl::StrCat(
                      "node ", from->node.value(), " refuses ",
                      Describe(*exchange), " (code ", header.argument, ")")));
  }
  if (part->next_chunk < part->num_chunks) {  // it cannot have them all
    ++stats_->fenced;
    return;
  }
  exchange->counters.payload_sent += part->size();
  from->counters.payload_sent += part->size();
  FinishPart(part);
}

std::optional<MessageHeader> ExchangeTable::NextControl(Peer* to) {
  Part* const part = to->control.front();
  if (part == nullptr) return std::nullopt;
  to->control.Remove(part);
  part->owner->counters.wire_sent += kHeaderBytes;
  return HeaderOf(*part,
                  part->is_send ? MessageKind::kOffer : MessageKind::kCredit);
}

std::optional<MessageHeader> ExchangeTable::NextChunk(
    Peer* to, std::span<std::byte> slot) {
  Part* const part = to->data.front();
  if (part == nullptr) return std::nullopt;
  const uint32_t chunk =
      part->repeats.empty() ? part->next_chunk++ : part->repeats.TakeFirst();
  const ChunkRange range =
      RangeOfChunk(part->size(), options_.chunk_bytes, chunk);
  if (range.size != 0) {
    std::memcpy(slot.data(), part->source.data() + range.offset, range.size);
  }
  if (part->repeats.empty() && part->next_chunk == part->num_chunks) {
    to->data.Remove(part);
  }
  MessageHeader header = HeaderOf(*part, MessageKind::kChunk);
  header.argument = chunk;
  header.payload_bytes = static_cast<uint32_t>(range.size);
  header.payload_checksum =
      PayloadChecksum(slot.first(range.size), options_.checksum_seed);
  part->owner->counters.wire_sent += kHeaderBytes + range.size;
  return header;
}

void ExchangeTable::OnPeerFailed(const Peer& peer) {
  for (auto& [key, exchange] : exchanges_) {
    if (!exchange->is_posted) continue;
    const auto waits = [&](const Part& part) {
      return part.peer == peer.node && !part.is_done;
    };
    if (std::ranges::any_of(exchange->parts, waits)) {
      Finish(exchange.get(), peer.failure);
    }
  }
}

void ExchangeTable::ForgetPeer(NodeRank node) {
  for (auto& [key, exchange] : exchanges_) {
    for (Part& part : exchange->parts) {
      if (part.peer == node) part.peer_post = part.credit_post = 0;
    }
  }
}

void ExchangeTable::RepeatControl(Peer* peer) {
  for (auto& [key, exchange] : exchanges_) {
    if (!exchange->is_posted) continue;
    for (Part& part : exchange->parts) {
      if (part.peer != peer->node || part.is_done) continue;
      // A send under way goes on, or is asked for by a new credit.
      if (!part.is_send || part.peer_post == 0) peer->control.Push(&part);
    }
  }
}

void ExchangeTable::ExpireDeadlines(absl::Time now) {
  if (options_.deadline == absl::InfiniteDuration()) return;
  for (auto& [key, exchange] : exchanges_) {
    if (exchange->is_posted && exchange->deadline <= now) {
      Finish(exchange.get(), Missing(*exchange));
    }
  }
}

absl::Status ExchangeTable::Missing(const PreparedExchange& exchange) const {
  std::string text = absl::StrCat(Describe(exchange), ": not done within ",
                                  absl::FormatDuration(options_.deadline));
  int num_named = 0;
  for (const Part& part : exchange.parts) {
    if (part.is_done) continue;
    if (++num_named > kMaxNamedPeers) return absl::DeadlineExceededError(text);
    absl::StrAppend(&text, part.is_send ? "; to node " : "; from node ",
                    part.peer.value(), " ",
                    part.is_send ? part.next_chunk : part.received.count(),
                    " of ", part.num_chunks, " chunks");
  }
  return absl::DeadlineExceededError(text);
}

void ExchangeTable::FinishPart(Part* part) {
  part->is_done = true;
  if (Peer* const peer = FindPeer(part->peer); peer != nullptr) {
    peer->control.Remove(part);
    peer->data.Remove(part);
  }
  if (--part->owner->num_open == 0) Finish(part->owner, absl::OkStatus());
}

void ExchangeTable::Finish(PreparedExchange* exchange, absl::Status status) {
  exchange->is_posted = false;
  LeaveQueues(exchange);
  completions_.push_back(
      {exchange->id, exchange->post, exchange->step, std::move(status)});
}

void ExchangeTable::LeaveQueues(PreparedExchange* exchange) {
  for (Part& part : exchange->parts) {
    Peer* const peer = FindPeer(part.peer);
    if (peer == nullptr) continue;
    peer->control.Remove(&part);
    peer->data.Remove(&part);
  }
}

}  // namespace ballast::transport
