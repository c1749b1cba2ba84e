// How a run of elements looks between nodes: the one interface of all codecs.
//
// A run is whole cells of one tensor (the last one may end with the tensor).
// What a cell encodes to depends on the cell, its place in the tensor and the
// key alone, so that cuts of buckets, shards and chunks change no value.
//
//   fp32 ── Encode ──▶ EncodedBytes(count) ── Decode ──▶ fp32
//
// A new codec: its own file, with a maker; a row in server/layout/codec_table,
// and a line in codec_registry.cc that gives the row's id the maker.
// codec_conformance_test runs it then.
//
// Threading: immutable; thread-safe on disjoint outputs. No allocation.
#ifndef SERVER_COLLECTIVE_CODEC_H_
#define SERVER_COLLECTIVE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/codec.h"

namespace ballast::collective {

// The most that a codec may take for a whole cell: fp32 and a scale per 32
// elements. Errors are measured in memory of that size (error_sums.h).
inline constexpr int64_t kMaxCellBytes = kernels::kCellElements * 5;

// No codec keeps anything between steps: what it takes from a node's sum
// belongs to the sum, is kept, committed and resharded with it, and outlives a
// change of codec (kernels/FORMAT.md 10).
struct CodecTraits {
  std::string_view name;
  bool is_exact = false;       // decodes to the bits that were encoded
  bool is_stochastic = false;  // the key counts
};

struct Run {
  uint64_t key = 0;   // kernels::StochasticKey
  int64_t first = 0;  // element of the tensor; a multiple of kCellElements
  int64_t count = 0;
};

class Codec {
 public:
  virtual ~Codec() = default;

  virtual const CodecTraits& traits() const = 0;

  // What a run takes in a buffer, a multiple of kernels::kRunAlignment; and
  // how much of it is payload: no alignment. 0 elements take 0 bytes.
  virtual int64_t EncodedBytes(int64_t count) const = 0;
  virtual int64_t PayloadBytes(int64_t count) const = 0;

  // Writes all of EncodedBytes(run.count). What is not finite decodes to
  // something that is not.
  virtual void Encode(const Run& run, const float* in,
                      std::byte* out) const = 0;
  // Any bytes decode to something.
  virtual void Decode(int64_t count, const std::byte* in, float* out) const = 0;
  // out[i] += decoded[i], in fp32.
  virtual void DecodeAdd(int64_t count, const std::byte* in,
                         float* out) const = 0;

  // How many elements Encode cuts off at the largest code; a sample's worth
  // of work (kernels.h).
  virtual int64_t CountClipped(const Run& run, const float* in) const = 0;

  // Of finite elements whose cell has no magnitude above `absmax`, unless the
  // value is beyond the largest of the codec's own type: |decoded - x|.
  virtual double ErrorBound(double absmax) const = 0;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CODEC_H_
