#include "tests/sim/losses.h"

#include <algorithm>
#include <iterator>

#include "proto/peer.pb.h"

namespace ballast::sim {
namespace {

Fault::Kind KindOf(bool is_reply) {
  return is_reply ? Fault::Kind::kLoseReply : Fault::Kind::kLoseRequest;
}

// Of the one body that is set.
std::string NameOfBody(const google::protobuf::Message& message) {
  const auto* const field = message.GetReflection()->GetOneofFieldDescriptor(
      message, message.GetDescriptor()->FindOneofByName("body"));
  return field == nullptr ? "" : field->name();
}

}  // namespace

std::string KindOfFrame(const std::string& frame) {
  v1::PeerFrame parsed;
  if (!parsed.ParseFromString(frame)) return "";
  if (parsed.has_snapshot()) return NameOfBody(parsed.snapshot());
  if (parsed.has_resume()) return NameOfBody(parsed.resume());
  return NameOfBody(parsed);
}

const Fault* Losses::Take(Fault::Kind kind, bool is_node, int where,
                          std::string_view what) {
  const auto it = std::ranges::find_if(armed_, [&](const Fault* fault) {
    return fault->kind == kind && fault->is_node == is_node &&
           fault->where == where && fault->what == what;
  });
  if (it == armed_.end()) return nullptr;
  const Fault* const taken = *it;
  armed_.erase(it);
  return taken;
}

const Fault* Losses::TakeCall(int rank, std::string_view call, bool is_reply) {
  return Take(KindOf(is_reply), /*is_node=*/false, rank, call);
}

const Fault* Losses::TakePoll(int node, bool is_reply) {
  return Take(KindOf(is_reply), /*is_node=*/true, node, "poll");
}

const Fault* Losses::TakeFrame(NodeRank from, NodeRank to,
                               const std::string& frame) {
  if (armed_.empty()) return nullptr;
  const std::string what = KindOfFrame(frame);
  const Fault* const request =
      Take(KindOf(/*is_reply=*/false), true, from.value(), what);
  if (request != nullptr) return request;
  return Take(KindOf(/*is_reply=*/true), true, to.value(), what);
}

std::vector<const Fault*> Losses::Missed() const {
  std::vector<const Fault*> missed;
  std::ranges::copy_if(armed_, std::back_inserter(missed),
                       [](const Fault* fault) { return !fault->may_miss; });
  return missed;
}

}  // namespace ballast::sim
