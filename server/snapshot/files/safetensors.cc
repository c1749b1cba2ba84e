#include "server/snapshot/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/base/xxh3.h"

namespace ballast::snapshot {
namespace {

constexpr uint64_t kPrefixBytes = 8;
// What other readers of the format take too.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDimensions = 32;
constexpr size_t kMaxMetadata = 64;

absl::Status Bad(const std::string& what) {
  return absl::DataLossError(
      absl::StrCat("not a sound safetensors header: ", what));
}

std::optional<ElementType> TypeOf(std::string_view name) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16,
                                 ElementType::kF16, ElementType::kU8}) {
    if (Name(type) == name) return type;
  }
  return std::nullopt;
}

// Takes exactly the documents of the format, event by event.
class Handler {
 public:
  using Json = nlohmann::json;

  bool null() { return Fail("a null"); }
  bool boolean(bool) { return Fail("a truth value"); }
  bool number_integer(Json::number_integer_t) {
    return Fail("a negative number");
  }
  bool number_float(Json::number_float_t, const std::string&) {
    return Fail("a fraction");
  }
  bool binary(Json::binary_t&) { return Fail("binary data"); }

  bool number_unsigned(Json::number_unsigned_t value) {
    if (place_ == Place::kShape && section_.shape.size() < kMaxDimensions &&
        value <= INT64_MAX) {
      section_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? section_.begin : section_.end) = value;
      return true;
    }
    return Fail(absl::StrCat("the number ", value, " where it cannot be"));
  }

  bool string(std::string& value) {
    if (place_ == Place::kMetadata && has_key_) {
      has_key_ = false;
      if (result_.metadata.size() == kMaxMetadata) {
        return Fail("too much metadata");
      }
      return result_.metadata.emplace(key_, std::move(value)).second ||
             Fail(absl::StrCat("metadata ", base::Quoted(key_), " twice"));
    }
    if (place_ == Place::kSection && key_ == "dtype" && !type_.has_value()) {
      type_ = TypeOf(value);
      return type_.has_value() ||
             Fail(absl::StrCat("dtype ", base::Quoted(value), " of ",
                               base::Quoted(section_.name)));
    }
    return Fail("a text where it cannot be");
  }

  bool start_object(size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Fail("an object where it cannot be");
    if (key_ == "__metadata__") {
      if (has_metadata_) return Fail("metadata twice");
      has_metadata_ = true;
      place_ = Place::kMetadata;
      return true;
    }
    section_ = Section();
    section_.name = key_;
    type_.reset();
    has_shape_ = false;
    num_offsets_ = 0;
    place_ = Place::kSection;
    return true;
  }

  bool key(std::string& value) {
    key_ = std::move(value);
    has_key_ = true;
    if (place_ != Place::kSection || key_ == "dtype" || key_ == "shape" ||
        key_ == "data_offsets") {
      return true;
    }
    return Fail(absl::StrCat("key ", base::Quoted(key_), " of ",
                             base::Quoted(section_.name)));
  }

  bool end_object() {
    if (place_ == Place::kTop) {
      place_ = Place::kEnd;
      return true;
    }
    if (place_ == Place::kMetadata) {
      place_ = Place::kTop;
      return true;
    }
    if (!type_.has_value() || !has_shape_ || num_offsets_ != 2) {
      return Fail(absl::StrCat(base::Quoted(section_.name),
                               " lacks dtype, shape or data_offsets"));
    }
    section_.type = *type_;
    result_.sections.push_back(std::move(section_));
    place_ = Place::kTop;
    return true;
  }

  bool start_array(size_t) {
    if (place_ != Place::kSection) return Fail("a list where it cannot be");
    if (key_ == "shape" && !has_shape_) {
      place_ = Place::kShape;
      has_shape_ = true;
      return true;
    }
    if (key_ == "data_offsets" && num_offsets_ == 0) {
      place_ = Place::kOffsets;
      return true;
    }
    return Fail(absl::StrCat("a second or wrong list in ",
                             base::Quoted(section_.name)));
  }

  bool end_array() {
    place_ = Place::kSection;
    return true;
  }

  template <typename Error>
  bool parse_error(size_t position, const std::string&, const Error&) {
    return Fail(absl::StrCat("no JSON at byte ", position));
  }

  absl::StatusOr<Header> Take() {
    if (!why_.empty()) return Bad(why_);
    if (place_ != Place::kEnd) return Bad("it is not one object");
    return std::move(result_);
  }

 private:
  enum class Place {
    kStart,
    kTop,
    kMetadata,
    kSection,
    kShape,
    kOffsets,
    kEnd,
  };

  bool Fail(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return false;
  }

  Place place_ = Place::kStart;
  std::string why_;
  std::string key_;
  bool has_key_ = false;
  bool has_metadata_ = false;
  Section section_;
  std::optional<ElementType> type_;
  bool has_shape_ = false;
  int num_offsets_ = 0;
  Header result_;
};

absl::Status CheckSize(const Section& section) {
  uint64_t size = SizeOf(section.type);
  for (const int64_t dimension : section.shape) {
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(dimension), &size)) {
      return Bad(absl::StrCat("the shape of ", base::Quoted(section.name),
                              " overflows"));
    }
  }
  if (section.begin <= section.end && section.size_bytes() == size) {
    return absl::OkStatus();
  }
  return Bad(absl::StrCat(base::Quoted(section.name), " needs ", size,
                          " bytes, its place is [", section.begin, ", ",
                          section.end, ")"));
}

// Sections tile the data exactly.
absl::Status CheckTiling(Header* header, uint64_t data_bytes) {
  std::vector<Section>& sections = header->sections;
  std::sort(sections.begin(), sections.end(),
            [](const Section& a, const Section& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  uint64_t at = 0;
  for (const Section& section : sections) {
    RETURN_IF_ERROR(CheckSize(section));
    if (section.begin != at) {
      return Bad(absl::StrCat(section.begin < at ? "an overlap" : "a gap",
                              " before ", base::Quoted(section.name),
                              " at byte ", section.begin, " of the data"));
    }
    at = section.end;
  }
  if (at != data_bytes) {
    return Bad(absl::StrCat("its sections have ", at, " bytes, the file has ",
                            data_bytes, " of data"));
  }
  std::vector<std::string_view> names;
  names.reserve(sections.size());
  for (const Section& section : sections) names.push_back(section.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) {
    return Bad(absl::StrCat(base::Quoted(*twice), " twice"));
  }
  return absl::OkStatus();
}

uint64_t LoadPrefix(const char* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

absl::Status CheckHeaderBytes(uint64_t header_bytes, uint64_t file_bytes) {
  if (file_bytes < kPrefixBytes) {
    return Bad(absl::StrCat("the file has ", file_bytes, " bytes"));
  }
  if (header_bytes > file_bytes - kPrefixBytes ||
      header_bytes > kMaxHeaderBytes) {
    return Bad(absl::StrCat("it says it has ", header_bytes,
                            " bytes, in a file of ", file_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "F32";
    case ElementType::kBF16:
      return "BF16";
    case ElementType::kF16:
      return "F16";
    case ElementType::kU8:
      return "U8";
  }
  return "unknown";
}

ElementType ToElementType(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kFloat32:
      return ElementType::kF32;
    case kernels::DType::kBFloat16:
      return ElementType::kBF16;
    case kernels::DType::kFloat16:
      return ElementType::kF16;
  }
  return ElementType::kU8;
}

std::string MakeHeader(std::span<const Section> sections,
                       const Metadata& metadata) {
  std::string json = "{\"__metadata__\":{";
  const char* comma = "";
  for (const auto& [key, value] : metadata) {
    absl::StrAppend(&json, comma, "\"", key, "\":\"", value, "\"");
    comma = ",";
  }
  json += "}";
  for (const Section& section : sections) {
    absl::StrAppend(&json, ",\"", section.name, "\":{\"dtype\":\"",
                    std::string(Name(section.type)), "\",\"shape\":[");
    comma = "";
    for (const int64_t dimension : section.shape) {
      absl::StrAppend(&json, comma, dimension);
      comma = ",";
    }
    absl::StrAppend(&json, "],\"data_offsets\":[", section.begin, ",",
                    section.end, "]}");
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string bytes(kPrefixBytes, '\0');
  for (size_t i = 0; i < kPrefixBytes; ++i) {
    bytes[i] = static_cast<char>(json.size() >> (8 * i));
  }
  return bytes + json;
}

absl::StatusOr<Header> ParseHeader(std::string_view bytes,
                                   uint64_t file_bytes) {
  if (bytes.size() < kPrefixBytes || bytes.size() > file_bytes) {
    return Bad(absl::StrCat("it has ", bytes.size(), " bytes"));
  }
  const uint64_t header_bytes = LoadPrefix(bytes.data());
  RETURN_IF_ERROR(CheckHeaderBytes(header_bytes, file_bytes));
  if (header_bytes != bytes.size() - kPrefixBytes) {
    return Bad(absl::StrCat("it says it has ", header_bytes, " bytes, not ",
                            bytes.size() - kPrefixBytes));
  }
  const std::string_view json = bytes.substr(kPrefixBytes);
  if (json.empty() || json.front() != '{') return Bad("it is not an object");
  Handler handler;
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  ASSIGN_OR_RETURN(Header header, handler.Take());
  header.data_begin = bytes.size();
  header.checksum = Checksum(bytes);
  RETURN_IF_ERROR(CheckTiling(&header, file_bytes - bytes.size()));
  return header;
}

absl::StatusOr<Header> ReadHeader(File& file) {
  ASSIGN_OR_RETURN(const uint64_t file_bytes, file.Size());
  RETURN_IF_ERROR(CheckHeaderBytes(0, file_bytes));
  char prefix[kPrefixBytes];
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(prefix))));
  const uint64_t header_bytes = LoadPrefix(prefix);
  RETURN_IF_ERROR(CheckHeaderBytes(header_bytes, file_bytes));
  std::string bytes(kPrefixBytes + header_bytes, '\0');
  RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  return ParseHeader(bytes, file_bytes);
}

uint64_t Checksum(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string ToHex16(uint64_t value) { return absl::StrFormat("%016x", value); }

bool FromHex16(std::string_view text, uint64_t* value) {
  if (text.size() != 16) return false;
  uint64_t result = 0;
  for (const char c : text) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit && (c < 'a' || c > 'f')) return false;
    result =
        result << 4 | static_cast<uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
  *value = result;
  return true;
}

}  // namespace ballast::snapshot
