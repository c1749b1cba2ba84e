// The fields of GroupValues by name, so that whoever compares them (ranks of a
// node, nodes of a job) says the same words about a difference.
#ifndef PROTO_GROUP_VALUES_H_
#define PROTO_GROUP_VALUES_H_

#include <bit>
#include <cstdint>

#include "proto/control_block.h"

namespace ballast::proto {

struct GroupField {
  const char* name;
  double GroupValues::* value;
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

}  // namespace ballast::proto

#endif  // PROTO_GROUP_VALUES_H_
