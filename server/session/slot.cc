#include "server/session/slot.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"

namespace ballast::session {

std::string_view Name(SlotState state) {
  switch (state) {
    case SlotState::kMissing:
      return "missing";
    case SlotState::kAttached:
      return "attached";
    case SlotState::kReady:
      return "ready";
    case SlotState::kClosed:
      return "closed";
  }
  return "unknown";
}

absl::StatusOr<std::unique_ptr<Slot>> Slot::Create(
    device::Device* device, const layout::Layout* layout, int num_groups,
    std::string_view job, LocalRank rank, int num_units) {
  auto slot = std::unique_ptr<Slot>(new Slot(layout));
  const int num_buckets = static_cast<int>(layout->buckets().size());
  ASSIGN_OR_RETURN(
      slot->control_,
      device->AllocateShared(
          ipc::ControlBlockView::SizeBytes(num_buckets, num_groups, num_units),
          absl::StrCat(std::string(job), "-control-", rank.value())));
  ASSIGN_OR_RETURN(
      slot->gradients_,
      device->AllocateShared(
          std::max<uint64_t>(layout->gradients_bytes(), 1),
          absl::StrCat(std::string(job), "-gradients-", rank.value())));
  slot->num_groups_ = num_groups;
  slot->taken_.resize(num_buckets);
  slot->seen_.resize(num_buckets);
  slot->wanted_.resize(num_units);
  slot->seen_wanted_.resize(num_units);
  slot->groups_.resize(num_groups);
  if (slot->control_->is_adopted()) {
    ASSIGN_OR_RETURN(slot->view_, ipc::ControlBlockView::Adopt(
                                      slot->control_->bytes(), num_buckets,
                                      num_groups, num_units));
    // Whoever was in it and is not any more was lost.
    slot->was_occupied_ = slot->was_lost_ = true;
  }
  return slot;
}

uint64_t Slot::size_bytes() const {
  return control_->size_bytes() + gradients_->size_bytes() +
         (initial_ != nullptr ? initial_->size_bytes() : 0);
}

absl::Status Slot::Occupy(WorkerLink* link, uint64_t open_word) {
  const std::span<std::byte> memory = control_->bytes();
  if (was_occupied_) {
    std::memset(memory.data(), 0, memory.size());
    BALLAST_FAILPOINT("session.slot_cleared");
    for (const layout::Bucket& bucket : layout_->buckets()) {
      if (open_word == 0 || !IsTaken(bucket.id, open_word)) {
        ZeroGradients(bucket);
      }
    }
  }
  ASSIGN_OR_RETURN(view_, ipc::ControlBlockView::Create(
                              memory, static_cast<int>(taken_.size()),
                              num_groups_, static_cast<int>(wanted_.size())));
  state_ = SlotState::kAttached;
  link_ = link;
  identity_ = link->identity();
  was_occupied_ = true;
  ignored_ = 0;
  seen_.assign(seen_.size(), 0);
  seen_input_ = 0;
  wanted_.assign(wanted_.size(), 0);
  seen_wanted_.assign(wanted_.size(), 0);
  BALLAST_FAILPOINT("session.slot_made");
  if (open_word != 0) KeepContribution(open_word);
  return absl::OkStatus();
}

void Slot::Forget() {
  taken_.assign(taken_.size(), 0);
  seen_.assign(seen_.size(), 0);
  taken_input_ = 0;
  seen_input_ = 0;
}

// Its new worker does not give it again, and another life of the daemon looks
// for it here.
void Slot::KeepContribution(uint64_t open_word) {
  for (size_t b = 0; b < taken_.size(); ++b) {
    if (taken_[b] == open_word) {
      view_.StorePushed(BucketId(static_cast<int32_t>(b)), open_word);
    }
  }
  if (HasInput(open_word)) {
    view_.StoreStepInput(open_word, groups_, open_cursor_);
  }
}

void Slot::Adopt(WorkerLink* link) {
  state_ = SlotState::kReady;
  link_ = link;
  identity_ = link->identity();
  was_lost_ = false;
}

void Slot::Vacate(bool was_lost) {
  was_lost_ = was_lost;
  if (state_ != SlotState::kClosed) state_ = SlotState::kMissing;
  link_ = nullptr;
  initial_.reset();
}

void Slot::ZeroGradients(const layout::Bucket& bucket) {
  const std::span<std::byte> memory = gradients_->bytes();
  for (const layout::Shard& shard : bucket.shards) {
    for (const layout::Piece& piece : shard.pieces) {
      const size_t size = kernels::SizeOf(layout_->tensor(piece.tensor).dtype);
      const size_t offset =
          layout_->place(piece.tensor).gradient_offset + piece.begin * size;
      std::memset(memory.data() + offset, 0, piece.size() * size);
    }
  }
}

void Slot::Ignore(uint64_t word, uint64_t* last_seen) {
  // Old and not yet written words are no news; one bad word counts once.
  if (word == *last_seen || word == 0) return;
  *last_seen = word;
  ++ignored_;
}

void Slot::TakePushed(uint64_t open_word, std::vector<BucketId>* pushed) {
  const int num_buckets = static_cast<int>(taken_.size());
  for (int b = 0; b < num_buckets; ++b) {
    const uint64_t word = view_.ReadPushed(BucketId(b));
    if (word == taken_[b]) continue;
    if (word != open_word) {
      Ignore(word, &seen_[b]);
      continue;
    }
    taken_[b] = word;
    pushed->push_back(BucketId(b));
  }
}

void Slot::TakeWanted(std::vector<int>* changed) {
  const int num_units = static_cast<int>(wanted_.size());
  for (int u = 0; u < num_units; ++u) {
    const uint64_t request = view_.ReadWanted(u);
    if (request == wanted_[u]) continue;
    if (request < wanted_[u]) {
      Ignore(request, &seen_wanted_[u]);
      continue;
    }
    wanted_[u] = request;
    changed->push_back(u);
  }
}

void Slot::DropWanted(std::vector<int>* dropped) {
  for (size_t u = 0; u < wanted_.size(); ++u) {
    if (wanted_[u] % 2 == 0) continue;
    ++wanted_[u];
    dropped->push_back(static_cast<int>(u));
  }
}

int Slot::CountTaken(uint64_t open_word) const {
  int count = 0;
  for (const uint64_t word : taken_) count += word == open_word;
  return count;
}

absl::StatusOr<bool> Slot::TakeInput(uint64_t open_word) {
  const uint64_t word = view_.ReadStepInput();
  if (word == taken_input_) return false;
  if (word != open_word) {
    Ignore(word, &seen_input_);
    return false;
  }
  taken_input_ = word;
  open_cursor_.clear();
  RETURN_IF_ERROR(view_.ReadStepValues(std::span(groups_), &open_cursor_));
  return true;
}

void Slot::CommitInput(uint64_t word) {
  if (taken_input_ == word) cursor_ = open_cursor_;
}

}  // namespace ballast::session
