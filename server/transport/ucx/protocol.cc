#include "server/transport/ucx/protocol.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/transport/peer_link.h"

namespace ballast::transport {

Protocol::Protocol(const Options& options, NodeRank self,
                   Incarnation incarnation)
    : options_(options),
      self_(self),
      incarnation_(incarnation),
      table_(options.exchanges, self, &peers_, &stats_) {}

uint64_t Protocol::Connect(NodeRank node, Incarnation incarnation,
                           absl::Time now) {
  base::MutexLock lock(&mutex_);
  Peer* old = FindPeer(node);
  if (old != nullptr && old->state != Peer::State::kFailed) {
    FailPeer(old, absl::StatusCode::kUnavailable, "was replaced");
  }
  table_.ForgetPeer(node);
  auto peer = std::make_unique<Peer>();
  peer->node = node;
  peer->incarnation = incarnation;
  peer->connection = next_connection_++;
  peer->last_heard = peer->last_ping = now;
  peer->is_hello_due = peer->hello_asks = true;
  if (old != nullptr) peer->counters = old->counters;
  const uint64_t connection = peer->connection;
  peers_[node] = std::move(peer);
  return connection;
}

void Protocol::Disconnect(NodeRank node) {
  base::MutexLock lock(&mutex_);
  Peer* const peer = FindPeer(node);
  if (peer == nullptr) return;
  FailPeer(peer, absl::StatusCode::kUnavailable, "was disconnected");
  peers_.erase(node);
}

Peer* Protocol::FindPeer(NodeRank node) const {
  const auto it = peers_.find(node);
  return it == peers_.end() ? nullptr : it->second.get();
}

absl::Status Protocol::PeerStatus(NodeRank node) const {
  base::MutexLock lock(&mutex_);
  const Peer* const peer = FindPeer(node);
  if (peer == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("node ", node.value(), " is not connected"));
  }
  return peer->failure;
}

ByteCounters Protocol::PeerCounters(NodeRank node) const {
  base::MutexLock lock(&mutex_);
  const Peer* const peer = FindPeer(node);
  return peer == nullptr ? ByteCounters() : peer->counters;
}

void Protocol::FailPeer(Peer* peer, absl::StatusCode code,
                        std::string_view why) {
  if (peer->state == Peer::State::kFailed) return;
  peer->state = Peer::State::kFailed;
  peer->failure = absl::Status(
      code, absl::StrCat("node ", peer->node.value(), " ", std::string(why)));
  peer->replies.clear();
  peer->frames.clear();
  peer->frame_bytes = 0;
  table_.OnPeerFailed(*peer);
}

absl::StatusOr<PreparedExchange*> Protocol::Prepare(const ExchangeSpec& spec) {
  base::MutexLock lock(&mutex_);
  return table_.Prepare(spec);
}

void Protocol::Release(PreparedExchange* exchange) {
  base::MutexLock lock(&mutex_);
  table_.Release(exchange);
}

absl::StatusOr<uint64_t> Protocol::Post(PreparedExchange* exchange, Step step,
                                        absl::Time now) {
  base::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(table_.Post(exchange, step, now));
  return exchange->post;
}

void Protocol::Cancel(PreparedExchange* exchange) {
  base::MutexLock lock(&mutex_);
  table_.Cancel(exchange);
}

ByteCounters Protocol::CountersOf(const PreparedExchange* exchange) const {
  base::MutexLock lock(&mutex_);
  return exchange->counters;
}

absl::Status Protocol::SendFrame(NodeRank to, std::string_view frame) {
  if (frame.size() > kMaxFrameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", frame.size(), " bytes, at most ",
                     kMaxFrameBytes, " are allowed"));
  }
  base::MutexLock lock(&mutex_);
  if (to == self_) {
    inbox_.emplace_back(to, frame);
    inbox_bytes_ += frame.size();
    return absl::OkStatus();
  }
  Peer* const peer = FindPeer(to);
  if (peer == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("node ", to.value(), " is not connected"));
  }
  RETURN_IF_ERROR(peer->failure);
  if (peer->frame_bytes + frame.size() > options_.max_queued_frame_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "node ", to.value(), " takes no frames: ", peer->frames.size(),
        " are waiting"));
  }
  const std::span<const std::byte> payload =
      std::as_bytes(std::span(frame.data(), frame.size()));
  MessageHeader header;
  header.kind = static_cast<uint16_t>(MessageKind::kFrame);
  header.payload_bytes = static_cast<uint32_t>(frame.size());
  header.payload_checksum =
      PayloadChecksum(payload, options_.exchanges.checksum_seed);
  Address(*peer, &header);
  std::string message(kHeaderBytes, '\0');
  EncodeHeader(header, options_.exchanges.checksum_seed,
               std::as_writable_bytes(std::span(message)));
  message.append(frame);
  peer->frame_bytes += frame.size();
  peer->frames.push_back(std::move(message));
  return absl::OkStatus();
}

Protocol::Deliveries Protocol::TakeDeliveries() {
  base::MutexLock lock(&mutex_);
  Deliveries deliveries;
  deliveries.completions = table_.TakeCompletions();
  deliveries.frames.swap(inbox_);
  inbox_bytes_ = 0;
  return deliveries;
}

bool Protocol::HasDeliveries() const {
  base::MutexLock lock(&mutex_);
  return !inbox_.empty() || table_.has_completions();
}

ProtocolStats Protocol::stats() const {
  base::MutexLock lock(&mutex_);
  return stats_;
}

size_t Protocol::max_message_bytes() const {
  return kHeaderBytes + options_.exchanges.chunk_bytes;
}

void Protocol::Address(const Peer& peer, MessageHeader* header) const {
  header->sender = self_.value();
  header->sender_incarnation = incarnation_.value();
  header->receiver_incarnation = peer.incarnation.value();
}

bool Protocol::NextWithoutPayload(Peer* peer, MessageHeader* header) {
  const auto say = [&](MessageKind kind) {
    header->kind = static_cast<uint16_t>(kind);
    return true;
  };
  if (peer->is_hello_due) {
    peer->is_hello_due = false;
    header->argument = peer->hello_asks ? 1 : 0;
    header->chunk_bytes = options_.exchanges.chunk_bytes;
    return say(MessageKind::kHello);
  }
  if (peer->state != Peer::State::kReady) return false;
  if (std::exchange(peer->is_ping_due, false)) return say(MessageKind::kPing);
  if (std::exchange(peer->is_pong_due, false)) return say(MessageKind::kPong);
  if (!peer->replies.empty()) {
    *header = peer->replies.front();
    peer->replies.pop_front();
    return true;
  }
  if (const auto control = table_.NextControl(peer)) {
    *header = *control;
    return true;
  }
  return false;
}

Protocol::Next Protocol::NextMessage(NodeRank node, uint64_t connection,
                                     bool may_send_frame,
                                     std::span<std::byte> slot, size_t* size,
                                     std::string* frame) {
  base::MutexLock lock(&mutex_);
  Peer* const peer = FindPeer(node);
  if (peer == nullptr || peer->connection != connection ||
      peer->state == Peer::State::kFailed) {
    return Next::kClose;
  }
  MessageHeader header;
  if (!NextWithoutPayload(peer, &header)) {
    if (peer->state != Peer::State::kReady) return Next::kNothing;
    if (may_send_frame && !peer->frames.empty()) {
      *frame = std::move(peer->frames.front());
      peer->frames.pop_front();
      peer->frame_bytes -= frame->size() - kHeaderBytes;
      peer->counters.wire_sent += frame->size();
      return Next::kFrame;
    }
    const auto chunk = table_.NextChunk(peer, slot.subspan(kHeaderBytes));
    if (!chunk.has_value()) return Next::kNothing;
    header = *chunk;
  }
  Address(*peer, &header);
  EncodeHeader(header, options_.exchanges.checksum_seed, slot);
  *size = kHeaderBytes + header.payload_bytes;
  peer->counters.wire_sent += *size;
  return Next::kSlot;
}

void Protocol::OnMessage(std::span<const std::byte> message, absl::Time now) {
  const uint64_t seed = options_.exchanges.checksum_seed;
  const auto header = DecodeHeader(message, seed);
  const bool is_intact =
      header.ok() &&
      header->payload_checksum ==
          (header->payload_bytes == 0
               ? header->payload_checksum
               : PayloadChecksum(message.subspan(kHeaderBytes), seed));
  base::MutexLock lock(&mutex_);
  if (!header.ok()) {
    ++stats_.malformed;
    return;
  }
  Peer* const peer = FindPeer(NodeRank(header->sender));
  if (peer == nullptr || peer->state == Peer::State::kFailed ||
      header->sender_incarnation != peer->incarnation.value() ||
      header->receiver_incarnation != incarnation_.value()) {
    ++stats_.fenced;
    return;
  }
  peer->last_heard = now;
  peer->counters.wire_received += message.size();
  const auto kind = static_cast<MessageKind>(header->kind);
  if (kind == MessageKind::kHello) return OnHello(peer, *header);
  if (peer->state != Peer::State::kReady) {
    ++stats_.fenced;  // it speaks before it greeted
    return;
  }
  const std::span<const std::byte> payload = message.subspan(kHeaderBytes);
  switch (kind) {
    case MessageKind::kHello:
    case MessageKind::kPong:
      return;
    case MessageKind::kPing:
      peer->is_pong_due = true;
      return;
    case MessageKind::kFrame:
      if (is_intact) return OnFrame(peer, payload);
      ++stats_.bad_payloads;
      return;
    case MessageKind::kCredit:
      return table_.OnCredit(peer, *header);
    case MessageKind::kOffer:
      return table_.OnOffer(peer, *header);
    case MessageKind::kChunk:
      return table_.OnChunk(peer, *header, payload, is_intact);
    case MessageKind::kResend:
      return table_.OnResend(peer, *header);
    case MessageKind::kDone:
      return table_.OnDone(peer, *header);
  }
}

void Protocol::OnHello(Peer* peer, const MessageHeader& header) {
  if (header.chunk_bytes != options_.exchanges.chunk_bytes) {
    return FailPeer(
        peer, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("cuts parts into chunks of ", header.chunk_bytes,
                     " bytes, node ", self_.value(), " into ",
                     options_.exchanges.chunk_bytes));
  }
  if (header.argument != 0) {
    peer->is_hello_due = true;
    peer->hello_asks = false;
    if (peer->state == Peer::State::kReady) table_.RepeatControl(peer);
  }
  peer->state = Peer::State::kReady;
}

void Protocol::OnFrame(Peer* peer, std::span<const std::byte> frame) {
  if (frame.size() > kMaxFrameBytes ||
      inbox_bytes_ + frame.size() > options_.max_inbox_bytes) {
    ++stats_.frames_dropped;
    return;
  }
  inbox_bytes_ += frame.size();
  inbox_.emplace_back(
      peer->node,
      std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
}

void Protocol::OnConnectionFailed(NodeRank node, uint64_t connection,
                                  const absl::Status& status) {
  base::MutexLock lock(&mutex_);
  Peer* const peer = FindPeer(node);
  if (peer == nullptr || peer->connection != connection) return;
  FailPeer(peer, absl::StatusCode::kUnavailable,
           absl::StrCat("is gone: ", status.message()));
}

absl::Duration Protocol::tick_period() const {
  const absl::Duration shortest =
      std::min({options_.connect_timeout, options_.peer_timeout,
                options_.ping_interval, options_.exchanges.deadline});
  return std::clamp(shortest / 4, absl::Milliseconds(1),
                    absl::Milliseconds(250));
}

void Protocol::Tick(absl::Time now) {
  base::MutexLock lock(&mutex_);
  // Who was not running himself cannot say that others were silent: their
  // messages may be waiting.
  const absl::Duration pause = last_tick_ == absl::InfinitePast()
                                   ? absl::ZeroDuration()
                                   : now - last_tick_ - tick_period();
  last_tick_ = now;
  for (auto& [node, peer] : peers_) {
    if (peer->state == Peer::State::kFailed) continue;
    if (pause > tick_period()) peer->last_heard += pause;
    const absl::Duration silence = now - peer->last_heard;
    if (peer->state == Peer::State::kConnecting) {
      if (silence < options_.connect_timeout) continue;
      FailPeer(peer.get(), absl::StatusCode::kUnavailable,
               absl::StrCat("does not answer since ",
                            absl::FormatDuration(options_.connect_timeout)));
    } else if (silence >= options_.peer_timeout) {
      FailPeer(peer.get(), absl::StatusCode::kUnavailable,
               absl::StrCat("is silent since ",
                            absl::FormatDuration(options_.peer_timeout)));
    } else if (silence >= options_.ping_interval &&
               now - peer->last_ping >= options_.ping_interval) {
      peer->last_ping = now;
      peer->is_ping_due = true;
    }
  }
  table_.ExpireDeadlines(now);
}

}  // namespace ballast::transport
