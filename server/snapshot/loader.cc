#include "server/snapshot/loader.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/dtype.h"
#include "kernels/optimizer_name.h"
#include "server/base/failpoint.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/section_name.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {
namespace {

constexpr char kRemedy[] =
    "; open the job with what was stored, under another name, or with "
    "resume=\"never\"";

std::string Shape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// "" or what differs.
std::string TensorDifference(const TensorInfo& stored,
                             const layout::TensorSpec& given) {
  const std::string name = base::Quoted(given.name);
  if (stored.shape != given.shape) {
    return absl::StrCat("tensor ", name, " has shape ", Shape(given.shape),
                        " here, ", Shape(stored.shape), " in ");
  }
  if (stored.dtype != given.dtype) {
    return absl::StrCat("tensor ", name, " is ",
                        std::string(kernels::Name(given.dtype)), " here, ",
                        std::string(kernels::Name(stored.dtype)), " in ");
  }
  if (stored.trainable != given.trainable) {
    return absl::StrCat("tensor ", name,
                        given.trainable ? " is trained here, frozen in "
                                        : " is frozen here, trained in ");
  }
  return "";
}

// A run of elements that this node keeps, and where.
struct KeptRange {
  int64_t begin;
  int64_t end;
  int64_t offset;
};
using KeptRanges = std::vector<std::vector<KeptRange>>;  // by tensor

void AddPieces(const layout::Shard& shard, int64_t first, KeptRanges* ranges,
               bool is_state) {
  for (const layout::Piece& piece : shard.pieces) {
    (*ranges)[piece.tensor.value()].push_back(
        {piece.begin, piece.end,
         is_state ? piece.state_offset : first + piece.bucket_offset});
  }
}

bool Overlaps(const std::vector<KeptRange>& ranges,
              const StoredSection& section) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
    return range.begin < section.end && section.begin < range.end;
  });
}

}  // namespace

class StateLoad::Loading {
 public:
  Loading(const LoadTarget& target, SnapshotReader* reader)
      : target_(target), reader_(*reader) {
    const layout::Layout& layout = *target.layout;
    owned_.resize(layout.tensors().size());
    residuals_.resize(layout.tensors().size());
    for (const layout::Bucket& bucket : layout.buckets()) {
      AddPieces(layout.shard(bucket.id, target.node), 0, &owned_,
                /*is_state=*/true);
      if (target.residuals == nullptr) continue;
      for (const layout::Shard& shard : bucket.shards) {
        AddPieces(shard, target.residuals->OffsetOf(bucket.id), &residuals_,
                  /*is_state=*/false);
      }
    }
    absl::flat_hash_map<std::string, int32_t> index;
    for (size_t t = 0; t < layout.tensors().size(); ++t) {
      index[layout.tensors()[t].name] = static_cast<int32_t>(t);
    }
    for (const TensorInfo& tensor : reader_.manifest().tensors) {
      tensors_.push_back(index.at(tensor.name));
    }
    const layout::Topology& topology = layout.topology();
    if (reader_.manifest().world_size() == topology.world_size()) {
      cursors_.resize(topology.local_world_size);
    }
  }

  bool IsWanted(const StoredSection& section) const {
    if (section.kind == Kind::kCursor) {
      return section.tensor == 0 || CursorOf(section) != nullptr;
    }
    if (section.kind == Kind::kMaster && casts_weights() && IsHere(section)) {
      return true;
    }
    if (section.kind == Kind::kPublished) {
      return IsHere(section) &&
             (target_.wants_published ||
              !reader_.manifest().tensors[section.tensor].trainable);
    }
    if (section.kind == Kind::kResidual) {
      return target_.residuals != nullptr && IsOurs(section) &&
             !BALLAST_SABOTAGED("snapshot.residuals_not_restored");
    }
    return Overlaps(owned_[tensors_[section.tensor]], section);
  }

  absl::Status Take(const StoredSection& section, uint64_t offset,
                    std::span<const std::byte> bytes) {
    if (section.kind == Kind::kCursor) {
      const std::string_view part(reinterpret_cast<const char*>(bytes.data()),
                                  bytes.size());
      if (section.tensor == 0) rank0_cursor_.append(part);
      if (std::string* own = CursorOf(section)) own->append(part);
      return absl::OkStatus();
    }
    const TensorId tensor(tensors_[section.tensor]);
    if (section.kind == Kind::kPublished) {
      const uint64_t begin = WeightOffset(tensor, section.begin) + offset;
      target_.weights.ForEach(
          begin, begin + bytes.size(),
          [&](uint64_t at, std::span<std::byte> here) {
            std::memcpy(here.data(), bytes.data() + (at - begin), here.size());
          });
      return absl::OkStatus();
    }
    const auto* const values = reinterpret_cast<const float*>(bytes.data());
    const int64_t begin =
        section.begin + static_cast<int64_t>(offset / sizeof(float));
    const int64_t count = static_cast<int64_t>(bytes.size() / sizeof(float));
    if (section.kind == Kind::kResidual) {
      AddResidual(section, tensor, begin, std::span(values, count));
      return absl::OkStatus();
    }
    TakeOwned(section.kind, tensor, begin, std::span(values, count));
    if (section.kind == Kind::kMaster && casts_weights()) {
      CastWeights(tensor, begin, std::span(values, count));
    }
    return absl::OkStatus();
  }

  std::vector<std::string> TakeCursors() { return std::move(cursors_); }
  std::string TakeRank0Cursor() { return std::move(rank0_cursor_); }

  // Entries that say nothing of this job are left out.
  std::vector<LoadedState::Budget> Budget() const {
    std::vector<LoadedState::Budget> budget;
    for (const BudgetInfo& info : reader_.manifest().budget) {
      for (const layout::Path path : layout::kPaths) {
        const layout::CodecRow* const row = layout::FindCodec(info.codec);
        if (info.path != layout::Name(path) || row == nullptr) continue;
        budget.push_back(
            {TensorId(tensors_[info.tensor]), path, row->id, info.calm});
      }
    }
    return budget;
  }

 private:
  uint64_t WeightOffset(TensorId tensor, int64_t element) const {
    const layout::Layout& layout = *target_.layout;
    return layout.place(tensor).weight_offset +
           element * kernels::SizeOf(layout.tensor(tensor).dtype);
  }

  // Whether this node keeps any of its weights.
  bool IsHere(const StoredSection& section) const {
    const TensorId tensor(tensors_[section.tensor]);
    return target_.weights.Overlaps(WeightOffset(tensor, section.begin),
                                    WeightOffset(tensor, section.end));
  }

  // Of those that are here; what is kept apart is cut between elements.
  void CastWeights(TensorId tensor, int64_t begin,
                   std::span<const float> values) {
    const kernels::DType dtype = target_.layout->tensor(tensor).dtype;
    const uint64_t first = WeightOffset(tensor, begin);
    target_.weights.ForEach(
        first, first + values.size() * kernels::SizeOf(dtype),
        [&](uint64_t at, std::span<std::byte> here) {
          const uint64_t skipped = (at - first) / kernels::SizeOf(dtype);
          target_.kernels->cast(values.data() + skipped, dtype,
                                here.size() / kernels::SizeOf(dtype),
                                here.data());
        });
  }

  bool IsOurs(const StoredSection& section) const {
    return NodeOfResidual(section.node, reader_.manifest().num_nodes,
                          target_.layout->topology().num_nodes) ==
           target_.node.value();
  }

  bool casts_weights() const {
    return !(target_.wants_published && reader_.manifest().has_published);
  }

  std::string* CursorOf(const StoredSection& section) const {
    const layout::Topology& topology = target_.layout->topology();
    const int first = topology.FirstRank(target_.node).value();
    const int local = section.tensor - first;
    if (local < 0 || local >= static_cast<int>(cursors_.size())) {
      return nullptr;
    }
    return &cursors_[local];
  }

  void TakeOwned(Kind kind, TensorId tensor, int64_t begin,
                 std::span<const float> values) {
    const std::span<float> array =
        kind == Kind::kMaster ? target_.state->master()
                              : target_.state->moment(kind == Kind::kM ? 0 : 1);
    const int64_t end = begin + static_cast<int64_t>(values.size());
    for (const KeptRange& range : owned_[tensor.value()]) {
      const int64_t from = std::max(begin, range.begin);
      const int64_t to = std::min(end, range.end);
      if (from >= to) continue;
      std::copy_n(values.data() + (from - begin), to - from,
                  array.data() + range.offset + (from - range.begin));
    }
  }

  // Files come in the order of their nodes. The first one is taken as it is,
  // negative zeros too.
  void AddResidual(const StoredSection& section, TensorId tensor, int64_t begin,
                   std::span<const float> values) {
    const Manifest& manifest = reader_.manifest();
    const std::span<float> array = target_.residuals->version(
        optimizer::Residuals::VersionAt(manifest.optimizer_step));
    const bool is_first =
        section.node == 0 ||
        NodeOfResidual(section.node - 1, manifest.num_nodes,
                       target_.layout->topology().num_nodes) !=
            target_.node.value();
    const int64_t end = begin + static_cast<int64_t>(values.size());
    for (const KeptRange& range : residuals_[tensor.value()]) {
      const int64_t from = std::max(begin, range.begin);
      const int64_t to = std::min(end, range.end);
      for (int64_t i = from; i < to; ++i) {
        float& kept = array[range.offset + (i - range.begin)];
        kept = is_first ? values[i - begin] : kept + values[i - begin];
      }
    }
  }

  const LoadTarget target_;
  SnapshotReader& reader_;
  KeptRanges owned_;
  KeptRanges residuals_;          // if they are wanted
  std::vector<int32_t> tensors_;  // of the layout, by tensor of the manifest
  mutable std::vector<std::string> cursors_;
  std::string rank0_cursor_;
};

int NodeOfResidual(int stored_node, int stored_nodes, int num_nodes) {
  return std::max(0, stored_node - std::max(0, stored_nodes - num_nodes));
}

absl::Status CheckFits(const Manifest& manifest, const std::string& path,
                       const JobIdentity& job,
                       std::span<const layout::TensorSpec> tensors) {
  const std::string where = absl::StrCat("snapshot ", base::Quoted(path));
  if ((job.uid != 0 && job.uid != manifest.uid) ||
      job.tenant != manifest.tenant) {
    return absl::PermissionDeniedError(
        absl::StrCat(where, " belongs to another user or tenant"));
  }
  const auto differs = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(what, where, kRemedy));
  };
  if (job.optimizer != manifest.optimizer) {
    return differs(absl::StrCat(
        "the optimizer is ", std::string(kernels::Name(job.optimizer)),
        " here, ", std::string(kernels::Name(manifest.optimizer)), " in "));
  }
  const int moments = StateArrays(job.optimizer, job.any_momentum);
  if (moments != manifest.num_moments) {
    return differs(absl::StrCat("the optimizer keeps ", moments,
                                " moments here (momentum), ",
                                manifest.num_moments, " in "));
  }
  if (job.num_groups != manifest.groups.size()) {
    return differs(absl::StrCat("there are ", job.num_groups,
                                " param groups here, ", manifest.groups.size(),
                                " in "));
  }
  absl::flat_hash_map<std::string_view, const TensorInfo*> stored;
  for (const TensorInfo& tensor : manifest.tensors) {
    stored[tensor.name] = &tensor;
  }
  for (const layout::TensorSpec& tensor : tensors) {
    const auto it = stored.find(tensor.name);
    if (it == stored.end()) {
      return differs(
          absl::StrCat("tensor ", base::Quoted(tensor.name), " is not in "));
    }
    const std::string difference = TensorDifference(*it->second, tensor);
    if (!difference.empty()) return differs(difference);
  }
  if (tensors.size() != manifest.tensors.size()) {
    return differs(absl::StrCat("there are ", tensors.size(), " tensors here, ",
                                manifest.tensors.size(), " in "));
  }
  return absl::OkStatus();
}

StateLoad::StateLoad() = default;
StateLoad::~StateLoad() = default;

absl::StatusOr<std::unique_ptr<StateLoad>> StateLoad::Open(
    FileSystem& files, const std::string& path, uint64_t checksum,
    const LoadTarget& target) {
  auto load = std::unique_ptr<StateLoad>(new StateLoad());
  ASSIGN_OR_RETURN(load->reader_, SnapshotReader::Open(files, path));
  if (load->reader_->checksum() != checksum) {
    return absl::AbortedError(absl::StrCat(
        "snapshot ", base::Quoted(path),
        " was replaced by another one in the meantime: open the job again"));
  }
  load->loading_ = std::make_unique<Loading>(target, load->reader_.get());
  return load;
}

int StateLoad::num_shards() const { return reader_->num_shards(); }

const Manifest& StateLoad::manifest() const { return reader_->manifest(); }

std::vector<StateLoad::Range> StateLoad::Ranges(int shard) const {
  std::vector<Range> ranges;
  for (const StoredSection& section : reader_->sections(shard)) {
    if (section.size_bytes == 0 || !loading_->IsWanted(section)) continue;
    const Range range{section.offset, section.offset + section.size_bytes};
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

absl::Status StateLoad::ReadShard(int shard,
                                  const std::atomic<bool>* cancelled) {
  return reader_->ReadShard(
      shard,
      [&](const StoredSection& section) { return loading_->IsWanted(section); },
      [&](const StoredSection& section, uint64_t offset,
          std::span<const std::byte> bytes) {
        return loading_->Take(section, offset, bytes);
      },
      cancelled);
}

LoadedState StateLoad::Finish() {
  const Manifest& manifest = reader_->manifest();
  LoadedState loaded;
  loaded.step = manifest.step;
  loaded.optimizer_step = manifest.optimizer_step;
  loaded.groups = manifest.groups;
  loaded.cursors = loading_->TakeCursors();
  loaded.rank0_cursor = loading_->TakeRank0Cursor();
  loaded.stored_world_size = manifest.world_size();
  loaded.stored_nodes = manifest.num_nodes;
  loaded.has_residuals = manifest.has_residuals;
  loaded.budget = loading_->Budget();
  return loaded;
}

absl::StatusOr<LoadedState> LoadState(FileSystem& files,
                                      const std::string& path,
                                      uint64_t checksum,
                                      const LoadTarget& target,
                                      const std::atomic<bool>* cancelled) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StateLoad> load,
                   StateLoad::Open(files, path, checksum, target));
  for (int shard = 0; shard < load->num_shards(); ++shard) {
    RETURN_IF_ERROR(load->ReadShard(shard, cancelled));
  }
  return load->Finish();
}

}  // namespace ballast::snapshot
