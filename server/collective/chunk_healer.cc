#include "server/collective/chunk_healer.h"

#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/collective/chunk_source.h"

namespace ballast::collective {
namespace {

using Entry = PublishedChunks::Entry;

// The owner of what is not this node's own first, then by rank. What the votes
// differ in, as the first partition group's owner has it (comparison.h).
std::vector<NodeRank> NodesToAsk(const Context& context, const ChunkId& id,
                                 HealKind kind) {
  const NodeRank self = context.parts.node;
  const NodeRank owner =
      kind == HealKind::kVote ? id.owner : context.NodeOf(id.owner);
  std::vector<NodeRank> nodes;
  if (owner != self) nodes.push_back(owner);
  for (int n = 0; n < context.topology().num_nodes; ++n) {
    const NodeRank node(n);
    if (node != self && node != owner) nodes.push_back(node);
  }
  return nodes;
}

Entry EntryOf(const std::vector<std::byte>& copy) {
  Entry entry;
  std::memcpy(&entry, copy.data(), sizeof(entry));
  return entry;
}
std::span<const std::byte> BitsOf(const std::vector<std::byte>& copy) {
  return std::span(copy).subspan(sizeof(Entry));
}

}  // namespace

void ChunkHealer::Heal(const Wanted& wanted, const absl::Status& why,
                       Done done) {
  Case one;
  one.wanted = wanted;
  one.why = why;
  one.done = std::move(done);
  waiting_.push_back(std::move(one));
  OpenSome();
}

void ChunkHealer::Cancel() {
  for (Case& one : open_) {
    context_->parts.pulls->Cancel(one.pull);
    context_->parts.executor->Cancel(one.timer);
  }
  open_.clear();
  waiting_.clear();
  alive_ = std::make_shared<int>(0);
}

std::string ChunkHealer::WaitingFor() const {
  if (open_.empty()) return "";
  const Case& first = open_.front();
  return absl::StrCat("node ", first.nodes[first.next].value(),
                      " has not sent version ", first.wanted.version.value(),
                      " of ", open_.size() + waiting_.size(),
                      " damaged chunks, among them ",
                      context_->parts.published->Describe(first.wanted.id));
}

void ChunkHealer::OpenSome() {
  while (!waiting_.empty() && open_.size() < kMaxHeals) {
    const auto one = open_.insert(open_.end(), std::move(waiting_.front()));
    waiting_.pop_front();
    const Parts& parts = context_->parts;
    const ChunkId& id = one->wanted.id;
    one->own_checksum = parts.published->Checksum(id, parts.weights);
    one->nodes = NodesToAsk(*context_, id, one->wanted.kind);
    one->copy.resize(sizeof(Entry) + parts.published->BytesOf(id));
    AskNext(one);
  }
}

void ChunkHealer::AskNext(Cases::iterator one) {
  const Parts& parts = context_->parts;
  const Wanted& wanted = one->wanted;
  // Silence is also how a lost link begins, which is found a little after
  // `pull_timeout` and ends all this; only silence past that is an answer.
  if (one->next == one->nodes.size() && !one->asked_again) {
    one->asked_again = true;
    one->nodes.insert(one->nodes.end(), one->silent.begin(), one->silent.end());
  }
  if (one->next == one->nodes.size()) {
    return End(one,
               absl::DataLossError(absl::StrCat(
                   one->why.message(), "; no node has the bits of version ",
                   wanted.version.value(), ": ", one->answers)));
  }
  const absl::StatusOr<transport::PullId> pull = parts.pulls->Pull(
      one->nodes[one->next],
      {.generation = context_->generation,
       .version = wanted.version,
       .bucket = wanted.id.bucket,
       .owner = wanted.id.owner,
       .kind = kPullChunk,
       .chunk = static_cast<uint32_t>(wanted.id.index)},
      one->copy,
      [this, one](const absl::Status& status) { OnAnswer(one, status); });
  if (!pull.ok()) return GoOn(one, pull.status());
  one->pull = *pull;
  if (parts.pull_timeout == absl::InfiniteDuration()) return;
  one->timer = parts.executor->PostAfter(parts.pull_timeout, [this, one] {
    one->timer = 0;
    context_->parts.pulls->Cancel(one->pull);
    if (!one->asked_again) one->silent.push_back(one->nodes[one->next]);
    GoOn(one, absl::DeadlineExceededError(absl::StrCat(
                  "node ", one->nodes[one->next].value(),
                  " has not answered within ",
                  absl::FormatDuration(context_->parts.pull_timeout))));
  });
}

void ChunkHealer::OnAnswer(Cases::iterator one, const absl::Status& status) {
  context_->parts.executor->Cancel(std::exchange(one->timer, 0));
  if (!status.ok()) return GoOn(one, status);
  bytes_received_ += one->copy.size();
  const absl::Status checked = Check(*one);
  if (!checked.ok()) return GoOn(one, checked);
  Write(one);
}

// What came is hostile input (I27) until it is known to be right.
absl::Status ChunkHealer::Check(const Case& one) const {
  const Entry entry = EntryOf(one.copy);
  const Wanted& wanted = one.wanted;
  const auto bad = [&](std::string_view what) {
    return absl::DataLossError(
        absl::StrCat("node ", one.nodes[one.next].value(), ": ",
                     absl::string_view(what.data(), what.size())));
  };
  if (entry.version != wanted.version) return bad("sent another version");
  if (context_->parts.published->ChecksumOfCopy(wanted.id, BitsOf(one.copy)) !=
      entry.checksum) {
    return bad("sent bits that do not have their checksum");
  }
  const bool is_owner =
      one.nodes[one.next] == context_->NodeOf(wanted.id.owner);
  const bool is_note_damaged =
      wanted.kind == HealKind::kOwner && entry.checksum == one.own_checksum;
  if (wanted.checksum.has_value() && entry.checksum != *wanted.checksum &&
      !is_owner && !is_note_damaged) {
    return bad("has other bits of that version");
  }
  return absl::OkStatus();
}

void ChunkHealer::GoOn(Cases::iterator one, const absl::Status& answer) {
  if (!one->answers.empty()) one->answers += "; ";
  absl::StrAppend(&one->answers, answer.message());
  ++one->next;
  AskNext(one);
}

void ChunkHealer::Write(Cases::iterator one) {
  const Parts& parts = context_->parts;
  const ChunkId& id = one->wanted.id;
  parts.published->CopyIn(id, BitsOf(one->copy), parts.weights);
  parts.published->Set(id, EntryOf(one->copy));
  parts.published->Count(one->wanted.kind);
  if (parts.log && one->wanted.kind != HealKind::kRelink) {
    parts.log(absl::StrCat(one->why.message(),
                           "; healed with the bits of node ",
                           one->nodes[one->next].value()));
  }
  End(one, absl::OkStatus());
}

void ChunkHealer::End(Cases::iterator one, const absl::Status& status) {
  context_->parts.executor->Post([alive = std::weak_ptr<int>(alive_),
                                  done = std::move(one->done),
                                  status]() mutable {
    if (!alive.expired()) std::move(done)(status);
  });
  open_.erase(one);
  OpenSome();
}

}  // namespace ballast::collective
