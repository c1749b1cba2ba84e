// Two or more Protocols joined by a wire that a test drives by hand: every
// message is copied, and may be changed, dropped or repeated on its way.
#ifndef SERVER_TRANSPORT_UCX_PROTOCOL_TESTING_H_
#define SERVER_TRANSPORT_UCX_PROTOCOL_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "server/base/ids.h"
#include "server/transport/ucx/protocol.h"

namespace ballast::transport {

class ProtocolNetwork {
 public:
  using Message = std::vector<std::byte>;
  // What arrives in place of a message, as often as it says.
  using Tamper = absl::AnyInvocable<std::vector<Message>(NodeRank to, Message)>;

  static Incarnation IncarnationOf(int node) { return Incarnation(100 + node); }

  ProtocolNetwork(int num_nodes, const Protocol::Options& options) {
    for (int node = 0; node < num_nodes; ++node) {
      nodes_.push_back(std::make_unique<Protocol>(options, NodeRank(node),
                                                  IncarnationOf(node)));
    }
  }

  Protocol* node(int rank) { return nodes_[rank].get(); }
  absl::Time now() const { return now_; }
  void SetTamper(Tamper tamper) { tamper_ = std::move(tamper); }
  void Cut(int node) { cut_ = node; }

  void Connect(int node, int peer) {
    connections_[{node, peer}] =
        nodes_[node]->Connect(NodeRank(peer), IncarnationOf(peer), now_);
  }
  void ConnectAll() {
    for (int node = 0; node < size(); ++node) {
      for (int peer = 0; peer < size(); ++peer) {
        if (node != peer) Connect(node, peer);
      }
    }
    Settle();
  }

  // Carries messages until there are none. False if they never end.
  bool Settle() {
    for (int turns = 0; turns < 10000; ++turns) {
      bool did_something = false;
      for (auto& [link, connection] : connections_) {
        did_something |= CarryOne(link.first, link.second, connection);
      }
      if (!did_something) return true;
    }
    return false;
  }

  void Advance(absl::Duration duration) {
    const absl::Time end = now_ + duration;
    const absl::Duration period = nodes_[0]->tick_period();
    while (now_ < end) {
      now_ += period;
      for (auto& node : nodes_) node->Tick(now_);
      Settle();
    }
  }

 private:
  int size() const { return static_cast<int>(nodes_.size()); }

  bool CarryOne(int from, int to, uint64_t connection) {
    Message slot(nodes_[from]->max_message_bytes());
    std::string frame;
    size_t size = 0;
    const Protocol::Next next = nodes_[from]->NextMessage(
        NodeRank(to), connection, true, slot, &size, &frame);
    if (next == Protocol::Next::kFrame) {
      const auto bytes = std::as_bytes(std::span(frame));
      slot.assign(bytes.begin(), bytes.end());
      size = frame.size();
    } else if (next != Protocol::Next::kSlot) {
      return false;
    }
    slot.resize(size);
    if (from == cut_ || to == cut_) return true;  // lost
    std::vector<Message> arriving;
    if (tamper_ == nullptr) {
      arriving.push_back(std::move(slot));
    } else {
      arriving = tamper_(NodeRank(to), std::move(slot));
    }
    for (const Message& message : arriving) {
      nodes_[to]->OnMessage(message, now_);
    }
    return true;
  }

  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::unique_ptr<Protocol>> nodes_;
  std::map<std::pair<int, int>, uint64_t> connections_;
  Tamper tamper_;
  int cut_ = -1;
};

}  // namespace ballast::transport

#endif  // SERVER_TRANSPORT_UCX_PROTOCOL_TESTING_H_
