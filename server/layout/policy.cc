#include "server/layout/policy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/base/names.h"
#include "server/base/status_macros.h"
#include "server/layout/codec_table.h"
#include "server/layout/digest.h"
#include "server/layout/types.h"

namespace ballast::layout {
namespace {

using Words = std::vector<std::string_view>;

// What may encode, and where.
bool QuantizesGradients(const CodecRow& row) {
  return row.id != CodecId::kNone && row.for_gradients;
}
bool QuantizesValues(const CodecRow& row) {
  return row.id != CodecId::kNone && row.for_values;
}
bool QuantizesDeltas(const CodecRow& row) {
  return row.id != CodecId::kNone && row.for_deltas;
}

absl::Status Refuse(std::string_view key, std::string_view value,
                    std::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("exchange: ", std::string(key),
                                                 " is ", base::Quoted(value),
                                                 ", ", std::string(rule)));
}

void Set(CodecId codec, CodecChoice* choice) {
  choice->codec = codec;
  const CodecRow* const row = FindCodec(codec);
  if (row != nullptr && codec != CodecId::kNone) choice->block.bits = row->bits;
}

// An override counts on both paths.
absl::StatusOr<CodecId> ParseCodec(std::string_view key,
                                   std::string_view value) {
  const CodecRow* const row = FindCodec(value);
  if (row == nullptr) {
    return Refuse(
        key, value,
        absl::StrCat("known are ",
                     CodecNames([](const CodecRow&) { return true; }, "and")));
  }
  if (!row->for_gradients && key != "weights.codec") {
    return Refuse(
        key, value,
        absl::StrCat("which is for ",
                     row->for_values ? "weights" : "deltas of weights",
                     " only; use ", CodecNames(QuantizesGradients, "or")));
  }
  return row->id;
}

template <typename T>
absl::Status ParseNumber(std::string_view key, std::string_view value,
                         std::string_view rule, T* number) {
  const char* const end = value.data() + value.size();
  const auto result = std::from_chars(value.data(), end, *number);
  if (result.ec != std::errc() || result.ptr != end) {
    return Refuse(key, value, rule);
  }
  return absl::OkStatus();
}

// The keys below `weights.` and `gradients.` that both have.
absl::Status SetBlock(std::string_view key, std::string_view value,
                      CodecChoice* choice) {
  constexpr std::string_view kRule = "use a power of two from 32 to 2048";
  kernels::CodecSpec spec = choice->block;
  RETURN_IF_ERROR(ParseNumber(key, value, kRule, &spec.block));
  // Whatever the codec's bits, which need not be those of the kernels' blocks.
  const kernels::CodecSpec block_alone{.block = spec.block};
  if (!kernels::IsValid(block_alone)) return Refuse(key, value, kRule);
  choice->block = spec;
  return absl::OkStatus();
}

// A key with one value in this version.
struct FixedKey {
  std::string_view key;
  std::string_view value;
  std::string_view rule;
};
constexpr FixedKey kFixedKeys[] = {
    {"strict", "true",
     "but a policy that cannot be honoured is refused; use true"},
};

absl::Status SetGradientKey(std::string_view key, std::string_view value,
                            kernels::CodecSpec* spec) {
  if (key == "gradients.hadamard") {
    if (value != "0" && value != "32") return Refuse(key, value, "use 0 or 32");
    spec->hadamard = value == "0" ? 0 : kernels::kHadamardElements;
  } else if (key == "gradients.range") {
    if (value != "sym" && value != "clip16") {
      return Refuse(key, value, "use sym or clip16");
    }
    spec->range =
        value == "sym" ? kernels::Range::kSym : kernels::Range::kClip16;
  } else {
    if (value != "nearest" && value != "stochastic") {
      return Refuse(key, value, "use nearest or stochastic");
    }
    spec->rounding = value == "nearest" ? kernels::Rounding::kNearest
                                        : kernels::Rounding::kStochastic;
  }
  return absl::OkStatus();
}

absl::Status SetFeedback(std::string_view key, std::string_view value,
                         ExchangePolicy* policy) {
  if (value != "true" && value != "false") {
    return Refuse(key, value, "use true or false");
  }
  policy->error_feedback = value == "true";
  return absl::OkStatus();
}

absl::Status SetMode(std::string_view key, std::string_view value,
                     ExchangePolicy* policy) {
  if (value != "value" && value != "delta") {
    return Refuse(key, value, "use value or delta");
  }
  policy->weight_mode =
      value == "delta" ? WeightMode::kDelta : WeightMode::kValue;
  return absl::OkStatus();
}

absl::Status SetPartition(std::string_view key, std::string_view value,
                          ExchangePolicy* policy) {
  if (value != "node" && value != "none") {
    return Refuse(key, value, "use node or none");
  }
  policy->gathers_weights = value == "none";
  return absl::OkStatus();
}

absl::Status SetPartitionNodes(std::string_view key, std::string_view value,
                               ExchangePolicy* policy) {
  constexpr std::string_view kRule =
      "use all, or how many nodes share one copy of the optimizer state: a "
      "divisor of the job's nodes, at least 1";
  policy->partition_nodes = 0;
  if (value == "all") return absl::OkStatus();
  RETURN_IF_ERROR(ParseNumber(key, value, kRule, &policy->partition_nodes));
  const bool fits =
      policy->partition_nodes > 0 && policy->partition_nodes <= kMaxNodes;
  return fits ? absl::OkStatus() : Refuse(key, value, kRule);
}

absl::Status SetResidentBytes(std::string_view key, std::string_view value,
                              ExchangePolicy* policy) {
  constexpr std::string_view kRule =
      "use a number of bytes above 0, or leave the key out";
  RETURN_IF_ERROR(ParseNumber(key, value, kRule, &policy->resident_bytes));
  if (policy->resident_bytes == 0) return Refuse(key, value, kRule);
  return absl::OkStatus();
}

absl::Status SetResync(std::string_view key, std::string_view value,
                       ExchangePolicy* policy) {
  const std::string rule =
      absl::StrCat("use a number of steps from ", kMinResyncSteps, " on");
  RETURN_IF_ERROR(ParseNumber(key, value, rule, &policy->resync_every_steps));
  if (policy->resync_every_steps < kMinResyncSteps) {
    return Refuse(key, value, rule);
  }
  return absl::OkStatus();
}

absl::Status SetOneIn(std::string_view key, std::string_view value,
                      ExchangePolicy* policy) {
  const std::string rule =
      absl::StrCat("use how many cells one is measured of, 1 to ",
                   kMaxMeteredOneIn, ", or 0 to measure none");
  RETURN_IF_ERROR(ParseNumber(key, value, rule, &policy->metered_one_in));
  if (policy->metered_one_in < 0 || policy->metered_one_in > kMaxMeteredOneIn) {
    return Refuse(key, value, rule);
  }
  return absl::OkStatus();
}

absl::Status SetBudget(std::string_view key, std::string_view value,
                       ExchangePolicy* policy) {
  constexpr std::string_view kRule =
      "use null, or an error between 0 and 1, as in 0.1";
  policy->max_relative_error = 0;
  if (value == "null") return absl::OkStatus();
  RETURN_IF_ERROR(ParseNumber(key, value, kRule, &policy->max_relative_error));
  const bool fits =
      policy->max_relative_error > 0 && policy->max_relative_error < 1;
  return fits ? absl::OkStatus() : Refuse(key, value, kRule);
}

absl::Status AddOverride(std::string_view pattern, std::string_view value,
                         ExchangePolicy* policy) {
  const std::string key = absl::StrCat("override:", std::string(pattern));
  if (pattern.empty()) {
    return Refuse(key, value, "but no pattern follows the colon");
  }
  if (policy->overrides.size() == kMaxOverrides) {
    return Refuse(key, value, "the 65th override; at most 64 are allowed");
  }
  CodecOverride& added = policy->overrides.emplace_back();
  added.match = std::string(pattern);
  ASSIGN_OR_RETURN(added.codec, ParseCodec(key, value));
  return absl::OkStatus();
}

absl::Status SetKey(std::string_view key, std::string_view value,
                    ExchangePolicy* policy) {
  constexpr std::string_view kOverride = "override:";
  if (key.starts_with(kOverride)) {
    return AddOverride(key.substr(kOverride.size()), value, policy);
  }
  if (key == "weights.codec" || key == "gradients.codec") {
    ASSIGN_OR_RETURN(const CodecId codec, ParseCodec(key, value));
    Set(codec, key == "weights.codec" ? &policy->weights : &policy->gradients);
    return absl::OkStatus();
  }
  if (key == "gradients.error_feedback") {
    return SetFeedback(key, value, policy);
  }
  if (key == "weights.mode") return SetMode(key, value, policy);
  if (key == "weights.resync_every_steps") {
    return SetResync(key, value, policy);
  }
  if (key == "weights.block") return SetBlock(key, value, &policy->weights);
  if (key == "gradients.block") return SetBlock(key, value, &policy->gradients);
  if (key == "gradients.hadamard" || key == "gradients.range" ||
      key == "gradients.rounding") {
    return SetGradientKey(key, value, &policy->gradients.block);
  }
  if (key == "max_relative_error") return SetBudget(key, value, policy);
  if (key == "metering.one_in") return SetOneIn(key, value, policy);
  if (key == "secondary_partition") return SetPartition(key, value, policy);
  if (key == "partition_nodes") return SetPartitionNodes(key, value, policy);
  if (key == "resident_bytes") return SetResidentBytes(key, value, policy);
  if (key == "seed") {
    return ParseNumber(key, value, "use a number of 64 bits", &policy->seed);
  }
  for (const FixedKey& fixed : kFixedKeys) {
    if (key != fixed.key) continue;
    return value == fixed.value ? absl::OkStatus()
                                : Refuse(key, value, fixed.rule);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "exchange: key ", base::Quoted(key),
      " is unknown; known are weights.codec, weights.block, weights.mode, "
      "weights.resync_every_steps, gradients.codec, gradients.block, "
      "gradients.hadamard, gradients.range, "
      "gradients.rounding, gradients.error_feedback, secondary_partition, "
      "resident_bytes, partition_nodes, max_relative_error, metering.one_in, "
      "seed, strict and "
      "override:PATTERN"));
}

absl::StatusOr<ExchangePolicy> Preset(std::string_view name) {
  ExchangePolicy policy;
  if (name == "exact") return policy;
  if (name == "zeropp") {
    policy.weights = {CodecId::kInt8, {8, 256}};
    policy.gradients = {CodecId::kInt4, {4, 128}};
    policy.opt_out_elements = kPresetOptOutElements;
    return policy;
  }
  if (name == "delta4" || name == "delta2") {
    policy.weights = name == "delta4" ? CodecChoice{CodecId::kInt4, {4, 2048}}
                                      : CodecChoice{CodecId::kInt2, {2, 2048}};
    policy.weight_mode = WeightMode::kDelta;
    policy.gradients = {CodecId::kInt4, {4, 128}};
    policy.gradients.block.hadamard = kernels::kHadamardElements;
    policy.opt_out_elements = kPresetOptOutElements;
    return policy;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "exchange preset ", base::Quoted(name),
      " is unknown; this daemon serves \"exact\", \"zeropp\", \"delta4\" and "
      "\"delta2\", and keys as in \"zeropp gradients.block=64\""));
}

Words Split(std::string_view text) {
  Words words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// What no key is wrong by itself.
absl::Status CheckWhole(const ExchangePolicy& policy, const Words& keys) {
  const bool is_delta = policy.weight_mode == WeightMode::kDelta;
  if (is_delta && !policy.weights.quantizes()) {
    return Refuse("weights.mode", "delta",
                  absl::StrCat("but weights.codec is none; use ",
                               CodecNames(QuantizesDeltas, "or")));
  }
  const CodecRow& weights = *FindCodec(policy.weights.codec);
  if (is_delta && !weights.for_deltas) {
    return Refuse("weights.codec", weights.name,
                  absl::StrCat("which needs weights.mode=value; use ",
                               CodecNames(QuantizesDeltas, "or")));
  }
  if (!is_delta && !weights.for_values) {
    return Refuse("weights.codec", weights.name,
                  absl::StrCat("which needs weights.mode=delta; use ",
                               CodecNames(QuantizesValues, "or")));
  }
  const bool overrides_quantize = std::ranges::any_of(
      policy.overrides,
      [](const CodecOverride& one) { return one.codec != CodecId::kNone; });
  if (policy.error_feedback && !policy.gradients.quantizes() &&
      !overrides_quantize) {
    return Refuse("gradients.error_feedback", "true",
                  "but gradients.codec is none; use false, or a codec");
  }
  if (policy.max_relative_error > 0) {
    const std::string budget = absl::StrCat(policy.max_relative_error);
    if (policy.metered_one_in == 0) {
      return Refuse("max_relative_error", budget,
                    "which needs measured errors; leave out metering.one_in=0");
    }
    const bool quantizes = policy.weights.quantizes() ||
                           policy.gradients.quantizes() || overrides_quantize;
    if (!quantizes) {
      return Refuse("max_relative_error", budget,
                    "but no codec has an error; use null, or a codec");
    }
    if (policy.gathers_weights) {
      return Refuse("max_relative_error", budget,
                    "which needs weights on every node; use null, or "
                    "secondary_partition=node");
    }
  }
  if (is_delta && policy.gathers_weights) {
    return Refuse("secondary_partition", "none",
                  "but weights.mode is delta, and without a published copy on "
                  "every node there is nothing to differ from; use "
                  "weights.mode=value or secondary_partition=node");
  }
  if (!policy.gathers_weights && policy.resident_bytes > 0) {
    return Refuse("resident_bytes", absl::StrCat(policy.resident_bytes),
                  "which needs secondary_partition=none");
  }
  constexpr std::string_view kResync = "weights.resync_every_steps";
  if (!is_delta && std::ranges::find(keys, kResync) != keys.end()) {
    return Refuse(kResync, absl::StrCat(policy.resync_every_steps),
                  "which needs weights.mode=delta");
  }
  return absl::OkStatus();
}

void AddChoice(const CodecChoice& choice, Digest* digest) {
  digest->Add(static_cast<int64_t>(choice.codec));
  // Overrides may quantize where the path does not.
  digest->Add(static_cast<int64_t>(kernels::PackSpec(choice.block)));
}

}  // namespace

CodecChoice CodecChoice::With(CodecId other) const {
  CodecChoice choice = *this;
  Set(other, &choice);
  return choice;
}

absl::StatusOr<ExchangePolicy> ParsePolicy(std::string_view text) {
  if (text.size() > kMaxPolicyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("exchange: a policy of ", text.size(), " bytes; at most ",
                     kMaxPolicyBytes, " are allowed"));
  }
  const Words words = Split(text);
  if (words.empty()) {
    return absl::InvalidArgumentError(
        "exchange: the policy is empty; use \"exact\", \"zeropp\" or "
        "\"delta4\"");
  }
  size_t next = words[0].find('=') == std::string_view::npos ? 1 : 0;
  ASSIGN_OR_RETURN(ExchangePolicy policy,
                   Preset(next == 1 ? words[0] : std::string_view("exact")));
  Words keys;
  for (; next < words.size(); ++next) {
    const size_t equals = words[next].rfind('=');
    if (equals == std::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("exchange: ", base::Quoted(words[next]),
                       " is not KEY=VALUE; a preset comes first"));
    }
    const std::string_view key = words[next].substr(0, equals);
    if (std::ranges::find(keys, key) != keys.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "exchange: ", base::Quoted(key), " is given twice; give it once"));
    }
    keys.push_back(key);
    RETURN_IF_ERROR(SetKey(key, words[next].substr(equals + 1), &policy));
  }
  RETURN_IF_ERROR(CheckWhole(policy, keys));
  return policy;
}

absl::Status CheckNodes(const ExchangePolicy& policy, int num_nodes) {
  const int nodes = policy.partition_nodes;
  if (nodes == 0 || nodes == num_nodes) return absl::OkStatus();
  const std::string value = absl::StrCat(nodes);
  if (num_nodes % nodes != 0) {
    std::string divisors;
    for (int n = 1; n < num_nodes; ++n) {
      if (num_nodes % n == 0) absl::StrAppend(&divisors, n, ", ");
    }
    return Refuse("partition_nodes", value,
                  absl::StrCat("which does not divide the job's ", num_nodes,
                               " nodes; use ", divisors,
                               divisors.empty() ? "all" : "or all"));
  }
  if (policy.error_feedback) {
    return Refuse(
        "gradients.error_feedback", "true",
        absl::StrCat("but partition_nodes is ", nodes, " of ", num_nodes,
                     " nodes, and what encoding takes from the sum "
                     "of a partition group is fed back to nobody; "
                     "use false, or partition_nodes=all"));
  }
  return absl::OkStatus();
}

std::string PolicyDigest(const ExchangePolicy& policy) {
  Digest digest;
  digest.Add("ballast exchange 1");
  AddChoice(policy.weights, &digest);
  AddChoice(policy.gradients, &digest);
  if (policy.weight_mode == WeightMode::kDelta) {
    digest.Add("delta 1").Add(policy.resync_every_steps);
  }
  if (policy.metered_one_in != kDefaultMeteredOneIn) {
    digest.Add("metering 1").Add(policy.metered_one_in);
  }
  if (policy.error_feedback) digest.Add("error feedback 1");
  if (policy.max_relative_error > 0) {
    digest.Add("error budget 1")
        .Add(std::bit_cast<int64_t>(policy.max_relative_error));
  }
  if (policy.gathers_weights) {
    digest.Add("gathered 1").Add(static_cast<int64_t>(policy.resident_bytes));
  }
  if (policy.partition_nodes > 0) {
    digest.Add("partition groups 1").Add(policy.partition_nodes);
  }
  digest.Add(policy.opt_out_elements);
  digest.Add(static_cast<int64_t>(policy.seed));
  digest.Add(static_cast<int64_t>(policy.overrides.size()));
  for (const CodecOverride& one : policy.overrides) {
    digest.Add(one.match).Add(static_cast<int64_t>(one.codec));
  }
  return digest.ToHex();
}

TensorCodecs CodecsOf(const ExchangePolicy& policy, std::string_view tensor,
                      int64_t num_elements) {
  TensorCodecs codecs{policy.weights, policy.gradients};
  std::optional<CodecId> codec;
  if (num_elements <= policy.opt_out_elements) codec = CodecId::kNone;
  for (const CodecOverride& one : policy.overrides) {
    if (MatchesPattern(one.match, tensor)) codec = one.codec;
  }
  if (codec.has_value()) {
    Set(*codec, &codecs.weights);
    Set(*codec, &codecs.gradients);
  }
  return codecs;
}

// Goes back to the last star only: linear in the product of the lengths.
bool MatchesPattern(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) &&
        pattern[p] != '*') {
      ++p;
      ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace ballast::layout
