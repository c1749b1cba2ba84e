// All codecs that a policy can name, and what layout, budgets and snapshots
// must know of them: one row each. What encodes is a class of collective
// (codec_registry.h).
//
// Threading: constants and pure functions.
#ifndef SERVER_LAYOUT_CODEC_TABLE_H_
#define SERVER_LAYOUT_CODEC_TABLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/codec.h"
#include "kernels/dtype.h"

namespace ballast::layout {

// A row's id: kept in votes and records of jobs, so never given to another.
// Those that presets and tests name; a row may have any other number.
enum class CodecId : uint8_t { kNone, kInt8, kInt4, kInt2 };

struct CodecRow {
  CodecId id = CodecId::kNone;
  std::string_view name;
  // Of an element, scales not counted; what orders them. Of none 32: nothing
  // is wider.
  int bits = 0;
  // What it may encode: gradients, masters, differences of masters. Where one
  // may, every wider one may too: an error budget goes up the rows.
  bool for_gradients = false;
  bool for_values = false;
  bool for_deltas = false;
  // Codes and scales of `count` elements from a cell's begin on, the last cell
  // may be short; `unquantized` is their type without a codec.
  uint64_t (*payload)(const kernels::CodecSpec& spec,
                      kernels::DType unquantized, int64_t count) = nullptr;
};

// Each id and each name once.
std::span<const CodecRow> CodecTable();

// Null if there is none.
const CodecRow* FindCodec(CodecId codec);
const CodecRow* FindCodec(std::string_view name);

// "unknown" if there is none.
std::string_view Name(CodecId codec);

// Of known codecs.
bool IsNarrower(CodecId codec, CodecId than);
// The next one with more bits, with fewer. `codec` itself if it is the last.
CodecId Wider(CodecId codec);
CodecId Narrower(CodecId codec);

// "int8, int4 or int2": those of which `is_meant` holds, in the rows' order;
// `last` is "and" or "or".
std::string CodecNames(bool (*is_meant)(const CodecRow& row),
                       std::string_view last);

}  // namespace ballast::layout

#endif  // SERVER_LAYOUT_CODEC_TABLE_H_
