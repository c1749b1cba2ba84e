#include "server/layout/codec_table.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace ballast::layout {
namespace {

uint64_t AsTheyAre(const kernels::CodecSpec&, kernels::DType unquantized,
                   int64_t count) {
  return count * kernels::SizeOf(unquantized);
}

uint64_t InBlocks(const kernels::CodecSpec& spec, kernels::DType,
                  int64_t count) {
  return (count * spec.bits + 7) / 8 +
         sizeof(float) * kernels::NumBlocks(spec, count);
}

constexpr CodecRow kRows[] = {
    //  id              name   bits  gradients values deltas
    {CodecId::kNone, "none", 32, true, true, true, AsTheyAre},
    {CodecId::kInt8, "int8", 8, true, true, true, InBlocks},
    {CodecId::kInt4, "int4", 4, true, true, true, InBlocks},
    {CodecId::kInt2, "int2", 2, false, false, true, InBlocks},
};

}  // namespace

std::span<const CodecRow> CodecTable() { return kRows; }

const CodecRow* FindCodec(CodecId codec) {
  for (const CodecRow& row : kRows) {
    if (row.id == codec) return &row;
  }
  return nullptr;
}

const CodecRow* FindCodec(std::string_view name) {
  for (const CodecRow& row : kRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::string_view Name(CodecId codec) {
  const CodecRow* const row = FindCodec(codec);
  return row == nullptr ? "unknown" : row->name;
}

bool IsNarrower(CodecId codec, CodecId than) {
  return FindCodec(codec)->bits < FindCodec(than)->bits;
}

CodecId Wider(CodecId codec) {
  const CodecRow* next = nullptr;
  for (const CodecRow& row : kRows) {
    if (IsNarrower(codec, row.id) &&
        (next == nullptr || row.bits < next->bits)) {
      next = &row;
    }
  }
  return next == nullptr ? codec : next->id;
}

CodecId Narrower(CodecId codec) {
  const CodecRow* next = nullptr;
  for (const CodecRow& row : kRows) {
    if (IsNarrower(row.id, codec) &&
        (next == nullptr || row.bits > next->bits)) {
      next = &row;
    }
  }
  return next == nullptr ? codec : next->id;
}

std::string CodecNames(bool (*is_meant)(const CodecRow& row),
                       std::string_view last) {
  std::vector<std::string_view> names;
  for (const CodecRow& row : kRows) {
    if (is_meant(row)) names.push_back(row.name);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0 && i + 1 == names.size()) {
      absl::StrAppend(&text, " ", std::string(last), " ");
    } else if (i > 0) {
      absl::StrAppend(&text, ", ");
    }
    absl::StrAppend(&text, std::string(names[i]));
  }
  return text;
}

}  // namespace ballast::layout
