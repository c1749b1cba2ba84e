// What tests of quantized exchanges stand on: whole tensors summed and encoded
// in one piece, without buckets, shards or cells (kernels/FORMAT.md 7).
#ifndef SERVER_COLLECTIVE_CODED_TESTING_H_
#define SERVER_COLLECTIVE_CODED_TESTING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/codec.h"
#include "kernels/exact_sum.h"
#include "kernels/reference/reference.h"
#include "kernels/stochastic.h"
#include "server/collective/collective_rig.h"
#include "server/layout/exchange_plan.h"
#include "server/layout/layout.h"
#include "server/layout/policy.h"

namespace ballast::collective {

struct Shape {
  int nodes;
  int workers;
};

inline std::vector<std::byte> EncodeWhole(const kernels::CodecSpec& spec,
                                          uint64_t key,
                                          const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(kernels::EncodedBytes(spec, count));
  kernels::Reference().encode(spec, key, 0, count, values.data(),
                              reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes;
}

inline std::vector<float> ThereAndBack(const layout::CodecChoice& choice,
                                       uint64_t key,
                                       std::vector<float> values) {
  if (!choice.quantizes()) return values;
  const std::vector<std::byte> bytes = EncodeWhole(choice.block, key, values);
  kernels::Reference().decode(choice.block, values.size(),
                              reinterpret_cast<const uint8_t*>(bytes.data()),
                              values.data());
  return values;
}

inline uint64_t KeyOf(const layout::ExchangePolicy& policy, size_t tensor,
                      int64_t step, int hop) {
  return kernels::StochasticKey(policy.seed, kRigJobKey, tensor, step, hop);
}

// The canonical tree over one node's ranks, of a whole tensor.
inline std::vector<float> NodeSum(const layout::Layout& layout,
                                  const MakeGradient& gradient, size_t tensor,
                                  int node, int workers) {
  const int64_t count = layout.places()[tensor].num_elements;
  std::vector<std::vector<std::byte>> gradients;
  std::vector<const void*> sources;
  for (int local = 0; local < workers; ++local) {
    gradients.push_back(gradient(layout.tensors()[tensor], count,
                                 static_cast<int>(tensor),
                                 node * workers + local));
    sources.push_back(gradients.back().data());
  }
  std::vector<float> sum(count);
  kernels::Reference().tree_sum(layout.tensors()[tensor].dtype, sources, count,
                                sum.data());
  return sum;
}

inline void AddTo(std::vector<float>* sum, const std::vector<float>& more) {
  if (sum->empty()) {
    *sum = more;
    return;
  }
  for (size_t e = 0; e < more.size(); ++e) (*sum)[e] += more[e];
}

// The sum over all nodes, in partition groups too.
inline std::vector<float> WholeSum(const layout::Layout& layout,
                                   const layout::ExchangePolicy& policy,
                                   const MakeGradient& gradient, Shape shape,
                                   size_t tensor, int64_t step) {
  if (!layout::ExchangePlan(policy, layout).quantizes_gradients()) {
    return NodeSum(layout, gradient, tensor, 0, shape.nodes * shape.workers);
  }
  const layout::CodecChoice codec =
      layout::CodecsOf(policy, layout.tensors()[tensor].name,
                       layout.places()[tensor].num_elements)
          .gradients;
  const layout::Topology topology{shape.nodes, shape.workers,
                                  policy.partition_nodes};
  std::vector<float> sum;
  for (int group = 0; group < topology.num_groups(); ++group) {
    std::vector<float> of_group;
    for (int i = 0; i < topology.num_owners(); ++i) {
      const int node = topology.NodeAt(group, NodeRank(i)).value();
      std::vector<float> of_node =
          NodeSum(layout, gradient, tensor, node, shape.workers);
      if (topology.num_owners() > 1) {
        of_node = ThereAndBack(codec, KeyOf(policy, tensor, step, node),
                               std::move(of_node));
      }
      AddTo(&of_group, of_node);
    }
    if (topology.num_groups() > 1) {
      of_group = ThereAndBack(
          codec, KeyOf(policy, tensor, step, shape.nodes + 1 + group),
          std::move(of_group));
    }
    AddTo(&sum, of_group);
  }
  return sum;
}

struct Expected {
  std::vector<std::vector<float>> means;
  kernels::ExactSum norm;
};

inline Expected WholeTensors(const layout::Layout& layout,
                             const std::string& text,
                             const MakeGradient& gradient, Shape shape,
                             int64_t step = 1) {
  const layout::ExchangePolicy policy = *layout::ParsePolicy(text);
  Expected expected;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    std::vector<float>& mean = expected.means.emplace_back();
    if (!layout.tensors()[i].trainable) continue;
    const int64_t count = layout.places()[i].num_elements;
    mean = WholeSum(layout, policy, gradient, shape, i, step);
    const auto world = static_cast<float>(shape.nodes * shape.workers);
    for (float& x : mean) x /= world;
    for (int64_t cell = 0; cell < count; cell += layout::kCellElements) {
      const kernels::CellNorm norm = kernels::Reference().cell_norm(
          mean.data() + cell, std::min(layout::kCellElements, count - cell));
      expected.norm.Add(norm.norm2);
    }
  }
  return expected;
}

inline bool SameBits(const std::vector<std::vector<float>>& a,
                     const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    if (!a[i].empty() && std::memcmp(a[i].data(), b[i].data(),
                                     a[i].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// What every segment holds after publishing, gaps as they were.
inline std::vector<std::byte> ExpectedWeights(const Rig& rig,
                                              const std::string& text,
                                              int nodes, int64_t step,
                                              std::vector<std::byte> weights) {
  const layout::ExchangePolicy policy = *layout::ParsePolicy(text);
  for (size_t i = 0; i < rig.layout().tensors().size(); ++i) {
    const layout::TensorSpec& tensor = rig.layout().tensors()[i];
    if (!tensor.trainable) continue;
    const int64_t count = rig.layout().places()[i].num_elements;
    const layout::TensorCodecs codecs =
        layout::CodecsOf(policy, tensor.name, count);
    const std::vector<float> published =
        ThereAndBack(codecs.weights, KeyOf(policy, i, step, nodes),
                     MasterValues(count, static_cast<int>(i)));
    kernels::Reference().cast(
        published.data(), tensor.dtype, count,
        weights.data() + rig.layout().places()[i].weight_offset);
  }
  return weights;
}

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CODED_TESTING_H_
