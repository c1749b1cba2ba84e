#include "server/snapshot/files/shard_check.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/status_macros.h"
#include "server/base/xxh3.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::snapshot {
namespace {

constexpr uint64_t kSliceBytes = 1 << 20;

absl::Status Bad(const FileInfo& info, const std::string& what) {
  return absl::DataLossError(absl::StrCat(info.name, ": ", what));
}

}  // namespace

absl::StatusOr<Header> CheckShardHeader(File& file, const FileInfo& info) {
  ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  if (size != info.size_bytes) {
    return Bad(info, absl::StrCat("it has ", size, " bytes, the manifest says ",
                                  info.size_bytes));
  }
  ASSIGN_OR_RETURN(Header header, ReadHeader(file));
  if (header.checksum != info.header_checksum) {
    return Bad(info, "its header is not the one that was written (checksum)");
  }
  return header;
}

absl::Status CheckShard(File& file, const FileInfo& info,
                        const std::atomic<bool>* cancelled) {
  ASSIGN_OR_RETURN(const Header header, CheckShardHeader(file, info));
  const auto found = header.metadata.find(kChecksumsKey);
  if (found == header.metadata.end() ||
      found->second.size() != 16 * header.sections.size()) {
    return Bad(info, "its metadata are not a shard's");
  }
  const std::string_view checksums = found->second;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(
      XXH3_createState(), XXH3_freeState);
  if (hash == nullptr) return absl::ResourceExhaustedError("out of memory");
  std::vector<std::byte> buffer(kSliceBytes);
  for (size_t i = 0; i < header.sections.size(); ++i) {
    const Section& section = header.sections[i];
    XXH3_64bits_reset(hash.get());
    for (uint64_t at = section.begin; at < section.end;) {
      if (cancelled != nullptr && cancelled->load()) {
        return absl::CancelledError("checking a shard was given up");
      }
      const auto slice = std::span(buffer).first(
          std::min<uint64_t>(buffer.size(), section.end - at));
      RETURN_IF_ERROR(file.ReadAt(header.data_begin + at, slice));
      XXH3_64bits_update(hash.get(), slice.data(), slice.size());
      at += slice.size();
    }
    if (checksums.substr(16 * i, 16) !=
        ToHex16(XXH3_64bits_digest(hash.get()))) {
      return Bad(info, absl::StrCat(section.name,
                                    " is not what was written (checksum)"));
    }
  }
  return absl::OkStatus();
}

}  // namespace ballast::snapshot
