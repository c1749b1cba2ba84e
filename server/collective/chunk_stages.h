// Which chunks of the published weights may be touched on the control thread
// just now.
//
// Threading: control thread only.
#ifndef SERVER_COLLECTIVE_CHUNK_STAGES_H_
#define SERVER_COLLECTIVE_CHUNK_STAGES_H_

#include <vector>

#include "server/collective/published_chunks.h"

namespace ballast::collective {

enum class ChunkStage : unsigned char {
  kQuiet,    // no task has it: bits and entry belong together, if sound
  kInWork,   // a task in the pool reads or writes it
  kDamaged,  // it has lost its bits, and is being healed
};

class ChunkStages {
 public:
  // `published` outlives this.
  explicit ChunkStages(const PublishedChunks* published)
      : published_(published), stages_(published->num_chunks()) {}

  ChunkStage of(const ChunkId& id) const {
    return stages_[published_->IndexOf(id)];
  }
  void Set(const ChunkId& id, ChunkStage stage) {
    stages_[published_->IndexOf(id)] = stage;
  }

 private:
  const PublishedChunks* const published_;
  std::vector<ChunkStage> stages_;
};

}  // namespace ballast::collective

#endif  // SERVER_COLLECTIVE_CHUNK_STAGES_H_
