// A node's shards of the weights where they are kept as they travel, encoded
// (secondary_partition=none with a policy that quantizes weights): what a
// snapshot stores of them is what everybody decodes.
//
// Threading: as each function says. They change as masters do: a chunk is
// encoded anew only after UpdateGuard::BeforeUpdate of it.
#ifndef SERVER_SNAPSHOT_ENCODED_WEIGHTS_H_
#define SERVER_SNAPSHOT_ENCODED_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace ballast::snapshot {

class EncodedWeights {
 public:
  virtual ~EncodedWeights() = default;
  // Control thread, while nothing is updated: whether the version that is shown
  // is encoded. Initial and stored values are in their WeightPlaces.
  virtual bool is_encoded() const = 0;
  // Any thread: piece `piece` of own chunk `chunk` (over the node's chunks, in
  // bucket order), decoded, in its tensor's type. `scratch`: room for so many
  // floats.
  virtual void Decode(int64_t chunk, size_t piece, std::span<float> scratch,
                      std::span<std::byte> into) const = 0;
};

}  // namespace ballast::snapshot

#endif  // SERVER_SNAPSHOT_ENCODED_WEIGHTS_H_
