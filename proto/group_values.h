// The fields of GroupValues by name, and how a difference is told, so that
// whoever compares them (ranks of a node, nodes of a job) says the same words.
#ifndef PROTO_GROUP_VALUES_H_
#define PROTO_GROUP_VALUES_H_

#include <bit>
#include <charconv>
#include <cstdint>
#include <string>

#include "proto/control_block.h"

namespace ballast::proto {

struct GroupField {
  const char* name;
  double GroupValues::*value;
};

inline constexpr GroupField kGroupFields[] = {
    {"lr", &GroupValues::lr},
    {"beta1", &GroupValues::beta1},
    {"beta2", &GroupValues::beta2},
    {"eps", &GroupValues::eps},
    {"weight_decay", &GroupValues::weight_decay},
    {"momentum", &GroupValues::momentum},
    {"dampening", &GroupValues::dampening},
    {"nesterov", &GroupValues::nesterov},
    {"lr_decay", &GroupValues::lr_decay},
    {"initial_accumulator_value", &GroupValues::initial_accumulator_value},
    {"max_norm", &GroupValues::max_norm},
    {"load", &GroupValues::load},
};

// The first field whose bits differ (so 0.0 and -0.0 do, equal NaNs do not);
// null if there is none.
constexpr const GroupField* FirstDifference(const GroupValues& a,
                                            const GroupValues& b) {
  for (const GroupField& field : kGroupFields) {
    if (std::bit_cast<uint64_t>(a.*field.value) !=
        std::bit_cast<uint64_t>(b.*field.value)) {
      return &field;
    }
  }
  return nullptr;
}

// "param group 0: lr is 0.001 on rank 0 but 0.002 on rank 2; …". Numbers in
// the shortest form that reads back to the same bits.
inline std::string DescribeDifference(int group, const GroupField& field,
                                      const GroupValues& a, int rank_a,
                                      const GroupValues& b, int rank_b) {
  const auto number = [&field](const GroupValues& values) {
    char text[32];
    const auto end =
        std::to_chars(text, text + sizeof(text), values.*field.value);
    return std::string(text, end.ptr);
  };
  return "param group " + std::to_string(group) + ": " + field.name + " is " +
         number(a) + " on rank " + std::to_string(rank_a) + " but " +
         number(b) + " on rank " + std::to_string(rank_b) +
         "; all ranks must pass the same value";
}

}  // namespace ballast::proto

#endif  // PROTO_GROUP_VALUES_H_
