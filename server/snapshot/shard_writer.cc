#include "server/snapshot/shard_writer.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/base/failpoint.h"
#include "server/base/status_macros.h"
#include "server/base/xxh3.h"
#include "server/snapshot/files/safetensors.h"
#include "server/snapshot/files/section_name.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {
namespace {

constexpr int64_t kChunksAtOnce = 32;

}  // namespace

// Owned by the writer, touched by one io piece at a time.
struct ShardWriter::Output {
  FileSystem* files;
  std::string directory;
  std::string path;
  std::string name;
  std::vector<Cursor> cursors;
  std::vector<Section> sections;
  // The data, in file order.
  std::vector<std::span<const std::byte>> ranges;
  std::unique_ptr<File> file;
  bool is_made = false;  // or its directory
  std::string header;    // with zeros for checksums, then as it is
  std::string checksums;
  size_t section = 0;  // that is being written
  size_t range = 0;
  uint64_t in_section = 0;
  uint64_t in_range = 0;
  uint64_t at = 0;  // in the data
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash{
      XXH3_createState(), XXH3_freeState};
  FileInfo info;

  std::string Header() const {
    return MakeHeader(sections,
                      {{kFormatKey, kShardFormat}, {kChecksumsKey, checksums}});
  }

  absl::Status Make(uint64_t data_bytes) {
    if (hash == nullptr) return absl::ResourceExhaustedError("out of memory");
    uint64_t there = 0;
    for (const auto& range : ranges) there += range.size();
    if (there != data_bytes) {
      return absl::InternalError(absl::StrCat("there are ", there, " of the ",
                                              data_bytes, " bytes to store"));
    }
    XXH3_64bits_reset(hash.get());
    checksums.assign(16 * sections.size(), '0');
    header = Header();
    checksums.clear();
    is_made = true;
    RETURN_IF_ERROR(files->MakeDirectories(directory));
    BALLAST_FAILPOINT("snapshot.made");
    ASSIGN_OR_RETURN(file, files->Create(path));
    return file->Reserve(header.size() + data_bytes);
  }

  // Takes `size` bytes into the checksums of the sections that they belong to.
  void Hash(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      CloseSections();
      const uint64_t left = sections[section].size_bytes() - in_section;
      const auto part = bytes.first(std::min<uint64_t>(left, bytes.size()));
      XXH3_64bits_update(hash.get(), part.data(), part.size());
      in_section += part.size();
      bytes = bytes.subspan(part.size());
    }
  }

  void CloseSections() {
    while (section < sections.size() &&
           in_section == sections[section].size_bytes()) {
      checksums += ToHex16(XXH3_64bits_digest(hash.get()));
      XXH3_64bits_reset(hash.get());
      in_section = 0;
      ++section;
    }
  }

  absl::Status WriteSlice(uint64_t size) {
    while (size > 0 && range < ranges.size()) {
      const auto rest = ranges[range].subspan(in_range);
      const auto part = rest.first(std::min<uint64_t>(size, rest.size()));
      RETURN_IF_ERROR(file->WriteAt(header.size() + at, part));
      Hash(part);
      at += part.size();
      in_range += part.size();
      size -= part.size();
      if (in_range == ranges[range].size()) {
        ++range;
        in_range = 0;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Close() {
    CloseSections();
    header = Header();
    RETURN_IF_ERROR(BALLAST_FAILPOINT_STATUS("snapshot.before_header"));
    RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(header))));
    RETURN_IF_ERROR(BALLAST_FAILPOINT_STATUS("snapshot.before_sync"));
    RETURN_IF_ERROR(file->Sync());
    file.reset();
    RETURN_IF_ERROR(files->SyncDirectory(directory));
    info = {name, header.size() + at, Checksum(header)};
    return absl::OkStatus();
  }
};

ShardWriter::ShardWriter(const Parts& parts, std::string directory,
                         std::string name, std::vector<Cursor> cursors,
                         Done done)
    : parts_(parts), done_(std::move(done)) {
  output_ = std::make_unique<Output>();
  Output& output = *output_;
  output.files = parts.files;
  output.path = absl::StrCat(directory, "/", name);
  output.directory = std::move(directory);
  output.name = std::move(name);
  output.cursors = std::move(cursors);
  output.sections.assign(parts.plan->sections().begin(),
                         parts.plan->sections().end());
  output.ranges.push_back(parts.image.first(parts.plan->image_bytes()));
  for (const layout::FrozenPart& frozen : parts.plan->frozen()) {
    output.ranges.push_back(
        parts.weights.Find(frozen.weight_offset, frozen.size_bytes));
  }
  bytes_total_ = parts.plan->data_bytes();
  for (const Cursor& cursor : output.cursors) {
    const uint64_t size = cursor.bytes.size();
    output.sections.push_back(
        {ToText(SectionName{Kind::kCursor, "", 0, 0, cursor.rank}),
         ElementType::kU8,
         {static_cast<int64_t>(size)},
         bytes_total_,
         bytes_total_ + size});
    output.ranges.push_back(std::as_bytes(std::span(cursor.bytes)));
    bytes_total_ += size;
  }
  std::erase_if(output.ranges, [](const auto& range) { return range.empty(); });
}

ShardWriter::~ShardWriter() { parts_.executor->Cancel(timer_); }

void ShardWriter::Do(absl::AnyInvocable<absl::Status(Output&) &&> work,
                     Step next) {
  auto status = std::make_shared<absl::Status>();  // two threads, in turn
  parts_.io->Run(
      [output = output_.get(), status, work = std::move(work)]() mutable {
        *status = std::move(work)(*output);
      },
      [this, status, next] {
        if (is_cancelled_ && status->ok()) {
          *status = absl::CancelledError("the snapshot was given up");
        }
        if (!status->ok()) return End(*status);
        (this->*next)();
      });
}

void ShardWriter::Start() {
  started_ = parts_.clock->Now();
  // First what training waits for, then what the disk does.
  Copy();
}

void ShardWriter::Copy() {
  Do(
      [capture = parts_.capture](Output&) {
        capture->CopyNext(kChunksAtOnce);
        BALLAST_FAILPOINT("snapshot.copied");
        return absl::OkStatus();
      },
      parts_.capture->is_complete() ? &ShardWriter::Write : &ShardWriter::Copy);
}

void ShardWriter::Write() {
  timer_ = 0;
  if (is_cancelled_) {
    return End(absl::CancelledError("the snapshot was given up"));
  }
  if (bytes_written_ == bytes_total_ && output_->file != nullptr) {
    return Finish();
  }
  const uint64_t size =
      std::min(parts_.slice_bytes, bytes_total_ - bytes_written_);
  const bool is_first = output_->file == nullptr;
  Do(
      [is_first, size, total = bytes_total_](Output& output) -> absl::Status {
        if (is_first) RETURN_IF_ERROR(output.Make(total));
        RETURN_IF_ERROR(BALLAST_FAILPOINT_STATUS("snapshot.before_write"));
        return output.WriteSlice(size);
      },
      &ShardWriter::WriteLater);
  bytes_written_ += size;
}

void ShardWriter::WriteLater() {
  if (parts_.max_bytes_per_second == 0) return Write();
  const absl::Time due =
      started_ +
      absl::Seconds(static_cast<double>(bytes_written_) /
                    static_cast<double>(parts_.max_bytes_per_second));
  const absl::Duration wait = due - parts_.clock->Now();
  if (wait <= absl::ZeroDuration()) return Write();
  timer_ = parts_.executor->PostAfter(wait, [this] { Write(); });
}

void ShardWriter::Finish() {
  Do([](Output& output) { return output.Close(); }, &ShardWriter::WriteDone);
}

void ShardWriter::WriteDone() { End(output_->info); }

void ShardWriter::Cancel() {
  is_cancelled_ = true;
  if (timer_ == 0) return;  // a piece is under way
  parts_.executor->Cancel(timer_);
  timer_ =
      parts_.executor->PostAfter(absl::ZeroDuration(), [this] { Write(); });
}

void ShardWriter::End(absl::StatusOr<FileInfo> result) {
  // This may be deleted by whoever is called.
  Done done = std::move(done_);
  if (result.ok()) return std::move(done)(std::move(result));
  parts_.capture->Abandon();
  parts_.io->Run(
      [output = output_.get()] {
        output->file.reset();
        if (!output->is_made) return;
        // Without this file the others are of no use. The first error says
        // more; what stays is removed by the next snapshot.
        output->files->RemoveAll(output->directory).IgnoreError();
      },
      [done = std::move(done), result = std::move(result)]() mutable {
        std::move(done)(std::move(result));
      });
}

}  // namespace ballast::snapshot
