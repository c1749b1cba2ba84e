#include "server/snapshot/files/export.h"

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/float_formats.h"
#include "server/base/status_macros.h"
#include "server/snapshot/files/safetensors.h"

namespace ballast::snapshot {
namespace {

constexpr uint64_t kNowhere = UINT64_MAX;
constexpr int kMaxDrafts = 100;

// Where the arrays of a tensor begin in the exported file.
struct TensorOut {
  uint64_t weights = kNowhere;
  std::array<uint64_t, 3> state = {kNowhere, kNowhere, kNowhere};
  uint64_t residual = kNowhere;
};

bool WeightsAreMasters(const Manifest& manifest, const TensorInfo& tensor) {
  return tensor.trainable && !manifest.has_published;
}

class Exporter {
 public:
  Exporter(SnapshotReader* snapshot, ExportContent content)
      : snapshot_(*snapshot), manifest_(snapshot->manifest()) {
    outs_.resize(manifest_.tensors.size());
    const bool is_state = content == ExportContent::kState;
    // fp32 first, so that everything is aligned.
    for (const bool is_wide : {true, false}) {
      for (size_t t = 0; t < outs_.size(); ++t) {
        const TensorInfo& tensor = manifest_.tensors[t];
        const ElementType type = ToElementType(tensor.dtype);
        if ((type == ElementType::kF32) != is_wide) continue;
        outs_[t].weights = Add(
            is_state ? "weights:" + tensor.name : tensor.name, tensor, type);
      }
      if (!is_wide || !is_state) continue;
      for (size_t t = 0; t < outs_.size(); ++t) AddState(t);
    }
  }

  absl::StatusOr<uint64_t> Write(FileSystem& files, std::string_view out) {
    const std::string path(out);
    // A directory or a link there is no file to open, and in the way as well.
    if (auto existing = files.Open(path);
        existing.ok() || absl::IsInvalidArgument(existing.status())) {
      RETURN_IF_ERROR(SplitPath(path).status());
      return absl::AlreadyExistsError(
          absl::StrCat(path, " exists: remove it or take another name"));
    }
    ASSIGN_OR_RETURN(const std::string draft, MakeDraft(files, path));
    absl::Status written = WriteDraft();
    if (written.ok()) written = files.Rename(draft, path);
    if (!written.ok()) {
      files.RemoveAll(draft).IgnoreError();  // the first error says more
      return written;
    }
    const size_t slash = path.rfind('/');
    RETURN_IF_ERROR(files.SyncDirectory(
        slash == std::string::npos ? "" : path.substr(0, slash)));
    return data_begin_ + end_;
  }

 private:
  uint64_t Add(std::string name, const TensorInfo& tensor, ElementType type) {
    const uint64_t begin = end_;
    end_ += static_cast<uint64_t>(NumElements(tensor)) * SizeOf(type);
    sections_.push_back({std::move(name), type, tensor.shape, begin, end_});
    return begin;
  }

  void AddState(size_t t) {
    const TensorInfo& tensor = manifest_.tensors[t];
    if (!tensor.trainable) return;
    for (int k = 0; k <= manifest_.num_moments; ++k) {
      outs_[t].state[k] =
          Add(absl::StrCat(std::string(Name(static_cast<Kind>(k))), ":",
                           tensor.name),
              tensor, ElementType::kF32);
    }
    if (manifest_.has_residuals) {
      outs_[t].residual =
          Add("residual:" + tensor.name, tensor, ElementType::kF32);
    }
  }

  // A file of a name that nobody has. What has one is somebody's, or was left
  // by an export that was killed: neither is removed.
  absl::StatusOr<std::string> MakeDraft(FileSystem& files,
                                        const std::string& path) {
    for (int n = 0; n < kMaxDrafts; ++n) {
      std::string draft = absl::StrCat(path, ".ballast-draft-", n);
      absl::StatusOr<std::unique_ptr<File>> file = files.Create(draft);
      if (absl::IsAlreadyExists(file.status())) continue;
      RETURN_IF_ERROR(file.status());
      file_ = *std::move(file);
      return draft;
    }
    return absl::AlreadyExistsError(
        absl::StrCat(path, ".ballast-draft-0 to ", kMaxDrafts - 1,
                     " exist: remove those that no export is writing"));
  }

  absl::Status WriteDraft() {
    Metadata metadata = {{"format", "pt"},
                         {"ballast_job", manifest_.job},
                         {"ballast_step", absl::StrCat(manifest_.step)}};
    const std::string header = MakeHeader(sections_, metadata);
    data_begin_ = header.size();
    RETURN_IF_ERROR(file_->Reserve(data_begin_ + end_));
    RETURN_IF_ERROR(file_->WriteAt(0, std::as_bytes(std::span(header))));
    RETURN_IF_ERROR(snapshot_.Read(
        [this](const StoredSection& section) { return IsWanted(section); },
        [this](const StoredSection& section, uint64_t offset,
               std::span<const std::byte> bytes) {
          return Take(section, offset, bytes);
        }));
    return file_->Sync();
  }

  bool IsWanted(const StoredSection& section) const {
    if (section.kind == Kind::kCursor) return false;
    if (section.kind == Kind::kPublished) return true;
    const TensorOut& out = outs_[section.tensor];
    if (section.kind == Kind::kResidual) return out.residual != kNowhere;
    return out.state[static_cast<size_t>(section.kind)] != kNowhere ||
           (section.kind == Kind::kMaster &&
            WeightsAreMasters(manifest_, manifest_.tensors[section.tensor]));
  }

  absl::Status Take(const StoredSection& section, uint64_t offset,
                    std::span<const std::byte> bytes) {
    const TensorInfo& tensor = manifest_.tensors[section.tensor];
    const TensorOut& out = outs_[section.tensor];
    if (section.kind == Kind::kPublished) {
      const uint64_t size = SizeOf(ToElementType(tensor.dtype));
      return WriteData(out.weights + section.begin * size + offset, bytes);
    }
    const uint64_t begin = section.begin * sizeof(float) + offset;
    if (section.kind == Kind::kResidual) {
      return AddData(out.residual + begin, bytes);
    }
    if (const uint64_t place = out.state[static_cast<size_t>(section.kind)];
        place != kNowhere) {
      RETURN_IF_ERROR(WriteData(place + begin, bytes));
    }
    if (section.kind != Kind::kMaster ||
        !WeightsAreMasters(manifest_, tensor)) {
      return absl::OkStatus();
    }
    if (tensor.dtype == kernels::DType::kFloat32) {
      return WriteData(out.weights + begin, bytes);
    }
    return WriteData(out.weights + begin / 2, Narrow(tensor.dtype, bytes));
  }

  // The cast of the optimizer (kernels/FORMAT.md, "Element types").
  std::span<const std::byte> Narrow(kernels::DType dtype,
                                    std::span<const std::byte> bytes) {
    narrow_.resize(bytes.size() / sizeof(float));
    for (size_t i = 0; i < narrow_.size(); ++i) {
      float value;
      std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(value));
      narrow_[i] = dtype == kernels::DType::kBFloat16
                       ? kernels::BFloat16FromFloat(value)
                       : kernels::Float16FromFloat(value);
    }
    return std::as_bytes(std::span(narrow_));
  }

  // The sum over nodes, in their order: the same of all shapes of nodes that a
  // state went through (NodeOfResidual in loader.h). A new file reads as zeros.
  absl::Status AddData(uint64_t offset, std::span<const std::byte> bytes) {
    sum_.resize(bytes.size() / sizeof(float));
    const std::span<std::byte> sum = std::as_writable_bytes(std::span(sum_));
    RETURN_IF_ERROR(file_->ReadAt(data_begin_ + offset, sum));
    for (size_t i = 0; i < sum_.size(); ++i) {
      float value;
      std::memcpy(&value, bytes.data() + i * sizeof(float), sizeof(value));
      sum_[i] += value;
    }
    return WriteData(offset, sum);
  }

  absl::Status WriteData(uint64_t offset, std::span<const std::byte> bytes) {
    return file_->WriteAt(data_begin_ + offset, bytes);
  }

  SnapshotReader& snapshot_;
  const Manifest& manifest_;
  std::vector<TensorOut> outs_;  // by tensor
  std::vector<Section> sections_;
  uint64_t end_ = 0;
  uint64_t data_begin_ = 0;
  std::unique_ptr<File> file_;
  std::vector<uint16_t> narrow_;
  std::vector<float> sum_;
};

}  // namespace

absl::StatusOr<uint64_t> ExportSnapshot(SnapshotReader& snapshot,
                                        ExportContent content,
                                        FileSystem& out_files,
                                        std::string_view out) {
  return Exporter(&snapshot, content).Write(out_files, out);
}

}  // namespace ballast::snapshot
