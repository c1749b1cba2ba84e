#include "server/ipc/keeper_message.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"

namespace ballast::ipc {
namespace {

using proto::KeeperHeader;
using proto::KeeperMessageKind;

static_assert(base::kMaxKeptFds <= kMaxPassedFds);

std::vector<std::byte> Make(KeeperMessageKind kind, int code,
                            std::string_view name, std::string_view note) {
  const KeeperHeader header = {
      .magic = proto::kKeeperMagic,
      .version = proto::kKeeperVersion,
      .kind = kind,
      .code = code,
      .name_bytes = static_cast<uint32_t>(name.size()),
      .note_bytes = static_cast<uint32_t>(note.size())};
  std::vector<std::byte> bytes(sizeof(header) + name.size() + note.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::byte* const rest = bytes.data() + sizeof(header);
  name.copy(reinterpret_cast<char*>(rest), name.size());
  note.copy(reinterpret_cast<char*>(rest) + name.size(), note.size());
  return bytes;
}

}  // namespace

absl::Status CheckKept(std::string_view name, std::string_view note,
                       size_t num_fds) {
  if (!name.empty() && name.size() <= base::kMaxKeptNameBytes &&
      note.size() <= base::kMaxKeptNoteBytes && num_fds > 0 &&
      num_fds <= base::kMaxKeptFds) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      base::Quoted(name), " with a note of ", note.size(), " bytes and ",
      num_fds, " descriptors cannot be kept: a name has 1 to ",
      base::kMaxKeptNameBytes, " bytes, a note at most ",
      base::kMaxKeptNoteBytes, ", and 1 to ", base::kMaxKeptFds,
      " descriptors go with it"));
}

std::vector<std::byte> ToBytes(KeeperMessageKind kind, std::string_view name,
                               std::string_view note, int code) {
  return Make(kind, code, name, note);
}

std::vector<std::byte> RefusalBytes(std::string_view name,
                                    const absl::Status& why) {
  const absl::string_view text =
      why.message().substr(0, base::kMaxKeptNoteBytes);
  return Make(KeeperMessageKind::kRefusal, static_cast<int>(why.code()), name,
              std::string_view(text.data(), text.size()));
}

absl::StatusOr<KeeperMessage> ParseKeeperMessage(
    std::span<const std::byte> bytes, Packet packet) {
  KeeperHeader header{};
  // Of one that lacks descriptors its bytes are whole, or its size is wrong.
  const bool is_whole = !packet.is_truncated || packet.lacks_fds;
  if (is_whole && bytes.size() >= sizeof(header)) {
    std::memcpy(&header, bytes.data(), sizeof(header));
  }
  const uint64_t size =
      sizeof(header) + uint64_t{header.name_bytes} + header.note_bytes;
  if (header.magic != proto::kKeeperMagic || size != bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet of ", bytes.size(),
                     " bytes that is no message of a keeper's socket"));
  }
  if (header.version != proto::kKeeperVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "version ", header.version, " of the keeper's protocol; this program ",
        "speaks ", proto::kKeeperVersion,
        ": use a keeper and a daemon that came together"));
  }
  KeeperMessage message;
  message.kind = header.kind;
  message.code = header.code;
  const char* const rest =
      reinterpret_cast<const char*>(bytes.data()) + sizeof(header);
  message.name.assign(rest, header.name_bytes);
  message.note.assign(rest + header.name_bytes, header.note_bytes);
  message.fds = std::move(packet.fds);
  if (packet.lacks_fds) {
    const absl::Status none_left = absl::ResourceExhaustedError(
        "no file descriptor is left (RLIMIT_NOFILE)");
    if (message.kind != KeeperMessageKind::kPut) return none_left;
    message.fds.clear();
    message.refusal = none_left;
    return message;
  }
  if (message.kind == KeeperMessageKind::kPut ||
      message.kind == KeeperMessageKind::kItem) {
    RETURN_IF_ERROR(CheckKept(message.name, message.note, message.fds.size()));
  } else if (!message.fds.empty()) {
    return absl::InvalidArgumentError("descriptors that nobody asked for");
  }
  if (message.kind == KeeperMessageKind::kRefusal) {
    const bool is_code = header.code > 0 && header.code <= 16;
    message.refusal =
        absl::Status(is_code ? static_cast<absl::StatusCode>(header.code)
                             : absl::StatusCode::kUnknown,
                     std::exchange(message.note, ""));
  }
  return message;
}

}  // namespace ballast::ipc
