#include "client/ctl/checkpoint.h"

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/ctl/render.h"
#include "client/ctl/table.h"
#include "nlohmann/json.hpp"
#include "server/base/status_macros.h"
#include "server/snapshot/files/catalog.h"
#include "server/snapshot/files/export.h"
#include "server/snapshot/files/posix_file_system.h"
#include "server/snapshot/files/snapshot_reader.h"

namespace ballast::ctl {
namespace {

using Json = nlohmann::json;

Result Failure(const absl::Status& status) {
  ExitCode code = kFailed;
  if (absl::IsNotFound(status)) code = kNotFound;
  if (absl::IsPermissionDenied(status) || absl::IsAlreadyExists(status)) {
    code = kRefused;
  }
  return {code, "", std::string(status.message())};
}

// The directory that a path lies in, and its name there.
struct Place {
  std::string directory;
  std::string name;
};

Place Split(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

absl::StatusOr<std::unique_ptr<snapshot::SnapshotReader>> Open(
    const std::string& path) {
  const Place place = Split(path);
  snapshot::PosixFileSystem files(place.directory);
  return snapshot::SnapshotReader::Open(files, place.name);
}

absl::Status ReadAll(snapshot::SnapshotReader& reader) {
  return reader.Read(
      [](const snapshot::StoredSection&) { return true; },
      [](const snapshot::StoredSection&, uint64_t, std::span<const std::byte>) {
        return absl::OkStatus();
      });
}

}  // namespace

Result CheckpointList(const Options& options, const std::string& directory) {
  snapshot::PosixFileSystem files(directory);
  const auto entries = snapshot::ListAllSnapshots(files);
  if (!entries.ok()) return Failure(entries.status());
  Result result;
  Json list = Json::array();
  Table table({"SNAPSHOT", "STEP", "NODES", "RANKS", "SIZE", "STATE"});
  for (const snapshot::CatalogEntry& entry : *entries) {
    const std::string state =
        entry.status.ok() ? "ok" : std::string(entry.status.message());
    list.push_back({{"path", entry.path()},
                    {"step", entry.step},
                    {"nodes", entry.num_nodes},
                    {"world_size", entry.world_size},
                    {"bytes", entry.size_bytes},
                    {"state", state}});
    table.AddRow({entry.path(), absl::StrCat(entry.step),
                  absl::StrCat(entry.num_nodes), absl::StrCat(entry.world_size),
                  FormatBytes(entry.size_bytes), state});
  }
  result.out = options.json ? list.dump(2) + "\n" : table.ToString();
  return result;
}

Result CheckpointVerify(const Options& options, const std::string& path) {
  const auto reader = Open(path);
  if (!reader.ok()) return Failure(reader.status());
  if (const auto read = ReadAll(**reader); !read.ok()) return Failure(read);
  const snapshot::Manifest& manifest = (*reader)->manifest();
  const uint64_t bytes = (*reader)->data_bytes();
  Result result;
  if (options.json) {
    result.out = Json({{"job", manifest.job},
                       {"step", manifest.step},
                       {"tensors", manifest.tensors.size()},
                       {"bytes", bytes}})
                     .dump(2) +
                 "\n";
  } else {
    result.out = absl::StrCat("job ", manifest.job, ", step ", manifest.step,
                              ", ", manifest.tensors.size(), " tensors, ",
                              FormatBytes(bytes), ": every checksum holds\n");
  }
  return result;
}

Result CheckpointExport(const Options& options, const std::string& path,
                        const std::string& out, bool whole_state) {
  const auto reader = Open(path);
  if (!reader.ok()) return Failure(reader.status());
  const Place place = Split(out);
  snapshot::PosixFileSystem files(place.directory);
  const auto size =
      snapshot::ExportSnapshot(**reader,
                               whole_state ? snapshot::ExportContent::kState
                                           : snapshot::ExportContent::kWeights,
                               files, place.name);
  if (!size.ok()) return Failure(size.status());
  Result result;
  result.out = options.json
                   ? Json({{"path", out},
                           {"bytes", *size},
                           {"step", (*reader)->manifest().step}})
                             .dump(2) +
                         "\n"
                   : absl::StrCat(out, ": step ", (*reader)->manifest().step,
                                  ", ", FormatBytes(*size), "\n");
  return result;
}

}  // namespace ballast::ctl
